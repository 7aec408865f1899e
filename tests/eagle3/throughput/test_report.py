"""What a study leaves: its text, its JSON, its chart, and settings that each engine takes."""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path

import jsonschema
import pytest

from eagle3.cli import main
from eagle3.engines import known, serving_settings
from eagle3.engines.engine import Sampling, Settings
from eagle3.engines.environments import Environment
from eagle3.errors import BadInput, EngineFailed
from eagle3.target import load_tokenizer
from eagle3.throughput.lab import Plan
from eagle3.throughput.load import Load
from eagle3.throughput.prompts import read_prompts
from eagle3.throughput.report import markdown, write
from eagle3.throughput.result import Throughput
from eagle3.throughput.run import run
from eagle3.throughput.study import Grid
from eagle3.throughput.tools import Driven, SglangBench, Tool, VllmBench
from tests.eagle3.throughput.fake import Law, LawfulEngine, LawfulServer
from tests.tiny import build_permutation_target

RANGES = [(1, 4, 5), (5, 32, 2), (33, 64, 0)]
QUICK = Law(0.002, 0.0005, 0, 0, 0, 0, first=0.002, at=(0.7, 0.5))


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_permutation_target(tmp_path_factory.mktemp("target")).path


@pytest.fixture(scope="module")
def found(target: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Throughput, Path]:
    out = tmp_path_factory.mktemp("out")
    plan = Plan([[5, 6], [7]], output_tokens=6, rounds=2, waves=1, fewest=2, together=True)
    result = run(
        LawfulEngine(QUICK), target, target, Settings(slots=2), plan,
        Grid((1, 2), (0, 1, 2), (50.0,)), out, whole=True, source="two",
        tokenizer=load_tokenizer(target),
    )  # fmt: skip
    write(result, out)
    return result, out


def test_every_cell_is_there_and_every_run(found: tuple[Throughput, Path]) -> None:
    result, out = found
    closed = {(c.concurrency, c.drafted) for c in result.cells if c.concurrency}
    assert closed == {(n, k) for n in (1, 2) for k in (0, 1, 2)}
    assert {c.drafted for c in result.cells if c.rate == 50} == {0, 1, 2}
    assert len(result.samples) == len(result.cells) * 2
    journal = (out / "samples.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in journal] == [
        json.loads(sample.model_dump_json()) for sample in result.samples
    ]
    for choice in result.choices:
        assert choice.reached == (choice.measured.value >= choice.best.value - choice.tolerance)  # type: ignore[union-attr, operator]


def test_the_json_has_its_schema(found: tuple[Throughput, Path]) -> None:
    _, out = found
    schema = json.loads((out / "throughput.schema.json").read_text())
    value = json.loads((out / "throughput.json").read_text())
    jsonschema.validate(value, schema)
    assert Throughput.model_validate(value).setup.engine == "lawful"


def test_the_text_says_what_to_do(found: tuple[Throughput, Path]) -> None:
    result, out = found
    text = (out / "throughput.md").read_text()
    assert "lawful 1.0" in text
    assert "| 50 a second |" in text
    assert "time per output token" in text
    assert {p.name for p in out.iterdir()} >= {"throughput.svg", "throughput.png", "settings"}
    off = result.model_copy(update={"ranges": [(1, 2, 0)], "switch_off": 1})
    assert "serve it without the draft" in markdown(off)


def test_a_fall_of_acceptance_is_told(found: tuple[Throughput, Path]) -> None:
    result, _ = found
    fallen = result.model_copy(update={"acceptance": {1: [0.9, 0.8], 2: [0.3, 0.1]}})
    assert "Tau falls from 2.70 at 1 to 1.40 at 2" in markdown(fallen)
    steady = result.model_copy(update={"acceptance": {1: [0.5], 2: [0.48]}})
    assert "Tau falls" not in markdown(steady)


def test_vllm_takes_a_schedule() -> None:
    config = serving_settings.vllm(RANGES, "./draft")
    assert config == {
        "method": "eagle3",
        "model": "./draft",
        "num_speculative_tokens": 5,
        "num_speculative_tokens_per_batch_size": [[1, 4, 5], [5, 32, 2], [33, 64, 0]],
    }
    table = config["num_speculative_tokens_per_batch_size"]
    assert table[0][0] == 1  # vLLM asks for these three
    assert all(first <= last for first, last, _ in table)
    assert all(b[0] > a[1] for a, b in pairwise(table))
    one = serving_settings.vllm([(1, 64, 3)], "./draft")
    assert one == {"method": "eagle3", "model": "./draft", "num_speculative_tokens": 3}
    assert serving_settings.vllm([(1, 64, 0)], "./draft") is None


