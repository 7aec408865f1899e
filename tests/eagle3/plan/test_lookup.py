"""Configs and counts that are known without fetching a target or a data set."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import httpx
import pytest

from eagle3.config import PromptsConfig, TargetRef
from eagle3.plan import Hub, Unreachable, count_prompts, read_config


def hub(answers: dict[str, Any], **more: Any) -> Hub:
    """A hub that knows these paths; a number is a status."""

    def answer(request: httpx.Request) -> httpx.Response:
        found = answers.get(request.url.raw_path.decode(), 404)
        if isinstance(found, int):
            return httpx.Response(found)
        text = found if isinstance(found, str) else json.dumps(found)
        return httpx.Response(200, text=text, headers={"x-auth": "said"})

    return Hub(transport=httpx.MockTransport(answer), **more)


CARD = {
    "cardData": {
        "dataset_info": [
            {"config_name": "a", "splits": [{"name": "train", "num_examples": 7}]},
            {
                "config_name": "b",
                "splits": [
                    {"name": "train", "num_examples": 900},
                    {"name": "test", "num_examples": 50},
                ],
            },
        ]
    }
}


def test_a_hub_config_is_asked_for_at_its_revision() -> None:
    path = "/org/name/resolve/refs%2Fpr%2F1/config.json"
    found = read_config(TargetRef.parse("org/name@refs/pr/1"), hub({path: {"model_type": "llama"}}))
    assert found == {"model_type": "llama"}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (401, "wants a token"),
        (403, "let in by its owner"),
        (404, "no such revision"),
        (500, "answered 500"),
        ("[1]", "JSON object"),
        ("{", "JSON object"),
        ("[" * 100_000, "JSON object"),
        (f'{{"n": {"1" * 5000}}}', "JSON object"),
        (" " * (2**20 + 1), "small JSON object"),
    ],
)
def test_a_hub_that_does_not_answer_says_why(answer: Any, words: str) -> None:
    with pytest.raises(Unreachable, match=words):
        read_config(
            TargetRef.parse("org/name"), hub({"/org/name/resolve/main/config.json": answer})
        )


def test_a_hub_that_must_not_be_asked_is_not() -> None:
    def fail(request: httpx.Request) -> httpx.Response:
        raise AssertionError("asked")

    with pytest.raises(Unreachable, match="offline"):
        read_config(
            TargetRef.parse("org/name"), Hub(offline=True, transport=httpx.MockTransport(fail))
        )


def test_the_token_goes_to_the_hub_alone() -> None:
    seen: list[tuple[str, str | None]] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append((request.url.host, request.headers.get("authorization")))
        if request.url.host == "huggingface.co":
            return httpx.Response(302, headers={"location": "https://elsewhere.example/c.json"})
        return httpx.Response(200, text="{}")

    asked = Hub(token="hf_secret", transport=httpx.MockTransport(answer))
    assert read_config(TargetRef.parse("org/name"), asked) == {}
    assert seen == [("huggingface.co", "Bearer hf_secret"), ("elsewhere.example", None)]


def test_a_network_that_is_down_is_not_a_crash() -> None:
    def fail(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("no route", request=request)

    with pytest.raises(Unreachable, match="cannot be reached"):
        read_config(TargetRef.parse("org/name"), Hub(transport=httpx.MockTransport(fail)))


def test_directories(tmp_path: Path) -> None:
    ref = TargetRef.parse(f"file://{tmp_path}")
    with pytest.raises(Unreachable, match=r"config\.json: No such file"):
        read_config(ref)
    (tmp_path / "config.json").write_bytes(b"\xff\xfe")
    with pytest.raises(Unreachable, match="not text"):
        read_config(ref)
    with pytest.raises(Unreachable, match="when `resolve` has fetched it"):
        read_config(TargetRef.parse("s3://bucket/key"))


def rows(prompts: PromptsConfig, answers: dict[str, Any]) -> tuple[int, int]:
    found = count_prompts(prompts, hub(answers).rows)
    return found.train, found.heldout


def test_the_demo_marks_its_own_held_out_prompts() -> None:
    assert rows(PromptsConfig(), {}) == (1200, 64)


def test_lines_of_a_file_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text('{"prompt": "a"}\n\n' * 100)
    assert rows(PromptsConfig(source=str(path), heldout=10), {}) == (90, 10)
    assert rows(PromptsConfig(source=str(path), heldout=64, limit=40), {}) == (30, 10)
    with pytest.raises(Unreachable, match="No such file"):
        rows(PromptsConfig(source=str(tmp_path / "none.jsonl")), {})


@pytest.mark.parametrize(
    ("source", "count"),
    [
        ("org/set", 7),
        ("org/set:b:train", 900),
        ("org/set:b:test[:10%]", 5),
        ("org/set:b:test[20%:30%]", 5),
        ("org/set:b:train[100:180]", 80),
        ("org/set:b:test[:68000]", 50),
        ("org/set:b:test[-10:]", 50),
        ("org/set:b:other[:68000]", 68000),
    ],
)
def test_rows_of_a_data_set_are_on_its_card(source: str, count: int) -> None:
    train, heldout = rows(PromptsConfig(source=source, heldout=2), {"/api/datasets/org/set": CARD})
    assert train + heldout == count


def test_a_set_of_unknown_size_needs_a_limit() -> None:
    for part in ("", "[:10%]", "[-10:]"):
        with pytest.raises(Unreachable, match="does not say how many"):
            rows(PromptsConfig(source=f"org/set:b:other{part}"), {"/api/datasets/org/set": CARD})
    for card in ({}, {"cardData": None}, {"cardData": {"dataset_info": {"splits": "many"}}}):
        with pytest.raises(Unreachable, match="does not say how many"):
            rows(PromptsConfig(source="org/set"), {"/api/datasets/org/set": card})
    assert sum(rows(PromptsConfig(source="org/set", limit=500), {})) == 500
