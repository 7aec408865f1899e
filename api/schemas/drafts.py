"""What the API answers about drafts."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from pydantic import Field

from api.schemas.base import Answer, Body


class DraftView(Answer):
    """A trained draft, bound by hashes to the target it was trained for."""

    id: Annotated[str, Field(examples=["dft_01kb8m2v9x3tq7c5"])]
    job_id: str
    name: Annotated[str, Field(examples=["eagle3--HuggingFaceTB--SmolLM2-135M-Instruct"])]
    """Name of the registered model."""
    alias: str
    """candidate, champion or previous; more may come. A job whose gates passed makes a champion."""
    champion: str | None = None
    """The draft that is champion for the same name and target."""
    deprecated_at: datetime | None = None
    deprecation: str | None = None
    """Why it should not be used."""
    attached_at: datetime | None = None
    """When an attachment's gates held: it is the draft for its target's revision, champion or
    not."""
    drift: dict[str, Any] | None = None
    """Where it accepts less, as served, than it is registered with: what was observed and, in
    `job_id`, the job that goes on from it."""
    target: str
    """The reference as the job gave it."""
    target_resolved: str
    """What it was at that moment: a commit or a content hash."""
    weights_sha256: str
    tokenizer_sha256: str
    template_sha256: str
    capture_layers: list[int]
    metrics: dict[str, Any] = Field(default_factory=dict)
    uri: str
    """Where the bundle lies in the object store."""
    manifest_sha256: str
    mlflow_run_id: str | None = None
    mlflow_version: str | None = None
    """Empty until MLflow has taken it."""
    created_at: datetime


class DraftPage(Answer):
    """One page of drafts, newest first."""

    data: list[DraftView]
    has_more: bool
    next: str | None = None


class DraftFile(Answer):
    """One file of a draft's bundle."""

    path: Annotated[str, Field(examples=["draft/model.safetensors"])]
    size: int
    """Bytes."""
    sha256: str


class DraftFiles(Answer):
    """The files of a draft, as its manifest lists them."""

    draft_id: str
    data: list[DraftFile]


class DeprecateBody(Body):
    """Why a draft should not be used."""

    reason: Annotated[str, Field(min_length=1, max_length=1024, pattern=r"^[^\x00]+$")]
