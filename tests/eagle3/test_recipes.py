"""The recipes that ship, and the page about them."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import SecretStr, ValidationError

from eagle3.config import PromptsConfig, Recipe, load_recipe, recipe_names
from eagle3.config.document import notes, paths, recipes_markdown
from jobs.errors import InvalidSpec
from jobs.settings import Settings
from jobs.spec import check_allowed, parse_spec

PAGE = Path(__file__).parents[2] / "docs" / "recipes.md"


def test_the_page_is_current() -> None:
    assert PAGE.read_text() == recipes_markdown(), "run: python -m jobs.generate"


def test_every_field_says_what_it_is_in_which_unit_and_why() -> None:
    known = notes()
    assert sorted(known) == sorted(paths()), "eagle3/config/fields.yaml and the models differ"
    assert [path for path, (unit, why) in known.items() if not why or unit is None] == []
    schema = Recipe.model_json_schema()
    models = {"Recipe": schema, **schema["$defs"]}
    undocumented = [
        f"{name}.{key}"
        for name, model in models.items()
        for key, field in model["properties"].items()
        if "description" not in field and "$ref" not in field
    ]
    assert undocumented == []


def test_the_recipes_that_ship() -> None:
    assert recipe_names() == ["domain", "paper", "quick", "reasoning", "standard"]
    assert all(load_recipe(name).name == name for name in recipe_names())


def test_paper_has_the_published_values() -> None:
    recipe = load_recipe("paper")
    train = recipe.train
    assert (train.ttt_steps, train.step_decay, train.draft_vocab_size) == (7, 0.8, 32000)
    assert (train.learning_rate, train.betas, train.weight_decay) == (5e-5, (0.9, 0.95), 0.0)
    assert (train.grad_clip, train.warmup_steps, train.schedule) == (0.5, 12000, "linear")
    assert (train.max_length, train.batch_tokens, train.accumulate) == (2048, 2048, 2)
    refs = [source.ref for source in recipe.prompts.sources]
    assert [(ref.location, ref.split) for ref in refs] == [
        ("Aeala/ShareGPT_Vicuna_unfiltered", "train[:68000]"),
        ("HuggingFaceH4/ultrachat_200k", "train_sft"),
        ("HuggingFaceH4/ultrachat_200k", "train_gen"),
    ]


def test_what_a_run_says_about_prompts_takes_the_place_of_the_recipes_own() -> None:
    paper = load_recipe("paper")
    assert paper.with_prompts({}).prompts == paper.prompts
    limited = paper.with_prompts({"limit": 1000}).prompts
    assert (limited.limit, limited.mix) == (1000, paper.prompts.mix)
    own = paper.with_prompts({"source": "mine.jsonl", "column": "q"}).prompts
    assert (own.name, own.column, own.mix) == ("mine.jsonl", "q", ())
    assert own.exclude == paper.prompts.exclude
    again = paper.with_prompts(limited.model_dump(mode="json")).prompts
    assert again == limited
    with pytest.raises(ValidationError, match="either source"):
        paper.with_prompts({"source": "a.jsonl", "mix": [{"source": "b.jsonl"}]})


def test_domain_wants_prompts_of_ones_own() -> None:
    domain = load_recipe("domain")
    with pytest.raises(ValueError, match=r"recipe domain is for prompts of your own; name them"):
        domain.with_prompts({"limit": 100})
    assert domain.with_prompts({"source": "log.jsonl"}).prompts.bad_rows == 0.01


class TestJobs:
    def test_a_job_gets_the_prompts_of_its_recipe(self) -> None:
        spec = parse_spec({"target": "demo", "recipe": "paper", "prompts": {"limit": 100}})
        assert spec.prompts.mix == load_recipe("paper").prompts.mix
        assert spec.resolved_recipe().prompts == spec.prompts
        assert parse_spec(spec.model_dump(mode="json")) == spec
        assert parse_spec({"target": "demo", "recipe": "quick"}).prompts == PromptsConfig()

    def test_a_job_without_the_prompts_it_needs_is_refused(self) -> None:
        with pytest.raises(InvalidSpec) as e:
            parse_spec({"target": "demo", "recipe": "domain"})
        [error] = e.value.errors
        assert error["pointer"] == "prompts"
        assert "name them as prompts.source" in error["detail"]

    @pytest.mark.parametrize(
        ("prompts", "pointer"),
        [
            ({"mix": [{"source": "org/set"}, {"source": "/etc/passwd"}]}, "prompts.mix.1.source"),
            ({"exclude": [{"source": "./secrets"}]}, "prompts.exclude.0.source"),
            ({"source": "~/x.parquet"}, "prompts.source"),
        ],
    )
    def test_every_place_that_a_job_reads_must_be_allowed(
        self, prompts: dict[str, object], pointer: str
    ) -> None:
        settings = Settings(
            mode="full",
            database_url="postgresql://h/d",
            broker_url="redis://h",
            store_url="s3://b/p",
            mlflow_tracking_uri="http://h",
            api_key_pepper=SecretStr("x" * 32),
        )
        with pytest.raises(InvalidSpec) as e:
            check_allowed(parse_spec({"target": "demo", "prompts": prompts}), settings)
        assert [error["pointer"] for error in e.value.errors] == [pointer]
