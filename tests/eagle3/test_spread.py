"""A target of which a process does not hold all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from eagle3.config import ExtractConfig
from eagle3.spread import load_rows
from eagle3.target import Target
from tests.eagle3.read_together import LENGTHS, ids
from tests.tiny import build_random_target
from tests.together import PROCESSES, run_together


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("target")
    build_random_target(path, layers=7)
    return path


def assert_rows_of(found: Target, whole: Target) -> None:
    assert torch.equal(found.embed.weight, whole.embed.weight)
    assert torch.equal(found.head_weight(), whole.head_weight())
    for fact in ("num_layers", "hidden_size", "vocab_size", "capture_layers", "softcap", "device"):
        assert getattr(found, fact) == getattr(whole, fact)
    assert found.eos_ids() == whole.eos_ids()
    assert all(p.is_meta for p in found.layers.parameters())


def test_embedding_and_head_are_read_alone(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = Target.load(folder)
    with monkeypatch.context() as patch:
        patch.setattr("eagle3.spread.load_model", lambda *_: pytest.fail("loads all"))
        assert_rows_of(load_rows(folder, "cpu"), whole)


def test_weights_under_other_names_are_loaded_as_transformers_does(
    folder: Path, tmp_path: Path
) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    tensors = load_file(folder / "model.safetensors")
    renamed = {name.removeprefix("model."): value for name, value in tensors.items()}
    save_file(renamed, tmp_path / "model.safetensors", {"format": "pt"})
    assert_rows_of(load_rows(tmp_path, "cpu"), Target.load(folder))


def read(folder: Path, out: Path, device: str) -> None:
    """Two processes read; what each got is what one with the whole target gets."""
    arguments = ["-m", "tests.eagle3.read_together", str(folder), str(out), device]
    codes, outputs = run_together(arguments)
    assert codes == [0, 0], outputs
    whole = Target.load(folder, device=device)
    parts = [load_file(out / f"{rank}.safetensors") for rank in LENGTHS]
    sizes = [part.pop("sizes").tolist() for part in parts]
    assert sum(kept for kept, _ in sizes) == sizes[0][1]
    for rank, found in enumerate(parts):
        assert sizes[rank][0] == pytest.approx(sizes[rank][1] / 2, rel=0.1)
        assert len(found) == 3 * len(LENGTHS[rank])
        for n, length in enumerate(LENGTHS[rank]):
            hidden, features = whole.forward(
                ids(rank, n).to(device), whole.new_cache(length), capture=True
            )
            assert features is not None
            expected = {"hidden": hidden, "features": features, "logits": whole.logits(hidden)}
            for name, value in expected.items():
                assert torch.equal(found[f"{n}.{name}"], value.cpu())


@pytest.mark.slow
def test_a_spread_target_reads_to_the_bit_what_a_whole_one_does(
    folder: Path, tmp_path: Path
) -> None:
    read(folder, tmp_path, "cpu")


@pytest.mark.gpu
@pytest.mark.skipif(torch.cuda.device_count() < PROCESSES, reason="needs a GPU a process")
def test_a_target_spread_over_gpus_reads_what_a_whole_one_does(
    folder: Path, tmp_path: Path
) -> None:
    read(folder, tmp_path, "cuda")


def test_a_spread_target_and_streamed_features_do_not_go_together() -> None:
    with pytest.raises(ValueError, match="mode online or offline"):
        ExtractConfig(mode="streamed", sharded=True)
