"""What extraction costs over a bare forward of the target on the same batch.

    python benchmarks/extraction.py TARGET_DIR [--rounds 7] [--sequences 8] [--length 256]

Each round times every method once, in turn, so that what else the machine does falls on all of
them; a ratio is taken within a round, and its median and range over the rounds are given. On a CPU
the time of this process counts (a busy machine changes it little), on a GPU the clock.

    extraction       what the stage does: features of three layers and the final hidden state, in
                     bfloat16 on the CPU; argmax and log-sum-exp of the rows of answers
    bare             transformers' own model, as loaded: the logits of every row
    bare, no head    the same without its LM head: no logits at all
    own, no capture  our forward (its attention, its linears), nothing captured, no logits
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from eagle3.data.capture import target_rows
from eagle3.data.features import TokenSequence
from eagle3.decode.linear import speed_up
from eagle3.provenance import hardware, versions
from eagle3.target import Target, default_capture_layers

PROMPT_SHARE = 0.4
"""Rows of a sequence that belong to its prompt; the rest is the answer, and supervised."""


def main() -> None:
    parser = argparse.ArgumentParser(description="The cost of extraction over a bare forward.")
    parser.add_argument("target", type=Path, help="a Hugging Face directory")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--length", type=int, default=256, help="of the longest sequence")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    methods, tokens = build(args)
    seconds = alternate(methods, args.rounds, args.device)
    report(seconds, tokens, args)


def build(args: argparse.Namespace) -> tuple[dict[str, Callable[[], object]], int]:
    """The methods, by name, and the real tokens of their batch."""
    dtype = getattr(torch, args.dtype)
    stock = AutoModelForCausalLM.from_pretrained(args.target, dtype=dtype, local_files_only=True)
    stock = stock.to(args.device).eval()
    layers = default_capture_layers(stock.config.num_hidden_layers)
    target = Target.load(args.target, dtype, args.device, layers)
    speed_up(target.model)
    sequences = made_up(args.sequences, args.length, target.vocab_size)
    ids_BL = torch.zeros(len(sequences), args.length, dtype=torch.int64)
    for row, sequence in zip(ids_BL, sequences, strict=True):
        row[: len(sequence.ids)] = sequence.ids
    ids_BL = ids_BL.to(args.device)

    def own() -> object:
        return target.forward(ids_BL, target.new_cache(args.length, len(sequences)))

    methods: dict[str, Callable[[], object]] = {
        "extraction": lambda: target_rows(target, sequences),
        "bare": lambda: stock(ids_BL, use_cache=False),
        "bare, no head": lambda: stock.model(ids_BL, use_cache=False),
        "own, no capture": own,
    }
    return methods, sum(len(s.ids) for s in sequences)


def made_up(count: int, longest: int, vocab: int) -> list[TokenSequence]:
    """Sequences as the stage puts them into one batch: of like length, one as long as it gets."""
    source = random.Random(0)  # noqa: S311 (made-up tokens, not secrets)
    found = []
    for i in range(count):
        length = longest - (source.randrange(longest // 10) if i else 0)
        ids = torch.tensor([source.randrange(vocab) for _ in range(length)], dtype=torch.int32)
        found.append(TokenSequence(str(i), "train", ids, [(int(PROMPT_SHARE * length), length)]))
    return found


@torch.inference_mode()
def alternate(
    methods: dict[str, Callable[[], object]], rounds: int, device: str
) -> dict[str, list[float]]:
    """Seconds of every method in every round, after one round that does not count."""
    on_gpu = device.startswith("cuda")
    clock = time.perf_counter if on_gpu else time.process_time
    seconds: dict[str, list[float]] = {name: [] for name in methods}
    for _ in range(rounds + 1):
        for name, method in methods.items():
            started = clock()
            method()
            if on_gpu:
                torch.cuda.synchronize()
            seconds[name].append(clock() - started)
    return {name: values[1:] for name, values in seconds.items()}


def report(seconds: dict[str, list[float]], tokens: int, args: argparse.Namespace) -> None:
    facts = {
        "target": args.target.name,
        "batch": f"{args.sequences} sequences of up to {args.length} tokens, {tokens} in all",
        "dtype": args.dtype,
        "device": args.device,
        "threads": args.threads,
        "rounds": args.rounds,
        "hardware": hardware(),
        "versions": versions(),
    }
    sys.stdout.write(json.dumps(facts) + "\n")
    sys.stdout.write(
        f"{'method':18}{'tokens/s':>10}{'seconds':>9}   tokens/s of extraction to it\n"
    )
    for name, values in seconds.items():
        median = statistics.median(values)
        line = f"{name:18}{tokens / median:10.1f}{median:9.3f}"
        ratios = [b / a for a, b in zip(seconds["extraction"], values, strict=True)]
        if name != "extraction":
            spread = f"{statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})"
            line += f"   {spread}"
        sys.stdout.write(line + "\n")


if __name__ == "__main__":
    main()
