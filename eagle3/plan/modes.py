"""The ways to run a recipe on some hardware: memory and hours of each, and which to take."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass

from eagle3.config import Recipe
from eagle3.plan import memory
from eagle3.plan.cost import READ_TOKENS, Machine
from eagle3.plan.memory import Memory, Rows
from eagle3.plan.shape import Figures
from eagle3.plan.tokens import Workload

ROOM = 0.95
"""Share of a device's memory that a plan fills at most."""
RUNTIME = 5 * 10**8
"""Bytes of Python with torch, or of a CUDA context with its libraries."""
SLACK = 0.2
"""What an allocator holds beyond what is in use, as a share (10% and 24% on a CPU, measured)."""

ALIKE = 1.05
"""Hours that differ by less are taken for equal: they are estimates."""


class Mode(Figures):
    """One way to train."""

    name: str
    features: str
    """`offline`, `online` or `streamed`, as `extract.mode` of the recipe."""
    sharding: str
    """`single` process; `ddp`: each process holds all weights; `fsdp`: they are spread
    (`train.sharded`, `extract.sharded`)."""
    memory_bytes: int
    """Of one device, or of the machine on a CPU: the larger of what follows."""
    training: Memory
    """Of a process that trains."""
    extracting: Memory | None
    """Of a process that only reads the target: before training, or on devices of its own."""
    fits: bool
    tokens_per_step: int
    """Of one process in one backward pass: its share of a batch, cut until it fits."""
    accumulate: int
    """Backward passes in one optimiser step."""
    extract_hours: float
    """Reading the target, where that is a stage of its own."""
    train_hours: float
    """Training, with the target read meanwhile where nothing is stored."""
    store_bytes: int
    """Features on disk."""
    disk_bytes: int
    """Under the run directory: features, checkpoints and drafts."""
    why_not: str = ""
    """What keeps it from being possible, in words."""

    @property
    def hours(self) -> float:
        return self.extract_hours + self.train_hours


@dataclass(frozen=True)
class Setting:
    """What all modes of a plan share."""

    machine: Machine
    recipe: Recipe
    work: Workload
    store_bytes: int
    disk_bytes: int | None

    @property
    def world(self) -> int:
        return self.machine.hardware.world

    @property
    def drafts_bytes(self) -> int:
        """Checkpoints that are kept, each with two moments, and one being written; the best draft,
        beside them and as a result; the exported one."""
        copies = 3 * (self.recipe.train.keep_checkpoints + 1) + 3
        return copies * self.machine.draft.parameters * memory.FLOAT32


def modes(setting: Setting) -> list[Mode]:
    """Every mode that the hardware has room for by its number of devices, simplest first."""
    shardings = ["single"] if setting.world == 1 else ["ddp", "fsdp"]
    streams = setting.machine.hardware.count > 1
    return [
        _mode(setting, features, sharding)
        for features in ("offline", "streamed", "online")
        for sharding in shardings
        if features != "streamed" or streams
    ]


def first_that_fits(found: list[Mode]) -> Mode | None:
    return next((m for m in found if m.fits), None)


def quickest(found: list[Mode]) -> Mode | None:
    """The simplest of the modes that fit and take hardly longer than the quickest of them."""
    fitting = [m for m in found if m.fits]
    least = min((m.hours for m in fitting), default=0.0)
    return next((m for m in fitting if m.hours <= ALIKE * least), None)


def _mode(setting: Setting, features: str, sharding: str) -> Mode:
    training, extracting, tokens, accumulate = _memory(setting, features, sharding)
    needed = max(found.total for found in (training, extracting) if found is not None)
    room = ROOM * setting.machine.hardware.device.memory
    store = setting.store_bytes if features == "offline" else 0
    disk = store + setting.drafts_bytes
    why = ""
    if needed > room:
        why = f"needs {needed / 1e9:.1f} GB a device, which has {room / 1e9:.1f} to use"
    elif setting.disk_bytes is not None and disk > setting.disk_bytes:
        free = setting.disk_bytes / 1e9
        why = f"writes {disk / 1e9:.1f} GB, where {free:.1f} GB are free"
    extract, train = _seconds(setting, features, sharding)
    return Mode(
        name=f"{features}-{sharding}",
        features=features,
        sharding=sharding,
        memory_bytes=needed,
        training=training,
        extracting=extracting,
        fits=not why,
        why_not=why,
        tokens_per_step=tokens,
        accumulate=accumulate,
        extract_hours=extract / 3600,
        train_hours=train / 3600,
        store_bytes=store,
        disk_bytes=disk,
    )


def _memory(
    setting: Setting, features: str, sharding: str
) -> tuple[Memory, Memory | None, int, int]:
    """Of training and of reading; tokens of a backward pass and passes of a step: the largest share
    of a batch that fits, or one sample where none does."""
    length = setting.work.sample_tokens
    train, trainers = setting.recipe.train, _trainers(setting, features)
    share = max(length, train.batch_tokens // trainers)
    sharded = trainers if sharding == "fsdp" else 1
    reader = _reader(setting, sharded if features != "streamed" else 1)
    together = features == "online" or (features == "streamed" and setting.world == 1)
    parts = 1
    while True:
        tokens = max(length, share // parts)
        passes = max(1, round(train.accumulate * train.batch_tokens / (trainers * tokens)))
        step = _training(setting, sharded, tokens, passes > 1)
        if together:
            step = step.model_copy(update={"target": reader.target, "reading": reader.reading})
        step = _with_overhead(step)
        fits = step.total <= ROOM * setting.machine.hardware.device.memory
        if fits or tokens == length:
            return step, None if together else _with_overhead(reader), tokens, passes
        parts *= 2


def _training(setting: Setting, sharded: int, tokens: int, accumulated: bool) -> Memory:
    m, work = setting.machine, setting.work
    return memory.training(
        m.target,
        m.draft,
        setting.recipe.train,
        Rows.of(tokens, work.sample_tokens, work.supervised),
        product_bytes=m.product_bytes(setting.recipe),
        sharded=sharded,
        frozen_bytes=m.target_bytes,
        accumulated=accumulated,
    )


def _reader(setting: Setting, sharded: int) -> Memory:
    """The target while it reads: spread over devices, one layer is gathered at a time."""
    m = setting.machine
    weights = m.target.parameters * m.target_bytes
    layer = weights // m.target.num_layers if sharded > 1 else 0
    rows = max(READ_TOKENS, setting.work.sample_tokens)
    reading = memory.reading(m.target, rows, m.target_bytes)
    return Memory(target=weights // sharded + layer, reading=reading)


def _with_overhead(found: Memory) -> Memory:
    return found.model_copy(update={"overhead": RUNTIME + round(SLACK * found.total)})


def _trainers(setting: Setting, features: str) -> int:
    """Processes that train; with streamed features the others read the target."""
    if features != "streamed" or setting.world == 1:
        return setting.world
    return _split(setting)[0]


def _split(setting: Setting) -> tuple[int, int]:
    """Trainers and readers that keep up with each other best: with more readers, reading takes
    less time and training more, so that the best split is where the two meet."""
    some = range(1, setting.world)
    meet = bisect_left(some, True, key=lambda readers: _training_waits_not(setting, readers))
    return min(
        ((setting.world - readers, readers) for readers in some[max(0, meet - 1) : meet + 1]),
        key=lambda split: _streamed_seconds(setting, *split),
    )


def _training_waits_not(setting: Setting, readers: int) -> bool:
    machine, work = setting.machine, setting.work
    train = machine.train_seconds(work, setting.recipe, setting.world - readers)
    return train >= _read_seconds(setting, 1) / readers


def _seconds(setting: Setting, features: str, sharding: str) -> tuple[float, float]:
    """Seconds of extraction, and of training."""
    world, work = setting.world, setting.work
    sharded = world if sharding == "fsdp" else 1
    if features == "streamed" and world > 1:
        return 0.0, _streamed_seconds(setting, *_split(setting))
    train = setting.machine.train_seconds(work, setting.recipe, world)
    if features == "offline":
        return setting.machine.read_seconds(work.tokens, work.sample_tokens, sharded) / world, train
    return 0.0, train + _read_seconds(setting, sharded) / world


def _streamed_seconds(setting: Setting, trainers: int, readers: int) -> float:
    train = setting.machine.train_seconds(setting.work, setting.recipe, trainers)
    return max(train, _read_seconds(setting, 1) / readers)


def _read_seconds(setting: Setting, sharded: int) -> float:
    """One process reads all token passes: nothing is stored, so every epoch reads again."""
    work = setting.work
    return setting.machine.read_seconds(work.train_token_passes, work.sample_tokens, sharded)
