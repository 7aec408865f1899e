"""`eagle3 serve`: target and draft in an engine on this machine, until Ctrl-C."""

from __future__ import annotations

import argparse
import signal
import sys
import time
from pathlib import Path
from typing import Any

SERVERS = ("llamacpp", "vllm", "sglang")
"""Those that answer text over HTTP."""
DTYPES = ("float32", "bfloat16", "float16")
POLL_S = 0.5

EXPLAINED = """
TARGET is a directory, or a reference as runs have it (org/name@commit, demo, gguf:/abs/file.gguf).
DRAFT is a draft's directory, or a registered draft's files as `updraft pull` brings them: these say
how many tokens to draft, and which target is theirs. The engine listens on 127.0.0.1. Exit codes: 0
ended by Ctrl-C or TERM, 2 bad input, 5 the engine failed."""


def register(commands: Any) -> None:
    """Add the command to an argparse collection of them."""
    command = commands.add_parser(
        "serve", help="serve a target with its draft on this machine", epilog=EXPLAINED
    )
    add = command.add_argument
    add("target", metavar="TARGET", help="a directory or a reference")
    add("draft", type=Path, metavar="DRAFT", help="a draft's directory, or a pulled draft's")
    add("--engine", required=True, choices=SERVERS, help=", ".join(SERVERS))
    add("--port", type=int, help="a free one if empty")
    add("--tokens", type=int, metavar="N", help="draft tokens a round; 0: the target alone")
    add("--dtype", choices=DTYPES, help="float32 on a CPU, the target's own on a GPU if empty")
    add("--context", type=int, default=4096, help="tokens of prompt and answer; the target's most")
    add("--slots", type=int, default=8, help="answers in progress, at most")
    add("--memory-gib", type=float, default=4.0, help="room for keys and values")
    add("--work", type=Path, metavar="DIR", help="where converted files and the log are kept")
    command.set_defaults(run_command=_serve)


def _serve(args: argparse.Namespace) -> int:
    from eagle3.engines import serve  # torch loads only here

    def ended(*_: object) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):  # INT too: a shell's `&` has it ignored
        signal.signal(number, ended)
    asked = serve.Asked(
        engine=args.engine,
        port=args.port,
        tokens=args.tokens,
        dtype=args.dtype,
        context=args.context,
        slots=args.slots,
        memory_gib=args.memory_gib,
        work=args.work,
    )
    try:
        with serve.start(args.target, args.draft, asked, _say) as served:
            sys.stdout.write(f"\n{served.curl}\n\n")
            sys.stdout.flush()
            where = f"{served.running.url}; its log: {served.running.log}"
            _say(f"{args.engine} answers at {where}; Ctrl-C ends it")
            while served.alive():
                time.sleep(POLL_S)
    except KeyboardInterrupt:
        _say(f"{args.engine} has ended")
        return 0
    raise served.died()


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()
