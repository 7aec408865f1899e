"""The engines' own load generators, driven and read: `vllm bench serve` and SGLang's.

They run in the engine's environment and send text. Both keep every answer's times, from which the
figures are computed here, by the definitions that all generators share (`docs/metrics.md`).
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Any, Protocol, Self

from eagle3.bench.metrics import Reply
from eagle3.engines.engine import Running, Sampling
from eagle3.errors import EngineFailed
from eagle3.throughput.load import Heard, Load, Prompts

Decode = Callable[[Sequence[int]], str]
"""Token ids to text, special tokens written out."""

DONE = "-- this load is done --"
LOG_LINES = 15

_VLLM = f"""
import argparse, json, pathlib, sys
from vllm.benchmarks.datasets.datasets import CustomDataset
from vllm.benchmarks.serve import add_cli_args, main

def load_data(self):
    lines = pathlib.Path(self.dataset_path).read_text().splitlines()
    self.data = [json.loads(line) for line in lines]

CustomDataset.load_data = load_data
for line in sys.stdin:
    parser = argparse.ArgumentParser()
    add_cli_args(parser)
    main(parser.parse_args(json.loads(line)))
    print("\\n{DONE}", flush=True)
"""
"""Loading vLLM takes longer than a short load: one process runs them all. Left alone, it would read
prompts with pandas, which is there only where vLLM was installed with its benchmarks."""

_SGLANG = f"""
import json, runpy, sys
for line in sys.stdin:
    sys.argv = ["serving", *json.loads(line)]
    runpy.run_module("sglang.benchmark.serving", run_name="__main__")
    print("\\n{DONE}", flush=True)
"""


class Tool(Protocol):
    """One engine's generator: what it is told, and where it writes."""

    name: str
    counts: bool
    """See `Generator`."""
    program: str
    """Python that runs a load for each line of its input: a JSON list of arguments."""

    def prompt(self, text: str) -> dict[str, Any]:
        """A prompt's line in the file that it reads."""

    def arguments(
        self, running: Running, target: Path, prompts: Path, found: Path, load: Load, tokens: int
    ) -> list[str]: ...


class VllmBench:
    """`vllm bench serve` (0.32)."""

    name, counts, program = "vllm bench serve", True, _VLLM

    def prompt(self, text: str) -> dict[str, Any]:
        return {"prompt": text}

    def arguments(
        self, running: Running, target: Path, prompts: Path, found: Path, load: Load, tokens: int
    ) -> list[str]:
        return [
            "--backend", "vllm",
            "--base-url", str(running.url),
            "--model", str(target),
            *_named(running),
            "--dataset-name", "custom",
            "--dataset-path", str(prompts),
            "--skip-chat-template",  # the prompts are rendered already, with their special tokens
            "--extra-body", '{"add_special_tokens": false}',
            "--disable-shuffle",
            "--custom-output-len", str(tokens),
            "--num-prompts", str(load.requests),
            "--ignore-eos",
            "--temperature", "0",
            "--ready-check-timeout-sec", "0",
            "--disable-tqdm",
            "--save-result",
            "--save-detailed",
            "--result-dir", str(found.parent),
            "--result-filename", found.name,
            *_arrivals(load),
        ]  # fmt: skip


class SglangBench:
    """`python -m sglang.benchmark.serving` (0.5.23; `sglang.bench_serving` in earlier ones).

    SGLang tells what it accepted with each answer, and this tool passes on averages alone.

    Args:
        bos: the text that a prompt begins with and the server adds again.
    """

    name, counts, program = "sglang.benchmark.serving", False, _SGLANG

    def __init__(self, bos: str = "") -> None:
        self.bos = bos

    def prompt(self, text: str) -> dict[str, Any]:
        said = text.removeprefix(self.bos)
        return {"conversations": [{"content": said}, {"content": "any answer"}]}

    def arguments(
        self, running: Running, target: Path, prompts: Path, found: Path, load: Load, tokens: int
    ) -> list[str]:
        return [
            "--backend", "sglang",
            "--base-url", str(running.url),
            "--model", str(target),
            "--dataset-name", "custom",
            "--dataset-path", str(prompts),
            "--sharegpt-output-len", str(tokens),
            "--num-prompts", str(load.requests),
            "--temperature", "0",
            "--warmup-requests", "0",
            "--disable-tqdm",
            "--output-file", str(found),
            "--output-details",
            *_arrivals(load),
        ]  # fmt: skip


