"""How many token ids come back when they are decoded and encoded again: those of the tokenizer
itself, and those of others, which a prompt set of tokens is refused for.

    python benchmarks/round_trip.py TOKENIZER_DIR [RESPONSES.jsonl …]

The texts are the demo prompts; other tokenizers are the ids at random in place of each other, and
byte-level BPEs of several sizes trained on the same texts. `RESPONSES.jsonl` are answers of the
tokenizer's own target, as `regenerate` writes them.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
from pathlib import Path

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from eagle3.config import RunConfig, load_recipe
from eagle3.data.prompts import read_prompts
from eagle3.data.tokenised import LOOK_TOKENS, num_that_come_back

SIZES = (2_000, 20_000)
MOST = 300


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("tokenizer", type=Path)
    parser.add_argument("responses", type=Path, nargs="*")
    args = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(args.tokenizer)
    texts = [
        "\n".join(m["content"] for m in prompt.messages)
        for prompt in read_prompts(RunConfig(target="demo", recipe=load_recipe("quick")))
    ]
    own = [tokenizer(text, add_special_tokens=False).input_ids for text in texts[:MOST]]
    report("its own, of text", own, tokenizer)
    for file in args.responses:
        lines = file.read_text().splitlines()
        answers = [json.loads(line)["ids"] for line in lines[:: max(1, len(lines) // MOST)]]
        report(f"its own, of {file.name}", answers, tokenizer)
    order = list(range(tokenizer.vocab_size))
    random.Random(0).shuffle(order)  # noqa: S311 (not a secret)
    report("at random", [[order[i] for i in ids] for ids in own], tokenizer)
    for size in SIZES:
        other = byte_level(texts, size)
        report(f"a BPE of {size:,}", [other.encode(t).ids for t in texts[:MOST]], tokenizer)


def report(name: str, rows: list[list[int]], tokenizer: PreTrainedTokenizerBase) -> None:
    rows = [ids[:LOOK_TOKENS] for ids in rows]
    back = [num_that_come_back(ids, tokenizer) for ids in rows]
    shares = [n / len(ids) for n, ids in zip(back, rows, strict=True)]
    facts = {
        "ids": name,
        "tokens": sum(map(len, rows)),
        "come_back": round(sum(back) / sum(map(len, rows)), 4),
        "median_row": round(statistics.median(shares), 4),
        "least_row": round(min(shares), 4),
    }
    sys.stdout.write(json.dumps(facts) + "\n")


def byte_level(texts: list[str], size: int) -> Tokenizer:
    bpe = Tokenizer(models.BPE())
    bpe.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bpe.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    trainer = trainers.BpeTrainer(vocab_size=size, show_progress=False, initial_alphabet=alphabet)
    bpe.train_from_iterator(texts, trainer)
    return bpe


if __name__ == "__main__":
    main()