def test_sglang_takes_flags_and_a_file() -> None:
    flags = serving_settings.sglang(RANGES, "./draft", "a.json")
    assert flags is not None
    said = dict(zip(flags[::2], flags[1::2], strict=False))
    assert said["--speculative-num-steps"] == "5"
    assert said["--speculative-num-draft-tokens"] == "6"  # with the root
    assert flags[-3:] == ["--speculative-adaptive", "--speculative-adaptive-config", "a.json"]
    adaptive = serving_settings.sglang_adaptive(RANGES)
    assert adaptive == {
        "1": {"candidate_steps": [5]},
        "5": {"candidate_steps": [2]},
        "33": {"candidate_steps": [0]},
    }
    # SGLang refuses a number of steps that no tier has.
    assert 5 in [step for tier in adaptive.values() for step in tier["candidate_steps"]]
    assert "--speculative-adaptive" not in (serving_settings.sglang([(1, 8, 2)], "./draft") or ())
    assert serving_settings.sglang([(1, 8, 0)], "./draft") is None


def test_llama_cpp_is_started_for_a_load() -> None:
    flags = serving_settings.llama_cpp(RANGES, "d.gguf", p_min=0.5)
    assert list(flags) == ["1-4", "5-32", "33-64"]
    assert flags["1-4"][flags["1-4"].index("--spec-draft-n-max") + 1] == "5"
    assert flags["1-4"][flags["1-4"].index("--spec-draft-p-min") + 1] == "0.5"
    assert flags["1-4"][-2:] == ["--parallel", "1"]  # it drafts for one sequence at a time
    assert flags["33-64"] == ["--parallel", "64"]


def test_settings_of_an_earlier_finding_go(tmp_path: Path) -> None:
    names = [path.name for path in serving_settings.write(RANGES, tmp_path)]
    assert names == ["vllm.json", "sglang.json", "sglang-adaptive.json", "llamacpp.json"]
    assert [p.name for p in serving_settings.write([(1, 8, 0)], tmp_path)] == ["llamacpp.json"]
    assert [p.name for p in tmp_path.iterdir()] == ["llamacpp.json"]