def _arrivals(load: Load) -> list[str]:
    if load.rate is not None:
        return ["--request-rate", f"{load.rate:g}"]
    return ["--max-concurrency", str(load.concurrency)]


def _named(running: Running) -> list[str]:
    """The name by which the server knows its model, where it is not the path."""
    dialect = getattr(running, "dialect", None)
    name = dialect.body([], Sampling(1)).get("model") if dialect else None
    return ["--served-model-name", name] if name else []


class Driven:
    """A tool in a process of its own, as a `Generator`; a context manager that ends it.

    Args:
        python: command that runs Python in the engine's environment.
        work: where its input, output and log lie.
    """

    def __init__(
        self, tool: Tool, python: Sequence[str], target: Path, decode: Decode, work: Path
    ) -> None:
        self.tool, self.target, self.decode, self.work = tool, target, decode, work
        self.name, self.counts = tool.name, tool.counts
        self._python = list(python)
        self._log = work / "generator.log"
        self._process: subprocess.Popen[str] | None = None
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        self.work.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            _pipe(self._process.stdin).close()  # it ends with its input
            try:
                self._process.wait(timeout=10)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
            _pipe(self._process.stdout).close()
        self._stack.close()

    def run(self, running: Running, prompts: Prompts, load: Load, sampling: Sampling) -> Heard:
        asked, found = self.work / "prompts.jsonl", self.work / "replies.json"
        lines = [json.dumps(self.tool.prompt(self.decode(p))) for p in load.prompts(prompts)]
        asked.write_text("".join(f"{line}\n" for line in lines))
        found.unlink(missing_ok=True)
        self._order(
            self.tool.arguments(running, self.target, asked, found, load, sampling.max_tokens)
        )
        if not found.is_file():
            raise self._failed("ended a load without a result")
        return self._read(json.loads(found.read_text()), load)

    def _order(self, arguments: list[str]) -> None:
        process = self._process or self._start()
        try:
            _pipe(process.stdin).write(json.dumps(arguments) + "\n")
            _pipe(process.stdin).flush()
        except BrokenPipeError:
            raise self._failed("died") from None
        with self._log.open("a") as log:
            for line in _pipe(process.stdout):
                if line.strip() == DONE:
                    return
                log.write(line)
        raise self._failed("died")

    def _start(self) -> subprocess.Popen[str]:
        self._log.write_text("")
        errors = self._stack.enter_context(self._log.open("a"))
        self._process = subprocess.Popen(
            [*self._python, "-c", self.tool.program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )
        return self._process

    def _read(self, result: dict[str, Any], load: Load) -> Heard:
        errors = [error for error in result["errors"] if error]
        if errors or result["completed"] != load.requests:
            said = f": {errors[0].strip().splitlines()[-1]}" if errors else ""
            raise EngineFailed(
                f"{self.name}: {load.requests - result['completed']} of {load.requests} requests "
                f"failed{said}",
                "lower the load, or give the engine more memory or time",
            )
        each = zip(result["output_lens"], result["ttfts"], result["itls"], strict=True)
        return Heard(
            [Reply(n, first, tuple(waits)) for n, first, waits in each], result["duration"]
        )

    def _failed(self, what: str) -> EngineFailed:
        lines = self._log.read_text(errors="replace").splitlines()[-LOG_LINES:]
        said = "".join(f"\n    {line}" for line in lines)
        return EngineFailed(
            f"{self.name} {what}; the end of {self._log}:{said}",
            "use this package's own generator: --generator own",
        )


def _pipe(stream: IO[str] | None) -> IO[str]:
    assert stream is not None
    return stream
