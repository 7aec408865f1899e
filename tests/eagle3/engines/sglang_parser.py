"""SGLang's own argument parser, without what its package loads beside it (kernels, CUDA).

    python sglang_parser.py WHEEL ARGUMENT…

Prints what the parser makes of the arguments, as JSON; WHEEL is a directory with the unpacked wheel
and msgspec.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import sys
import types
from pathlib import Path
from unittest.mock import MagicMock

ABSENT = ("utils", "utils.common", "lora.lora_registry", "runtime_context", "environ")
"""Modules with needs of their own; of their values the declared fields use none."""


def parser(wheel: Path) -> argparse.ArgumentParser:
    sys.path.insert(0, str(wheel))
    package = types.ModuleType("sglang")
    package.__path__ = [str(wheel / "sglang")]  # and so without its own `__init__`
    sys.modules["sglang"] = package
    for name in ABSENT:
        sys.modules[f"sglang.srt.{name}"] = MagicMock(human_readable_int=int)
    struct = importlib.import_module("msgspec").Struct
    add = importlib.import_module("sglang.srt.arg_groups.arg_utils").add_cli_args_from_dataclass
    fields = importlib.import_module("sglang.srt.arg_groups.fields")
    made = argparse.ArgumentParser(allow_abbrev=False)
    for info in pkgutil.iter_modules(fields.__path__, f"{fields.__name__}."):
        for kind in vars(importlib.import_module(info.name)).values():
            if isinstance(kind, type) and issubclass(kind, struct) and kind.__module__ == info.name:
                add(made, kind)
    return made


if __name__ == "__main__":
    found = parser(Path(sys.argv[1])).parse_args(sys.argv[2:])
    sys.stdout.write(json.dumps(vars(found), default=str))
