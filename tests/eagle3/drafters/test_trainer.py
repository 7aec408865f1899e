"""The budget, the data's order, the weights that are kept, and what is said of faults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from eagle3.data.features import Sample
from eagle3.drafters import saved
from eagle3.drafters.eagle import Eagle
from eagle3.drafters.trainer import Budget, Fitted, fit
from eagle3.errors import BadInput, Stopped
from eagle3.train.batch import Batch
from eagle3.train.checkpoint import checkpoints
from tests.eagle3.drafters.learned import CONFIG, Memory, new_eagle, permuted, split, trained


class Counter:
    """A method of one weight, whose acceptance is what the test says."""

    name = "counter"
    steps = 1
    reads_hidden = True

    def __init__(self, taus: Sequence[float] = (), fails: bool = False) -> None:
        self.module = nn.Linear(1, 1)
        self.taus, self.fails = list(taus), fails
        self.kept: list[float] = []

    def loss(self, batch: Batch) -> tuple[Tensor, dict[str, float]]:
        loss = self.module.weight.square().sum() + self.module.bias.square().sum()
        return loss * (float("nan") if self.fails else 1.0), {"train/loss": float(loss.detach())}

    def acceptance(self, samples: Sequence[Sample]) -> float:
        self.kept.append(float(self.module.weight.detach()))
        return self.taus.pop(0) if self.taus else 1.0


def test_it_stops_at_its_tokens_and_the_rate_follows_them() -> None:
    rates: list[float] = []

    class Watched(Counter):
        def loss(self, batch: Batch) -> tuple[Tensor, dict[str, float]]:
            rates.append(self.rate())
            return super().loss(batch)

        def rate(self) -> float:
            return float(optimizers[0].param_groups[0]["lr"])

    optimizers: list[torch.optim.Optimizer] = []
    step = torch.optim.AdamW.__init__

    def note(self: torch.optim.AdamW, *args: object, **kwargs: object) -> None:
        optimizers.append(self)
        step(self, *args, **kwargs)  # type: ignore[arg-type]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.optim.AdamW, "__init__", note)
        out = trained(Watched(), tokens=4000)
    assert 4000 <= out.tokens < 4000 + 2 * CONFIG.batch_tokens
    assert out.steps == len(rates)
    top = rates.index(max(rates))
    assert rates[0] < rates[top] == pytest.approx(CONFIG.learning_rate, rel=0.02)
    assert rates[top:] == sorted(rates[top:], reverse=True)
    assert rates[-1] < 0.2 * CONFIG.learning_rate


def test_it_stops_at_its_seconds() -> None:
    source = Memory(permuted()[1])
    out = fit(Counter(), source, split(source), CONFIG, Budget(0.3, 10**9))
    assert 0.3 <= out.seconds < 3
    assert out.tokens < 10**9


def test_all_methods_see_the_same_batches_in_the_same_order() -> None:
    seen = []
    for method in (Counter(), Counter()):
        source = Memory(permuted()[1])
        fit(method, source, split(source), CONFIG, Budget(tokens=3000), seed=5)
        seen.append(source.seen)
    assert seen[0] == seen[1]
    first_epoch = [name for batch in seen[0] for name in batch][:32]
    assert len({*first_epoch}) == 32  # every sample once before one comes again


def test_the_best_weights_are_kept() -> None:
    method = Counter(taus=[1.5, 2.5, 2.0, 1.0])
    shares: list[float] = []

    def report(share: float, metrics: Mapping[str, float]) -> None:
        if "eval/acceptance_length" in metrics:
            shares.append(share)

    out = trained(method, tokens=4000, report=report)
    assert [round(share, 1) for share in shares] == pytest.approx([0.3, 0.5, 0.8, 1.0], abs=0.11)
    assert [point["tau"] for point in out.history] == [1.5, 2.5, 2.0, 1.0]
    assert out.tau == 2.5
    assert float(method.module.weight.detach()) == method.kept[1] != method.kept[3]


def test_losses_that_are_no_number_are_left_out_up_to_a_limit() -> None:
    method = Counter(fails=True)
    before = float(method.module.weight.detach())
    with pytest.raises(BadInput, match="NaN or infinite in 9 steps"):
        trained(method)
    assert float(method.module.weight.detach()) == before


def test_features_without_hidden_states_are_refused() -> None:
    samples = [replace(s, hidden=s.hidden[:, :0]) for s in permuted()[1]]
    source = Memory(samples)
    with pytest.raises(BadInput, match="final hidden states"):
        fit(Counter(), source, split(source), CONFIG, Budget(tokens=100))


@pytest.mark.parametrize("limits", [(None, None), (0.0, None), (1.0, 0), (None, -1)])
def test_a_budget_of_nothing_is_refused(limits: tuple[float | None, int | None]) -> None:
    with pytest.raises(ValueError, match="Budget"):
        Budget(*limits)


def test_weights_come_back_to_a_module_of_the_same_shape_alone(tmp_path: Path) -> None:
    module, other, path = nn.Linear(2, 3), nn.Linear(2, 3), tmp_path / "model.safetensors"
    saved.save(path, module)
    saved.load(path, other)
    assert torch.equal(other.weight, module.weight)
    for different in (nn.Linear(2, 4), nn.Linear(2, 3, bias=False), nn.BatchNorm1d(3)):
        with pytest.raises(RuntimeError, match="loading state_dict"):
            saved.load(path, different)


@pytest.mark.parametrize("stop_at", [3, 9])
def test_a_training_that_was_stopped_ends_with_the_same_weights(
    tmp_path: Path, stop_at: int
) -> None:
    """An EAGLE draft, whose noise is drawn; stopped before the first evaluation, and after it."""

    def run(work: Path | None, stop_at: int = 0) -> tuple[dict[str, Tensor], Fitted]:
        torch.manual_seed(0)
        method, steps = new_eagle(Eagle, permuted()[0]), 0

        def report(share: float, metrics: Mapping[str, float]) -> None:
            nonlocal steps
            steps += 1
            if steps == stop_at:
                raise Stopped("TERM")

        out = trained(method, tokens=2_000, evaluations=2, report=report, work=work)
        assert steps == out.steps or work is not None
        return method.state_dict(), out

    whole, expected = run(None)
    assert expected.steps > stop_at
    with pytest.raises(Stopped):
        run(tmp_path, stop_at)
    torch.rand(7)  # another process has other random numbers
    parts, found = run(tmp_path)
    for name, value in whole.items():
        assert torch.equal(parts[name], value), name
    assert found.tau == expected.tau
    assert [{**p, "seconds": 0} for p in found.history] == [
        {**p, "seconds": 0} for p in expected.history
    ]
    assert len(checkpoints(tmp_path)) == 1
