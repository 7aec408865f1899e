"""What drafts are worth on a target that they were not made for: real decoding, held against plain
decoding and against the target's own text. Minutes, where a training takes hours."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from eagle3.attach.fingerprint import FILE, Fingerprint, distance
from eagle3.bench import metrics
from eagle3.bench.baseline import Baseline, EngineLoop, Loop, counts
from eagle3.bench.metrics import Counts, Pair
from eagle3.bench.prompts import HeldOut
from eagle3.config.probe import ProbeConfig, ProbedDraft
from eagle3.data.local import default_device
from eagle3.decode.engine import Engine
from eagle3.decode.linear import speed_up
from eagle3.decode.request import Generation, Request
from eagle3.decode.tree import Shape
from eagle3.drafters.eagle3 import Eagle3
from eagle3.engines.pair import read_draft
from eagle3.errors import BadInput
from eagle3.export.given import Given, Layers
from eagle3.proof.greedy import PromptProof, compare, verdict
from eagle3.proof.reference import Reference
from eagle3.target import Target

_WARM_UP_TOKENS = 12
_TRIALS = 2
"""Prompts that choose the plain loop."""


@dataclass(frozen=True)
class Probed:
    """One draft on the target. One that does not fit has `why`, and no figures."""

    id: str
    fits: bool
    why: str = ""
    distance: float | None = None
    """Of this target from the one it was made for; None where that is not known."""
    capture_layers: Layers | None = None
    depth: int = 0
    prompts: int = 0
    rounds: int = 0
    tau: float = 1.0
    tau_ci: tuple[float, float] = (1.0, 1.0)
    acceptance_by_position: tuple[float, ...] = ()
    speedup: float = 0.0
    speedup_ci: tuple[float, float] = (0.0, 0.0)
    plain_tokens_per_s: float = 0.0
    draft_tokens_per_s: float = 0.0
    lossless: bool | None = None
    """Whether the text of the spot checks is the target's own; None where none was made."""
    compared_tokens: int = 0
    near_ties: int = 0
    mismatches: int = 0
    by_prompt: tuple[tuple[int, int], ...] = ()
    """Of each prompt, the tokens and rounds of its decode phase."""

    def record(self) -> dict[str, Any]:
        """As JSON."""
        return asdict(self)


def probe_drafts(
    folder: Path,
    here: Fingerprint,
    prompts: Sequence[HeldOut],
    config: ProbeConfig,
    seed: int = 0,
    check_stop: Callable[[], None] = lambda: None,
    tell: Callable[[str], None] = lambda _: None,
) -> list[Probed]:
    """Try each draft on the target in `folder`.

    Args:
        here: the target's fingerprint.
        prompts: held out, as token ids; the first `config.prompts` are used.
        seed: of the bootstrap behind the intervals.
        check_stop: raises where the work is not wanted any more.
    """
    used, found = prompts[: config.prompts], []
    for draft in config.drafts:
        check_stop()
        try:
            layers = read_draft(Path(draft.path), folder).config.capture_layers
        except BadInput as e:
            found.append(Probed(draft.id, fits=False, why=str(e), distance=_distance(draft, here)))
        else:
            found.append(_one(folder, here, draft, layers, used, config, seed, check_stop))
        tell(said(found[-1]))
    return found


def said(one: Probed) -> str:
    """A probe in a line."""
    apart = "" if one.distance is None else f", {one.distance:.4f} from its own target"
    if not one.fits:
        return f"{one.id} does not fit{apart}: {one.why}"
    low, high = one.tau_ci
    return (
        f"{one.id}{apart}: acceptance length {one.tau:.2f} ({low:.2f} to {high:.2f}), "
        f"{one.speedup:.2f}x plain decoding"
    )


def gain(one: Probed, other: Probed, seed: int) -> dict[str, Any] | None:
    """How much longer a draft's acceptance length is than another's on the same prompts, and the
    95% interval of a bootstrap over these. None where one of the two does not fit."""
    if not (one.fits and other.fits):
        return None
    pairs = [
        Pair(Counts(*there), Counts(*here))
        for here, there in zip(one.by_prompt, other.by_prompt, strict=True)
    ]
    return {
        "tau": metrics.tau_gain(pairs),
        "tau_ci": metrics.interval(pairs, metrics.tau_gain, seed),
    }


