"""How a target is named, and the base of every config."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict

TargetKind = Literal["hub", "s3", "mlflow", "file", "gguf", "demo"]
PromptKind = Literal["demo", "s3", "hub", "path"]

_HUB = re.compile(
    r"(?P<repo>[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})(@(?P<revision>[\w./-]{1,128}))?"
)
_BUCKET = r"s3://[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]/"
_S3 = re.compile(_BUCKET + r"(?P<prefix>[^\s?#]+)")
_S3_FILE = re.compile(_BUCKET + r"[^\x00-\x1f]*[^\x00-\x1f/]")
_MLFLOW = re.compile(
    r"models:/(?P<name>[^/@\s]{1,256})(/(?P<version>\d+)|@(?P<alias>[A-Za-z0-9_.-]{1,256}))"
)

_DATASET = re.compile(
    r"(?P<repo>[A-Za-z0-9][\w.-]{0,95}/[A-Za-z0-9][\w.-]{0,95})(@(?P<revision>[\w./-]{1,128}))?"
    r"(:((?P<config>[\w.-]+):)?(?P<split>[\w.-]+(\[[\w:%+-]*\])?))?"
)
PROMPT_FILES = (".jsonl", ".json", ".parquet")

TARGET_FORMS = (
    "org/name[@revision], s3://bucket/prefix, models:/name/version, models:/name@alias, "
    "file:///abs/dir, gguf:/abs/file.gguf or demo"
)


class Strict(BaseModel):
    """Base of every config: frozen, and an unknown key is an error."""

    model_config = ConfigDict(
        extra="forbid", frozen=True, allow_inf_nan=False, use_attribute_docstrings=True
    )


class TargetRef(Strict):
    """A parsed target reference. `str(ref)` gives back the text it was parsed from."""

    kind: TargetKind
    location: str
    """Hub repo, S3 URI, MLflow model name, or absolute path; empty for `demo`."""
    revision: str | None = None
    """Hub branch, tag or commit; MLflow version or `@alias`."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse one of the reference forms.

        Raises:
            ValueError: the text has none of the forms; the message lists them.
        """
        if text == "demo":
            return cls(kind="demo", location="")
        if text.startswith(("file://", "gguf:")):
            kind: TargetKind = "file" if text.startswith("file://") else "gguf"
            path = text.removeprefix("file://").removeprefix("gguf:").removeprefix("//")
            if not path.startswith("/") or ".." in Path(path).parts or "\x00" in path:
                raise ValueError(f"target {text!r}: expected an absolute path without '..'")
            if kind == "gguf" and not path.endswith(".gguf"):
                raise ValueError(f"target {text!r}: expected a file that ends in .gguf")
            return cls(kind=kind, location=path)
        if m := _S3.fullmatch(text):
            if ".." in m["prefix"].split("/"):
                raise ValueError(f"target {text!r}: '..' is not allowed in an S3 prefix")
            return cls(kind="s3", location=text.rstrip("/"))
        if m := _MLFLOW.fullmatch(text):
            return cls(kind="mlflow", location=m["name"], revision=m["version"] or f"@{m['alias']}")
        if (m := _HUB.fullmatch(text)) and ".." not in text and "--" not in m["repo"]:
            return cls(kind="hub", location=m["repo"], revision=m["revision"])
        raise ValueError(f"target {text!r} is not a reference; expected {TARGET_FORMS}")

    def __str__(self) -> str:
        match self.kind:
            case "demo":
                return "demo"
            case "file":
                return f"file://{self.location}"
            case "gguf":
                return f"gguf:{self.location}"
            case "mlflow":
                sep = "" if (self.revision or "").startswith("@") else "/"
                return f"models:/{self.location}{sep}{self.revision}"
            case _:
                return f"{self.location}@{self.revision}" if self.revision else self.location


class PromptRef(Strict):
    """A parsed prompts source.

    A path starts with `/`, `./`, `../`, `~` or `file://`, or ends like a prompt file; any other
    `org/name` is a data set of the hub, whatever lies in the working directory: what a source means
    must not depend on where a process was started.
    """

    kind: PromptKind
    location: str
    """Path, S3 URI or hub repository; empty for `demo`."""
    revision: str | None = None
    """Hub branch, tag or commit."""
    config: str | None = None
    """The configuration of a hub data set (its page says subset)."""
    split: str | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse a source.

        Raises:
            ValueError: it begins as an S3 address and is none of a file.
        """
        if text == "demo":
            return cls(kind="demo", location="")
        if text.startswith("s3://"):
            if not _S3_FILE.fullmatch(text):
                raise ValueError(f"{text!r} is not the address of a file: expected s3://bucket/key")
            return cls(kind="s3", location=text)
        path = text.removeprefix("file://")
        named = text.startswith(("file://", "/", "./", "../", "~")) or path.endswith(PROMPT_FILES)
        if not named and (m := _DATASET.fullmatch(text)):
            revision, config, split = m["revision"], m["config"], m["split"]
            return cls(
                kind="hub", location=m["repo"], revision=revision, config=config, split=split
            )
        return cls(kind="path", location=path)
