"""A target and its draft served on this machine: found, compared, started, and asked once."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import torch
from transformers import PreTrainedTokenizerBase

from eagle3.config import RunConfig, TargetRef, load_recipe
from eagle3.data.chat import prompt_ids
from eagle3.data.checks import check_tokenizer, check_unchanged
from eagle3.data.gguf import cache_dir
from eagle3.data.resolve import locate
from eagle3.engines.engine import Dtype, Settings
from eagle3.engines.known import engine
from eagle3.engines.llamacpp import LlamaCpp
from eagle3.engines.pair import target_config
from eagle3.engines.process import choose_port
from eagle3.engines.served import Served
from eagle3.errors import BadInput, EngineFailed
from eagle3.fit import context_length
from eagle3.run import sha256_json

QUESTION = "What is a prime number?"
ANSWER_TOKENS = 64
ANSWER_S = 600.0
READY_S = 3600.0
"""How long a large target may take to load."""
DEFAULT_TOKENS = 3
LISTED = 5
"""llama.cpp's number of the kind of vocabulary that the converter lists without rules (RWKV)."""

Say = Callable[[str], None]


@dataclass(frozen=True)
class Asked:
    """What the command line says; see its help."""

    engine: str
    port: int | None = None
    tokens: int | None = None
    dtype: Dtype | None = None
    context: int = 4096
    slots: int = 8
    memory_gib: float = 4.0
    work: Path | None = None


@dataclass(frozen=True)
class Serving:
    """An engine that has answered."""

    running: Served
    curl: str
    """A command line that asks it, and works: it was asked this before."""

    def alive(self) -> bool:
        return self.running.server.exit_code is None

    def died(self) -> EngineFailed:
        return self.running.server.failed("died")


@dataclass(frozen=True)
class _Draft:
    """A draft's directory, and what its bundle says."""

    folder: Path
    target: dict[str, Any]
    """`target.json`: hashes of the target that it was trained for; empty without a bundle."""
    serving: dict[str, Any]
    """`serving.json`."""


@contextmanager
def start(target: str, draft: Path, asked: Asked, say: Say) -> Iterator[Serving]:
    """Serve until the block ends.

    Args:
        target: a directory, or a reference as runs have it.
        draft: a draft's directory, or a bundle with `draft/`, `target.json` and `serving.json`.
        say: hears what is going on.

    Raises:
        BadInput: the engine is not installed, the port is taken, target or draft are not there, or
            the target is not the one that the draft was trained for.
        EngineFailed: it died while it loaded, or did not answer; with the last lines of its log.
    """
    chosen = engine(asked.engine)
    if (hint := chosen.missing()) is not None:
        raise BadInput(f"{asked.engine} is not installed here", hint)
    given = _read(draft)
    port = choose_port(asked.port)
    folder = _find(target, say)
    config = target_config(folder)
    tokenizer = check_tokenizer(folder, config.vocab_size)
    if given.target:
        check_unchanged(folder, given.target)
    found = given.serving.get("engines", {}).get(asked.engine, {})
    if found.get("broken"):
        say(f"warning: this draft was not in parity in {asked.engine}: {found['said']}")
    settings = Settings(
        draft_tokens=_tokens(asked, given),
        dtype=asked.dtype or _dtype(asked.engine, folder),
        context=min(asked.context, context_length(config)),
        slots=asked.slots,
        memory_gib=asked.memory_gib,
        port=port,
        ready_seconds=READY_S,
    )
    identity = sha256_json([str(folder.resolve()), str(draft.resolve())])[:16]
    work = asked.work or cache_dir() / "served" / identity
    work.mkdir(parents=True, exist_ok=True)
    say(f"{asked.engine} loads {folder} in {settings.dtype}, {settings.draft_tokens} draft tokens")
    with chosen.start(folder, given.folder, settings, work) as running:
        assert isinstance(running, Served)
        path, body = _question(asked.engine, running, tokenizer, say)
        _ask(running, path, body)
        words = ["curl", "-s", f"{running.url}{path}", "-H", "Content-Type: application/json"]
        yield Serving(running, shlex.join([*words, "-d", json.dumps(body)]))


