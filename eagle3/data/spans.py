"""A conversation with its answers as token ids, and which of them the answers are.

The target's own chat template decides, whatever it is: the template is rendered up to where an
answer starts and once more with the answer, and the difference is what the target would have
written (where the template has `{% generation %}`, its marks say so). An answer is supervised only
after the very text that stands before it when the target is served. Where a template shows earlier
answers otherwise than they were written (reasoning removed, a system prompt moved), one
conversation therefore becomes several samples, each with the history that its answers were written
after; where even the answer itself cannot be told from the template, it is refused by name.
"""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase
from transformers.utils.chat_template_utils import render_jinja_template

from eagle3.data.chat import Tools, render, special_ids
from eagle3.data.locate import locate
from eagle3.data.records import Message
from eagle3.data.said import common, find, parts, said

EMPTY = "the answer is empty"
UNASKED = "nothing was asked before the answer"
NO_TOOLS = "the chat template leaves out the answer's tool calls"
NO_REASONING = "the chat template has no place for the answer's reasoning_content"
OTHER_START = "the chat template's generation prompt is not how it begins this answer"
REWRITTEN = "the chat template changes what the answer says"
FAILED = "the chat template refuses the conversation: "

THINK, THOUGHT = "<think>", "</think>"
"""How data sets mark reasoning inside an answer's text."""


@dataclass(frozen=True)
class Sample:
    """Token ids up to the end of an answer, and which of them are answers."""

    ids: list[int]
    spans: list[tuple[int, int]]
    """Half-open ranges of `ids`, the end of turn included."""
    ended: bool
    """Whether the last answer has an end of turn."""
    merged: int = 0
    """Answers whose first token also holds the end of the prompt; it counts as prompt."""


@dataclass
class Reading:
    """What a conversation gives."""

    samples: list[Sample] = field(default_factory=list)
    refused: Counter[str] = field(default_factory=Counter)
    """Answers that cannot be supervised, by reason."""


class Refused(Exception):
    """An answer cannot be told from what the template makes of it; says why."""


@dataclass(frozen=True)
class Answer:
    """The conversation as text, from its start to the end of an answer."""

    text: str
    start: int
    """Character at which the answer starts."""
    ended: bool


