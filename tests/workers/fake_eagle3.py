"""A stand-in for the eagle3 CLI that honours the stage contract in milliseconds.

    fake_eagle3.py MODE STAGE RUN

MODE is `ok`, or `<what>@<stage>`: what that stage does instead of its work; several with commas.
With `alone` its outputs are those of no other job.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

ORDER = [
    "resolve", "prepare", "regenerate", "extract", "train", "export",
    "parity", "benchmark", "prove",
]  # fmt: skip
SUMMARIES: dict[str, dict[str, Any]] = {
    "resolve": {
        "resolved": "org/tiny@" + "a" * 40, "weights_sha256": "b" * 64,
        "tokenizer_sha256": "c" * 64, "template_sha256": "d" * 64, "config_sha256": "e" * 64,
    },
    "train": {"steps": 6, "best_step": 6, "acceptance_length": 2.2},
    "export": {"draft_vocab_size": 64, "capture_layers": [2, 4, 6], "convention": "entering"},
    "parity": {
        "holds": True, "said": "Parity: all is well.", "tau": 2.4, "prompts": 8, "depth": 3,
        "dtype": "float32", "acceptance_by_position": [0.8, 0.7, 0.6],
        "left_out": {"vllm": "not installed"},
        "engines": {
            name: {
                "version": version, "loads": True, "broken": None, "said": "agrees", "tau": 2.4,
                "rounds": 90, "acceptance_by_position": [0.8, 0.7, 0.6], "texts_identical": 8,
            }
            for name, version in (("native", "0.1.0"), ("llamacpp", "2026.1"))
        },
    },
    "benchmark": {"tau": 2.5, "speedup": 1.4, "acceptance_by_position": [0.8, 0.6]},
    "prove": {"verdict": "lossless", "mismatches": 0},
}  # fmt: skip
FILES = {
    "resolve": {"target.json": "{}"},
    "train": {"history.jsonl": "{}\n", "draft.safetensors": "weights"},
    "probe": {"fingerprint.json": "{}", "probe.json": "{}"},
    "export": {
        "draft/config.json": "{}",
        "draft/model.safetensors": "weights",
        "fingerprint.json": "{}",
    },
    "parity": {"parity.json": "{}"},
    "benchmark": {"benchmark.json": "{}"},
    "prove": {"certificate.json": "{}", "certificate.md": ""},
}


STEP_S = 0.4
"""What a step of a training takes that goes slowly."""


def say(kind: str, **fields: object) -> None:
    line = {"t": "2026-01-01T00:00:00.000Z", "stage": STAGE, "kind": kind, **fields}
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def checkpoint(step: int) -> None:
    folder = OUT / "work" / f"checkpoint-{step}"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "state.json").write_text(json.dumps({"step": step}))
    say("checkpoint", step=step, path=str(folder.relative_to(RUN)))


def train() -> None:
    found = sorted((OUT / "work").glob("checkpoint-*")) if (OUT / "work").is_dir() else []
    start = json.loads((found[-1] / "state.json").read_text())["step"] if found else 0
    say("log", level="info", message=f"starting at step {start}")
    for step in range(start + 1, 7):
        if misbehaves("slowly"):
            time.sleep(STEP_S)
        say("metric", step=step, metrics={"train/loss": 3.0 / step})
        say("progress", done=step, total=6, unit="step", rate=1.0, eta_s=1.0, message="")
        checkpoint(step)
        if misbehaves("killed") and step == 3 and start == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        if misbehaves("advances") and step > start:
            sys.exit(75)
        wait_for_stop = misbehaves("waits") and step == 3 and start == 0
        while wait_for_stop and not TERM:
            time.sleep(0.01)
            if os.getppid() != int(os.environ["UPDRAFT_PARENT_PID"]):
                sys.exit(1)  # the worker is gone
        if TERM:
            say("error", reason="stopped", message="stopped", hint="")
            sys.exit(75)


def misbehaves(what: str) -> bool:
    return f"{what}@{STAGE}" in MODE.split(",")


def probed() -> dict[str, Any]:
    """Every candidate keeps most of its acceptance of 2.5, or half, or none of it."""
    config = json.loads((RUN / "config.json").read_text())["probe"]
    tau = 1.75 if misbehaves("halves") else 1.05 if misbehaves("loses") else 2.4
    one = {
        "fits": True, "why": "", "distance": 0.01, "capture_layers": [2, 4, 6], "depth": 3,
        "prompts": 16, "rounds": 90, "tau": tau, "tau_ci": [tau - 0.1, tau + 0.1],
        "acceptance_by_position": [0.8, 0.7, 0.6], "speedup": 1.3, "speedup_ci": [1.2, 1.4],
        "plain_tokens_per_s": 10.0, "draft_tokens_per_s": 13.0, "lossless": True,
        "compared_tokens": 256, "near_ties": 0, "mismatches": 0,
    }  # fmt: skip
    for draft in config["drafts"]:
        assert (Path(draft["path"]) / "model.safetensors").is_file()
        assert (Path(draft["path"]) / "fingerprint.json").is_file()
    fingerprint = {"weights_sha256": "f" * 64, "hidden_size": 64, "vocab_size": 64}
    found: dict[str, Any] = {
        "fingerprint": fingerprint, "capture_layers": [2, 4, 6],
        "probed": [{"id": draft["id"], **one} for draft in config["drafts"]],
    }  # fmt: skip
    if config["compare"]:
        found["compared"] = {"tau": 0.01, "tau_ci": [-0.05, 0.07]}
    if config["parity"]:
        found["parity"] = SUMMARIES["parity"]
    return found


def outputs() -> None:
    for name, text in FILES.get(STAGE, {"out.txt": STAGE}).items():
        path = OUT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    names = list(FILES.get(STAGE, {"out.txt": ""}))
    entries = {
        n: {"sha256": sha((OUT / n).read_bytes()), "bytes": (OUT / n).stat().st_size} for n in names
    }
    if STAGE == "resolve":
        (OUT / "local.json").write_text(json.dumps({"path": str(OUT)}))
    summary = dict(SUMMARIES.get(STAGE, {}))
    if misbehaves("slow"):
        summary["tau"] = 1.5
    if misbehaves("moved"):
        summary["weights_sha256"] = "f" * 64
        summary["resolved"] = "org/tiny@" + "f" * 40
    if STAGE == "probe":
        summary = probed()
    if misbehaves("lossy"):
        summary["verdict"] = "not_lossless"
    if misbehaves("apart"):
        summary["holds"] = False
        summary["engines"]["llamacpp"]["broken"] = "acceptance"
    manifest = {
        "outputs": entries, "outputs_digest": sha(json.dumps(entries).encode()),
        "summary": summary, "hardware": {"cpu": "fake"}, "versions": {"torch": "0"},
    }  # fmt: skip
    (OUT / "manifest.json").write_text(json.dumps(manifest))
    (OUT.parent / "current").write_text(OUT.name)
    say("result", digest=OUT.name, dir=str(OUT.relative_to(RUN)), cached=False, seconds=0.1,
        summary=summary)  # fmt: skip


def main() -> None:
    if STAGE == "report":
        (RUN / "report").mkdir(exist_ok=True)
        for name in ("report.html", "report.md", "metrics.json"):
            (RUN / "report" / name).write_text("report")
        return
    OUT.mkdir(parents=True, exist_ok=True)
    assert (RUN / "config.json").is_file()
    before = ("resolve", "prepare") if STAGE == "probe" else ORDER[: ORDER.index(STAGE)]
    for earlier in before:
        assert (RUN / "stages" / earlier / "current").is_file(), f"{earlier} is missing"
    if misbehaves("environment"):
        (RUN / "environment.json").write_text(json.dumps(dict(os.environ)))
    if misbehaves("tells"):
        told = "asked with " + os.environ["HF_TOKEN"]
        sys.stderr.write(told + "\n")
        say("log", level="info", message=told)
        say("progress", done=1, total=2, unit="file", rate=1.0, eta_s=1.0, message=told)
        say("error", reason="bad_input", message=told, hint=told)
        sys.exit(2)
    if misbehaves("bad_input"):
        say("error", reason="bad_input", message="no chat template", hint="choose a chat model")
        sys.exit(2)
    if misbehaves("unavailable"):
        say("error", reason="target_unavailable", message="hub is away", hint="wait")
        sys.exit(3)
    if misbehaves("restarts"):
        sys.exit(75)
    if misbehaves("silent"):
        time.sleep(60)
    if misbehaves("stubborn"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        say("log", level="info", message="will not stop")
        time.sleep(60)
    manifest = OUT / "manifest.json"
    if STAGE != "resolve" and os.environ.get("UPDRAFT_ASK") and not manifest.is_file():
        say("question", digest=OUT.name)
        sys.stdin.readline()
    if STAGE != "resolve" and manifest.is_file():
        (OUT.parent / "current").write_text(OUT.name)
        say("result", digest=OUT.name, dir=str(OUT.relative_to(RUN)), cached=True, seconds=0.1,
            summary=json.loads(manifest.read_text())["summary"])  # fmt: skip
        return
    if STAGE == "train":
        train()
    outputs()


MODE, STAGE, RUN = sys.argv[1], sys.argv[2], Path(sys.argv[3])
OUT = RUN / "stages" / STAGE / f"{STAGE}-{RUN.name if 'alone' in MODE.split(',') else 'digest'}"
TERM: list[int] = []
signal.signal(signal.SIGTERM, lambda *_: TERM.append(1))
try:
    main()
except OSError as e:
    if e.errno != errno.ENOSPC:
        raise
    say("error", reason="disk_full", message="no space left on the disk", hint="free some")
    sys.exit(4)
