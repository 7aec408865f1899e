"""Data sets: of the hub, pinned to a commit, or a directory here, through `datasets`.

Nothing of a data set is ever run: `datasets` has no loading scripts any more, and a set in a format
other than those of `FORMATS` is refused.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from huggingface_hub import snapshot_download

from eagle3.config import PromptRef
from eagle3.data.fetch import ACCESS_HINT, hub_errors
from eagle3.errors import BadInput, DiskFull, TargetUnavailable

FORMATS = ("arrow", "csv", "json", "parquet", "text")


@functools.cache
def pinned(repo: str, revision: str | None) -> str:
    """The commit (40 hex digits) that a revision of a data set points to, asked once a process.

    Without the hub, the one that it pointed to when this machine last asked.

    Raises:
        BadInput, TargetUnavailable: as `hub_errors` has it.
    """
    with hub_errors(f"the data set {repo}"):
        folder = snapshot_download(
            repo, repo_type="dataset", revision=revision, allow_patterns=["README.md"]
        )
    return Path(folder).name


def dataset_name(ref: PromptRef) -> str:
    """How messages and manifests name a data set: its directory, or its repository and commit."""
    if ref.kind == "path":
        return ref.location
    return f"{ref.location}@{pinned(ref.location, ref.revision)}"


def open_dataset(ref: PromptRef) -> Any:
    """The rows of one split (`datasets.Dataset`).

    Raises:
        BadInput: no such configuration or split, no data, or data that cannot be read.
        TargetUnavailable: gated, or the hub cannot be reached.
        DiskFull: it does not fit the cache of `datasets`.
    """
    import datasets  # takes a second and brings pandas along; few runs read a data set

    datasets.disable_progress_bars()
    name, split = dataset_name(ref), ref.split or "train"
    folder = Path(ref.location).expanduser()
    with hub_errors(f"the data set {ref.location}"), _reading(name):
        if ref.kind == "path" and any(
            (folder / saved).is_file() for saved in ("state.json", "dataset_dict.json")
        ):
            return _saved(datasets.load_from_disk(str(folder)), name, split)
        hub = ref.kind == "hub"
        builder = datasets.load_dataset_builder(
            ref.location if hub else str(folder.resolve()),
            name=ref.config,
            revision=pinned(ref.location, ref.revision) if hub else None,
        )
        _check_format(builder, name)
        _check_split(split, [str(s) for s in builder.config.data_files or ()], name)
        builder.download_and_prepare()
        return builder.as_dataset(split=split)


def _saved(found: Any, name: str, split: str) -> Any:
    """A split of what `save_to_disk` wrote; a set without splits is its own train split."""
    splits = list(found) if isinstance(found, dict) else ["train"]
    _check_split(split, splits, name)
    return found[split] if isinstance(found, dict) else found


def _check_format(builder: Any, name: str) -> None:
    kind = type(builder).__module__.rsplit(".", 1)[-1]
    if kind == "cache":  # what `datasets` falls back to without the hub, at whatever commit
        raise TargetUnavailable(
            f"the data set {name} cannot be fetched: the hub cannot be reached",
            "check the network, or name a local copy",
        )
    if kind not in FORMATS:
        raise BadInput(
            f"the data set {name} is in the format {kind}", f"expected one of {', '.join(FORMATS)}"
        )


def _check_split(split: str, splits: list[str], name: str) -> None:
    if splits and re.split(r"[\[+]", split)[0] not in splits:
        raise BadInput(
            f"the data set {name} has no split {split!r}",
            f"expected one of {', '.join(splits)}: give it as split, or after the name and a colon",
        )


@contextmanager
def _reading(name: str) -> Iterator[None]:
    """Turn the errors of `datasets` into ours."""
    try:
        yield
    except (TypeError, ValueError, FileNotFoundError, RuntimeError) as e:
        text = str(e)
    except OSError as e:
        if "disk space" not in str(e):
            raise
        raise DiskFull(
            f"the data set {name}: {e}", "free some space, or set HF_HOME to another disk"
        ) from None
    except Exception as e:
        # `datasets` wraps what went wrong while it read a file; its own errors have no common base
        # with those of pandas and pyarrow.
        if type(e).__module__.split(".")[0] != "datasets":
            raise
        if isinstance(e.__cause__, OSError):
            raise e.__cause__ from None
        text = str(e.__cause__ or e)
    else:
        return
    raise _explained(name, text)


def _explained(name: str, text: str) -> BadInput | TargetUnavailable:
    if "gated" in text:
        return TargetUnavailable(
            f"the data set {name} is gated: its owner must let your account in first",
            f"ask for access on its page at huggingface.co, then {ACCESS_HINT}",
        )
    if configs := re.search(r"(?:Available|available configs): \[(.*?)\]", text):
        wanted = re.search(r"BuilderConfig '(.*?)' not found", text)
        return BadInput(
            f"the data set {name} has no configuration {wanted[1]!r}"
            if wanted
            else f"the data set {name} has several configurations",
            f"expected one of {configs[1]}: give it as config, or after the name as :config:split",
        )
    if "scripts are no longer supported" in text:
        return BadInput(
            f"the data set {name} needs a loading script, and code of a data set is never run",
            "use a copy in Parquet or JSONL",
        )
    return BadInput(f"the data set {name} cannot be read: {' '.join(text.split())[:500]}")
