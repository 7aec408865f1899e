"""OpenVINO GenAI, in an environment of its own: greedy decoding on a CPU, one sequence at a time.

It loads neither safetensors nor GGUF but an IR, which its own converter writes; the draft's gets
the captured layers as OpenVINO counts them. With a draft, sampled answers do not follow the
target's distribution (at temperature 2 a successor of probability 0.63 came with 0.49 to 0.76 by
position, in 1,200 samples), so a temperature is refused there. It says how much it drafted and
accepted, not at which positions, and leaves out the round that ends an answer; rounds are what it
drafted by the length of a chain, which is shorter where an answer is about to end.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

from eagle3.engines.engine import Answer, Drafted, Dtype, Sampling, Settings
from eagle3.engines.environments import Apart
from eagle3.engines.http import Dialect, sampled, total
from eagle3.engines.known import check_version
from eagle3.engines.pair import fitting_draft, target_config
from eagle3.engines.process import HOST, Server, answers_ok, choose_port
from eagle3.engines.served import Served
from eagle3.errors import BadInput
from eagle3.export import openvino as layout
from eagle3.run import sha256_file, sha256_json

SERVER = Path(__file__).with_name("openvino_server.py")

TYPES: dict[Dtype, tuple[str, str]] = {"float32": ("fp32", "f32"), "float16": ("fp16", "f16")}
"""How the converter and the runtime name a type."""

CONVERT_S = 1800.0

SET_LAYERS = """
import os, sys, openvino
folder, layers = sys.argv[1], [int(k) for k in sys.argv[2:]]
model = openvino.Core().read_model(f"{folder}/openvino_model.xml")
model.set_rt_info(layers, ["hidden_layers_list"])
openvino.save_model(model, f"{folder}/layers.xml", compress_to_fp16=False)
for kind in ("xml", "bin"):
    os.replace(f"{folder}/layers.{kind}", f"{folder}/openvino_model.{kind}")
"""


class OpenVino(Apart):
    title = "OpenVINO GenAI"
    name = "openvino"

    def start(
        self, target: Path, draft: Path | None, settings: Settings, work: Path
    ) -> RunningOpenVino:
        self.check_installed()
        if settings.dtype not in TYPES:
            known = " or ".join(TYPES)
            raise BadInput(f"openvino does not serve {settings.dtype}", f"choose {known}")
        check_version(self)
        tokens = 0 if draft is None else settings.draft_tokens
        port = choose_port(settings.port)
        options = {
            "target": str(self._target(target, settings.dtype, work)),
            "draft": None,
            "draft_tokens": tokens,
            "precision": TYPES[settings.dtype][1],
            "threads": settings.threads,
            "cache_gb": math.ceil(settings.memory_gib),
            "host": HOST,
            "port": port,
        }
        if draft is not None and tokens:
            options["draft"] = str(self._draft(draft, target, settings.dtype, work))
        # -I: this directory has files of the libraries' names, and is none of the server's.
        command = [str(self.environment.python), "-I", str(SERVER), json.dumps(options)]
        server = Server(self.name, command, work / "openvino.log")
        url = f"http://{HOST}:{port}"
        server.wait(answers_ok(f"{url}/health"), settings.ready_seconds)
        return RunningOpenVino(server, url, tokens)

    def _target(self, target: Path, dtype: Dtype, work: Path) -> Path:
        target_config(target)
        return _made("target", target, [dtype], work, lambda out: self._convert(target, out, dtype))

    def _draft(self, draft: Path, target: Path, dtype: Dtype, work: Path) -> Path:
        stored = fitting_draft(draft, target, self.name)
        layers = target_config(target).num_hidden_layers

        def write(out: Path) -> None:
            source = out.with_suffix(".source")
            layout.write(stored, source, layers, torch.float32, target)
            note = json.loads((source / layout.NOTE).read_text())
            # The flag lets it read EAGLE-3 architectures; the directory has no code to run.
            self._convert(source, out, dtype, "--trust-remote-code")
            listed = [str(k) for k in note["hidden_layers_list"]]
            self._run([str(self.environment.python), "-c", SET_LAYERS, str(out), *listed], out)
            shutil.rmtree(source)

        return _made("draft", draft, [dtype, layers], work, write)

    def _convert(self, source: Path, out: Path, dtype: Dtype, *flags: str) -> None:
        converter = self.environment.root / "bin" / "optimum-cli"
        task = ["--task", "text-generation-with-past", "--weight-format", TYPES[dtype][0]]
        command = [str(converter), "export", "openvino", "--model", str(source.resolve()), *task]
        self._run([*command, *flags, str(out.resolve())], out)

    def _run(self, command: list[str], out: Path) -> None:
        log = out.with_suffix(".log")
        with Server(self.name, command, log, environment={"HF_HUB_OFFLINE": "1"}) as converter:
            if not converter.ended(CONVERT_S):
                raise converter.failed(f"did not write its model within {CONVERT_S} s")
            if converter.exit_code:
                raise converter.failed("could not write its model")


class RunningOpenVino(Served):
    """One that drafts chains of so many tokens; 0 is the target alone."""

    def __init__(self, server: Server, url: str, draft_tokens: int) -> None:
        super().__init__(server, url, DIALECT, 1)
        self._draft_tokens = draft_tokens

    def generate(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> list[Answer]:
        if self._draft_tokens and sampling.temperature > 0:
            raise BadInput(
                f"openvino at temperature {sampling.temperature:g}: with a draft its sampled "
                "answers do not follow the target's distribution",
                "decode greedily, or serve the target alone (no draft tokens)",
            )
        return super().generate(prompts, sampling)

    def metrics(self) -> Drafted:
        found = self.scrape()
        drafted, accepted = (int(total(found, f"{name}_total")) for name in ("drafted", "accepted"))
        return Drafted(drafted // max(1, self._draft_tokens), drafted, accepted)


def _body(prompt: Sequence[int], sampling: Sampling) -> dict[str, Any]:
    more = {"prompt": list(prompt), "max_tokens": sampling.max_tokens, "seed": None}
    return more | sampled(sampling)


DIALECT = Dialect("/generate", _body, lambda event: event["tokens"])


def _made(
    kind: str, source: Path, of: Sequence[object], work: Path, write: Callable[[Path], None]
) -> Path:
    """The directory that `write` makes of another; one made of the same files is kept."""
    files = {p.name: sha256_file(p) for p in sorted(source.iterdir()) if p.is_file()}
    made = work / "ir" / f"{kind}-{sha256_json([files, *of])[:16]}"
    if not made.is_dir():
        part = made.with_suffix(".part")
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
        write(part)
        part.rename(made)
    return made
