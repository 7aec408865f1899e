"""Stage `prepare`: one clean list of prompts, a part of it held out."""

from __future__ import annotations

import math
import random
from collections import Counter
from dataclasses import replace
from typing import Any

from transformers import PreTrainedTokenizerBase

from eagle3.config import PromptsConfig
from eagle3.data.chat import prompt_ids
from eagle3.data.clean import (
    Tally,
    content_id,
    without_copies,
    without_near_copies,
    without_tests,
)
from eagle3.data.local import open_tokenizer, target_facts
from eagle3.data.prompts import (
    RawPrompt,
    check_bad_rows,
    prompt_content,
    read_excluded,
    read_prompts,
)
from eagle3.data.records import Prompt, Split, turns, write_records
from eagle3.data.tokenised import as_messages, check_round_trip, check_tokens
from eagle3.errors import BadInput
from eagle3.run import Context

MIN_TRAIN, MIN_HELDOUT = 4, 2
HELDOUT_SHARE = 4
"""At most one prompt in this many is held out, unless the set marks its own."""


def prepare(ctx: Context) -> None:
    """Write `prompts.jsonl`: held-out prompts first, none of them in the training part.

    Raises:
        BadInput: prompts cannot be read, rendered or held by the context (the message names their
            rows), or too few are left.
    """
    config, left = ctx.config.prompts, Tally()
    raw = read_prompts(ctx.config, left.unreadable)
    tokenizer, facts = open_tokenizer(ctx), target_facts(ctx)
    unique, left.duplicates = without_copies(with_text(raw, tokenizer, facts))
    distinct, left.near_duplicates = without_near_copies(unique, config.near_duplicates)
    given = ctx.config.recipe.regenerate.mode == "given"
    context = math.inf if given else facts["max_position_embeddings"]
    lengths = prompt_lengths(tokenizer, distinct, config, context, left.unreadable)
    longest = min(config.max_prompt_tokens, facts["max_position_embeddings"] - 1)
    short = [p for p in distinct if lengths.get(p.where, math.inf) <= longest]
    if given:
        short = with_long(distinct, lengths, longest)
    left.too_long = len(lengths) - len(short)
    heldout, train = split(short, config, ctx.config.recipe.seed)
    excluded = read_excluded(ctx.config)
    train, left.contaminated = without_tests(train, heldout + excluded, config.contamination)
    if len(train) < MIN_TRAIN or len(heldout) < MIN_HELDOUT:
        reasons = ", ".join(f"{n} {reason}" for reason, n in left.counts().items() if n)
        raise BadInput(
            f"{config.name}: {len(train)} training and {len(heldout)} held-out prompts are left "
            f"of {len(raw)}; expected at least {MIN_TRAIN} and {MIN_HELDOUT}",
            f"left out: {reasons or 'none'}; add prompts, or raise prompts.max_prompt_tokens",
        )
    prompts = [_prompt(p, "heldout", lengths[p.where]) for p in heldout]
    prompts += [_prompt(p, "train", lengths[p.where]) for p in train]
    write_records(ctx.out / "prompts.jsonl", prompts)
    for warning in left.warnings(config):
        ctx.progress.warning(warning)
    ctx.summary.update(
        source=config.name,
        content=prompt_content(ctx.config),
        read=len(raw),
        excluded=len(excluded),
        train=len(train),
        heldout=len(heldout),
        prompt_tokens=sum(p.prompt_tokens for p in prompts),
        turns=dict(Counter(len(p.turns()) for p in prompts)),
        **left.counts(),
    )


def with_long(prompts: list[RawPrompt], lengths: dict[str, int], longest: int) -> list[RawPrompt]:
    """The prompts, long ones for training alone: with their answers they are split between turns;
    as held-out prompts they would not leave the target room to answer."""
    found = []
    for prompt in prompts:
        long = lengths.get(prompt.where, 0) > longest
        if prompt.where in lengths and not (long and prompt.split == "heldout"):
            found.append(replace(prompt, split="train") if long else prompt)
    return found


