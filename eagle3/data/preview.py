"""What a run trains on, measured and shown before anything is trained.

The samples are those of `regenerate` where that has run; until then, the answers that the prompt
set itself brings are read as they would be trained on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from transformers import PreTrainedTokenizerBase

from eagle3 import vocab
from eagle3.config import RunConfig
from eagle3.data.coverage import answer_share, mass_share
from eagle3.data.features import TokenSequence
from eagle3.data.given import Tally, responses
from eagle3.data.mask import supervised_rows
from eagle3.data.pieces import Shown, pieces
from eagle3.data.records import Prompt, Response, read_json, read_records
from eagle3.data.spans import Reader, end_ids
from eagle3.errors import BadInput
from eagle3.export.official import WEIGHTS
from eagle3.run import read_manifest
from eagle3.target import load_tokenizer
from eagle3.train.samples import part, teaches

MOST_READ = 2000
"""Conversations of a prompt set that are read for the figures."""

FEW_SUPERVISED, MANY_TRUNCATED, LOW_COVERAGE, MANY_UNFINISHED = 0.1, 0.1, 0.95, 0.5


@dataclass
class Preview:
    """What is supervised, in figures and in examples."""

    target: str
    source: str
    """Whose answers these are."""
    samples: int
    tokens: int
    """In all samples, after cutting."""
    answer_tokens: int
    supervised: int
    """Rows that teach the first draft step."""
    truncated: int
    """Samples longer than `train.max_length`."""
    tokens_cut: int
    unsupervised: int
    """Samples without a row that teaches."""
    unfinished: int
    """Samples whose last answer has no end of turn."""
    max_length: int
    vocab_size: int
    draft_vocab_size: int
    coverage: float | None
    coverage_of: str
    warnings: list[str] = field(default_factory=list)
    shown: list[Shown] = field(default_factory=list)

    @property
    def supervised_share(self) -> float:
        return self.supervised / max(1, self.tokens)

    @property
    def truncated_share(self) -> float:
        return self.truncated / max(1, self.samples)

    def facts(self) -> list[tuple[str, str]]:
        """Names and values, for people."""
        found = [
            ("target", self.target),
            ("answers", self.source),
            ("samples", f"{self.samples:,} of {self.tokens:,} tokens"),
            ("supervised", f"{self.supervised_share:.1%} of the rows"),
            ("answer tokens", f"{self.answer_tokens / max(1, self.tokens):.1%}"),
            (
                "truncated",
                f"{self.truncated_share:.1%} of the samples at {self.max_length:,} tokens "
                f"({self.tokens_cut:,} tokens cut)",
            ),
        ]
        if self.coverage is not None:
            size = f"{self.draft_vocab_size:,} of {self.vocab_size:,} tokens"
            found.append(
                ("draft vocabulary", f"{size}; holds {self.coverage:.2%} of {self.coverage_of}")
            )
        return found


def look(config: RunConfig, outputs: Mapping[str, Path], count: int) -> Preview:
    """Measure what a run trains on and show `count` samples of it.

    Args:
        outputs: folders of the stages that have run, `resolve` and `prepare` among them.

    Raises:
        BadInput: there are no answers yet.
    """
    folder = Path(read_json(outputs["resolve"] / "local.json")["path"])
    facts = read_json(outputs["resolve"] / "target.json")
    tokenizer = load_tokenizer(folder)
    ends = end_ids(folder, tokenizer)
    limit = min(config.recipe.train.max_length, facts["max_position_embeddings"])
    found, source, tally, notes = _samples(outputs, config, Reader(tokenizer, ends), ends, limit)
    train = [r for r in found if r.split == "train"] or found
    preview = _measure(train, config, facts, source, limit)
    preview.truncated += tally.truncated  # these were cut before they were written down
    preview.tokens_cut += tally.tokens_cut
    kept = _draft_vocabulary(train, config, facts["vocab_size"], limit, ends, tokenizer)
    preview.draft_vocab_size = len(kept)
    preview.coverage, preview.coverage_of = _coverage(
        outputs.get("extract"), found, kept, folder, limit
    )
    preview.warnings = [*_warnings(preview), *notes]
    inside = set(kept.tolist())
    chosen = [r for r in train if r.spans][:count]
    preview.shown = [
        Shown(r.id, r.split, pieces(tokenizer, r.ids, r.spans, limit, inside)) for r in chosen
    ]
    return preview


def _samples(
    outputs: Mapping[str, Path],
    config: RunConfig,
    reader: Reader,
    ends: frozenset[int],
    limit: int,
) -> tuple[list[Response], str, Tally, list[str]]:
    """Samples, whose answers they are, and what became of the rest."""
    given = config.recipe.regenerate.mode == "given"
    folder = outputs.get("regenerate")
    if folder is None:
        prompts = read_records(outputs["prepare"] / "prompts.jsonl", Prompt)
        return _set_answers(prompts, reader, ends, limit, given)
    summary = read_manifest(folder)["summary"].get("given")
    tally = Tally.of(summary) if summary else Tally()
    notes = tally.warnings()
    source = "the prompt set's own" if given else "written by the target"
    found = read_records(folder / "responses.jsonl", Response)
    if parts := sum("." in r.id for r in found):
        notes.append(
            f"the chat template rewrites history: what stood before is {parts} samples of their own"
        )
    return found, source, tally, notes


def _set_answers(
    prompts: list[Prompt], reader: Reader, ends: frozenset[int], limit: int, given: bool
) -> tuple[list[Response], str, Tally, list[str]]:
    tally, found = Tally(), []
    training = [p for p in prompts if p.split == "train"]
    for prompt in training[:MOST_READ]:
        found += responses(reader, prompt, ends, limit, tally)
    if not found:
        why = "; ".join(f"{n} answers: {why}" for why, n in tally.refused.most_common(3))
        raise BadInput(
            f"there is nothing to show yet: the target has written no answers, and the prompt set "
            f"brings none that can be supervised ({why})",
            "first run: eagle3 regenerate RUN",
        )
    source = "the prompt set's own"
    if not given:
        source += ", shown in place of the target's, which are not written yet"
    if len(training) > MOST_READ:
        source += f" (the first {MOST_READ:,} of {len(training):,} conversations)"
    return found, source, tally, tally.warnings()


def _measure(
    found: list[Response], config: RunConfig, facts: dict[str, Any], source: str, limit: int
) -> Preview:
    lengths = [min(len(r.ids), limit) for r in found]
    spans = [_within(r, limit) for r in found]
    rows = [
        int(supervised_rows(own, length, 1).sum())
        for own, length in zip(spans, lengths, strict=True)
    ]
    return Preview(
        target=facts["resolved"],
        source=source,
        samples=len(found),
        tokens=sum(lengths),
        answer_tokens=sum(end - start for own in spans for start, end in own),
        supervised=sum(rows),
        truncated=sum(len(r.ids) > limit for r in found),
        tokens_cut=sum(max(0, len(r.ids) - limit) for r in found),
        unsupervised=sum(count == 0 for count in rows),
        unfinished=sum(r.finish == "length" for r in found),
        max_length=limit,
        vocab_size=facts["vocab_size"],
        draft_vocab_size=config.recipe.train.draft_vocab_size,
        coverage=None,
        coverage_of="",
    )


def _within(response: Response, limit: int) -> list[tuple[int, int]]:
    return [(start, min(end, limit)) for start, end in response.spans if start < limit]


def _draft_vocabulary(
    found: list[Response],
    config: RunConfig,
    vocab_size: int,
    limit: int,
    ends: frozenset[int],
    tokenizer: PreTrainedTokenizerBase,
) -> torch.Tensor:
    """The target ids that training will choose, ascending: from whole answers, as it does."""
    train = config.recipe.train
    if train.start_from is not None:
        return _kept_by(Path(train.start_from))
    sequences = {r.id: TokenSequence.of(r) for r in found}
    taught = [ref for s in sequences.values() if teaches(ref := s.ref(), limit)]
    refs = part(taught, train.data_share, config.recipe.seed)
    answers = (sequences[ref.id].ids[a:b] for ref in refs for a, b in ref.spans)
    counts = vocab.count(answers, vocab_size)
    special = {*ends, *tokenizer.all_special_ids}
    return vocab.choose(counts, train.draft_vocab_size, special)


def _kept_by(draft: Path) -> torch.Tensor:
    """The target ids of the draft that training goes on from."""
    try:
        with safe_open(draft / WEIGHTS, framework="pt") as tensors:
            return vocab.kept_ids(tensors.get_tensor("d2t"))
    except (OSError, SafetensorError) as e:
        raise BadInput(
            f"train.start_from: {draft} cannot be read: {e}",
            f"expected a directory with config.json and {WEIGHTS}",
        ) from None


def _coverage(
    features: Path | None, found: list[Response], kept: torch.Tensor, folder: Path, limit: int
) -> tuple[float, str]:
    share = None if features is None else mass_share(features, folder, kept)
    if share is not None:
        return share, "the target's probability mass on held-out answers"
    heldout = [r for r in found if r.split == "heldout"]
    own = answer_share(heldout or found, kept, limit)
    return own, "held-out answer tokens" if heldout else "the training answers' own tokens"


def _warnings(preview: Preview) -> list[str]:
    found = []
    if not preview.supervised:
        found.append("nothing is supervised: no answer has two tokens within train.max_length")
    elif preview.supervised_share < FEW_SUPERVISED:
        found.append(
            f"only {preview.supervised_share:.1%} of the rows are supervised: most of the features "
            "are computed for context alone"
        )
    if preview.unsupervised:
        found.append(f"{preview.unsupervised} samples teach nothing")
    if preview.truncated_share > MANY_TRUNCATED:
        found.append(
            f"{preview.truncated_share:.0%} of the samples are cut at {preview.max_length:,} "
            "tokens; raise train.max_length"
        )
    if preview.unfinished > MANY_UNFINISHED * preview.samples:
        found.append(
            f"{preview.unfinished / preview.samples:.0%} of the samples end without an end of "
            "turn: answers are cut (regenerate.max_new_tokens, train.max_length), or the chat "
            "template has none"
        )
    if preview.coverage is not None and preview.coverage < LOW_COVERAGE:
        found.append(
            f"the draft vocabulary holds only {preview.coverage:.1%} of {preview.coverage_of}: "
            "what lies outside can never be proposed; raise train.draft_vocab_size"
        )
    return found
