"""Causes that lie around the draft: its target, the text it is given, the words it knows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from eagle3.data.checks import file_hashes
from eagle3.data.weights import read_checkpoint
from eagle3.diagnose.case import Case, Sign, Trial
from eagle3.target import Target

HASHES = {
    "weights_sha256": "weights",
    "tokenizer_sha256": "tokenizer",
    "config_sha256": "config",
}
WORTH_SAYING = 0.99
"""Coverage below which it is mentioned."""


def target(case: Case) -> Iterator[Trial | Sign]:
    """Trained for another target, or another revision of this one."""
    if case.folder is not None and case.record:
        now = file_hashes(case.folder, read_checkpoint(case.folder))
        for key, name in HASHES.items():
            if case.record.get(key) not in (None, now[key]):
                trained = case.record.get("resolved", "another one")
                tokenizer = key == "tokenizer_sha256"
                yield Sign(
                    "tokenizer or template" if tokenizer else "wrong target or revision",
                    f"the target's {name} is not that of {trained}, which it was trained for",
                )
    for folder in case.others:
        sizes = (case.target.hidden_size, case.target.vocab_size)
        device, dtype = str(case.target.device), case.target.dtype
        other = Target.load(folder, dtype, device, case.target.capture_layers)
        if (other.hidden_size, other.vocab_size) == sizes:
            answers = case.ask(other, case.prompts)
            text = f"the target in {folder}"
            yield Trial("wrong target or revision", text, case.reading, answers)


def template(case: Case) -> Iterator[Trial | Sign]:
    """The same prompts through another tokenizer or chat template."""
    for rendered in case.renderings:
        if rendered.prompts != case.prompts:
            answers = case.ask(case.target, rendered.prompts)
            text = f"prompts {rendered.how}"
            yield Trial("tokenizer or template", text, case.reading, answers, bound=True)


def domain(case: Case) -> Iterator[Trial | Sign]:
    """The user's prompts are unlike those of training."""
    if case.heldout:
        answers = case.ask(case.target, case.heldout)
        text = "held-out prompts in place of yours"
        yield Trial("domain shift", text, case.reading, answers, bound=True)


def coverage(case: Case) -> Iterator[Trial | Sign]:
    """Answers hold tokens that the draft cannot say."""
    share = case.answers.covered(case.reading.draft(case.answers.embed_VH))
    if share < WORTH_SAYING:
        text = f"the draft vocabulary holds {share:.0%} of the answers' tokens"
        yield Sign("draft vocabulary coverage", text)
        reading = replace(case.reading, knows=True)
        text = "with the tokens that its vocabulary lacks guessed right: a bound"
        yield Trial("draft vocabulary coverage", text, reading, bound=True)
