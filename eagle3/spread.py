"""A target of which a process does not hold all: embedding and head alone, or its layers spread.

Spread (FSDP2, forward alone), each process keeps its part of every layer. A layer is gathered when
a forward comes to it and let go after it, so all processes must run forwards at the same time,
each over rows of its own. One that has nothing to read goes along (`accompany`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import torch
import torch.distributed as dist
from safetensors import safe_open
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from eagle3 import parallel
from eagle3.data.architecture import skeleton
from eagle3.data.weights import read_checkpoint
from eagle3.errors import BadInput
from eagle3.load import load_config, load_model, say_generation
from eagle3.process import processes, rank
from eagle3.target import Target

PLAIN = {"F32", "BF16", "F16"}
"""Types of stored tensors that are the values themselves."""


class SpreadTarget(Target):
    """A target whose layers are spread over all processes; they make it and use it together."""

    @classmethod
    def load(
        cls,
        path: Path | str,
        dtype: torch.dtype = torch.float32,
        device: str = "cpu",
        capture_layers: tuple[int, int, int] | None = None,
    ) -> Self:
        """Load on the first process and give each its part.

        The first has the whole target in its machine's memory meanwhile, the others one weight;
        no device has more than its part and one weight. So any checkpoint that transformers loads
        can be spread, whatever it makes of the stored tensors.
        """
        source = load_model(path, dtype)[0] if rank() == 0 else None
        model = _skeleton(path, dtype)
        mesh = init_device_mesh(torch.device(device).type, (processes(),))
        for layer in model.get_decoder().layers:
            fully_shard(layer, mesh=mesh, reshard_after_forward=True)
        model.to_empty(device=device)
        model.tie_weights()
        _fill(model, source, device)
        return cls(model, capture_layers)

    def forward(self, *args: Any, **options: Any) -> tuple[Tensor, Tensor | None]:
        """Once every process is here, or goes along."""
        parallel.anywhere(True)
        return super().forward(*args, **options)

    def accompany(self) -> None:
        """Run what others read along with them, until no process reads any more."""
        row = torch.zeros(1, 1, dtype=torch.int64, device=self.device)
        while parallel.anywhere(False):
            super().forward(row, self.new_cache(1))


def load_rows(
    path: Path | str, device: str, capture_layers: tuple[int, int, int] | None = None
) -> Target:
    """A target's embedding and head in float32, and all that its config says; no layer.

    Read from the files alone where these hold the values under the model's own names; else the
    whole target is loaded on the CPU for a moment.
    """
    folder = Path(path)
    model = _skeleton(folder, torch.float32)
    ends = (model.get_output_embeddings(), model.get_input_embeddings())
    wanted = {id(module.weight): module for module in ends}
    names = {n: wanted[id(p)] for n, p in model.named_parameters() if id(p) in wanted}
    found = _stored(folder, list(names))
    if found is None:
        whole = dict(load_model(folder)[0].named_parameters())
        found = {name: whole[name].detach() for name in names}
    for name, module in names.items():
        rows = found[name].to(device=device, dtype=torch.float32)
        module.weight = nn.Parameter(rows, requires_grad=False)
    model.tie_weights()
    return Target(model, capture_layers)


def _skeleton(path: Path | str, dtype: torch.dtype) -> Any:
    """The model without weights, in a type."""
    config = load_config(path)
    config.dtype = dtype
    model = skeleton(config).to(dtype).eval().requires_grad_(False)
    say_generation(model, Path(path))
    return model


def _stored(folder: Path, names: list[str]) -> dict[str, Tensor] | None:
    """Tensors of a checkpoint, or nothing where it does not hold all of them as values."""
    checkpoint = read_checkpoint(folder)
    if any(n not in checkpoint.tensors or checkpoint.tensors[n].dtype not in PLAIN for n in names):
        return None
    found: dict[str, Tensor] = {}
    for file in checkpoint.files:
        with safe_open(file, framework="pt") as f:
            found |= {name: f.get_tensor(name) for name in set(names) & set(f.keys())}
    return found


@torch.no_grad()
def _fill(model: Any, source: Any, device: str) -> None:
    """Give every process its part of the first one's weights, and all of its buffers."""
    there = _tensors(source) if source is not None else {}
    facts: list[Any] = [{name: (t.shape, t.dtype) for name, t in there.items()}]
    dist.broadcast_object_list(facts, 0)
    own = _tensors(model)
    if own.keys() != facts[0].keys():
        differing = sorted(own.keys() ^ facts[0].keys())
        raise BadInput(
            f"the target cannot be spread: loaded, it has other weights than its config says "
            f"({', '.join(differing[:3])})",
            "set extract.sharded to false",
        )
    for name, (shape, dtype) in facts[0].items():
        value = torch.empty(shape, dtype=dtype, device=device)
        if name in there:
            value.copy_(there[name])
        dist.broadcast(value, 0)
        own[name].copy_(parallel.part_of(value, own[name]))


def _tensors(model: Any) -> dict[str, Tensor]:
    """Weights and buffers by name."""
    return dict(model.named_parameters()) | dict(model.named_buffers())