def end_ids(folder: Path, tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Token ids at which a target stops, as the files of its HF directory say."""
    found: set[int] = set()
    for name in ("generation_config.json", "config.json"):
        path = folder / name
        ids = json.loads(path.read_text()).get("eos_token_id") if path.is_file() else None
        found |= {ids} if isinstance(ids, int) else set(ids or ())
        if found:
            break
    return frozenset(found | ({tokenizer.eos_token_id} - {None}))


class Reader:
    """Reads conversations through a tokenizer's chat template.

    Args:
        end_ids: ids at which the target stops; the tokenizer's special tokens count as ends too.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, end_ids: frozenset[int]) -> None:
        self.tokenizer = tokenizer
        self.ends = _strings(tokenizer, end_ids)
        self.marks = self.ends | _strings(tokenizer, special_ids(tokenizer))
        self._calls_as_text = False

    def read(self, messages: list[Message], tools: Tools = None) -> Reading:
        """Samples in which every answer that can be supervised is supervised once."""
        reading = Reading()
        chain: list[Answer] = []
        for i, message in enumerate(messages):
            if message["role"] != "assistant":
                continue
            try:
                answer = self._answer(messages[:i], message, tools)
            except Refused as e:
                reading.refused[str(e)] += 1
                continue
            if chain and not answer.text[: answer.start].startswith(chain[-1].text):
                reading.samples.append(self._sample(chain))
                chain = []
            chain.append(answer)
        if chain:
            reading.samples.append(self._sample(chain))
        return reading

    def _sample(self, chain: list[Answer]) -> Sample:
        last = chain[-1]
        edges = [(answer.start, len(answer.text)) for answer in chain]
        ids, spans, merged = locate(self.tokenizer, last.text, edges)
        return Sample(ids, spans, last.ended, merged)

    def _answer(self, history: list[Message], message: Message, tools: Tools) -> Answer:
        if not any(m["role"] in ("user", "tool") for m in history):
            raise Refused(UNASKED)
        if not any(parts(message)) and not message.get("tool_calls"):
            raise Refused(EMPTY)
        prompt = self._render(history, tools, prompt=True)
        whole = self._render([*history, message], tools)
        if (marked := self._marked([*history, message], prompt, whole, tools)) is not None:
            return marked
        start = len(prompt) if whole.startswith(prompt) else None
        if start is None:
            start = self._aligned(history, message, prompt, whole, tools)
        end = None if start is None else said(whole[start:], message)
        if start is None or end is None:
            return self._as_written(history, message, prompt, whole, tools)
        turn = whole[start:]
        stop, ended = self._end_of_turn(turn, end, bool(message.get("tool_calls")))
        return Answer(prompt + turn[:stop], len(prompt), ended)

    def _marked(
        self, messages: list[Message], prompt: str, whole: str, tools: Tools
    ) -> Answer | None:
        """The answer that the template's own `{% generation %}` marks, where it has them: without
        what the generation prompt gives, or stands after the end of turn."""
        template = self.tokenizer.get_chat_template(tools=tools)
        if "endgeneration" not in template:
            return None
        _, [ranges] = render_jinja_template(
            conversations=[self._spoken(messages)],
            tools=tools,
            chat_template=template,
            return_assistant_tokens_mask=True,
            **self.tokenizer.special_tokens_map,
        )
        if not ranges or not whole.startswith(prompt):
            return None
        start, stop = max(ranges[-1][0], len(prompt)), ranges[-1][1]
        end = said(whole[start:stop], messages[-1])
        if end is None:
            return None
        cut, ended = self._end_of_turn(whole[start:stop], end, bool(messages[-1].get("tool_calls")))
        return Answer(whole[: start + cut] if ended else whole[:stop], start, ended)

    def _aligned(
        self, history: list[Message], message: Message, prompt: str, whole: str, tools: Tools
    ) -> int | None:
        """Where the answer starts in a rendering that does not begin as the prompt does: after the
        longest end of the prompt that it holds, the whole generation prompt at least, and with
        nothing but white space before the answer's first words."""
        asked = self._render(history, tools)
        least = max(1, len(prompt) - common(asked, prompt))
        first = next(filter(None, parts(message)), "")
        best, found = least, None
        begins = whole.find(first) if first else -1
        while begins >= 0:
            for at in range(len(whole[:begins].rstrip()), begins + 1):
                shared = common(whole[:at][::-1], prompt[::-1])
                if shared >= best:  # of equals the last: the answer is the last message
                    best, found = shared, at
            begins = whole.find(first, begins + 1)
        return found

    def _as_written(
        self, history: list[Message], message: Message, prompt: str, whole: str, tools: Tools
    ) -> Answer:
        """The prompt and then the answer as the target wrote it, for templates that remove the
        reasoning even from the answer that comes last.

        Raises:
            Refused: what is missing from the rendering is not that.
        """
        if message.get("tool_calls"):
            if said(whole, message) is not None:
                raise Refused(OTHER_START)
            rest = said(whole, {**message, "tool_calls": []})
            raise Refused(REWRITTEN if rest is None else NO_TOOLS)
        reasoning, content = parts(message)
        text = f"{THINK}\n{reasoning}\n{THOUGHT}\n\n{content}" if reasoning else content
        if not text.startswith(THINK) or THOUGHT not in text:
            raise Refused(REWRITTEN if find(whole, content, 0) is None else OTHER_START)
        if reasoning:
            plain = self._render([*history, {"role": "assistant", "content": text}], tools)
            if find(plain, text, common(prompt, plain)) is not None:
                raise Refused(NO_REASONING)
        opened = prompt.rstrip()
        if opened.endswith(THOUGHT):
            raise Refused(OTHER_START)
        if opened.endswith(THINK):
            text = text[len(THINK) :]
            text = text if opened == prompt else text.lstrip("\n")
        shown = text.rpartition(THOUGHT)[2].strip()
        end = find(whole, shown, common(prompt, whole)) if shown else None
        if end is None:
            return Answer(prompt + text, len(prompt), False)
        stop, ended = self._end_of_turn(whole[end:], 0, False)
        return Answer(prompt + text.rstrip() + whole[end : end + stop], len(prompt), ended)

    def _end_of_turn(self, turn: str, least: int, calls: bool) -> tuple[int, bool]:
        """Where a turn ends: with the first mark after all that it says, or before the white space
        at its end where it has no mark.

        Marks of tool calls are special tokens too, so that of a turn with calls only the target's
        own ends count, or else the last mark.
        """
        places = {mark: turn.find(mark, least) for mark in (self.ends if calls else self.marks)}
        found = [at + len(mark) for mark, at in places.items() if at >= 0]
        if not found and calls:
            found = [at + len(mark) for mark in self.marks if (at := turn.rfind(mark)) >= least]
            found = [max(found)] if found else []
        if found:
            return min(found), True
        return max(least, len(turn.rstrip())), False

    def _render(self, messages: list[Message], tools: Tools, prompt: bool = False) -> str:
        """Render. Whether a template wants the arguments of tool calls as an object or as text is
        found out by the first one: it fails, or shows an object as Python does."""
        arguments = [c["function"]["arguments"] for m in messages for c in m.get("tool_calls", [])]
        try:
            text = self._rendered(messages, tools, prompt)
            if self._calls_as_text or not any(a and str(a) in text for a in arguments):
                return text
        except Refused:
            if self._calls_as_text or not arguments:
                raise
        self._calls_as_text = True
        try:
            return self._rendered(messages, tools, prompt)
        except Refused:
            self._calls_as_text = False
            raise

    def _rendered(self, messages: list[Message], tools: Tools, prompt: bool) -> str:
        try:
            return render(self.tokenizer, self._spoken(messages), tools, prompt=prompt)
        except MemoryError:
            raise
        except Exception as e:  # a template is a program: it may fail in any way
            raise Refused(FAILED + (" ".join(str(e).split()) or type(e).__name__)) from None

    def _spoken(self, messages: list[Message]) -> list[Message]:
        """The messages, with the arguments of tool calls as the template wants them."""
        if not self._calls_as_text:
            return messages
        return [
            {**m, "tool_calls": _as_text(m["tool_calls"])} if m.get("tool_calls") else m
            for m in messages
        ]


def _as_text(calls: list[dict[str, Any]]) -> list[dict[str, Any]]:
    found = []
    for call in calls:
        text = json.dumps(call["function"]["arguments"], ensure_ascii=False)
        found.append({**call, "function": {**call["function"], "arguments": text}})
    return found


def _strings(tokenizer: PreTrainedTokenizerBase, ids: frozenset[int]) -> set[str]:
    tokens: list[Any] = [tokenizer.convert_ids_to_tokens(i) for i in ids]
    return {token for token in tokens if isinstance(token, str) and token}
