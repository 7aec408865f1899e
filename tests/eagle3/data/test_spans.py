"""Every template shape, any conversation: what is supervised is what the target would write."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from eagle3.data import spans as module
from eagle3.data.chat import encode, render
from eagle3.data.locate import locate
from eagle3.data.mask import supervised_rows
from eagle3.data.spans import Reader, Reading
from tests.eagle3.data.chats import template, tokenizer

KINDS = ("bytes", "exact", "pieces")

# What each shape makes of an answer, from the end of the prompt: written down here, not computed.
WRITTEN: dict[str, Callable[[str], str]] = {
    "chatml": lambda text: text + "<|im_end|>",
    "chatml_generation": lambda text: text + "<|im_end|>",
    "llama2": lambda text: " " + text.strip() + " </s>",
    "llama3": lambda text: text.strip() + "<|eot_id|>",
    "mistral": lambda text: " " + text.strip() + "</s>",
    "gemma": lambda text: text.strip() + "<end_of_turn>",
    "phi3": lambda text: text + "<|end|>",
    "deepseek_v3": lambda text: text + "<｜end▁of▁sentence｜>",
    "qwen3": lambda text: "<think>\n\n</think>\n\n" + text.lstrip("\n") + "<|im_end|>",
    "plain": lambda text: text.rstrip(),
}
THINKING: dict[str, Callable[[str, str], str]] = {
    "chatml": lambda why, text: f"<think>\n{why}\n</think>\n\n{text}<|im_end|>",
    "qwen3": lambda why, text: f"<think>\n{why}\n</think>\n\n{text}<|im_end|>",
    # The generation prompt has opened the reasoning already.
    "deepseek_r1": lambda why, text: f"{why}\n</think>\n\n{text}<｜end▁of▁sentence｜>",
}
ONE_SAMPLE = set(WRITTEN) - {"qwen3"}
"""Shapes that show earlier answers just as they were written."""


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def answer(text: str, **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": text, **more}


def call(name: str) -> dict[str, Any]:
    function = {"name": name, "arguments": {"place": "oslo"}}
    return answer("", tool_calls=[{"type": "function", "function": function}])


def read(shape: str, messages: list[dict[str, Any]], kind: str = "exact", **more: Any) -> Reading:
    return Reader(tokenizer(shape, kind), frozenset()).read(messages, **more)


def written(shape: str, reading: Reading, kind: str = "exact") -> list[str]:
    """The supervised texts. A tokenizer of `pieces` shows a special token's ▁ as a space."""
    decode = tokenizer(shape, kind).decode
    texts = [decode(s.ids[a:b]) for s in reading.samples for a, b in s.spans]
    return [text.replace("<｜end of sentence｜>", "<｜end▁of▁sentence｜>") for text in texts]


# Questions in capitals, answers in small letters: a letter tells whose it is.
QUESTION = st.text(st.sampled_from("ABC XY?\n\t😀"), max_size=12).map(lambda t: "Q" + t)
ANSWER = st.text(st.sampled_from("ab the\n\né→-"), max_size=16).map(lambda t: "a" + t)
TURNS = st.lists(st.tuples(QUESTION, ANSWER), min_size=1, max_size=4)
QUICK = settings(
    max_examples=20,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.function_scoped_fixture],
)


@pytest.mark.parametrize("shape", WRITTEN)
@QUICK
@given(turns=TURNS, system=st.sampled_from([None, "BE BRIEF."]), kind=st.sampled_from(KINDS))
def test_an_answer_and_its_end_of_turn_and_nothing_else(
    shape: str, turns: list[tuple[str, str]], system: str | None, kind: str
) -> None:
    messages = [{"role": "system", "content": system}] if system and shape != "gemma" else []
    for question, text in turns:
        messages += [user(question), answer(text)]
    reading = read(shape, messages, kind)
    assert not reading.refused
    tokens = tokenizer(shape, kind)
    expected = [WRITTEN[shape](text) for _, text in turns]
    found = written(shape, reading, kind)
    merged = sum(sample.merged for sample in reading.samples)
    if not merged:
        assert [t.strip() for t in found] == [t.strip() for t in expected]
    for text, whole in zip(found, expected, strict=True):
        assert "�" in text or text.strip() in whole  # a merged first token may cut a character
        assert not set(text) & set("QABCXY?😀")
    if shape in ONE_SAMPLE and not (shape == "mistral" and system):
        assert len(reading.samples) == 1
    answers = [i for i, m in enumerate(messages) if m["role"] == "assistant"]
    starts = [(s, a) for s in reading.samples for a, _ in s.spans]
    for (sample, start), i in zip(starts, answers, strict=True):
        if not sample.merged:
            served = render(tokens, messages[:i])
            assert tokens.decode(sample.ids[:start]) == tokens.decode(encode(tokens, served))
            assert encode(tokens, served)[-2:] == sample.ids[:start][-2:]
        assert sample.ended == (shape != "plain")


