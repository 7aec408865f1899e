"""Which targets an installed vLLM can draft for with EAGLE-3, read from its source.

A target's class must have the interface `SupportsEagle3`; vLLM looks for it only after it has
loaded the weights. On a CPU the target's heads must have one of a few sizes; vLLM finds that out at
the first question. Its files are parsed here, not imported, which would take 20 seconds and an
environment of its own. A class counts where the name stands among its bases or theirs, in the
modules of `vllm/model_executor/models`.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

INTERFACE = "SupportsEagle3"
TABLES = ("_TEXT_GENERATION_MODELS", "_MULTIMODAL_MODELS", "_TRANSFORMERS_SUPPORTED_MODELS")
"""The registry's tables of targets: architecture to (module, class)."""


def supports(package: Path, architecture: str) -> bool | None:
    """Whether vLLM drafts for a target of this architecture.

    Args:
        package: the installed directory `vllm`.
        architecture: as in the target's `config.json`.

    Returns:
        None where vLLM does not list it: it may run by way of transformers, or not at all.
    """
    models = package / "model_executor" / "models"
    found = _registry(models).get(architecture)
    return None if found is None else _has_interface(models, *found)


def supported(package: Path) -> list[str]:
    """Every listed architecture that it drafts for."""
    models = package / "model_executor" / "models"
    return sorted(
        name for name, found in _registry(models).items() if _has_interface(models, *found)
    )


@cache
def cpu_head_sizes(package: Path) -> tuple[int, ...]:
    """Sizes of an attention head that its attention on a CPU has; empty where it does not say."""
    path = package / "v1" / "attention" / "backends" / "cpu_attn.py"
    for node in ast.walk(_parsed(path)) if path.is_file() else ():
        match node:
            case ast.FunctionDef(name="get_supported_head_sizes", body=[ast.Return(value=found)]):
                return tuple(ast.literal_eval(found)) if isinstance(found, ast.List) else ()
    return ()


@cache
def _registry(models: Path) -> dict[str, tuple[str, str]]:
    """Architecture to module and class, from the literal entries of the registry's tables."""
    out: dict[str, tuple[str, str]] = {}
    for node in _parsed(models / "registry.py").body:
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Dict() as table) if (
                name in TABLES
            ):
                for key, value in zip(table.keys, table.values, strict=True):
                    if isinstance(key, ast.Constant) and isinstance(value, ast.Tuple):
                        out[str(key.value)] = ast.literal_eval(value)
    return out


@cache
def _has_interface(models: Path, module: str, name: str) -> bool:
    if name == INTERFACE:
        return True
    path = models / f"{module}.py"
    path = path if path.is_file() else models / module / "__init__.py"
    if not path.is_file():
        return False
    imported: dict[str, tuple[str, str]] = {}
    for node in ast.walk(_parsed(path)):
        match node:
            case ast.ClassDef(name=found) if found == name:
                bases = [base.id for base in node.bases if isinstance(base, ast.Name)]
                return any(_has_interface(models, *imported.get(b, (module, b))) for b in bases)
            case ast.ImportFrom(module=source, names=names) if source:
                where = _within_models(source, node.level, path, models)
                imported |= {a.asname or a.name: (where, a.name) for a in names if where}
    where_, original = imported.get(name, ("", ""))
    return bool(where_) and _has_interface(models, where_, original)


def _within_models(source: str, level: int, path: Path, models: Path) -> str:
    """An imported module's path under `models`, without its ending; empty for another's."""
    if level == 0:
        head, _, tail = source.partition("vllm.model_executor.models.")
        return "" if head else tail.replace(".", "/")
    module = path.parents[level - 1] / source.replace(".", "/")
    return str(module.relative_to(models)) if module.is_relative_to(models) else ""


@cache
def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text())
