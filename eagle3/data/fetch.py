"""The hub: pin a reference to a commit, fetch its files, and say plainly what went wrong."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx2
from huggingface_hub import HfApi, snapshot_download
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)

from eagle3.errors import BadInput, TargetUnavailable

PATTERNS = ["*.safetensors", "*.json", "*.jinja", "tokenizer*", "*.model", "*.txt"]
"""Weights in safetensors, configs, tokenizer files. Never `*.bin`, `*.pt` or `*.py`."""

ACCESS_HINT = (
    "set HF_TOKEN to a token of an account that may read it; for jobs of the service: PUT "
    "/v1/api-keys/ID/hub-token"
)


@contextmanager
def hub_errors(what: str) -> Iterator[None]:
    """Turn the hub client's errors into ours. Messages never hold a token or a request header.

    Raises:
        BadInput: no such repository or revision.
        TargetUnavailable: gated, forbidden, or the hub cannot be reached.
    """
    try:
        yield
    except GatedRepoError:
        raise TargetUnavailable(
            f"{what} is gated: its owner must let your account in first",
            f"ask for access on its page at huggingface.co, then {ACCESS_HINT}",
        ) from None
    except RevisionNotFoundError:
        raise BadInput(f"{what} has no such revision", "give a branch, a tag or a commit") from None
    except RepositoryNotFoundError:
        raise BadInput(
            f"{what} does not exist on the hub, or is private and the token may not see it",
            f"check the name; for a private one {ACCESS_HINT}",
        ) from None
    except (OfflineModeIsEnabled, LocalEntryNotFoundError):
        raise TargetUnavailable(
            f"{what} is not on this machine and the hub cannot be reached",
            "check the network, unset HF_HUB_OFFLINE, or name local files: file:///abs/dir",
        ) from None
    except HfHubHTTPError as e:
        status = e.response.status_code
        reason = {401: "the token is not valid (401)", 403: "access is forbidden (403)"}
        raise TargetUnavailable(
            f"{what}: {reason.get(status, f'the hub answered {status}')}",
            ACCESS_HINT if status in reason else "try again later",
        ) from None
    except (httpx2.TransportError, ConnectionError, TimeoutError) as e:
        raise TargetUnavailable(
            f"{what}: the hub cannot be reached ({type(e).__name__})",
            "check the network, or name local files: file:///abs/dir",
        ) from None


def pin(repo: str, revision: str | None) -> tuple[str, list[str]]:
    """The commit (40 hex digits) that a revision points to now, and the files it holds."""
    with hub_errors(f"the target {repo}"):
        info = HfApi().model_info(repo, revision=revision)
    assert info.sha is not None
    return info.sha, [f.rfilename for f in info.siblings or []]


def fetch_small(repo: str, commit: str) -> Path:
    """Everything but the weights: enough to refuse most targets within seconds."""
    with hub_errors(f"the target {repo}"):
        return Path(
            snapshot_download(
                repo,
                revision=commit,
                allow_patterns=[p for p in PATTERNS if p != "*.safetensors"],
                ignore_patterns=["*/*"],
            )
        )


def fetch_all(repo: str, commit: str) -> Path:
    """All files of the target, in the hub client's cache; files that are there are kept."""
    with hub_errors(f"the target {repo}"):
        return Path(
            snapshot_download(
                repo, revision=commit, allow_patterns=PATTERNS, ignore_patterns=["*/*"]
            )
        )
