"""Stage `extract`: what the draft learns from, read off the target in one forward per sequence.

Shapes: B sequences, L rows, H hidden size, V vocabulary, R rows whose logits are wanted.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from eagle3.data.batch import stretch_rows
from eagle3.data.features import FeatureIndex, SampleRef, Shard, bytes_per_token
from eagle3.data.local import open_target
from eagle3.data.records import Journal, Response, read_records
from eagle3.errors import DiskFull
from eagle3.run import Context, sha256_file, write_json
from eagle3.target import Target

BATCH_TOKENS = 4096
"""Rows of one forward, padding included."""

LOGIT_ROWS = 256
"""Rows whose logits are held at once: 50 MB for a vocabulary of 49,152 in float32."""


def extract(ctx: Context) -> None:
    """Write the shards, then `index.json`.

    Resumes: a shard that `work/shards.jsonl` lists, and whose hash is right, is kept.

    Raises:
        DiskFull: the features of all responses would not fit.
    """
    responses = read_records(ctx.inputs["regenerate"] / "responses.jsonl", Response)
    target = open_target(ctx)
    total = sum(len(r.ids) for r in responses)
    shards, tokens, started = [], 0, time.monotonic()

    def count(new_tokens: int) -> None:
        nonlocal tokens
        tokens += new_tokens
        ctx.progress.progress(tokens, total, "token")

    journal = Journal(ctx.out / "work" / "shards.jsonl", Shard)
    try:
        done = {s.file: s for s in journal.records if _intact(ctx.out / s.file, s)}
        count(sum(s.tokens for s in done.values()))
        kept = tokens
        check_disk(ctx.out, total - kept, target.hidden_size)
        for i, part in enumerate(packed(responses, ctx.config.recipe.extract.shard_tokens)):
            name = f"shard-{i:05d}.safetensors"
            if name not in done:
                ctx.check_stop("finished shards are kept")
                done[name] = write_shard(target, part, ctx.out, name, count)
                journal.append(done[name])
            shards.append(done[name])
    finally:
        journal.close()
    index = FeatureIndex(
        hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        capture_layers=target.capture_layers,
        shards=shards,
    )
    write_json(ctx.out / "index.json", index.model_dump(mode="json"))
    ctx.summary.update(
        tokens=tokens,
        bytes=sum((ctx.out / s.file).stat().st_size for s in shards),
        tokens_per_s=round((tokens - kept) / (time.monotonic() - started), 2),
    )


def packed(responses: list[Response], shard_tokens: int) -> Iterator[list[Response]]:
    """Sequences of like length together (little padding), about `shard_tokens` tokens a shard."""
    part: list[Response] = []
    for response in sorted(responses, key=lambda r: (len(r.ids), r.id)):
        part.append(response)
        if sum(len(r.ids) for r in part) >= shard_tokens:
            yield part
            part = []
    if part:
        yield part


def write_shard(
    target: Target,
    responses: list[Response],
    folder: Path,
    name: str,
    on_tokens: Callable[[int], None] = lambda tokens: None,
) -> Shard:
    """Run the target over the sequences and write one shard; it appears under its name whole.

    Args:
        on_tokens: called after each forward with the tokens it read.
    """
    columns: dict[str, list[Tensor]] = {}
    samples, start = [], 0
    for batch in _batches(responses):
        for response, rows in zip(batch, target_rows(target, batch), strict=True):
            for column, value in rows.items():
                columns.setdefault(column, []).append(value)
            length = len(response.ids)
            samples.append(
                SampleRef(
                    id=response.id,
                    split=response.split,
                    start=start,
                    length=length,
                    spans=response.spans,
                )
            )
            start += length
        on_tokens(sum(len(r.ids) for r in batch))
    work = folder / "work"
    work.mkdir(exist_ok=True)
    save_file({k: torch.cat(v) for k, v in columns.items()}, work / name, {"format": "pt"})
    digest = sha256_file(work / name)
    (work / name).replace(folder / name)
    return Shard(file=name, sha256=digest, tokens=start, samples=samples)


@torch.inference_mode()
def target_rows(target: Target, responses: list[Response]) -> list[dict[str, Tensor]]:
    """What the target says about each sequence, teacher-forced: the columns of a shard, on the CPU.

    Sequences are padded on the right, where no real row can see the padding.
    """
    batch, longest = len(responses), max(len(r.ids) for r in responses)
    ids_BL = torch.zeros(batch, longest, dtype=torch.int64)
    for i, response in enumerate(responses):
        ids_BL[i, : len(response.ids)] = torch.tensor(response.ids)
    cache = target.new_cache(longest, batch)
    hidden, features = [], []
    stretch = stretch_rows(target, batch, longest)
    for start in range(0, longest, stretch):
        rows_BL = ids_BL[:, start : start + stretch].to(target.device)
        hidden_BLH, features_BLF = target.forward(rows_BL, cache, capture=True)
        assert features_BLF is not None
        cache.advance(rows_BL.shape[1])
        hidden.append(hidden_BLH)
        features.append(features_BLF.to("cpu", torch.bfloat16))
    hidden_BLH, features_BLF = torch.cat(hidden, 1), torch.cat(features, 1)
    out = []
    for i, response in enumerate(responses):
        length = len(response.ids)
        argmax, lse = _predictions(target, hidden_BLH[i, :length], response.spans)
        out.append(
            {
                "input_ids": ids_BL[i, :length].to(torch.int32),
                "features": features_BLF[i, :length],
                "hidden": hidden_BLH[i, :length].to("cpu", torch.bfloat16),
                "argmax": argmax,
                "lse": lse,
            }
        )
    return out


def check_disk(folder: Path, tokens: int, hidden_size: int) -> None:
    """Refuse before the work starts when the features would not fit.

    Raises:
        DiskFull: says how much is needed and how much is free.
    """
    need = int(1.05 * tokens * bytes_per_token(hidden_size)) + 2**24
    free = shutil.disk_usage(folder).free
    if need > free:
        raise DiskFull(
            f"features of {tokens:,} tokens take {need / 1e9:.2f} GB in {folder}, "
            f"where {free / 1e9:.2f} GB are free",
            "free some space, or lower regenerate.token_budget or regenerate.max_new_tokens",
        )


def _predictions(
    target: Target, hidden_LH: Tensor, spans: list[tuple[int, int]]
) -> tuple[Tensor, Tensor]:
    """Argmax (int32 [L]) and log-sum-exp (float32 [L]) of the logits from the row before each
    answer to the answer's last row; -1 and 0 elsewhere."""
    length = len(hidden_LH)
    argmax = torch.full((length,), -1, dtype=torch.int32)
    lse = torch.zeros(length)
    wanted = torch.zeros(length, dtype=torch.bool)
    for start, end in spans:
        wanted[max(start - 1, 0) : end] = True
    for rows_R in wanted.nonzero()[:, 0].split(LOGIT_ROWS):
        logits_RV = target.logits(hidden_LH[rows_R.to(hidden_LH.device)]).float()
        argmax[rows_R] = logits_RV.argmax(-1).to("cpu", torch.int32)
        lse[rows_R] = logits_RV.logsumexp(-1).cpu()
    return argmax, lse


def _batches(responses: list[Response]) -> Iterator[list[Response]]:
    """Consecutive sequences whose padded rows stay within `BATCH_TOKENS`."""
    batch: list[Response] = []
    longest = 0
    for response in responses:
        longest = max(longest, len(response.ids))
        if batch and (len(batch) + 1) * longest > BATCH_TOKENS:
            yield batch
            batch, longest = [], len(response.ids)
        batch.append(response)
    if batch:
        yield batch


def _intact(path: Path, shard: Shard) -> bool:
    return path.is_file() and sha256_file(path) == shard.sha256