def _read(draft: Path) -> _Draft:
    bundled = (draft / "draft" / "model.safetensors").is_file()
    if not bundled and not (draft / "model.safetensors").is_file():
        raise BadInput(
            f"{draft} holds no draft",
            "name a directory that eagle3 export wrote or updraft pull brought",
        )
    if not bundled:
        return _Draft(draft, {}, {})

    def content(name: str) -> dict[str, Any]:
        path = draft / name
        return json.loads(path.read_text()) if path.is_file() else {}

    return _Draft(draft / "draft", content("target.json"), content("serving.json"))


def _find(target: str, say: Say) -> Path:
    """The target's directory; what a reference names is brought onto this machine."""
    if (Path(target) / "config.json").is_file():
        return Path(target)
    try:
        TargetRef.parse(target)
    except ValueError as e:
        raise BadInput(
            f"{target} is no directory of a target, and no reference to one: {e}"
        ) from None
    return locate(RunConfig(target=target, recipe=load_recipe("quick")), say).folder


def _tokens(asked: Asked, given: _Draft) -> int:
    if asked.tokens is not None:
        return asked.tokens
    return int(given.serving.get("num_speculative_tokens", DEFAULT_TOKENS))


def _dtype(name: str, folder: Path) -> Dtype:
    """The checkpoint's own type on a GPU; a CPU is exact in float32, and seldom faster in less."""
    if name == LlamaCpp.name or not torch.cuda.is_available():
        return "float32"
    own = str(target_config(folder).dtype).removeprefix("torch.")
    return "bfloat16" if own == "bfloat16" else "float16" if own == "float16" else "float32"


def _question(
    name: str, running: Served, tokenizer: PreTrainedTokenizerBase, say: Say
) -> tuple[str, dict[str, Any]]:
    """Path and body of a request that this server understands as the target would."""
    messages = [{"role": "user", "content": QUESTION}]
    chat: dict[str, Any] = {"messages": messages, "max_tokens": ANSWER_TOKENS, "temperature": 0}
    if name != LlamaCpp.name:
        return "/v1/chat/completions", {"model": "target", **chat}
    ids = prompt_ids(tokenizer, messages)
    if _reads(running, messages) == ids:
        return "/v1/chat/completions", chat
    say("llama.cpp does not read text as this target does: ask it in token ids alone")
    asked = {"n_predict": ANSWER_TOKENS, "temperature": 0, "return_tokens": True}
    return "/completion", {"prompt": ids, **asked}


def _reads(running: Served, messages: list[dict[str, str]]) -> list[int] | None:
    """The ids that llama.cpp makes of messages; None where it has no rules to make any."""
    about = _request(running, "GET", "/v1/models").json()["data"][0]["meta"]
    if about["vocab_type"] == LISTED:  # text ends that server
        return None
    rendered = _request(running, "POST", "/apply-template", {"messages": messages})
    if rendered.is_error:
        return None
    text = {"content": rendered.json()["prompt"], "add_special": True, "parse_special": True}
    return list(_request(running, "POST", "/tokenize", text).json()["tokens"])


def _ask(running: Served, path: str, body: dict[str, Any]) -> None:
    reply = _request(running, "POST", path, body)
    if reply.is_error:
        raise running.server.failed(f"refused its first question: {reply.text[:500]}")


def _request(
    running: Served, method: str, path: str, body: dict[str, Any] | None = None
) -> httpx.Response:
    url = f"{running.url}{path}"
    try:
        return httpx.request(method, url, json=body, timeout=ANSWER_S, trust_env=False)
    except httpx.TransportError as e:
        what = f"did not answer {path} ({type(e).__name__})"
        raise running.server.failed("died" if running.server.ended() else what) from None
