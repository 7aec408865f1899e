"""What a stage printed is stored without secrets."""

from __future__ import annotations

import json

from tests.workers.conftest import MakeRuntime
from workers.uploads import upload_logs


def test_stage_logs_are_stored_without_secrets(make_runtime: MakeRuntime) -> None:
    rt = make_runtime()
    run = rt.settings.runs_dir / "job_1"
    (run / "logs").mkdir(parents=True)
    line = json.dumps({"kind": "log", "message": 'asked with "hf_abcdefghijkl"'})
    (run / "logs" / "train.jsonl").write_text(f"{line}\n")
    (run / "logs" / "train.stderr.log").write_text("GET https://s3/k?X-Amz-Signature=5f2ac0ffee\n")
    upload_logs(rt.store, run, "job_1", "train")
    kept = rt.store.get_bytes("jobs/job_1/logs/train.jsonl")
    assert json.loads(kept)["message"] == 'asked with "[redacted]"'
    assert b"5f2ac0ffee" not in rt.store.get_bytes("jobs/job_1/logs/train.stderr.log")
    assert sorted(p.name for p in run.iterdir()) == ["logs"]  # no copy is left
