"""What an attachment may do: the `attach` part of a job, and the policy file of a pipeline."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from eagle3.config import Strict

Mode = Literal["reuse", "warm_start", "train"]
Share = Annotated[float, Field(gt=0, le=1)]


class Probing(Strict):
    """How drafts that exist are tried on the new checkpoint."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    candidates: Annotated[int, Field(ge=0, le=16)] = 3
    """Drafts that are tried at most, those of the nearest lineage first."""
    prompts: Annotated[int, Field(ge=1, le=1000)] = 16
    """Held-out prompts that each one decodes."""
    max_new_tokens: Annotated[int, Field(ge=2, le=8192)] = 64
    """Cap on an answer."""
    spot_checks: Annotated[int, Field(ge=1)] = 4
    """Prompts whose text must be the target's own, token for token."""


class DriftPolicy(Strict):
    """When a served draft has fallen behind what it was registered with."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    drop: Share = 0.2
    """Share of the registered acceptance that may be lost: 0.2 of an acceptance length of 2.0 is
    1.8."""
    confidence: Annotated[float, Field(gt=0.5, lt=1)] = 0.99
    """How sure one must be that it is lost."""
    min_rounds: Annotated[int, Field(ge=1)] = 1000
    """Rounds of speculation that must have been observed."""
    window_hours: Annotated[float, Field(gt=0)] = 24
    """Only observations of so many last hours count."""
    action: Literal["propose", "retrain"] = "propose"
    """`propose`: an event, and the draft says so. `retrain`: also a job that goes on from it."""


class AttachPolicy(Strict):
    """How a checkpoint gets its draft."""

    model_config = ConfigDict(use_attribute_docstrings=True)

    allow: Annotated[tuple[Mode, ...], Field(min_length=1)] = ("reuse", "warm_start", "train")
    """What may be done, cheapest first: a draft as it is, one trained on, one trained from
    scratch."""
    probe: Probing = Probing()
    """How drafts that exist are tried."""
    reuse_above: Share = 0.9
    """A draft is reused where at least this share of its registered acceptance, (tau - 1), is left
    on the new checkpoint, and the gates hold."""
    warm_start_above: Share = 0.2
    """Training goes on from a draft where at least this share is left."""
    warm_start_budget: Share = 0.5
    """Passes over the training data of a warm start, as a share of the recipe's."""
    tolerance: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """By how much the acceptance length may lie below the incumbent's on the new checkpoint."""
    promote: bool = True
    """Make the draft champion where its gates hold. It gets its `for-<revision>` alias anyway."""
    drift: DriftPolicy = DriftPolicy()
    """What follows when it later accepts less, as it is served."""


def with_defaults(target: str, policy: dict[str, Any]) -> dict[str, Any]:
    """The job of an attachment: a policy is a job file without `target`, and with `attach`."""
    return {**policy, "target": target, "attach": policy.get("attach") or {}}
