"""`docs/recipes.md`, written from the models, so that it says what the code does.

`recipes.md` here comes first, then a table of each section, with units and reasons from
`fields.yaml`.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import yaml
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from eagle3.config.prompts import PromptSource, WeightedSource
from eagle3.config.recipe import Recipe, load_recipe, recipe_names


def recipes_markdown() -> str:
    """The whole page."""
    recipes = {name: load_recipe(name) for name in recipe_names()}
    listed = "\n".join(f"- `{name}`: {recipe.description}" for name, recipe in recipes.items())
    parts = [_file("recipes.md").replace("<!-- the recipes -->", listed)]
    top = {k: f for k, f in Recipe.model_fields.items() if _section(f) is None}
    parts.append("## The top\n\n" + _table("", top, recipes))
    for name, field in Recipe.model_fields.items():
        if section := _section(field):
            doc = " ".join((section.__doc__ or "").split())
            parts.append(f"## `{name}`\n\n{doc}\n\n" + _table(name, section.model_fields, recipes))
    shape = {**PromptSource.model_fields, "weight": WeightedSource.model_fields["weight"]}
    rows = "\n".join(f"| `{key}` | {_text(field)} |" for key, field in shape.items())
    parts.append(
        "## An item of `prompts.mix` and `prompts.exclude`\n\n"
        f"(`weight` in a mixture alone.)\n\n| field | meaning |\n|---|---|\n{rows}\n"
    )
    return "\n".join(parts)


def notes() -> dict[str, tuple[str, str]]:
    """Unit and reason of every field, by its path."""
    fields = yaml.safe_load(_file("fields.yaml"))
    return {path: (unit, why) for path, (unit, why) in fields.items()}


def paths() -> list[str]:
    """The path of every field: `seed`, `train.epochs` and so on."""
    found = []
    for name, field in Recipe.model_fields.items():
        section = _section(field)
        found += [f"{name}.{key}" for key in section.model_fields] if section else [name]
    return found


def _file(name: str) -> str:
    return resources.files("eagle3.config").joinpath(name).read_text(encoding="utf-8")


def _section(field: FieldInfo) -> type[BaseModel] | None:
    kind = field.annotation
    return kind if isinstance(kind, type) and issubclass(kind, BaseModel) else None


def _table(section: str, fields: dict[str, FieldInfo], recipes: dict[str, Recipe]) -> str:
    known = notes()
    rows = []
    for key, field in fields.items():
        path = f"{section}.{key}" if section else key
        unit, why = known[path]
        set_by = _set_by(path, field, recipes)
        default = "required" if field.is_required() else _value(field.default)
        meaning = _text(field) + (f" *Why:* {why}" if why else "")
        cells = (
            f"`{key}`",
            " ".join(filter(None, (unit, _limits(field)))),
            default,
            meaning,
            set_by,
        )
        rows.append(f"| {' | '.join(cell or '—' for cell in cells)} |")
    head = "| field | unit | default | meaning | set by recipes |\n|---|---|---|---|---|\n"
    return head + "\n".join(rows) + "\n"


def _set_by(path: str, field: FieldInfo, recipes: dict[str, Recipe]) -> str:
    """What the recipes that set a field set it to."""
    if path in ("name", "description"):
        return ""
    found = []
    for name, recipe in recipes.items():
        value: Any = recipe
        for part in path.split("."):
            value = getattr(value, part)
        if path in ("prompts.mix", "prompts.exclude"):
            value = tuple(str(one.source) for one in value)
        if value != field.default:
            found.append(f"{name} {_value(value)}")
    return ", ".join(found)


def _limits(field: FieldInfo) -> str:
    """`≥ 8`, `> 0, ≤ 1`, `< 2147483648` and the like."""
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    found = []
    for limit in field.metadata:
        found += [f"{s} {getattr(limit, k):g}" for k, s in signs.items() if hasattr(limit, k)]
    return ", ".join(found)


def _text(field: FieldInfo) -> str:
    return " ".join((field.description or "").split()).replace("|", "\\|")


def _value(value: Any) -> str:
    if value is None or value == () or value == "":
        return "empty"
    if isinstance(value, float):
        return f"`{value:g}`"
    return f"`{json.dumps(value, default=str)}`" if not isinstance(value, str) else f"`{value}`"
