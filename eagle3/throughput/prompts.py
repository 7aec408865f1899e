"""The prompts of a load: the questions that ship here, task files, or a file of one's own."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedTokenizerBase

from eagle3.bench.tasks import read_tasks
from eagle3.data.chat import encode, prompt_ids
from eagle3.data.rows import json_rows
from eagle3.errors import BadInput

EXPECTED = '{"prompt": "…"}, {"messages": [{"role": "user", "content": "…"}]} or {"ids": [1, 2, …]}'


@dataclass(frozen=True)
class Asked:
    ids: list[list[int]]
    source: str


def read_prompts(
    source: str, tokenizer: PreTrainedTokenizerBase, room: int, cap: int | None = None
) -> Asked:
    """Prompts as token ids, rendered by the target's own chat template where it has one.

    Args:
        source: `demo` or another name of tasks, or a file with a prompt a line: a text, messages,
            or token ids.
        room: longest prompt that leaves room for the answer; longer ones are left out.
        cap: at most so many, the first ones.

    Raises:
        BadInput: a line that is none of these, or no prompt that fits.
    """
    path = Path(source).expanduser()
    first = next(iter(json_rows(path, EXPECTED)))[1] if path.is_file() else None
    if isinstance(first, dict) and "turns" not in first:
        found = [_ids(where, row, tokenizer) for where, row in json_rows(path, EXPECTED)]
    else:
        questions = [question for task in read_tasks(source) for question in task.questions]
        found = [_rendered(question.turns[0], tokenizer) for question in questions]
    fitting = [ids for ids in found if 0 < len(ids) <= room][:cap]
    if not fitting:
        raise BadInput(
            f"no prompt of {source} has 1 to {room} tokens",
            "give shorter ones, shorter answers (--output-tokens) or a larger --context",
        )
    left_out = len(found) - len(fitting) if cap is None else 0
    return Asked(fitting, f"{source}, {left_out} too long" if left_out else source)


def _ids(where: str, row: Any, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    match row:
        case {"ids": [*ids]} if all(isinstance(i, int) and 0 <= i < len(tokenizer) for i in ids):
            return ids
        case {"prompt": str(text)}:
            return _rendered(text, tokenizer)
        case {"messages": [*messages]}:
            return prompt_ids(tokenizer, messages)
    raise BadInput(f"{where} is no prompt: {json.dumps(row)[:200]}", f"expected {EXPECTED}")


def _rendered(text: str, tokenizer: PreTrainedTokenizerBase) -> list[int]:
    if tokenizer.chat_template is None:
        return encode(tokenizer, text)
    return prompt_ids(tokenizer, [{"role": "user", "content": text}])
