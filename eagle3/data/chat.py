"""Messages to token ids, through the target's own chat template."""

from __future__ import annotations

from typing import Any

from transformers import PreTrainedTokenizerBase

from eagle3.data.records import Message

Tools = list[dict[str, Any]] | None
"""JSON schemas of the tools that a conversation may call."""


def render(
    tokenizer: PreTrainedTokenizerBase,
    messages: list[Message],
    tools: Tools = None,
    *,
    prompt: bool = True,
) -> str:
    """The conversation as text; with `prompt`, up to where the next answer starts."""
    text = tokenizer.apply_chat_template(
        messages, tools=tools, tokenize=False, add_generation_prompt=prompt
    )
    assert isinstance(text, str)
    return text


def encode(tokenizer: PreTrainedTokenizerBase, text: str) -> list[int]:
    """Token ids of rendered text; the template has put the special tokens in already."""
    ids: list[int] = tokenizer(text, add_special_tokens=False).input_ids
    return ids


def special_ids(tokenizer: PreTrainedTokenizerBase) -> frozenset[int]:
    """Ids of special tokens: those that have a name, and those that are marked as special."""
    marked = {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
    return frozenset(marked | set(tokenizer.all_special_ids))


def prompt_ids(
    tokenizer: PreTrainedTokenizerBase, messages: list[Message], tools: Tools = None
) -> list[int]:
    """Token ids up to where the next answer starts."""
    return encode(tokenizer, render(tokenizer, messages, tools))


def next_turn(
    tokenizer: PreTrainedTokenizerBase,
    history: list[Message],
    ids: list[int],
    answer: list[int],
    turn: list[Message],
    end_ids: frozenset[int],
    tools: Tools = None,
) -> tuple[list[int], list[Message], bool]:
    """Continue a conversation after an answer.

    The answer's own ids are kept: text that is decoded and tokenised again may come out as other
    tokens than the target wrote. Only what the template puts after the answer is tokenised.

    Args:
        history: the messages before the answer.
        ids: token ids up to the end of the answer.
        answer: the answer's ids, the last of `ids`.
        turn: the messages that follow the answer.
        end_ids: ids that end an answer.

    Returns:
        The ids up to where the next answer starts, the messages up to there, and whether `ids`
        still stands at their head. It does not where the template renders an answer in the history
        in another way (trimmed, or its reasoning removed).
    """
    ended = answer[-1] in end_ids
    content: str = tokenizer.decode(answer[:-1] if ended else answer, skip_special_tokens=False)
    messages = [*history, {"role": "assistant", "content": content}, *turn]
    before = render(tokenizer, history, tools) + content
    whole = render(tokenizer, messages, tools)
    if not whole.startswith(before):
        return encode(tokenizer, whole), messages, False
    rest = encode(tokenizer, whole[len(before) :])
    if ended and rest and rest[0] == answer[-1]:
        rest = rest[1:]
    return ids + rest, messages, True
