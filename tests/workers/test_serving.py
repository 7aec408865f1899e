"""What a bundle says about serving."""

from __future__ import annotations

from typing import Any

from eagle3.plan import FORMATS
from jobs.spec import JobSpec
from workers.serving import readme, serving_facts

JOB = "job_1"
SPEC = JobSpec.model_validate({"target": "org/tiny", "recipe": "quick"})


def one(broken: str | None = None) -> dict[str, Any]:
    return {
        "version": "1.2",
        "loads": broken != "loading",
        "broken": broken,
        "said": "",
        "tau": 1.5,
        "rounds": 40,
        "acceptance_by_position": [] if broken == "loading" else [0.41, 0.2],
        "texts_identical": 0 if broken == "loading" else 8,
    }


def summaries(**engines: dict[str, Any]) -> dict[str, dict[str, Any]]:
    parity = {"holds": True, "said": "", "prompts": 8, "left_out": {}, "engines": engines}
    return {
        "resolve": {"resolved": "org/tiny@" + "a" * 40, "weights_sha256": "b" * 64},
        "parity": parity,
        "benchmark": {"tau": 1.5, "speedup": 1.1},
    }


def test_every_engine_has_flags_acceptance_and_a_format() -> None:
    found = serving_facts(SPEC, JOB, summaries(native=one(), llamacpp=one()))
    assert found["llamacpp"]["args"][-4:-2] == ["--spec-draft-n-max", "3"]
    assert '"num_speculative_tokens": 3' in found["vllm"]["args"][1]
    assert found["engines"]["llamacpp"]["acceptance_by_position"] == [0.41, 0.2]
    assert found["formats"].keys() == FORMATS.keys()
    assert found["formats"]["official"] == {"engines": ["vllm", "sglang"], "path": "draft"}
    assert "--format gguf" in found["formats"]["gguf"]["made_by"]


def test_the_command_starts_an_engine_that_agrees() -> None:
    for engines, named in (
        ({"native": one(), "llamacpp": one(), "vllm": one()}, "llamacpp"),
        ({"native": one(), "llamacpp": one("loading"), "vllm": one()}, "vllm"),
        ({"native": one()}, "vllm"),
    ):
        found = serving_facts(SPEC, JOB, summaries(**engines))
        assert found["serve"] == f"updraft serve {JOB} --engine {named}"


def test_the_readme_shows_what_broke_and_what_was_not_tried() -> None:
    given = summaries(native=one(), llamacpp=one("loading"))
    given["parity"]["left_out"] = {"vllm": "it is too large"}
    text = readme("my-draft", serving_facts(SPEC, JOB, given), given)
    assert "| native | 1.2 | yes | 41%, 20% | 8 of 8 | agrees |" in text
    assert "| llamacpp | 1.2 | no | – | 0 of 8 | **broken: loading** |" in text
    assert "- vllm was not tried: it is too large" in text
    assert f"    updraft serve {JOB} --engine vllm" in text
