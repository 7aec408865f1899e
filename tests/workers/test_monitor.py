"""What a stage has of its machine stands among its metrics."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.workers.conftest import MakeRuntime, events_of, submit
from workers import monitor
from workers.stage import drain

SMI = """#!/bin/sh
echo "0, 87, 40000, 81559"
echo "1, 3, 512, 81559"
"""


def test_samples_are_metrics_and_no_progress(
    make_runtime: MakeRuntime, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(monitor, "EVERY_S", 0.2)
    rt = make_runtime("slowly@train")
    job_id = submit(rt)
    drain(rt)
    said = [e.data for e in events_of(rt, job_id) if e.type == "metrics"]
    points = [p for data in said if data["stage"] == "train" for p in data["points"]]
    sampled = [p for p in points if "system/cpu_utilization_percentage" in p["metrics"]]
    assert len(sampled) > 3
    assert 0 < sampled[-1]["metrics"]["system/system_memory_usage_percentage"] < 100
    assert sampled[-1]["metrics"]["train/steps_per_s"] == 1.0
    assert sampled[0]["step"] <= sampled[-1]["step"] < 60, "seconds of the stage"
    last = [data for data in said if data["stage"] == "train"][-1]
    assert (last["step"], last["metrics"]) == (6, {"train/loss": 0.5})


def test_gpus_are_asked_of_their_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    smi = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    smi.write_text(SMI)
    smi.chmod(0o755)
    found = monitor.gpus()
    assert found["system/gpu_0_utilization_percentage"] == 87
    assert found["system/gpu_1_memory_usage_megabytes"] == pytest.approx(536.9)
    assert found["system/gpu_0_memory_usage_percentage"] == 49.0
    smi.write_text("#!/bin/sh\necho '0, [N/A], [N/A], [N/A]'\n")
    assert monitor.gpus() == {}
    smi.write_text("#!/bin/sh\nexit 9\n")
    assert monitor.gpus() == {}
