"""What the extraction process and training say to each other: JSON, and tensors as safetensors.

    request  one JSON line: Setup, then one Request after another
    answer   8 bytes N and 8 bytes M (little-endian), N bytes of JSON (Answer), M of safetensors

Nothing is pickled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import IO

import torch
from safetensors.torch import load, save

from eagle3.data.features import Columns, Sample, SampleRef, TokenSequence
from eagle3.data.records import Record

LENGTH = 8
"""Bytes of a length."""


class Setup(Record):
    """Which target to load, and how."""

    target: str
    capture_layers: tuple[int, int, int]
    responses: str
    device: str
    dtype: str
    """As torch names it: float32."""
    threads: int


class Request(Record):
    """The samples wanted, by their place among the sequences that both sides have read."""

    number: int
    places: list[int]


class Answer(Record):
    """Samples for a request; or, when `reason` is there, why there will be none."""

    number: int = -1
    reason: str = ""
    message: str = ""
    hint: str = ""


def write_answer(stream: IO[bytes], answer: Answer, samples: Sequence[Sample] = ()) -> None:
    """Rows of all samples go end to end in one tensor a column."""
    head = answer.model_dump_json().encode()
    columns = {
        name: torch.cat([getattr(s, name) for s in samples]).contiguous()
        for name in (("features", "hidden", "argmax", "lse") if samples else ())
    }
    body = save(columns) if columns else b""
    stream.write(len(head).to_bytes(LENGTH, "little") + len(body).to_bytes(LENGTH, "little"))
    stream.write(head)
    stream.write(body)
    stream.flush()


def read_answer(stream: IO[bytes]) -> tuple[Answer, Columns] | None:
    """The next answer; None when the other side has gone, be it in the middle of one."""
    sizes = stream.read(2 * LENGTH)
    if len(sizes) < 2 * LENGTH:
        return None
    head_size = int.from_bytes(sizes[:LENGTH], "little")
    body_size = int.from_bytes(sizes[LENGTH:], "little")
    head, body = stream.read(head_size), stream.read(body_size)
    if len(head) < head_size or len(body) < body_size:
        return None
    return Answer.model_validate_json(head), load(body) if body else {}


def split_samples(columns: Columns, sequences: Sequence[TokenSequence]) -> list[Sample]:
    """The samples whose columns `write_answer` joined."""
    samples, start = [], 0
    for sequence in sequences:
        ref: SampleRef = sequence.ref()
        rows = {name: value[start : start + ref.length] for name, value in columns.items()}
        samples.append(Sample.of(ref, {"input_ids": sequence.ids, **rows}))
        start += ref.length
    return samples