def with_text(
    prompts: list[RawPrompt], tokenizer: PreTrainedTokenizerBase, facts: dict[str, Any]
) -> list[RawPrompt]:
    """The prompts, those that came as tokens checked and with their text.

    Raises:
        BadInput: the tokens are those of another tokenizer.
    """
    rows = [(p.where, p.tokens) for p in prompts if p.tokens is not None]
    for where, tokens in rows:
        check_tokens(where, tokens, facts)
    check_round_trip(rows, tokenizer, facts)
    return [
        p if p.tokens is None else replace(p, messages=as_messages(p.tokens, tokenizer))
        for p in prompts
    ]


def prompt_lengths(
    tokenizer: PreTrainedTokenizerBase,
    prompts: list[RawPrompt],
    config: PromptsConfig,
    context: float,
    unread: list[str],
) -> dict[str, int]:
    """Tokens of each prompt, by where it stands; those of bad rows are not there but in `unread`.

    Raises:
        BadInput: there are more of those than `prompts.bad_rows` allows.
    """
    found = {}
    problems = []
    for prompt in prompts:
        try:
            length = prompt_length(tokenizer, prompt)
        except MemoryError:
            raise
        except Exception as e:  # a template is a program: it may fail in any way
            why = " ".join(str(e).split()) or type(e).__name__
            problems.append(
                f"{prompt.where}: the target's chat template refuses this conversation: {why}"
            )
            continue
        if context <= length <= config.max_prompt_tokens:
            problems.append(
                f"{prompt.where}: the prompt has {length:,} tokens, the target's context "
                f"{context:,}; shorten or remove it"
            )
        else:
            found[prompt.where] = length
    check_bad_rows(problems, len(prompts), config.bad_rows)
    unread += problems
    return found


def prompt_length(tokenizer: PreTrainedTokenizerBase, prompt: RawPrompt) -> int:
    """Tokens of the rendered conversation, its answers left out; fails as the template does."""
    if prompt.tokens is not None:
        return len(prompt.tokens.ids) - sum(end - start for start, end in prompt.tokens.spans)
    first, *later = turns(prompt.messages)
    messages = list(first)
    for turn in later:
        messages += [{"role": "assistant", "content": "."}, *turn]
    return len(prompt_ids(tokenizer, messages, prompt.tools))


def split(
    prompts: list[RawPrompt], config: PromptsConfig, seed: int
) -> tuple[list[RawPrompt], list[RawPrompt]]:
    """Held-out and training prompts: the set's own marks, or a seeded choice."""
    shuffled = random.Random(seed).sample(prompts, len(prompts))  # noqa: S311 (not a secret)
    most = max(MIN_HELDOUT, (config.limit or len(prompts)) // HELDOUT_SHARE)
    heldout = [p for p in shuffled if p.split == "heldout"]
    if not heldout:
        unmarked = [p for p in shuffled if p.split is None]
        heldout = unmarked[: min(config.heldout, most)]
    elif config.limit is not None:
        heldout = heldout[:most]
    kept = {id(p) for p in heldout}
    train = [p for p in shuffled if p.split != "heldout" and id(p) not in kept]
    if config.limit is not None:
        train = train[: max(0, config.limit - len(heldout))]
    order = {id(p): i for i, p in enumerate(prompts)}
    return (
        sorted(heldout, key=lambda p: order[id(p)]),
        sorted(train, key=lambda p: order[id(p)]),
    )


def _prompt(prompt: RawPrompt, part: Split, tokens: int) -> Prompt:
    messages, ids, spans = prompt.messages, None, None
    if prompt.tokens is not None:
        ids, spans = prompt.tokens.ids, prompt.tokens.spans
        if part == "heldout":  # its answer is asked of the target, as every held-out one
            messages, ids, spans = messages[:1], ids[: spans[0][0]], None
            tokens = len(ids)
    return Prompt(
        id=content_id(prompt.messages),
        split=part,
        messages=messages,
        prompt_tokens=tokens,
        tools=prompt.tools,
        ids=ids,
        spans=spans,
    )
