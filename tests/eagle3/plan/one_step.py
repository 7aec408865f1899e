"""A real training step, and what it takes: `python -m tests.eagle3.plan.one_step SIZES_AS_JSON`
prints the peak in bytes, by the operating system's count. As one of several processes (`RANK` and
so on are set) it spreads the draft over them."""

from __future__ import annotations

import json
import sys
import weakref
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from transformers import LlamaConfig

from eagle3.config import TrainConfig
from eagle3.data.features import Sample
from eagle3.draft import Draft, DraftConfig
from eagle3.plan import DraftShape, TargetShape
from eagle3.plan.memory import Memory, Rows, training
from eagle3.process import processes
from eagle3.train.batch import pack
from eagle3.train.labels import Teacher
from eagle3.train.objective import objective
from eagle3.train.precision import computing_in
from eagle3.train.sharded import add_gradients, clip, spread, whole


@dataclass(frozen=True)
class Sizes:
    """Of a target and of one step."""

    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    vocab: int
    draft_vocab: int
    length: int
    sequences: int
    steps: int
    prompt: int
    """Tokens of a sequence before its answer."""
    precision: str = "float32"
    recompute: bool = False
    processes: int = 1

    def config(self) -> LlamaConfig:
        return LlamaConfig(
            hidden_size=self.hidden,
            intermediate_size=self.intermediate,
            num_attention_heads=self.heads,
            num_key_value_heads=self.kv_heads,
            vocab_size=self.vocab,
            num_hidden_layers=8,
            max_position_embeddings=8192,
            tie_word_embeddings=True,
        )

    def planned(self) -> Memory:
        target = TargetShape.from_config(self.config().to_dict())
        train = TrainConfig(
            ttt_steps=self.steps, draft_vocab_size=self.draft_vocab, recompute=self.recompute
        )
        rows = Rows(self.sequences, self.length, self.length - self.prompt)
        draft = DraftShape.for_target(target, self.draft_vocab)
        product = 2 if self.precision == "bfloat16" else 4
        return training(target, draft, train, rows, product_bytes=product, sharded=self.processes)


class Step:
    """A draft, its optimiser and a batch of random features."""

    def __init__(self, sizes: Sizes) -> None:
        torch.manual_seed(0)
        self.sizes = sizes
        embed_VH = torch.randn(sizes.vocab, sizes.hidden) * 0.02
        fitting = DraftConfig.for_target(sizes.config(), (2, 4, 5), sizes.draft_vocab)
        self.draft = Draft(fitting, embed_VH)
        self.draft.set_vocab(torch.arange(sizes.draft_vocab))
        self.teacher = Teacher.of(embed_VH, self.draft, None)
        self.samples = [self._sample(n) for n in range(sizes.sequences)]
        if sizes.processes > 1:
            spread(self.draft)
        self.kept = list(self.draft.parameters())
        self.optimizer = torch.optim.AdamW(self.kept)

    def _sample(self, n: int) -> Sample:
        length, hidden, vocab = self.sizes.length, self.sizes.hidden, self.sizes.draft_vocab
        return Sample(
            id=str(n),
            split="train",
            input_ids=torch.randint(0, vocab, (length,)),
            features=torch.randn(length, 3 * hidden).bfloat16(),
            hidden=torch.randn(length, hidden).bfloat16(),
            argmax=torch.randint(0, vocab, (length,)),
            lse=torch.zeros(length),
            spans=[(self.sizes.prompt, length)],
        )

    def run(self) -> None:
        """As `eagle3.train.loop` does it."""
        batch = pack(self.samples, self.sizes.steps)
        self.optimizer.zero_grad(set_to_none=True)
        recompute = self.sizes.recompute
        with whole(self.draft):
            with computing_in(self.sizes.precision, torch.device("cpu")):  # type: ignore[arg-type]
                result = objective(self.draft, self.teacher, batch, 0.8, recompute=recompute)
            torch.autograd.backward(result.loss)
            add_gradients(self.draft.parameters(), self.kept)
        clip(self.kept, 0.5)
        self.optimizer.step()

    def tensors(self) -> list[Tensor]:
        """Those that are there before a step."""
        given = [t for s in self.samples for t in (s.features, s.hidden)]
        return [*self.draft.parameters(), self.draft.embed_VH, self.teacher.head_DH, *given]


class Live(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Counts the bytes of all storages that exist, as torch makes and frees them."""

    def __init__(self, there: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.sizes: dict[int, int] = {}
        self.now = self.peak = 0
        for tensor in there:
            self._made(tensor)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        tree_map_only(Tensor, self._made, out)
        return out

    def _made(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata not in self.sizes:
            self.sizes[storage._cdata] = storage.nbytes()
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._freed, storage._cdata)

    def _freed(self, key: int) -> None:
        self.now -= self.sizes.pop(key, 0)


def counted(sizes: Sizes) -> int:
    """The peak of a second step, by the bytes of live tensors."""
    step = Step(sizes)
    live = Live(step.tensors())
    with live:
        step.run()
        live.peak = 0
        step.run()
    return live.peak


def resident(sizes: Sizes) -> int:
    """The peak of two steps in this process, by the operating system, less what it took before."""
    small = Sizes(32, 64, 4, 2, 64, 32, 16, 2, 2, 4, sizes.precision, processes=sizes.processes)
    Step(small).run()
    before = _status("VmRSS")
    step = Step(sizes)
    step.run()
    step.run()
    return _status("VmHWM") - before


def _status(name: str) -> int:
    """Bytes, of this program alone: `ru_maxrss` begins with the peak of the one that started it."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(f"/proc/self/status has no {name}")


def as_argument(sizes: Sizes) -> str:
    return json.dumps(asdict(sizes))


if __name__ == "__main__":
    torch.set_num_threads(1)
    if processes() > 1:
        dist.init_process_group("gloo")
    sys.stdout.write(json.dumps(resident(Sizes(**json.loads(sys.argv[1])))))
