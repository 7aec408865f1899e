"""SGLang behind its OpenAI server, in an environment of its own; it needs a GPU.

Loads a draft of the official layout as it is, for that names the captured layers in SGLang's words
too (`eagle3/export/layers.py`), and drafts a chain (top-k 1). Its `/metrics` has averages alone, so
what was drafted is added up from what it says at the end of each answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from eagle3.engines.engine import Drafted, Sampling, Settings
from eagle3.engines.environments import Apart
from eagle3.engines.http import openai
from eagle3.engines.known import check_version
from eagle3.engines.pair import fitting_draft, target_config
from eagle3.engines.process import HOST, Server, answers_ok, choose_port
from eagle3.engines.served import Served
from eagle3.fit import heads
from eagle3.plan.serve import sglang_flags

SERVED_NAME = "target"
OPENAI = openai(SERVED_NAME)
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}


class Sglang(Apart):
    title = "SGLang"
    name = "sglang"

    def start(
        self, target: Path, draft: Path | None, settings: Settings, work: Path
    ) -> RunningSglang:
        self.check_installed()
        check_version(self)
        config = target_config(target)
        if settings.draft_tokens == 0:
            draft = None
        if draft is not None:
            fitting_draft(draft, target, self.name)
        port = choose_port(settings.port)
        server = Server(
            self.name,
            [str(self.environment.python), *arguments(target, draft, settings, port, config)],
            work / "sglang.log",
            environment={"HF_HUB_OFFLINE": "1"},
        )
        url = f"http://{HOST}:{port}"
        server.wait(answers_ok(f"{url}/health"), settings.ready_seconds)
        return RunningSglang(server, url, settings.slots)


class RunningSglang(Served):
    def __init__(self, server: Server, url: str, slots: int) -> None:
        self._drafted = Drafted()
        dialect = replace(OPENAI, body=_body, tokens=self._read)
        super().__init__(server, url, dialect, slots)

    def metrics(self) -> Drafted:
        """Of the answers that were asked for through this object."""
        return self._drafted

    def _read(self, event: dict[str, Any]) -> Sequence[int]:
        details = (event.get("sglext") or {}).get("spec_tokens_details")
        if details:
            self._drafted += _drafted(details)
        return OPENAI.tokens(event)


def arguments(
    target: Path, draft: Path | None, settings: Settings, port: int, config: Any
) -> list[str]:
    """The command line after `python`.

    Args:
        config: the target's text config.
    """
    drafting = []
    if draft is not None:
        tokens = settings.draft_tokens
        drafting = sglang_flags(str(draft.resolve()), tokens, 1, tokens)
    return [
        "-m", "sglang.launch_server",
        "--model-path", str(target.resolve()),
        "--served-model-name", SERVED_NAME,
        "--host", HOST,
        "--port", str(port),
        "--dtype", settings.dtype,
        "--context-length", str(settings.context),
        "--max-running-requests", str(settings.slots),
        "--max-total-tokens", str(_cached_tokens(config, settings)),
        "--disable-radix-cache",  # each answer is computed alike, whatever came before
        *drafting,
        *settings.extra,
    ]  # fmt: skip


def _cached_tokens(config: Any, settings: Settings) -> int:
    """Tokens whose keys and values have room."""
    _, groups, head_dim = heads(config)
    row = 2 * config.num_hidden_layers * groups * head_dim * BYTES[settings.dtype]
    return int(settings.memory_gib * 2**30 / row)


def _body(prompt: Sequence[int], sampling: Sampling) -> dict[str, Any]:
    return OPENAI.body(prompt, sampling) | {"return_spec_tokens_details": True}


def _drafted(details: dict[str, Any]) -> Drafted:
    """What it says at the end of an answer; the histogram counts rounds by tokens accepted."""
    histogram = details["spec_correct_drafts_histogram"]
    return Drafted(
        details["spec_verify_ct"],
        details["spec_num_proposed_drafts"],
        details["spec_num_correct_drafts"],
        tuple(sum(histogram[n:]) for n in range(1, len(histogram))),
    )
