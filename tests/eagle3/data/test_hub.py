"""Data sets of a hub: the real clients against a small server, in a process of their own, since
they read the hub's address when they are imported."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.eagle3.data.hub import Hub, serving

ROOT = Path(__file__).parents[3]
README = b"""---
configs:
- config_name: a
  data_files:
  - {split: train_sft, path: a.jsonl}
- config_name: b
  data_files: b.jsonl
---
"""
READ = """
import json, sys
from eagle3.config import PromptSource
from eagle3.data.rows import identity, read_rows
from eagle3.errors import StageError
found = []
for name in sys.argv[1:]:
    source = PromptSource(source=name)
    try:
        found.append([identity(source), [row["prompt"] for _, row in read_rows(source)]])
    except StageError as e:
        found.append([type(e).__name__, str(e), e.hint])
json.dump(found, sys.stdout)
"""
TOKEN = "hf_secretsecret"


def read(hub: Hub, home: Path, *sources: str) -> list[list[Any]]:
    env = {k: v for k, v in os.environ.items() if not k.startswith("HF_")}
    env |= {"HF_ENDPOINT": hub.url, "HF_HOME": str(home), "HF_TOKEN": TOKEN, "NO_PROXY": "*"}
    done = subprocess.run(
        [sys.executable, "-c", READ, *sources],
        env=env,
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert TOKEN not in done.stdout + done.stderr
    found: list[list[Any]] = json.loads(done.stdout)
    return found


@pytest.mark.slow
def test_a_data_set_of_the_hub(tmp_path: Path) -> None:
    files = {"README.md": README, "a.jsonl": b'{"prompt": "x"}\n', "b.jsonl": b'{"prompt": "y"}\n'}
    with serving(Hub(files)) as hub:
        first, second, *refused = read(
            hub,
            tmp_path,
            "org/set:a:train_sft",
            "org/set@main:b:train",
            "org/set:a:train",
            "org/set:c:train",
            "org/set:train",
            "org/set@v9:a:train_sft",
            "org/none",
        )
        name = f"org/set@{'a' * 40}"
        assert first == [name, ["x"]]
        assert second == [name, ["y"]]
        assert [(kind, text.replace(name, "SET")) for kind, text, _ in refused] == [
            ("BadInput", "the data set SET has no split 'train'"),
            ("BadInput", "the data set SET has no configuration 'c'"),
            ("BadInput", "the data set SET has several configurations"),
            ("BadInput", "the data set org/set has no such revision"),
            (
                "BadInput",
                "the data set org/none does not exist on the hub, or is private and the token "
                "may not see it",
            ),
        ]
        assert "expected one of train_sft" in refused[0][2]
        assert "expected one of 'a', 'b'" in refused[1][2]
        assert f"Bearer {TOKEN}" in hub.tokens

        # The set moves on: another commit, another key, the new rows.
        hub.commit, hub.files["a.jsonl"] = "b" * 40, b'{"prompt": "new"}\n'
        assert read(hub, tmp_path, "org/set:a:train_sft") == [[f"org/set@{'b' * 40}", ["new"]]]

        hub.gated, hub.commit = True, "c" * 40
        [[kind, text, hint]] = read(hub, tmp_path / "other", "org/set:a:train_sft")
        assert (kind, "is gated" in text, "HF_TOKEN" in hint) == ("TargetUnavailable", True, True)
