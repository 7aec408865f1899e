"""The documents keep what they promise: links lead somewhere, commands exist, no one's paths."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])

LINK = re.compile(r"\]\((?!https?://|mailto:|#)([^)#\s]+)(?:#[^)\s]*)?\)")
COMMAND = re.compile(r"(?:^|`)\s*make ((?:[a-z][a-z-]*)(?: [a-z][a-z-]*)*)", re.MULTILINE)
# Absolute paths that only one machine has. Written so that this file does not match itself.
MACHINE_PATH = re.compile(r"(?:^|[\s\"'(=:`])(?:file://)?/(?:wor[k]|far[m]|roo[t]|opt/pyp[i])/")
SUFFIXES = {
    ".cfg",
    ".html",
    ".ini",
    ".json",
    ".mako",
    ".md",
    ".py",
    ".sh",
    ".toml",
    ".yaml",
    ".yml",
}
BARE = {"Dockerfile", "Makefile", "NOTICE", "run", ".importlinter", ".gitignore", ".env.example"}


def _name(path: Path) -> str:
    return str(path.relative_to(ROOT))


@pytest.mark.parametrize("document", DOCUMENTS, ids=_name)
def test_links_lead_somewhere(document: Path) -> None:
    links = LINK.findall(document.read_text())
    assert [link for link in links if not (document.parent / link).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=_name)
def test_make_commands_exist(document: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {word for words in COMMAND.findall(document.read_text()) for word in words.split()[:1]}
    assert named <= targets


def test_no_path_of_a_build_machine() -> None:
    listed = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    files = [ROOT / name for name in listed.stdout.split("\0") if name]
    texts = [f for f in files if f.is_file() and (f.suffix in SUFFIXES or f.name in BARE)]
    assert texts
    found = [
        f"{_name(file)}:{number}: {line.strip()}"
        for file in texts
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if MACHINE_PATH.search(line)
    ]
    assert found == []


def test_every_decision_gives_its_reasons() -> None:
    for page in sorted((ROOT / "docs" / "decisions").glob("*.md")):
        if page.name == "README.md":
            continue
        headings = re.findall(r"^## (\w+)", page.read_text(), re.MULTILINE)
        assert headings == ["Context", "Decision", "Why", "Cost"], page.name
