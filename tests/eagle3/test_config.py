"""Target references and recipes: what is accepted, and what the refusals say."""

from __future__ import annotations

from pathlib import Path

import pytest
from pydantic import ValidationError

from eagle3.config import RunConfig, TargetRef, explain, load_recipe, recipe_names


@pytest.mark.parametrize(
    ("text", "kind", "location", "revision"),
    [
        ("demo", "demo", "", None),
        ("org/name", "hub", "org/name", None),
        ("Qwen/Qwen3-4B@main", "hub", "Qwen/Qwen3-4B", "main"),
        ("org/name@refs/pr/3", "hub", "org/name", "refs/pr/3"),
        ("s3://bucket/some/prefix", "s3", "s3://bucket/some/prefix", None),
        ("models:/name/3", "mlflow", "name", "3"),
        ("models:/name@champion", "mlflow", "name", "@champion"),
        ("file:///abs/dir", "file", "/abs/dir", None),
        ("gguf:/abs/file.gguf", "gguf", "/abs/file.gguf", None),
    ],
)
def test_every_form_parses_and_prints_back(
    text: str, kind: str, location: str, revision: str | None
) -> None:
    ref = TargetRef.parse(text)
    assert (ref.kind, ref.location, ref.revision) == (kind, location, revision)
    assert str(ref) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "name",
        "local_dir",
        "../../etc",
        "a/../b",
        "/etc/passwd",
        "a/b/c",
        "https://host/a/b",
        "a/b\n",
        "file://relative",
        "file:///a/../b",
        "gguf:/abs/file.bin",
        "s3://bucket",
        "s3://bucket/../x",
        "models:/name",
        "org/na--me",
    ],
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="target"):
        TargetRef.parse(text)


def test_recipes_load_and_take_overrides() -> None:
    assert {"quick", "standard"} <= set(recipe_names())
    recipe = load_recipe("quick", {"train": {"epochs": 1.5}, "seed": 7})
    assert (recipe.train.epochs, recipe.seed) == (1.5, 7)
    assert recipe.train.ttt_steps == load_recipe("quick").train.ttt_steps


def test_a_recipe_file_that_was_changed_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    for seed in (1, 2):
        file.write_text(f"name: mine\nseed: {seed}\n")
        assert load_recipe(str(file), {"train": {"epochs": 1}}).seed == seed


def test_an_unknown_key_is_named_with_its_full_path() -> None:
    with pytest.raises(ValidationError) as caught:
        load_recipe("quick", {"train": {"epoch": 3}})
    assert "train.epoch: Extra inputs are not permitted" in explain(caught.value)


def test_an_unknown_recipe_names_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"'slow' does not exist; expected .*quick"):
        load_recipe("slow")


def test_drafting_deeper_than_trained_is_refused() -> None:
    with pytest.raises(ValidationError, match=r"deeper than train.ttt_steps"):
        load_recipe("quick", {"benchmark": {"depth": 9}})


def test_a_tree_that_is_to_be_chosen_is_no_deeper_than_trained() -> None:
    recipe = load_recipe("quick", {"benchmark": {"depth": "auto", "top_k": "auto"}})
    assert recipe.draft_depth == recipe.train.ttt_steps
    bench = recipe.benchmark
    assert bench.chooses
    with pytest.raises(ValueError, match="has not run"):
        _ = bench.shape
    assert bench.chosen({}) == bench
    summary = {"depth": 2, "top_k": 4, "total_tokens": 6, "tau": 1.5}
    assert bench.chosen(summary).shape == (2, 4, 6)
    assert load_recipe("quick").benchmark.chosen(summary).shape == (3, 1, None)


def test_a_run_needs_a_target_that_parses() -> None:
    with pytest.raises(ValidationError, match="is not a reference"):
        RunConfig(target="what", recipe=load_recipe("quick"))