def test_prompts_of_every_form(target: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer(target)
    file = tmp_path / "prompts.jsonl"
    lines = [
        {"ids": [5, 6, 7]},
        {"prompt": "t8 t9"},
        {"messages": [{"role": "user", "content": "t8 t9"}]},
        {"ids": [5] * 40},
    ]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    asked = read_prompts(str(file), tokenizer, room=20)
    assert asked.ids[0] == [5, 6, 7]
    assert asked.ids[1] == asked.ids[2]
    assert asked.source.endswith("1 too long")
    with pytest.raises(BadInput, match="no prompt of"):
        read_prompts(str(file), tokenizer, room=1)
    file.write_text('{"ids": [1000]}\n')
    with pytest.raises(BadInput, match="line 1 is no prompt"):
        read_prompts(str(file), tokenizer, room=20)


_PYTHON = """
import json, pathlib, sys
{start}
for line in sys.stdin:
    arguments = json.loads(line)
    place = pathlib.Path(arguments[arguments.index("--result-dir") + 1])
    print("noise")
    {then}
    print("\\n-- this load is done --", flush=True)
"""
_RESULT = """(place / "replies.json").write_text(json.dumps({
        "completed": 2, "errors": ["", ""], "duration": 1.5,
        "output_lens": [3, 3], "ttfts": [0.1, 0.2], "itls": [[0.2, 0.1], [0.3]]}))"""


class _Stub(VllmBench):
    def __init__(self, start: str, then: str) -> None:
        self.program = _PYTHON.format(start=start, then=then)


def _drive(tool: Tool, target: Path, work: Path) -> object:
    tokenizer = load_tokenizer(target)
    with (
        LawfulServer(QUICK, 0) as server,
        Driven(tool, [sys.executable], target, tokenizer.decode, work) as driven,
    ):
        return driven.run(server, [[5, 6]], Load(2, 2), Sampling(3))


def test_a_tool_is_driven_and_read(target: Path, tmp_path: Path) -> None:
    heard = _drive(_Stub("", _RESULT), target, tmp_path)
    assert heard.seconds == 1.5  # type: ignore[attr-defined]
    assert [(r.tokens, r.first_s, r.seconds) for r in heard.replies] == [  # type: ignore[attr-defined]
        (3, 0.1, pytest.approx(0.4)),
        (3, 0.2, pytest.approx(0.5)),
    ]
    asked = [json.loads(line) for line in (tmp_path / "prompts.jsonl").read_text().splitlines()]
    assert asked == [{"prompt": "t5 t6"}] * 2


@pytest.mark.parametrize(
    ("start", "then", "message"),
    [
        ("raise SystemExit('no module named vllm')", "pass", r"died(.|\n)*no module named vllm"),
        ("", "raise SystemExit('out of luck')", r"died(.|\n)*out of luck"),
        ("", "pass", "without a result"),
        ("", _RESULT.replace('["", ""]', '["", "cut"]').replace(": 2", ": 1"), "1 of 2 .*: cut"),
    ],
)
def test_a_tool_that_fails_fails_the_run(
    start: str, then: str, message: str, target: Path, tmp_path: Path
) -> None:
    with pytest.raises(EngineFailed, match=message):
        _drive(_Stub(start, then), target, tmp_path)


def test_the_tools_are_told_the_load(target: Path, tmp_path: Path) -> None:
    with LawfulServer(QUICK, 0) as server:
        place = (server, target, tmp_path / "asked", tmp_path / "found")
        vllm = VllmBench().arguments(*place, Load(8, 4), 32)  # type: ignore[arg-type]
        sglang = SglangBench("<s>").arguments(*place, Load(8, rate=2.5), 32)  # type: ignore[arg-type]
    said = dict(pairwise(vllm))
    assert said["--max-concurrency"] == "4"
    assert said["--custom-output-len"] == "32"
    assert said["--served-model-name"] == "lawful"
    assert "--ignore-eos" in vllm
    said = dict(pairwise(sglang))
    assert said["--request-rate"] == "2.5"
    assert said["--sharegpt-output-len"] == "32"
    lines = SglangBench("<s>").prompt("<s> t5")["conversations"]
    assert lines[0] == {"content": " t5"}


@pytest.mark.vllm
def test_vllm_bench_measures_what_the_server_does(
    target: Path, tmp_path: Path, vllm_environment: Environment
) -> None:
    law = Law(0.1, 0, 0, 0, 0, 0, first=0.2)
    python = str(vllm_environment.python)
    tokenizer = load_tokenizer(target)
    with (
        LawfulServer(law, 0) as server,
        Driven(VllmBench(), [python], target, tokenizer.decode, tmp_path) as driven,
    ):
        for load in (Load(4, concurrency=2), Load(4, rate=20.0)):
            heard = driven.run(server, [[5, 6], [7]], load, Sampling(5, ignore_eos=True))
            assert [reply.tokens for reply in heard.replies] == [5] * 4
            assert all(0.2 <= reply.first_s for reply in heard.replies)
            assert all(0.1 <= reply.token_s < 0.2 for reply in heard.replies if reply.token_s)
    assert {body["prompt"] for body in server.bodies} == {"t5 t6", "t7"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--tokens", "0"], "names no draft length"),
        (["--rounds", "0"], "--rounds 0: expected 1 or more"),
        (["--engine", "abacus"], "no engine is called 'abacus'"),
    ],
)
def test_bad_input(
    arguments: list[str],
    message: str,
    target: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("eagle3.cli.leave", lambda code: code)
    main(["throughput", str(target), str(target), *arguments])
    assert message in capsys.readouterr().err


def test_the_command(
    target: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("eagle3.cli.leave", lambda code: code)
    monkeypatch.setattr(known, "engine", lambda name: LawfulEngine(QUICK))
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('{"prompt": "t5 t6"}\n')
    main(
        ["throughput", str(target), str(target), "--engine", "lawful", "--concurrency", "1,2",
         "--tokens", "1,2", "--rounds", "1", "--output-tokens", "4", "--waves", "1", "--together",
         "--prompts", str(prompts), "--few", "--out", str(tmp_path / "out")]
    )  # fmt: skip
    assert str(tmp_path / "out" / "throughput.md") in capsys.readouterr().out
    assert (tmp_path / "out" / "settings" / "llamacpp.json").is_file()
