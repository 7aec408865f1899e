"""Stage `prepare`: one clean list of prompts, a part of it held out."""

from __future__ import annotations

import hashlib
import json
import random
from collections import Counter

from jinja2 import TemplateError
from transformers import PreTrainedTokenizerBase

from eagle3.config import PromptsConfig
from eagle3.data.chat import prompt_ids
from eagle3.data.local import open_tokenizer, target_facts
from eagle3.data.prompts import RawPrompt, read_prompts
from eagle3.data.records import Message, Prompt, Split, turns, write_records
from eagle3.errors import BadInput
from eagle3.run import Context

MIN_TRAIN, MIN_HELDOUT = 4, 2
HELDOUT_SHARE = 4
"""At most one prompt in this many is held out, unless the set marks its own."""


def prepare(ctx: Context) -> None:
    """Write `prompts.jsonl`: held-out prompts first, none of them in the training part.

    Raises:
        BadInput: a prompt cannot be read, rendered or held by the context (the message names its
            line), or too few are left.
    """
    config, seed = ctx.config.prompts, ctx.config.recipe.seed
    raw = read_prompts(ctx.config)
    unique = deduplicated(raw)
    tokenizer, context = open_tokenizer(ctx), target_facts(ctx)["max_position_embeddings"]
    lengths = {p.where: prompt_length(tokenizer, p, context) for p in unique}
    short = [p for p in unique if lengths[p.where] <= config.max_prompt_tokens]
    heldout, train = split(short, config, seed)
    if len(train) < MIN_TRAIN or len(heldout) < MIN_HELDOUT:
        raise BadInput(
            f"{config.source}: {len(train)} training and {len(heldout)} held-out prompts are left "
            f"of {len(raw)}; expected at least {MIN_TRAIN} and {MIN_HELDOUT}",
            "add prompts, or raise prompts.max_prompt_tokens",
        )
    prompts = [_prompt(p, "heldout", lengths[p.where]) for p in heldout]
    prompts += [_prompt(p, "train", lengths[p.where]) for p in train]
    write_records(ctx.out / "prompts.jsonl", prompts)
    if len(short) < len(unique):
        ctx.progress.warning(
            f"{len(unique) - len(short)} prompts of more than {config.max_prompt_tokens} tokens "
            "(prompts.max_prompt_tokens) are left out"
        )
    ctx.summary.update(
        source=config.source,
        read=len(raw),
        duplicates=len(raw) - len(unique),
        too_long=len(unique) - len(short),
        train=len(train),
        heldout=len(heldout),
        prompt_tokens=sum(p.prompt_tokens for p in prompts),
        turns=dict(Counter(len(p.turns()) for p in prompts)),
    )


def deduplicated(prompts: list[RawPrompt]) -> list[RawPrompt]:
    """One prompt of each content. A held-out copy wins, so that nothing held out is trained on."""
    found: dict[str, RawPrompt] = {}
    for prompt in prompts:
        key = content_id(prompt.messages)
        if key not in found or (prompt.split == "heldout" and found[key].split != "heldout"):
            found[key] = prompt
    return list(found.values())


def content_id(messages: list[Message]) -> str:
    """16 hex digits of what was asked; case and white space do not count, nor do answers."""
    asked = [m for m in messages if m["role"] != "assistant"]
    plain = [[m["role"], " ".join(m["content"].casefold().split())] for m in asked]
    return hashlib.sha256(json.dumps(plain).encode()).hexdigest()[:16]


def prompt_length(tokenizer: PreTrainedTokenizerBase, prompt: RawPrompt, context: int) -> int:
    """Tokens of the rendered conversation, its answers left out.

    Raises:
        BadInput: the chat template refuses it, or no token of an answer would fit the context.
    """
    first, *later = turns(prompt.messages)
    messages = list(first)
    for turn in later:
        messages += [{"role": "assistant", "content": "."}, *turn]
    try:
        length = len(prompt_ids(tokenizer, messages, prompt.tools))
    except TemplateError as e:
        raise BadInput(
            f"{prompt.where}: the target's chat template refuses this conversation: {e}"
        ) from None
    if length >= context:
        raise BadInput(
            f"{prompt.where}: the prompt has {length:,} tokens, the target's context {context:,}",
            "shorten or remove it",
        )
    return length


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
    return Prompt(
        id=content_id(prompt.messages),
        split=part,
        messages=prompt.messages,
        prompt_tokens=tokens,
        tools=prompt.tools,
    )
