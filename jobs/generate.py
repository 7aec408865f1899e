"""Writes the files made from code: `python -m jobs.generate`. A test keeps them current."""

from __future__ import annotations

import json
from pathlib import Path

from eagle3.config import recipes_markdown
from jobs.settings import env_example, reference_markdown
from jobs.spec import JobSpec

ROOT = Path(__file__).resolve().parent.parent


def job_schema() -> str:
    """The JSON Schema of a job file."""
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Updraft job",
        **{k: v for k, v in JobSpec.model_json_schema().items() if k != "title"},
    }
    return json.dumps(schema, indent=2) + "\n"


def generated() -> dict[Path, str]:
    """Each generated file and what it should hold."""
    return {
        ROOT / "docs" / "settings.md": reference_markdown(),
        ROOT / ".env.example": env_example(),
        ROOT / "docs" / "recipes.md": recipes_markdown(),
        ROOT / "jobs" / "job.schema.json": job_schema(),
    }


def main() -> None:
    for path, text in generated().items():
        path.write_text(text)


if __name__ == "__main__":
    main()
