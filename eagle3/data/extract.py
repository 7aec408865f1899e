"""Stage `extract`: what the draft learns from, read off the target in one forward per sequence."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from safetensors.torch import save_file

from eagle3.config import ExtractConfig
from eagle3.data.capture import grouped, target_rows
from eagle3.data.features import Columns, FeatureIndex, Shard, TokenSequence, finite
from eagle3.data.local import capture_layers, open_target, target_facts
from eagle3.data.records import Journal, Response, read_journal
from eagle3.data.topk import TopKLoss
from eagle3.errors import BadInput, DiskFull, disk_is_full
from eagle3.parallel import anywhere, share, wait
from eagle3.plan import bytes_per_token
from eagle3.process import rank
from eagle3.run import Context, sha256_file, write_json
from eagle3.target import Target


def extract(ctx: Context) -> None:
    """Write the shards, then `index.json`; of online and streamed features, the index alone.

    Resumes: a shard that `work/shards.jsonl` lists, and whose hash is right, is kept; so are those
    of an index that is there already, when other files of the folder are lost or damaged. Several
    processes (`torchrun`) deal out the shards; a shard is the same whoever writes it.

    Raises:
        DiskFull: the features of all responses would not fit, or exceed the quota.
        BadInput: a feature is not a number; names the sample.
    """
    config = ctx.config.recipe.extract
    responses = ctx.inputs["regenerate"] / "responses.jsonl"
    sequences = read_sequences(responses)
    if config.mode == "offline":
        target = open_target(ctx)
        sizes, shards = vars(target), _write_shards(ctx, target, sequences)
    else:
        sizes, shards = target_facts(ctx), []
    if rank() > 0:
        return
    index = FeatureIndex(
        hidden_size=sizes["hidden_size"],
        vocab_size=sizes["vocab_size"],
        capture_layers=capture_layers(ctx),
        mode=config.mode,
        top_k=config.top_k,
        responses_sha256=sha256_file(responses),
        shards=shards,
    )
    write_json(ctx.out / "index.json", index.model_dump(mode="json"))
    ctx.summary |= {
        "mode": config.mode,
        "tokens": sum(len(s.ids) for s in sequences),
        "bytes": sum((ctx.out / s.file).stat().st_size for s in shards),
    }
    if config.top_k is not None:
        loss = sum((s.top_k_loss for s in shards if s.top_k_loss), TopKLoss())
        ctx.summary |= loss.summary(config.top_k)


def read_sequences(responses: Path) -> list[TokenSequence]:
    """The conversations of `responses.jsonl`, those of like length together (little padding): the
    order of the samples, whatever way their features take."""
    with responses.open("rb") as f:
        found = [TokenSequence.of(Response.model_validate_json(line)) for line in f]
    return sorted(found, key=lambda s: (len(s.ids), s.id))


def _write_shards(ctx: Context, target: Target, sequences: list[TokenSequence]) -> list[Shard]:
    config, depth = ctx.config.recipe.extract, ctx.config.recipe.draft_depth
    total = sum(len(s.ids) for s in sequences)
    tokens, started = 0, time.monotonic()

    def count(new_tokens: int) -> None:
        nonlocal tokens
        tokens += new_tokens
        ctx.progress.progress(tokens, kept + own, "token")

    parts = list(enumerate(packed(sequences, config.shard_tokens)))
    names = [f"shard-{i:05d}.safetensors" for i, _ in parts]
    work = ctx.out / "work"
    journal = Journal(work / (f"shards-{rank()}.jsonl" if rank() else "shards.jsonl"), Shard)
    try:
        known = [*_indexed(ctx.out), *_journalled(work)]
        for name in names:
            check_place(ctx.out / name)
        done = {s.file: s for s in known if intact(ctx.out / s.file, s)}
        kept = sum(s.tokens for s in done.values())
        mine = [(i, part) for i, part in share(parts) if names[i] not in done]
        own = sum(len(s.ids) for _, part in mine for s in part)
        count(kept)
        check_disk(ctx.out, total, kept, target.hidden_size, config)
        for i, part in mine:
            if not ctx.stop.is_set():
                shard = write_shard(target, part, ctx.out, names[i], config.top_k, depth, count)
                journal.append(shard)
    finally:
        journal.close()
    target.accompany()
    wait()
    done |= {s.file: s for s in _journalled(work)}
    if anywhere(ctx.stop.is_set()) and done.keys() < set(names):
        ctx.stop.set()
        ctx.check_stop("finished shards are kept")
    ctx.summary["tokens_per_s"] = round((total - kept) / (time.monotonic() - started), 2)
    return [done[name] for name in names]


def _journalled(work: Path) -> list[Shard]:
    """What processes, as many as there were, have written down so far."""
    journals = sorted(work.glob("shards*.jsonl"))
    return [shard for path in journals for shard in read_journal(path, Shard)[0]]


def packed(sequences: Sequence[TokenSequence], shard_tokens: int) -> Iterator[list[TokenSequence]]:
    """Consecutive sequences, about `shard_tokens` tokens a shard."""
    part: list[TokenSequence] = []
    tokens = 0
    for sequence in sequences:
        part.append(sequence)
        tokens += len(sequence.ids)
        if tokens >= shard_tokens:
            yield part
            part, tokens = [], 0
    if part:
        yield part


def write_shard(
    target: Target,
    sequences: Sequence[TokenSequence],
    folder: Path,
    name: str,
    top_k: int | None = None,
    depth: int = 1,
    on_tokens: Callable[[int], None] = lambda tokens: None,
) -> Shard:
    """Run the target over the sequences and write one shard; it appears under its name whole.

    Args:
        depth: of the chains by which the loss of `top_k` is judged.
        on_tokens: called after each forward with the tokens it read.

    Raises:
        BadInput: a feature is not a number; names the sample.
        DiskFull: what was written of this shard is removed; finished shards stay.
    """
    columns: dict[str, list[torch.Tensor]] = {}
    samples, start, loss = [], 0, TopKLoss()
    for batch in grouped(sequences):
        for sequence, rows in zip(batch, target_rows(target, batch, top_k), strict=True):
            check_finite(sequence.id, rows)
            for column, value in rows.items():
                columns.setdefault(column, []).append(value)
            if top_k is not None:
                loss += TopKLoss.of(rows["top_probs"].float().sum(-1), sequence.spans, depth)
            samples.append(sequence.ref(start))
            start += len(sequence.ids)
        on_tokens(sum(len(s.ids) for s in batch))
    digest = _save({k: torch.cat(v) for k, v in columns.items()}, folder, name)
    kept = loss if top_k is not None else None
    return Shard(file=name, sha256=digest, tokens=start, samples=samples, top_k_loss=kept)


def check_finite(sample_id: str, rows: Columns) -> None:
    """Raise BadInput, with sample and row, when a feature is NaN or infinite.

    What training reads is checked in `train/guard.py`.
    """
    for name, value in rows.items():
        if finite(value):
            continue
        bad = (~value.isfinite()).reshape(len(value), -1).any(-1).nonzero()[0, 0]
        raise BadInput(
            f"sample {sample_id!r} has NaN or infinity in `{name}`, first at row {int(bad)} "
            f"of {len(value)}",
            "leave that conversation out of the prompts; when many are named, the target's "
            "weights are damaged or overflow",
        )


def _save(columns: Columns, folder: Path, name: str) -> str:
    """Write under `work/`, then move; returns the hash."""
    path = folder / "work" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        save_file(columns, path, {"format": "pt"})
        digest = sha256_file(path)
        path.replace(folder / name)
    except Exception as e:
        if not disk_is_full(e):
            raise
        path.unlink(missing_ok=True)
        raise DiskFull(
            f"the disk is full: {name} did not fit into {folder}",
            "free some space (eagle3 clean RUN removes features that nothing needs any more), then "
            "run the same command; finished shards are kept",
        ) from e
    return digest


def check_disk(
    folder: Path, tokens: int, kept: int, hidden_size: int, config: ExtractConfig
) -> None:
    """Refuse before the work starts when the features would not fit.

    Args:
        tokens: all tokens of the run.
        kept: tokens whose features are there already.

    Raises:
        DiskFull: says how much is needed, and how much is free or allowed.
    """
    each = bytes_per_token(hidden_size, config.top_k)
    need, free = int(1.05 * (tokens - kept) * each) + 2**24, shutil.disk_usage(folder).free
    what = f"features of {tokens - kept:,} tokens take {need / 1e9:.2f} GB in {folder}, "
    less = (
        "lower regenerate.token_budget or regenerate.max_new_tokens, or set extract.mode to online "
        "or streamed, which store nothing"
    )
    if need > free:
        raise DiskFull(
            f"{what}where {free / 1e9:.2f} GB are free",
            f"free some space (eagle3 clean RUN removes features that nothing needs any more), "
            f"{less}",
        )
    if config.quota_gb is not None and tokens * each > config.quota_gb * 1e9:
        raise DiskFull(
            f"features of {tokens:,} tokens take {tokens * each / 1e9:.2f} GB, and "
            f"extract.quota_gb allows {config.quota_gb:g}",
            f"raise extract.quota_gb, {less}",
        )


def intact(path: Path, shard: Shard) -> bool:
    return path.is_file() and sha256_file(path) == shard.sha256


def check_place(path: Path) -> None:
    """Raises BadInput where a directory lies in a shard's place, which nothing here removes."""
    if path.is_dir():
        raise BadInput(
            f"{path} is a directory, where a feature shard belongs",
            "move it away and run the same command; what is whole is kept",
        )


def _indexed(folder: Path) -> list[Shard]:
    """Shards of an index that was finished before; none where it is missing or damaged."""
    try:
        return FeatureIndex.read(folder).shards
    except BadInput:
        return []
