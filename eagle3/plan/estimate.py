"""A plan: what a recipe will take on a target and some hardware, before it runs."""

from __future__ import annotations

from dataclasses import replace

from eagle3.config import Recipe
from eagle3.config.sections import SAMPLED_PROMPTS, SAMPLED_TOKENS
from eagle3.plan.cost import Machine
from eagle3.plan.devices import Hardware
from eagle3.plan.modes import ROOM, Mode, Setting, first_that_fits, modes, quickest
from eagle3.plan.shape import DraftShape, Figures, TargetShape
from eagle3.plan.tokens import Workload

FLOAT32 = 4
LARGEST_BATCH = 512
"""Sequences decoded together that a plan recommends at most."""


class StageCost(Figures):
    """What one stage takes."""

    name: str
    tokens: int
    """Tokens that it writes (regenerate, parity, benchmark, prove), reads (extract) or passes
    (train)."""
    tokens_per_s: float
    hours: float
    money: float | None = None
    devices: int
    """Devices at work."""


class Plan(Figures):
    """What a run will take. Times rest on assumed shares of the hardware's peak."""

    target: TargetShape
    draft: DraftShape
    target_bytes: int
    """The target's weights in memory."""
    draft_bytes: int
    """The exported draft, float32."""
    hardware: Hardware
    workload: Workload
    bytes_per_token: int
    """Features of one token on disk."""
    store_bytes: int
    """Features of all tokens: what `offline` stores."""
    modes: list[Mode]
    first_fit: str | None
    """The simplest mode that fits."""
    recommended: str | None
    """The quickest mode that fits; empty when none does."""
    regenerate_batch: int
    """Sequences to decode together that fit beside the target."""
    stages: list[StageCost]
    """In the recommended mode, or the first one where none fits."""
    hours: float
    price_per_hour: float | None = None
    """What an hour of all the hardware costs."""
    money: float | None = None
    based_on: str | None = None
    """The earlier job whose facts the sizes are."""
    assumptions: list[str]

    def mode(self, name: str) -> Mode:
        return next(m for m in self.modes if m.name == name)


def bytes_per_token(hidden_size: int, top_k: int | None = None) -> int:
    """Bytes on disk that a token's features take: features and hidden state in bfloat16, ids,
    argmax and lse in 4 bytes. With `top_k`, probabilities of 2 bytes and ids of 4 take the hidden
    state's place."""
    last = 2 * hidden_size if top_k is None else 6 * top_k
    return 3 * hidden_size * 2 + last + 3 * 4


def make_plan(
    recipe: Recipe,
    target: TargetShape,
    work: Workload,
    hardware: Hardware,
    *,
    price_per_hour: float | None = None,
    disk_bytes: int | None = None,
    based_on: str | None = None,
) -> Plan:
    """Plan a recipe.

    Args:
        price_per_hour: of all the hardware together.
        disk_bytes: free space that features must fit into; no limit when empty.
    """
    draft = DraftShape.for_target(
        target, recipe.train.draft_vocab_size, recipe.train.intermediate_size
    )
    # A GPU answers and reads in the checkpoint's type; benchmark and proof are in float32.
    element = FLOAT32 if hardware.device.is_cpu else target.checkpoint_bytes
    machine = Machine(target, draft, hardware, element)
    per_token = bytes_per_token(target.hidden_size, recipe.extract.top_k)
    store = work.tokens * per_token
    found = modes(Setting(machine, recipe, work, store, disk_bytes))
    first, best = first_that_fits(found), quickest(found)
    shown = best or found[0]
    writer = machine
    if recipe.regenerate.engine == "openai":
        writer = replace(machine, target_bytes=target.checkpoint_bytes, served=True)
    batch = _regenerate_batch(writer, recipe, work)
    stages = [
        cost.model_copy(
            update={"money": None if price_per_hour is None else cost.hours * price_per_hour}
        )
        for cost in _stages(machine, writer, recipe, work, shown, batch)
    ]
    hours = sum(s.hours for s in stages)
    return Plan(
        target=target,
        draft=draft,
        target_bytes=target.parameters * element,
        draft_bytes=draft.parameters * 4,
        hardware=hardware,
        workload=work,
        bytes_per_token=per_token,
        store_bytes=store,
        modes=found,
        first_fit=first.name if first else None,
        recommended=best.name if best else None,
        regenerate_batch=batch,
        stages=stages,
        hours=hours,
        price_per_hour=price_per_hour,
        money=None if price_per_hour is None else hours * price_per_hour,
        based_on=based_on,
        assumptions=_assumptions(machine, writer, recipe, work, disk_bytes),
    )


