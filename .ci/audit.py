"""Asks whether the pinned packages have known holes: `clean`, `NOT CLEAN`, or `NOT AUDITED`.

    python .ci/audit.py [CONSTRAINTS]

Exit code 1 where there are some. Where the advisory service is out of reach nothing is known, and
it says that; the exit code is then 0, or 3 with --required. `audit-allowed.toml` beside this file
lists what is let pass, why, and until when.
"""

from __future__ import annotations

import datetime
import json
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
AUDIT = ["-m", "pip_audit", "--strict", "--no-deps", "--disable-pip", "--progress-spinner", "off"]
LONGEST_S = 180


def allowed(text: str, today: datetime.date) -> list[str]:
    """Ids that are let pass today. An entry has `id`, `reason` and `until`, a date."""
    entries = tomllib.loads(text).get("allowed", [])
    for entry in entries:
        if not (entry.get("id") and entry.get("reason")) or "until" not in entry:
            raise SystemExit(f"audit-allowed.toml: {entry} lacks an id, a reason or a date")
    return [entry["id"] for entry in entries if entry["until"] >= today]


def verdict(stdout: str, stderr: str) -> tuple[str, int]:
    """What pip-audit's answer means, and the exit code for it."""
    try:
        found = json.loads(stdout)["dependencies"]
    except (ValueError, KeyError, TypeError):
        last = (stderr.strip().splitlines() or ["no answer"])[-1]
        return f"NOT AUDITED: {last}", 3
    skipped = [one["name"] for one in found if "skip_reason" in one]
    if skipped or not found:
        return f"NOT AUDITED: skipped {', '.join(skipped) or 'everything'}", 3
    holes = [f"{one['name']} {one['version']}: {_holes(one)}" for one in found if one["vulns"]]
    if holes:
        return "NOT CLEAN\n" + "\n".join(holes), 1
    return f"clean: {len(found)} packages, no known holes but those allowed", 0


def _holes(one: dict[str, Any]) -> str:
    return ", ".join(
        hole["id"] + (f" (fixed in {hole['fix_versions'][0]})" if hole["fix_versions"] else "")
        for hole in one["vulns"]
    )


def main(args: list[str]) -> int:
    required = "--required" in args
    files = [a for a in args if not a.startswith("--")] or [str(HERE.parent / "constraints.txt")]
    passing = allowed((HERE / "audit-allowed.toml").read_text(), datetime.date.today())
    command = [sys.executable, *AUDIT, "--format", "json", "-r", files[0]]
    for one in passing:
        command += ["--ignore-vuln", one]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST_S)
        text, code = verdict(done.stdout, done.stderr)
    except subprocess.TimeoutExpired:
        text, code = verdict("", f"no answer within {LONGEST_S} s")
    sys.stdout.write(text + "\n")
    return 0 if code == 3 and not required else code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