def _one(
    folder: Path,
    here: Fingerprint,
    draft: ProbedDraft,
    layers: Layers,
    prompts: Sequence[HeldOut],
    config: ProbeConfig,
    seed: int,
    check_stop: Callable[[], None],
) -> Probed:
    """A draft that fits; the target is loaded for it alone, since it captures its own layers."""
    target = Target.load(folder, device=default_device(), capture_layers=layers)
    speed_up(target.model)
    network = Given(Path(draft.path), draft.id, "", "").load(target, layers)
    shape = Shape(draft.depth, draft.top_k, draft.total_tokens)
    requests = [Request(p.ids, config.max_new_tokens, stop_ids=target.eos_ids()) for p in prompts]
    plain = Baseline.choose(target, folder, requests[:_TRIALS]).loop
    answers = _decoded(
        EngineLoop(Engine(target, Eagle3(network, shape))), plain, requests, check_stop
    )
    pairs = [Pair(counts(without), counts(with_draft)) for without, with_draft in answers]
    both = metrics.total(pairs)
    proofs = _spot(folder, target, prompts, [a for _, a in answers], config, check_stop)
    return Probed(
        id=draft.id,
        fits=True,
        distance=_distance(draft, here),
        capture_layers=layers,
        depth=draft.depth,
        prompts=len(pairs),
        rounds=both.draft.rounds,
        tau=metrics.tau(pairs),
        tau_ci=metrics.interval(pairs, metrics.tau, seed),
        acceptance_by_position=tuple(both.draft.acceptance_by_position),
        speedup=metrics.speedup(pairs),
        speedup_ci=metrics.interval(pairs, metrics.speedup, seed),
        plain_tokens_per_s=both.plain.tokens_per_s,
        draft_tokens_per_s=both.draft.tokens_per_s,
        lossless=verdict(proofs) == "lossless",
        compared_tokens=sum(p.new_tokens for p in proofs),
        near_ties=sum(len(p.near_ties) for p in proofs),
        mismatches=sum(p.mismatch is not None for p in proofs),
        by_prompt=tuple((p.draft.tokens, p.draft.rounds) for p in pairs),
    )


def _decoded(
    drafted: Loop, plain: Loop, requests: Sequence[Request], check_stop: Callable[[], None]
) -> list[tuple[Generation, Generation]]:
    """Every prompt by both loops, which take turns at going first, after a warm-up."""
    warm_up = Request(requests[0].prompt_ids, _WARM_UP_TOKENS, stop_ids=requests[0].stop_ids)
    for loop in (plain, drafted):
        loop.answer(warm_up)
    found = []
    for number, request in enumerate(requests):
        check_stop()
        if number % 2:
            with_draft, without = drafted.answer(request), plain.answer(request)
        else:
            without, with_draft = plain.answer(request), drafted.answer(request)
        found.append((without, with_draft))
    return found


def _spot(
    folder: Path,
    target: Target,
    prompts: Sequence[HeldOut],
    answers: Sequence[Generation],
    config: ProbeConfig,
    check_stop: Callable[[], None],
) -> list[PromptProof]:
    """The first answers against the target as stock transformers runs it."""
    eos_ids = target.eos_ids()
    reference = Reference(folder, eos_ids, str(target.device), target.dtype)
    proofs = []
    for prompt, answer in zip(prompts[: config.spot_checks], answers, strict=False):
        check_stop()
        proofs.append(
            compare(reference, prompt, answer.tokens, eos_ids, config.max_new_tokens, answer.rounds)
        )
    return proofs


def _distance(draft: ProbedDraft, here: Fingerprint) -> float | None:
    path = Path(draft.path) / FILE
    return distance(here, Fingerprint.read(path)) if path.is_file() else None
