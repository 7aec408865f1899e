"""Attachments, and what serving engines observe of drafts."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any, Self

from pydantic import Field, model_validator

from api.schemas.base import Answer, Body
from api.schemas.drafts import DraftView
from api.schemas.jobs import JobError

Count = Annotated[int, Field(ge=0, lt=2**62)]


class AttachmentBody(Body):
    """A checkpoint that is to get its draft."""

    target: Annotated[str, Field(min_length=1, max_length=1024, examples=["acme/model@4f2a91"])]
    """As a job's target."""
    policy: dict[str, Any] = Field(
        default_factory=dict,
        examples=[{"recipe": "quick", "gates": {"min_tau": 1.3}, "attach": {"reuse_above": 0.9}}],
    )
    """A job without its target: recipe, overrides, prompts, gates and so on, and `attach`."""


class GateCheck(Answer):
    """A gate, what it asks for and what there is."""

    name: str
    required: Any
    measured: Any
    passed: bool


class AttachmentView(Answer):
    """A checkpoint, what was decided about it and how that went."""

    id: Annotated[str, Field(examples=["att_01kb8m2v9x3tq7c5"])]
    status: str
    """pending, attached, attached_by_reuse, gates_failed, incompatible, failed or cancelled; more
    may come."""
    job_id: str
    """The job that does it: its events, its stages, and the way to cancel it."""
    job_status: str
    target: str
    policy: dict[str, Any]
    """As submitted, defaults filled in."""
    fingerprint: dict[str, Any] | None = None
    """The checkpoint's sizes and hashes, once it was probed."""
    decision: dict[str, Any] | None = None
    """`mode` (reuse, warm_start, train or none), `draft_id`, `why`, and under `tried` what the
    probe measured of each candidate."""
    checks: list[GateCheck] = Field(default_factory=list)
    """The gates; of a reuse as probed, of a new draft as its stages measured."""
    draft: DraftView | None = None
    """The draft, once there is one."""
    error: JobError | None = None
    summary: str
    """All of it in Markdown, for a pull request."""
    created_at: datetime
    decided_at: datetime | None = None
    finished_at: datetime | None = None


class HookView(Answer):
    """What came of a message of another service."""

    attachment_id: str | None = None
    """The attachment that it started, or had started before."""
    why: str | None = None
    """Why there is none."""
    replayed: bool = False
    """Whether it was told before."""


class ObservationBody(Body):
    """An engine's own counters of speculation, which rise for as long as its process runs."""

    source: Annotated[str, Field(min_length=1, max_length=128, pattern=r"^[^\x00-\x1f\x7f]+$")]
    """The process that counts, such as a pod's name."""
    rounds: Count
    """Rounds of drafting: `vllm:spec_decode_num_drafts_total`."""
    accepted: Count
    """Drafted tokens that were accepted: `vllm:spec_decode_num_accepted_tokens_total`."""
    accepted_at: Annotated[list[Count], Field(max_length=64)] = Field(default_factory=list)
    """The same by position, `vllm:spec_decode_num_accepted_tokens_per_pos_total`; may be empty."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        at = self.accepted_at
        if at and (sum(at) != self.accepted or at != sorted(at, reverse=True)):
            raise ValueError("accepted_at: expected counts that fall and add up to `accepted`")
        if at and at[0] > self.rounds:
            raise ValueError("accepted_at: more tokens were accepted first than there are rounds")
        if self.accepted > 64 * self.rounds:
            raise ValueError("accepted: expected at most 64 tokens a round")
        return self


class DriftView(Answer):
    """A draft's acceptance length as served, against what it is registered with."""

    drifted: bool
    rounds: int
    """Rounds that were looked at."""
    tau: float
    tau_high: float
    """Upper bound, at the confidence of the draft's policy."""
    registered_tau: float
    floor: float
    """Below this it has drifted."""


class ObservationView(Answer):
    """What an observation added."""

    draft_id: str
    source: str
    rounds: int
    """New since the observation before."""
    accepted: int
    verdict: DriftView | None = None
    """Empty until enough was observed."""
    drift: dict[str, Any] | None = None
    """As the draft's own."""
    created_at: datetime
