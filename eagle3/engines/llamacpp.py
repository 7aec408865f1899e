"""llama.cpp, by the package `xllamacpp`: target and draft as GGUF, a server in a child process.

With the same seed it writes the same tokens with and without a draft, at any temperature: it draws
each token from the target first and then looks whether it was drafted. With a draft it decodes one
sequence at a time, whatever `Settings.slots` says, and further ones wait: of several at once it
drafts some from features that are not theirs (their acceptance falls, their tokens stay right), and
from four on it aborts.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from eagle3.engines.engine import Dtype, Sampling, Settings
from eagle3.engines.environments import how_to_install, installed
from eagle3.engines.http import Dialect, sampled
from eagle3.engines.known import check_version
from eagle3.engines.pair import fitting_draft, target_config
from eagle3.engines.process import HOST, Server, answers_ok, choose_port
from eagle3.engines.served import Counting
from eagle3.errors import BadInput
from eagle3.export import gguf
from eagle3.run import sha256_file, sha256_json

CACHE_TYPE: dict[Dtype, int] = {"float32": 0, "float16": 1, "bfloat16": 30}
"""llama.cpp's numbers of the types that keys and values are kept in."""


class LlamaCpp:
    name = "llamacpp"

    def missing(self) -> str | None:
        return how_to_install(self.name) if installed(self.name) is None else None

    def version(self) -> str:
        return importlib.metadata.version("xllamacpp")

    def start(
        self, target: Path, draft: Path | None, settings: Settings, work: Path
    ) -> RunningLlamaCpp:
        if (hint := self.missing()) is not None:
            raise BadInput("llama.cpp is not installed here", hint)
        check_version(self)
        drafts = draft is not None and settings.draft_tokens > 0
        settings = replace(settings, slots=1 if drafts else settings.slots)
        port = choose_port(settings.port)
        options = _options(target, draft if drafts else None, settings, work) | {"port": port}
        server = Server(
            self.name,
            [sys.executable, "-m", "eagle3.engines.llamacpp_server", json.dumps(options)],
            work / "llamacpp.log",
            environment={"GGML_NO_BACKTRACE": "1"},  # it would fill the end of the log
        )
        url = f"http://{HOST}:{port}"
        server.wait(answers_ok(f"{url}/health"), settings.ready_seconds)
        return RunningLlamaCpp(server, url, COMPLETION, settings.slots)


class RunningLlamaCpp(Counting):
    counters = "llamacpp:spec_decode_num_"


def _body(prompt: Sequence[int], sampling: Sampling) -> dict[str, Any]:
    return {
        "prompt": list(prompt),
        "n_predict": sampling.max_tokens,
        "return_tokens": True,
        "cache_prompt": False,  # each answer is computed alike, whatever came before it
        **sampled(sampling),
    }


COMPLETION = Dialect("/completion", _body, lambda event: event["tokens"])


def _options(target: Path, draft: Path | None, settings: Settings, work: Path) -> dict[str, Any]:
    """Values of `xllamacpp.CommonParams`."""
    options: dict[str, Any] = {
        "model.path": str(_target_file(target, settings.dtype, work)),
        "hostnames": [HOST],
        "n_ctx": settings.context * settings.slots,
        "n_parallel": settings.slots,
        "cache_type_k": CACHE_TYPE[settings.dtype],
        "cache_type_v": CACHE_TYPE[settings.dtype],
        "cache_ram_mib": 0,
        "endpoint_metrics": True,
        "fit_params": False,
        "ui": False,
        "warmup": False,
    }
    if settings.threads is not None:
        options |= dict.fromkeys(
            ("cpuparams.n_threads", "cpuparams_batch.n_threads"), settings.threads
        )
    if draft is not None:
        options |= {
            "speculative.draft.mparams.path": str(_draft_file(draft, target, settings.dtype, work)),
            "speculative.draft.n_max": settings.draft_tokens,
            "speculative.draft.p_min": settings.p_min,
            "speculative.draft.cache_type_k": CACHE_TYPE[settings.dtype],
            "speculative.draft.cache_type_v": CACHE_TYPE[settings.dtype],
        }
    return options | dict(_extra(text) for text in settings.extra)


def _extra(text: str) -> tuple[str, Any]:
    """`name=value`: a name of `xllamacpp.CommonParams`, dotted, and its value as JSON."""
    name, _, value = text.partition("=")
    try:
        return name, json.loads(value)
    except ValueError:
        raise BadInput(
            f"llamacpp: {text!r} is no setting",
            "expected name=value, the value as JSON: n_batch=512, flash_attn_type=1",
        ) from None


def _target_file(target: Path, dtype: Dtype, work: Path) -> Path:
    target_config(target)
    return _converted(
        target, work / "gguf", ["target", dtype], lambda out: gguf.write_target(target, out, dtype)
    )


def _draft_file(draft: Path, target: Path, dtype: Dtype, work: Path) -> Path:
    fitting_draft(draft, target, LlamaCpp.name)
    layers = target_config(target).num_hidden_layers
    return _converted(
        draft,
        work / "gguf",
        ["draft", dtype, layers],
        lambda out: gguf.write_draft(draft, target, out, dtype),
    )


def _converted(
    source: Path, folder: Path, kind: Sequence[object], write: Callable[[Path], None]
) -> Path:
    """The file that `write` makes of a directory; one that was made of the same files is kept."""
    files = {p.name: sha256_file(p) for p in sorted(source.iterdir()) if p.is_file()}
    made = folder / f"{kind[0]}-{sha256_json([files, *kind])[:16]}.gguf"
    if not made.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        writing = made.with_suffix(f".{os.getpid()}.part")
        try:
            write(writing)
            writing.rename(made)
        finally:
            writing.unlink(missing_ok=True)
    return made
