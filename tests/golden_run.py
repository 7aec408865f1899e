"""A run directory whose target and draft are golden: what the last two stages read."""

from __future__ import annotations

import io
import json
import threading
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from eagle3.config import Recipe, RunConfig
from eagle3.data.checks import file_hashes
from eagle3.data.weights import read_checkpoint
from eagle3.draft import Draft
from eagle3.export import official
from eagle3.progress import Progress
from eagle3.run import Context
from tests.golden import CAPTURE, LAYERS, Golden


def write_golden_run(
    run: Path, golden: Golden, draft: Draft, prompts: int = 4, answer_tokens: int = 2
) -> None:
    """Folders `resolve`, `regenerate` and `export`, each as its stage would leave it."""
    path = run / "target"
    golden.target.model.save_pretrained(path)
    words = {f"t{i}": i for i in range(len(golden.perm))}
    PreTrainedTokenizerFast(
        tokenizer_object=_word_level(words), clean_up_tokenization_spaces=False
    ).save_pretrained(path)
    resolve, regenerate = run / "resolve", run / "regenerate"
    resolve.mkdir(parents=True)
    regenerate.mkdir()
    (resolve / "local.json").write_text(json.dumps({"path": str(path)}))
    facts = {
        "resolved": "demo@sha256:0",
        "capture_layers": list(CAPTURE),
        "dtype": "float32",
        "template_sha256": "0" * 64,
        **file_hashes(path, read_checkpoint(path)),
    }
    (resolve / "target.json").write_text(json.dumps(facts))
    lines = []
    for i in range(prompts):
        prompt = [i, golden.perm[i], golden.perm[golden.perm[i]]]
        answer = golden.chain(prompt[-1], answer_tokens)
        spans = [[3, 3 + answer_tokens]]
        line = {"id": f"p{i}", "split": "heldout", "ids": prompt + answer, "spans": spans}
        lines.append(json.dumps({**line, "finish": "length"}))
    (regenerate / "responses.jsonl").write_text("\n".join(lines) + "\n")
    official.save(draft, run / "export" / "draft", LAYERS, torch.float32)


def context(run: Path, stage: str, **recipe: Any) -> tuple[Context, io.StringIO]:
    """A stage's context over such a run, and the stream that its lines go to."""
    out = run / stage
    out.mkdir(exist_ok=True)
    stream = io.StringIO()
    return Context(
        run,
        stage,
        RunConfig(target="demo", recipe=Recipe(name="golden", **recipe)),
        out,
        {name: run / name for name in ("resolve", "regenerate", "export")},
        Progress(stage, run / "logs" / f"{stage}.jsonl", stream),
        threading.Event(),
    ), stream


def _word_level(words: dict[str, int]) -> Tokenizer:
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer
