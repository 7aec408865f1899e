"""The ways to run a recipe on some hardware: memory and hours of each, and which to take."""

from __future__ import annotations

from dataclasses import dataclass

from eagle3.config import Recipe
from eagle3.plan import memory
from eagle3.plan.cost import READ_TOKENS, Machine
from eagle3.plan.memory import Memory, Rows
from eagle3.plan.shape import Figures
from eagle3.plan.workload import Workload

ROOM = 0.95
"""Share of a device's memory that a plan fills at most."""
RUNTIME = 10**9
"""Bytes of a CUDA context with its libraries, or of Python with torch."""
SLACK = 0.1
"""What an allocator holds beyond what is in use, as a share."""


class Mode(Figures):
    """One way to train."""

    name: str
    features: str
    """`offline`, `online` or `streamed`, as `extract.mode` of the recipe."""
    sharding: str
    """`single` process; `ddp`: each process holds all weights; `fsdp`: they are spread."""
    memory: Memory
    """Of the process that needs most."""
    fits: bool
    tokens_per_step: int
    """Of one process in one backward pass: its share of `train.batch_tokens`, cut until it fits."""
    accumulate: int
    """Backward passes in one optimiser step."""
    extract_hours: float
    """Reading the target, where that is a stage of its own."""
    train_hours: float
    """Training, with the target read meanwhile where nothing is stored."""
    store_bytes: int
    """Features on disk."""
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
    """The mode that fits and takes the fewest hours; of equal ones the simplest."""
    return min((m for m in found if m.fits), key=lambda m: round(m.hours, 3), default=None)


def _mode(setting: Setting, features: str, sharding: str) -> Mode:
    needed, tokens, accumulate = _memory(setting, features, sharding)
    room = ROOM * setting.machine.hardware.device.memory
    store = setting.store_bytes if features == "offline" else 0
    why = ""
    if needed.total > room:
        why = f"needs {needed.total / 1e9:.1f} GB a device, which has {room / 1e9:.1f} to use"
    elif setting.disk_bytes is not None and store > setting.disk_bytes:
        free = setting.disk_bytes / 1e9
        why = f"stores {store / 1e9:.1f} GB of features, where {free:.1f} GB are free"
    extract, train = _seconds(setting, features, sharding)
    return Mode(
        name=f"{features}-{sharding}",
        features=features,
        sharding=sharding,
        memory=needed,
        fits=not why,
        why_not=why,
        tokens_per_step=tokens,
        accumulate=accumulate,
        extract_hours=extract / 3600,
        train_hours=train / 3600,
        store_bytes=store,
    )


def _memory(setting: Setting, features: str, sharding: str) -> tuple[Memory, int, int]:
    """Memory at the largest share of a batch that fits; at one sample where none does."""
    t, length = setting.recipe.train, setting.work.sample_tokens
    share = max(length, t.batch_tokens // _trainers(setting, features))
    accumulate = 1
    while True:
        tokens = max(length, share // accumulate)
        needed = _at(setting, features, sharding, tokens)
        fits = needed.total <= ROOM * setting.machine.hardware.device.memory
        if fits or tokens == length:
            return needed, tokens, accumulate
        accumulate *= 2


def _at(setting: Setting, features: str, sharding: str, tokens: int) -> Memory:
    m, work = setting.machine, setting.work
    sharded = setting.world if sharding == "fsdp" else 1
    rows = Rows.of(tokens, work.sample_tokens, work.supervised)
    step = memory.training(
        m.target, m.draft, setting.recipe.train, rows, sharded=sharded, frozen_bytes=m.target_bytes
    )
    read = _reader(setting, sharded)
    if features == "online" or (features == "streamed" and m.hardware.device.is_cpu):
        # The embedding and the head are the target's own, where it is there.
        both = step.model_copy(update={"target": read.target, "reading": read.reading})
        return _with_overhead(both)
    # Extraction comes before training, or has devices of its own: the larger one counts.
    return max(_with_overhead(step), _with_overhead(read), key=lambda found: found.total)


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
    """Trainers and readers that keep up with each other best."""
    read, train = _read_seconds(setting, 1), _train_seconds(setting)
    world = setting.world
    return min(
        ((world - readers, readers) for readers in range(1, world)),
        key=lambda split: max(train / split[0], read / split[1]),
    )


def _seconds(setting: Setting, features: str, sharding: str) -> tuple[float, float]:
    """Seconds of extraction, and of training."""
    world = setting.world
    sharded = world if sharding == "fsdp" else 1
    train = _train_seconds(setting) / world
    if features == "offline":
        m, work = setting.machine, setting.work
        read = m.read_seconds(work.tokens, work.sample_tokens, sharded)
        return read / world, train
    if features == "streamed" and world > 1:
        trainers, readers = _split(setting)
        return 0.0, max(_train_seconds(setting) / trainers, _read_seconds(setting, 1) / readers)
    return 0.0, train + _read_seconds(setting, sharded) / world


def _read_seconds(setting: Setting, sharded: int) -> float:
    """One process reads all token passes: nothing is stored, so every epoch reads again."""
    work = setting.work
    return setting.machine.read_seconds(work.train_token_passes, work.sample_tokens, sharded)


def _train_seconds(setting: Setting) -> float:
    return setting.machine.train_seconds(setting.work, setting.recipe, memory.FLOAT32)
