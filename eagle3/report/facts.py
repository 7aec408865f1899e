"""What a run directory tells: the manifests and results of the stages that have run. Torch-free."""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagle3.config import STAGES, RunConfig
from eagle3.errors import BadInput
from eagle3.run import current, read_manifest


@dataclass(frozen=True)
class Facts:
    """Everything that the report shows."""

    config: RunConfig
    manifests: dict[str, dict[str, Any]]
    """By stage, in order; a stage that has not run is absent."""
    target: dict[str, Any] = field(default_factory=dict)
    history: list[dict[str, Any]] = field(default_factory=list)
    parity: dict[str, Any] = field(default_factory=dict)
    benchmark: dict[str, Any] = field(default_factory=dict)
    certificate: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def read(cls, run: Path, config: RunConfig) -> Facts:
        """Read a run directory.

        Raises:
            BadInput: no stage has run.
        """
        folders: dict[str, Path] = {}
        for stage in STAGES:
            with suppress(BadInput):  # it has not run
                folders[stage] = current(run, stage)
        if not folders:
            raise BadInput(f"no stage has run in {run}", f"first run: eagle3 run {run}")

        def read(stage: str, name: str) -> dict[str, Any]:
            path = folders[stage] / name if stage in folders else None
            return json.loads(path.read_text()) if path and path.is_file() else {}

        lines = folders["train"] / "history.jsonl" if "train" in folders else None
        return cls(
            config=config,
            manifests={s: read_manifest(f) for s, f in folders.items()},
            target=read("resolve", "target.json"),
            history=[json.loads(x) for x in lines.read_text().splitlines()] if lines else [],
            parity=read("parity", "parity.json"),
            benchmark=read("benchmark", "benchmark.json"),
            certificate=read("prove", "certificate.json"),
        )

    def summary(self, stage: str) -> dict[str, Any]:
        summary: dict[str, Any] = self.manifests.get(stage, {}).get("summary", {})
        return summary

    def seconds(self, stage: str) -> float:
        return float(self.manifests[stage]["seconds"])

    def metrics(self) -> dict[str, Any]:
        """The figures that travel to the registry, flat."""
        train, bench = self.summary("train"), self.summary("benchmark")
        prove, regenerate = self.summary("prove"), self.summary("regenerate")
        found = {
            "acceptance_length_simulated": train.get("acceptance_length"),
            "draft_vocab_coverage": train.get("coverage"),
            "train_tokens": train.get("train_tokens"),
            "response_tokens": regenerate.get("response_tokens"),
            "acceptance_length": bench.get("tau"),
            "speedup": bench.get("speedup"),
            "plain_tokens_per_s": bench.get("plain_tokens_per_s"),
            "draft_tokens_per_s": bench.get("draft_tokens_per_s"),
            "proof_tokens": prove.get("tokens"),
            "lossless": {"lossless": 1, "not_lossless": 0}.get(prove.get("verdict", "")),
            "seconds": sum(self.seconds(s) for s in self.manifests),
        }
        return {name: value for name, value in found.items() if value is not None}