def _stages(
    machine: Machine, writer: Machine, recipe: Recipe, work: Workload, mode: Mode, batch: int
) -> list[StageCost]:
    count = machine.hardware.world
    group = min(writer.group(), count)
    devices = count // group * group if writer.served else group
    answer = recipe.regenerate.max_new_tokens
    prompt = _prompt_length(recipe, work)
    rate = writer.write_rate(batch, prompt + answer / 2, group) * devices / group
    # Prompts are read first; shared beginnings are not taken into account.
    wrote = work.response_tokens / rate + writer.read_seconds(work.prompt_tokens, prompt) / devices
    exact = replace(machine, target_bytes=FLOAT32)
    one = min(exact.group(), count)
    single = exact.write_rate(1, prompt, one)
    found = [
        _cost("regenerate", work.response_tokens, wrote, devices),
        _cost("extract", work.tokens, mode.extract_hours * 3600, count),
        _cost("train", work.train_token_passes, mode.train_hours * 3600, count),
    ]
    bench, proof = recipe.benchmark, recipe.prove
    asked = min(bench.prompts, work.heldout_prompts) * bench.max_new_tokens * bench.repeats
    proved = min(proof.prompts, work.heldout_prompts) * proof.max_new_tokens
    proved += min(SAMPLED_PROMPTS, work.heldout_prompts) * SAMPLED_TOKENS * proof.samples
    tried = min(recipe.parity.prompts, work.heldout_prompts) * recipe.parity.max_new_tokens
    engines = 2 if recipe.engines == "auto" else len({"native", *recipe.engines})
    # Twice: with the draft and without it, which is not faster than assumed here. Of engines, each
    # writes with it; what they take to start is not known.
    times = {"parity": (1 + engines) * tried, "benchmark": 2 * asked, "prove": 2 * proved}
    for name, tokens in times.items():
        found.append(_cost(name, tokens, tokens / single, one))
    return [cost for cost in found if cost.hours > 0]


def _prompt_length(recipe: Recipe, work: Workload) -> float:
    """Mean tokens of a prompt that the target answers."""
    given = recipe.regenerate.mode == "given"
    return work.prompt_tokens / max(1, work.heldout_prompts + (0 if given else work.samples))


def _cost(name: str, tokens: int, seconds: float, devices: int) -> StageCost:
    rate = tokens / seconds if seconds > 0 else 0.0
    return StageCost(
        name=name, tokens=tokens, tokens_per_s=rate, hours=seconds / 3600, devices=devices
    )


def _regenerate_batch(machine: Machine, recipe: Recipe, work: Workload) -> int:
    """The recipe's batch, or the largest power of two below it whose caches fit."""
    asked = recipe.regenerate
    wanted = asked.concurrency if asked.engine == "openai" else asked.batch_size
    count = min(machine.group(), machine.hardware.world)
    memory = ROOM * machine.hardware.device.memory * count
    room = memory - machine.target.parameters * machine.target_bytes
    prompt = _prompt_length(recipe, work)
    one = machine.target.cache_bytes(machine.target_bytes) * (prompt + asked.max_new_tokens)
    fits = int(max(1, room // one))
    if fits >= wanted:
        return min(wanted, LARGEST_BATCH)
    return 1 << (fits.bit_length() - 1)


def _assumptions(
    machine: Machine, writer: Machine, recipe: Recipe, work: Workload, disk_bytes: int | None
) -> list[str]:
    device, shares = machine.hardware.device, machine.shares
    formats = {2: "bfloat16", 4: "float32"}
    said = [
        _lengths(recipe, work),
        f"{device.title}: {device.source}",
        f"shares of its peak: reading {shares.read:.0%}, training {shares.train:.0%} of FLOP/s, "
        f"writing {writer.shares.decode:.0%} of FLOP/s or {writer.shares.bandwidth:.0%} of "
        "bandwidth, whichever is slower",
        f"the target in {formats[machine.target_bytes]}, the draft trained, the benchmark and the "
        "proof in float32",
        "fetching the target and loading it are not counted",
    ]
    if disk_bytes is None:
        said.append("the disk has room for what a mode stores: how much is free is not known")
    if machine.hardware.world > 1:
        said.append("processes share the work evenly; exchanging gradients is not counted")
    if writer.served:
        said.append(
            "the server that writes the answers runs on the same hardware, in "
            + formats[writer.target_bytes]
        )
    if (group := writer.group()) > 1:
        said.append(f"a copy of the target takes {group} devices to write answers")
    return said


def _lengths(recipe: Recipe, work: Workload) -> str:
    if recipe.regenerate.mode == "given":
        return f"every sample is of {work.sample_tokens:,} tokens, the most that training takes"
    return (
        f"every prompt is of {_prompt_length(recipe, work):,.0f} tokens and asks one question; "
        f"every answer is of {recipe.regenerate.max_new_tokens:,} tokens, the most it may have"
    )
