"""Is the model that a server serves the target? Same tokenizer, same greedy continuation.

The server continues a few prompts greedily; the target here then scores what it wrote, in one
forward a prompt. Where the target's own first choice is another token, the two may only be near
each other: a server computes in another precision and another order, and close calls fall either
way. After such a call both are right to go on differently, which is why the target scores the
server's continuation and does not write its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from transformers import PreTrainedTokenizerBase

from eagle3.data.batch import Sequence
from eagle3.data.chat import encode
from eagle3.data.engines.client import Client
from eagle3.data.engines.completions import WAYS, Dialect, Reader, written
from eagle3.errors import BadInput
from eagle3.target import Target

PROBE_TOKENS = 32

TIE = 0.5
"""Most by which the target may prefer its own first choice to the server's token, in nats."""
LEAST_EQUAL = 0.9
"""Least share of the server's tokens that must be the target's own first choice."""

SAMPLE = 'x = 1;\n\tif (x != "Ünïcode") {  return 12345.67;  }  — naïve  \n\n日本語 👩‍🚀 don\'t\r\n'
"""Text on which tokenizers part: white space, digits, accents, joined emoji, special tokens."""


@dataclass(frozen=True)
class Probe:
    """A prompt, and how the server continues it."""

    text: str
    prompt: list[int]
    answer: list[int]


@dataclass(frozen=True)
class Served:
    """A server's model, before it is known to be the target."""

    reader: Reader
    context: int | None
    """Most tokens of a sequence there, where the server says so."""
    tokenizer_checked: bool
    """It has an endpoint that tokenises, and that agrees."""
    probes: list[Probe]


async def ask(
    client: Client,
    model: str | None,
    tokenizer: PreTrainedTokenizerBase,
    target: Target,
    prompts: list[list[int]],
    longest: int,
) -> Served:
    """Find the model, how the server takes and gives tokens, and its continuations of prompts.

    Args:
        longest: tokens that the longest prompt and its answer may have.

    Raises:
        BadInput: it serves no such model, takes too few tokens, tokenises in another way, or its
            answers cannot be read.
    """
    name, context = await client.get("models", lambda reply: _chosen(reply, model, client.base_url))
    if context is not None and context < longest:
        raise BadInput(
            f"the server takes {context} tokens; the longest prompt and its answer may have "
            f"{longest}",
            "start it with a longer context (vLLM: --max-model-len)",
        )
    texts = [tokenizer.decode(ids, skip_special_tokens=False) for ids in prompts]
    checked = await _check_tokenizer(client, name, tokenizer, [*texts, SAMPLE])
    room = target.context
    sequences = [Sequence(ids, min(PROBE_TOKENS, room - len(ids))) for ids in prompts]
    reader = await _reader(client, name, tokenizer, target, sequences[0])
    answers = await asyncio.gather(*(written(client, reader, s) for s in sequences))
    probes = [
        Probe(text, s.prompt, a.ids) for text, s, a in zip(texts, sequences, answers, strict=True)
    ]
    return Served(reader, context, checked, probes)


