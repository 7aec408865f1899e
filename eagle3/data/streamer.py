"""The extraction process of streamed features: `python -m eagle3.data.streamer`, started by
`stream.py`.

It answers requests in order until its input ends. How far it runs ahead is decided by how many
requests are outstanding, so it needs no queue of its own.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import IO

import torch

from eagle3.data.capture import captured_samples
from eagle3.data.extract import read_sequences
from eagle3.data.frames import Answer, Request, Setup, write_answer
from eagle3.decode.linear import speed_up
from eagle3.errors import StageError, memory_is_full
from eagle3.target import Target


def main() -> None:
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints must not come between the answers
    try:
        serve(sys.stdin.buffer, answers)
    except BrokenPipeError:
        os._exit(0)  # training has gone
    except Exception as e:
        write_answer(answers, _failure(e))
        raise SystemExit(1) from e


def serve(requests: IO[bytes], answers: IO[bytes]) -> None:
    """Load the target, then answer request after request."""
    setup = Setup.model_validate_json(requests.readline())
    torch.set_num_threads(setup.threads)
    dtype: torch.dtype = getattr(torch, setup.dtype)
    target = Target.load(setup.target, dtype, setup.device, setup.capture_layers)
    speed_up(target.model)
    sequences = read_sequences(Path(setup.responses))
    for line in requests:
        request = Request.model_validate_json(line)
        samples = captured_samples(target, [sequences[i] for i in request.places])
        write_answer(answers, Answer(number=request.number), samples)


def _failure(error: Exception) -> Answer:
    if isinstance(error, StageError):
        return Answer(reason=error.reason, message=str(error), hint=error.hint)
    reason = "out_of_memory" if memory_is_full(error) else "internal"
    return Answer(reason=reason, message=f"{type(error).__name__}: {error}")


if __name__ == "__main__":
    main()