def test_the_same_question_twice_gives_each_answer_once() -> None:
    """Mistral's shape moves the system prompt: the text alone does not say which is which."""
    turns = [user("Q"), answer("aa"), user("Q"), answer("a")]
    reading = read("mistral", [{"role": "system", "content": "BE BRIEF."}, *turns])
    assert [text.strip() for text in written("mistral", reading)] == ["aa</s>", "a</s>"]


def test_marks_around_more_than_the_target_writes() -> None:
    """The header is the generation prompt's, and nothing is written after the end of turn."""
    tokens = copy.deepcopy(tokenizer("chatml", "exact"))
    tokens.chat_template = (
        "{% for m in messages %}{% if m.role == 'assistant' %}{% generation %}"
        "<|im_start|>assistant\n{{ m.content }}<|im_end|>\n{% endgeneration %}"
        "{% else %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endif %}{% endfor %}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    turns = [user("Q"), answer("an answer"), user("Q"), answer("another\n")]
    reading = Reader(tokens, frozenset()).read(turns)
    expected = ["an answer<|im_end|>", "another\n<|im_end|>"]
    assert written("chatml", reading) == expected
    assert [sample.ended for sample in reading.samples] == [True]


@QUICK
@given(turns=TURNS)
def test_samples_are_whole_renderings_and_spans_are_in_order(turns: list[tuple[str, str]]) -> None:
    for shape in WRITTEN:
        messages = [m for q, a in turns for m in (user(q), answer(a))]
        tokens = tokenizer(shape, "exact")
        for sample in read(shape, messages).samples:
            edges = [edge for span in sample.spans for edge in span]
            assert edges == sorted(edges)
            assert edges[-1] == len(sample.ids)
            text = tokens.decode(sample.ids)
            if shape in ONE_SAMPLE:
                assert render(tokens, messages, prompt=False).startswith(text)


@pytest.mark.parametrize("shape", [*WRITTEN, "deepseek_r1"])
def test_drafting_starts_at_the_answers_first_token(shape: str) -> None:
    messages = [user("WHAT?"), answer("<think>\nso\n</think>\n\nthe answer is two")]
    [sample] = read(shape, messages).samples
    [(start, end)] = sample.spans
    rows = supervised_rows(sample.spans, len(sample.ids), 1)[0].nonzero()[:, 0].tolist()
    assert rows[0] == start - 1  # takes in the answer's first token, predicts its second
    assert rows[-1] + 2 == end - 1  # the last label is the end of turn


@pytest.mark.parametrize("form", ["inline", "apart"])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", ["qwen3", "deepseek_r1"])
def test_reasoning_is_supervised_where_it_was_written(shape: str, kind: str, form: str) -> None:
    """Both shapes remove it from earlier answers, one of them from the last answer too."""
    turns = [("WHAT?", "hence so", "two"), ("AND?", "another\n\nthen", "- one\n- two")]
    messages = []
    for question, why, text in turns:
        inline = answer(f"<think>\n{why}\n</think>\n\n{text}")
        apart = answer(text, reasoning_content=why)
        messages += [user(question), inline if form == "inline" else apart]
    reading = read(shape, messages, kind)
    assert not reading.refused
    assert len(reading.samples) == 2
    decode = tokenizer(shape, kind).decode
    expected = [THINKING[shape](why, text) for _, why, text in turns]
    if not any(sample.merged for sample in reading.samples):
        assert written(shape, reading, kind) == expected
    second = decode(reading.samples[1].ids[: reading.samples[1].spans[0][0]])
    assert "two" in second
    assert "hence" not in second  # as served: without what was thought before


def test_reasoning_that_the_template_keeps_stays_in_one_sample() -> None:
    inline = [user("WHAT?"), answer("<think>\nso\n</think>\n\ntwo"), user("AND?"), answer("one")]
    reading = read("chatml", inline)
    assert written("chatml", reading) == [THINKING["chatml"]("so", "two"), "one<|im_end|>"]
    assert len(reading.samples) == 1


@pytest.mark.parametrize(
    ("shape", "messages", "reason", "kept"),
    [
        # a template that knows no reasoning would leave it out: the answer would be another one
        ("llama3", [user("Q"), answer("a", reasoning_content="b")], module.NO_REASONING, 0),
        # the generation prompt opens a thought that these answers do not have
        ("deepseek_r1", [user("Q"), answer("a"), user("Q"), answer("b")], module.OTHER_START, 0),
        # "repeat after me": the question holds the answer where the answer is looked for
        ("deepseek_r1", [user("Say\na"), answer("a")], module.OTHER_START, 0),
        ("llama3", [user("Q"), call("look"), user("Q"), answer("a")], module.NO_TOOLS, 1),
        ("deepseek_r1", [user("Q"), call("look"), user("Q"), answer("a")], module.NO_TOOLS, 0),
        ("chatml", [user("Q"), answer(" \n"), user("Q"), answer("a")], module.EMPTY, 1),
        ("chatml", [answer("hello"), user("Q"), answer("a")], module.UNASKED, 1),
        ("qwen3", [user("Q"), answer("a"), answer("b")], module.OTHER_START, 1),
        ("llama2", [user("Q"), answer("a"), answer("b")], module.FAILED, 1),
        ("gemma", [user("Q"), user("Q"), answer("b")], module.FAILED, 0),
        ("mistral", [answer("a"), user("Q"), answer("b")], module.FAILED, 0),
    ],
)
def test_what_cannot_be_told_is_refused_by_name(
    shape: str, messages: list[dict[str, Any]], reason: str, kept: int
) -> None:
    reading = read(shape, messages)
    assert any(name.startswith(reason) for name in reading.refused)
    assert len(written(shape, reading)) == kept


def test_roles_that_do_not_alternate_are_read_where_the_template_takes_them() -> None:
    messages = [user("A"), user("B"), answer("c"), answer("d"), user("E"), answer("f")]
    assert written("chatml", read("chatml", messages)) == [f"{c}<|im_end|>" for c in "cdf"]


def test_tool_calls_and_what_follows_them() -> None:
    tools = [{"type": "function", "function": {"name": "look", "parameters": {}}}]
    tool = {"role": "tool", "content": "SUN"}
    messages = [user("WHAT?"), call("look"), tool, answer("it is sun"), user("OK?"), answer("yes")]
    found = written("mistral", read("mistral", messages, tools=tools))
    assert found[1:] == [" it is sun</s>", " yes</s>"]
    assert found[0].startswith('[TOOL_CALLS] [{"name": "look"')
    assert found[0].endswith("}]</s>")
    reading = read("qwen3", messages, tools=tools)
    first = written("qwen3", reading)[0]
    assert first.endswith('"arguments": {"place": "oslo"}}\n</tool_call><|im_end|>')
    assert "SUN" not in "".join(written("qwen3", reading))
    # This template puts arguments into text as they are: it takes them as text alone.
    found = written("deepseek_v3", read("deepseek_v3", messages, tools=tools))
    arguments = '{"place": "oslo"}<｜tool▁call▁end｜><｜end▁of▁sentence｜>'
    assert found[0] == "<｜tool▁call▁begin｜>look<｜tool▁sep｜>" + arguments
    assert found[1:] == ["it is sun<｜end▁of▁sentence｜>", "yes<｜end▁of▁sentence｜>"]


def test_a_refusal_does_not_change_how_later_calls_are_shown() -> None:
    reader = Reader(tokenizer("mistral", "exact"), frozenset())
    tool = {"role": "tool", "content": "SUN"}
    crooked = [user("A"), user("B"), call("look"), tool, answer("c")]
    assert reader.read(crooked).refused
    [sample] = reader.read([user("A"), call("look")]).samples
    [(start, end)] = sample.spans
    assert '{"place": "oslo"}' in tokenizer("mistral", "exact").decode(sample.ids[start:end])


def test_a_system_prompt_that_moves_makes_a_sample_of_each_answer() -> None:
    """Mistral's stands before the last question: the first answer was written after it, too."""
    messages = [{"role": "system", "content": "BE BRIEF."}]
    messages += [user("A"), answer("b"), user("C"), answer("d")]
    reading = read("mistral", messages)
    decode = tokenizer("mistral", "exact").decode
    assert [decode(sample.ids) for sample in reading.samples] == [
        "<s>[INST] BE BRIEF.\n\nA[/INST] b</s>",
        "<s>[INST] A[/INST] b</s>[INST] BE BRIEF.\n\nC[/INST] d</s>",
    ]


def test_an_end_of_turn_inside_an_answer_does_not_end_it() -> None:
    text = "write <|im_end|> to end"
    found = written("chatml", read("chatml", [user("Q"), answer(text)]))
    assert found == [text + "<|im_end|>"]


def test_the_end_of_text_after_the_last_turn_is_not_supervised() -> None:
    tokens = tokenizer("phi3", "exact")
    messages = [user("Q"), answer("a")]
    assert render(tokens, messages, prompt=False).endswith("<|end|>\n<|endoftext|>")
    assert written("phi3", read("phi3", messages)) == ["a<|end|>"]


def test_marks_of_the_template_decide_where_it_has_them() -> None:
    narrow = template("chatml_generation").replace(
        "message['content'] + '<|im_end|>' }}{% endgeneration %}",
        "message['content'] }}{% endgeneration %}<|im_end|>",
    )
    tokens = tokenizer("chatml_generation", "exact")
    tokens.chat_template, before = narrow, tokens.chat_template
    try:
        reading = read("chatml_generation", [user("Q"), answer("a b")])
    finally:
        tokens.chat_template = before
    assert written("chatml_generation", reading) == ["a b"]
    assert not reading.samples[0].ended


@pytest.mark.parametrize(
    ("kind", "found", "count"),
    # A tokenizer that puts a space before a text cannot say what stands after "Q:\n" on its own.
    [("bytes", "\nan answer", 0), ("exact", "\nan answer", 0), ("pieces", "an answer", 1)],
)
def test_a_token_across_the_border(kind: str, found: str, count: int) -> None:
    tokens = tokenizer("plain", kind)
    text = "Q:\n\nan answer"
    ids, [(start, end)], merged = locate(tokens, text, [(3, len(text))])
    assert (tokens.decode(ids[start:end]), merged) == (found, count)
    assert tokens.decode(ids).strip() == text