def judge(
    served: Served,
    target: Target,
    tokenizer: PreTrainedTokenizerBase,
    check_stop: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Score the server's continuations with the target; returns what was compared.

    Raises:
        BadInput: the server's model is not the target; the first difference is named.
    """
    first: str = ""
    equal = total = 0
    largest = 0.0
    for probe in served.probes:
        check_stop()
        own, gaps = _scores(target, probe)
        for i, (token, wrote) in enumerate(zip(own, probe.answer, strict=True)):
            total += 1
            equal += token == wrote
            largest = max(largest, gaps[i])
            if token != wrote and not first:
                first = _difference(tokenizer, probe, i, token, gaps[i])
            if gaps[i] > TIE:
                raise _another(served, _difference(tokenizer, probe, i, token, gaps[i]))
    if equal < LEAST_EQUAL * total:
        raise _another(served, f"{total - equal} of {total} tokens differ; first, {first}")
    return {
        "prompts": len(served.probes),
        "tokens": total,
        "equal": equal,
        "largest_gap": round(largest, 4),
        "tokenizer": "compared" if served.tokenizer_checked else "seen through the answers",
    }


def _scores(target: Target, probe: Probe) -> tuple[list[int], list[float]]:
    """The target's first choice at each token of an answer, and by how many nats it is preferred to
    the token that stands there."""
    ids = torch.tensor([probe.prompt + probe.answer[:-1]], device=target.device)
    hidden_BLH, _ = target.forward(ids, target.new_cache(ids.shape[1]))
    logits_NV = target.logits(hidden_BLH[0, len(probe.prompt) - 1 :]).float()
    best = logits_NV.max(-1)
    wrote_N1 = torch.tensor(probe.answer, device=target.device)[:, None]
    gaps = best.values - logits_NV.gather(1, wrote_N1)[:, 0]
    return best.indices.tolist(), gaps.tolist()


def _difference(
    tokenizer: PreTrainedTokenizerBase, probe: Probe, place: int, own: int, gap: float
) -> str:
    def named(token: int) -> str:
        return f"{token} ({tokenizer.decode([token], skip_special_tokens=False)!r})"

    return (
        f"after {probe.text[-60:]!r} and {place} tokens of its answer it writes "
        f"{named(probe.answer[place])}, where the target prefers {named(own)} by {gap:.2f} nats"
    )


def _another(served: Served, difference: str) -> BadInput:
    return BadInput(
        f"the server's model {served.reader.dialect.model!r} is not the target: {difference} "
        f"(up to {TIE} passes as rounding)",
        "serve the very weights that `resolve` names, not quantised and without adapters",
    )


def _chosen(reply: Any, model: str | None, url: str) -> tuple[str, int | None]:
    """The model's name and context; of several, the one that the recipe names."""
    entries = {entry["id"]: entry for entry in reply["data"]}
    served = ", ".join(sorted(entries)[:10]) or "none"
    if model is None and len(entries) != 1:
        raise BadInput(f"{url} serves {len(entries)} models: {served}", "set regenerate.model")
    if model is not None and model not in entries:
        raise BadInput(f"{url} does not serve {model!r}; it serves {served}")
    entry = entries[model or next(iter(entries))]
    context = entry.get("max_model_len") or (entry.get("meta") or {}).get("n_ctx")
    return entry["id"], context if isinstance(context, int) else None


async def _check_tokenizer(
    client: Client, model: str, tokenizer: PreTrainedTokenizerBase, texts: list[str]
) -> bool:
    """Compare the server's token ids of texts with those here; False where it does not tokenise."""
    for text in texts:
        reply = await client.ask_root(
            "tokenize",
            {"model": model, "prompt": text, "add_special_tokens": False}
            | {"content": text, "add_special": False, "parse_special": True},  # llama.cpp
        )
        theirs = reply.get("tokens") if isinstance(reply, dict) else None
        if not isinstance(theirs, list):
            return False
        ours = encode(tokenizer, text)
        if theirs != ours:
            pairs = zip([*ours, None], [*theirs, None], strict=False)
            place = next(i for i, (a, b) in enumerate(pairs) if a != b)
            raise BadInput(
                f"the server's tokenizer is not the target's: of {text[:80]!r}, token {place} is "
                f"{ours[place : place + 1]} here and {theirs[place : place + 1]} there"
            )
    return True


async def _reader(
    client: Client,
    model: str,
    tokenizer: PreTrainedTokenizerBase,
    target: Target,
    probe: Sequence,
) -> Reader:
    """The best way in which this server takes a prompt and gives an answer's tokens."""
    refusal = BadInput(f"the answers of {client.base_url} cannot be read")
    for as_text in (False, True):
        for way in WAYS:
            dialect = Dialect(model, way, as_text)
            reader = Reader(tokenizer, target.eos_ids(), target.vocab_size, dialect)
            try:
                reply = await client.post("completions", reader.request(probe), lambda r: r)
                reader.answer(reply, probe)
            except BadInput as e:
                refusal = e
            except (KeyError, IndexError, TypeError, ValueError) as e:
                refusal = BadInput(f"the answers of {client.base_url} cannot be read: {e}")
            else:
                return reader
    raise refusal
