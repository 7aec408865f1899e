"""Prompts as token ids: the target's way, and other ways that they may have been made into ids."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from pydantic import ValidationError
from transformers import PreTrainedTokenizerBase

from eagle3.config import RunConfig, explain, load_recipe
from eagle3.data.chat import prompt_ids
from eagle3.data.prompts import RawPrompt, read_prompts
from eagle3.data.records import turns
from eagle3.diagnose.case import Rendered
from eagle3.errors import BadInput
from eagle3.target import load_tokenizer


def rows(source: str, count: int) -> list[RawPrompt]:
    """The first prompts of a set; of the demo set, those that are held out.

    Raises:
        BadInput: it cannot be read.
    """
    recipe = load_recipe("quick")
    try:
        recipe = recipe.with_prompts({"source": source})
        config = RunConfig(target="demo", prompts=recipe.prompts, recipe=recipe)
    except (ValidationError, ValueError) as e:
        text = explain(e) if isinstance(e, ValidationError) else str(e)
        raise BadInput(f"{source}: {text}", "name a JSONL file of prompts") from None
    found = read_prompts(config)
    return ([row for row in found if row.split == "heldout"] or found)[:count]


def as_served(tokenizer: PreTrainedTokenizerBase, found: Sequence[RawPrompt]) -> list[list[int]]:
    """Up to the first answer, through the tokenizer's chat template."""
    return [_ids(tokenizer, row) for row in found]


def renderings(target: Path, draft: Path, found: Sequence[RawPrompt]) -> Iterator[Rendered]:
    """The same prompts by the tokenizer in the draft's own directory, and without any template."""
    texts = [row for row in found if row.tokens is None]
    if len(texts) < len(found):
        return  # ids are what they are
    if (draft / "tokenizer_config.json").is_file():
        own = load_tokenizer(draft)
        yield Rendered(
            "by the tokenizer and template in the draft's directory", as_served(own, texts)
        )
    tokenizer = load_tokenizer(target)
    raw = [tokenizer("\n".join(_said(row))).input_ids for row in texts]
    yield Rendered("as plain text, without the chat template", raw)


def _ids(tokenizer: PreTrainedTokenizerBase, row: RawPrompt) -> list[int]:
    if row.tokens is not None:
        return row.tokens.ids[: row.tokens.spans[0][0]]
    asked = turns(row.messages)
    return prompt_ids(tokenizer, asked[0] if asked else row.messages, row.tools)


def _said(row: RawPrompt) -> list[str]:
    asked = turns(row.messages)
    return [str(message["content"]) for message in (asked[0] if asked else row.messages)]
