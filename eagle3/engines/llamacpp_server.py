"""llama.cpp's server in a process of its own: `python -m eagle3.engines.llamacpp_server SETTINGS`.

SETTINGS is a JSON object: names of `xllamacpp.CommonParams`, dotted, and their values. The draft is
switched on where `speculative.draft.mparams.path` names one. A crash of the library ends this
process and no other.
"""

from __future__ import annotations

import json
import signal
import sys
from functools import reduce
from typing import Any

import xllamacpp

DRAFT = "speculative.draft.mparams.path"


def serve(settings: dict[str, Any]) -> None:
    """Load, then answer until a signal ends this process."""
    params = xllamacpp.CommonParams()
    for name, value in settings.items():
        *path, last = name.split(".")
        setattr(reduce(getattr, path, params), last, value)
    if DRAFT in settings:
        kinds = xllamacpp.common_speculative_type
        params.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_DRAFT_EAGLE3]
    server = xllamacpp.Server(params)
    sys.stderr.write(f"answers at {server.listening_address}\n")
    while True:
        signal.pause()


if __name__ == "__main__":
    serve(json.loads(sys.argv[1]))
