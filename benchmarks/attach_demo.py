"""New checkpoints for `attach` to decide about: a target, moved a little and moved a lot.

    python benchmarks/attach_demo.py TARGET_DIR --policy policy.yaml --out DIR [--small 0.005]

Needs a running service with a registered draft of the target. Every weight matrix is moved by noise
of that share of its own norm, which is what the fingerprint calls the distance. Prints a Markdown
table: distance, acceptance before, decision, acceptance after, hours.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file


def perturb(target: Path, folder: Path, share: float, seed: int = 0) -> Path:
    """A copy of a checkpoint with each matrix moved by noise of that share of its norm; norms and
    biases stay. One file at a time is in memory."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(target, folder, ignore=shutil.ignore_patterns("*.safetensors"))
    generator = torch.Generator().manual_seed(seed)
    for file in sorted(target.glob("*.safetensors")):
        tensors = {}
        with safe_open(file, "pt") as opened:
            metadata = opened.metadata()
            for name in sorted(opened.keys()):
                tensor = opened.get_tensor(name)
                tensors[name] = _moved(tensor, share, generator)
        save_file(tensors, folder / file.name, metadata)
    return folder


def _moved(tensor: torch.Tensor, share: float, generator: torch.Generator) -> torch.Tensor:
    if tensor.dim() < 2 or not tensor.is_floating_point():
        return tensor
    exact = tensor.float()
    noise = torch.randn(exact.shape, generator=generator)
    moved: torch.Tensor = exact + noise * (share * exact.norm() / noise.norm())
    return moved.to(tensor.dtype)


def attach(folder: Path, policy: Path | None, out: Path) -> dict[str, Any]:
    """Let the service decide, and wait for the end. Returns its answer, with `seconds`."""
    words = [sys.executable, "-m", "api.cli", "attach", f"file://{folder}", "--wait", "--json"]
    words += ["--summary", str(out / f"{folder.name}.md")]
    words += ["--policy", str(policy)] if policy else []
    started = time.monotonic()
    done = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False)
    if not done.stdout:
        raise SystemExit(f"updraft attach ended with {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout)
    return {**found, "seconds": time.monotonic() - started}


def row(name: str, share: float, found: dict[str, Any]) -> str:
    """A line of the table: the best candidate before, the draft after."""
    decision, draft = found["decision"] or {}, found["draft"] or {}
    fitting = [t for t in decision.get("tried", []) if t["fits"]]
    tried: dict[str, Any] = max(fitting, key=lambda t: t["tau"], default={})
    measured = draft.get("metrics", {})
    cells = (
        f"{name} ({share:g})", _figure(tried.get("distance"), 4), _figure(tried.get("tau")),
        str(decision.get("mode", "–")), found["status"], _figure(measured.get("tau")),
        _figure(measured.get("speedup")), f"{found['seconds'] / 60:.1f} min",
    )  # fmt: skip
    return f"| {' | '.join(cells)} |"


def _figure(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else f"{value:.{digits}f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("target", type=Path)
    parser.add_argument("--policy", type=Path)
    parser.add_argument("--out", type=Path, default=Path("attach-demo"))
    parser.add_argument("--small", type=float, default=0.005)
    parser.add_argument("--large", type=float, default=0.1)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    out = args.out.absolute()
    out.mkdir(parents=True, exist_ok=True)
    lines = [
        "| change | distance | tau before | decision | outcome | tau after | speedup | took |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for name, share in (("small", args.small), ("large", args.large)):
        folder = perturb(args.target, out / name, share, args.seed)
        lines.append(row(name, share, attach(folder, args.policy, out)))
    table = "\n".join(lines) + "\n"
    (out / "table.md").write_text(table)
    sys.stdout.write(table)


if __name__ == "__main__":
    main()
