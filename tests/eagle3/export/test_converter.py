"""llama.cpp's converter, driven as a process: a target's GGUF, or its own words of refusal."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import gguf
import pytest

from eagle3.errors import BadInput
from eagle3.export import converter
from eagle3.export.gguf import write_target
from tests.tiny import build_random_target


def test_its_last_words_are_in_the_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        Path(command[-1]).write_text("half a file")
        return subprocess.CompletedProcess(command, 1, "", "loading\nModel Foo is not supported")

    monkeypatch.setattr(subprocess, "run", refuse)
    with pytest.raises(BadInput, match="Model Foo is not supported"):
        write_target(tmp_path, tmp_path / "t.gguf", "float32")
    assert not (tmp_path / "t.gguf").exists()


def test_without_the_package_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(converter, "find_spec", lambda _: None)
    with pytest.raises(SystemExit, match=r"updraft\[worker\]"):
        converter.main("ids", [])


@pytest.mark.slow  # two processes that each import torch and transformers
def test_a_tokenizer_that_llama_cpp_lacks_is_listed_for_ids_and_refused_for_text(
    tmp_path: Path,
) -> None:
    target = build_random_target(tmp_path / "target")
    write_target(target, tmp_path / "t.gguf", "float16")
    reader = gguf.GGUFReader(tmp_path / "t.gguf")
    assert reader.fields["general.architecture"].contents() == "llama"
    assert reader.fields["llama.block_count"].contents() == 8
    tokens = reader.fields["tokenizer.ggml.tokens"].contents()
    assert (len(tokens), tokens[0], tokens[10]) == (64, "<s>", "t10")
    with pytest.raises(BadInput, match="does not write"):
        write_target(target, tmp_path / "text.gguf", "float16", text=True)
