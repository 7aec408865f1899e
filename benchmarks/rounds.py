"""What a decoding round costs beside the target's forward and the draft's work.

    python benchmarks/rounds.py TARGET_DIR [--slots 1 4 8] [--tokens 48] [--threads 1]

Each row decodes prompts of different lengths with random drafts, which guess wrong but cost what
trained ones cost. `other` is the share of a round that is neither target nor draft: masks, the
choice of tokens, what is kept in the caches, and the bookkeeping of sequences.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import torch

from eagle3.decode.drafter import Drafter
from eagle3.decode.engine import Engine
from eagle3.decode.linear import speed_up
from eagle3.decode.request import Request
from eagle3.decode.sampling import Sampling
from eagle3.decode.tree import Shape
from eagle3.draft import Draft, DraftConfig
from eagle3.drafters.eagle3 import Eagle3
from eagle3.drafters.plain import Plain
from eagle3.target import Target

VOCAB = 8192
"""Draft vocabulary, if the target's is no smaller."""

SAMPLINGS = {"greedy": Sampling(), "sampled": Sampling(1.0, top_p=0.9, repetition_penalty=1.1)}


def main() -> None:
    parser = argparse.ArgumentParser(description="The overhead of a decoding round.")
    parser.add_argument("target", type=Path, help="a Hugging Face directory")
    parser.add_argument("--slots", type=int, nargs="+", default=[1, 4, 8])
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    target = Target.load(args.target)
    draft = random_draft(target)
    speed_up(target.model, draft)
    methods: dict[str, Drafter] = {
        "plain": Plain(),
        "chain of 3": Eagle3(draft, Shape(3)),
        "tree of 12": Eagle3(draft, Shape(3, 4, 12)),
    }
    say(f"{'method':12}{'sampling':10}{'slots':>6}{'round ms':>10}")
    say(f"{'target':>9}{'draft':>9}{'other':>9}\n")
    for slots in args.slots:
        for name, drafter in methods.items():
            for how, sampling in SAMPLINGS.items():
                say(f"{name:12}{how:10}{slots:6}")
                say(measure(target, drafter, slots, args.tokens, sampling) + "\n")


def say(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()


def random_draft(target: Target) -> Draft:
    torch.manual_seed(0)
    size = min(VOCAB, target.vocab_size)
    draft = Draft(
        DraftConfig.for_target(target.config, target.capture_layers, size),
        target.embed.weight.detach(),
    )
    draft.set_vocab(torch.arange(size))
    return draft.eval().requires_grad_(False)


def measure(target: Target, drafter: Drafter, slots: int, tokens: int, sampling: Sampling) -> str:
    """One line of the table: milliseconds of a round, and the shares of it."""
    generator = torch.Generator().manual_seed(1)
    requests = [
        Request(
            torch.randint(target.vocab_size, (20 + 9 * i,), generator=generator).tolist(),
            tokens,
            sampling,
            seed=i,
        )
        for i in range(slots)
    ]
    engine = Engine(target, drafter, slots)
    engine.generate(requests)  # warms up
    out = engine.generate(requests)
    spent = [sum(getattr(g.timings, part) for g in out) for part in ("target", "draft", "other")]
    rounds = sum(g.rounds for g in out)
    shares = "".join(f"{100 * part / sum(spent):8.1f}%" for part in spent)
    return f"{1e3 * sum(spent) / rounds:10.1f}{shares}"


if __name__ == "__main__":
    main()
