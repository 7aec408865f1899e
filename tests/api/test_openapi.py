from __future__ import annotations

import json
from pathlib import Path

from fastapi.testclient import TestClient

SNAPSHOT = Path(__file__).parents[2] / "docs" / "openapi.json"


def test_the_snapshot_is_current(web: TestClient) -> None:
    current = web.get("/openapi.json").json()
    assert json.loads(SNAPSHOT.read_text()) == current, "run: python -m api.generate"


def test_every_operation_is_named_and_says_how_it_fails(web: TestClient) -> None:
    schema = web.get("/openapi.json").json()
    ids = []
    for path, methods in schema["paths"].items():
        for operation in methods.values():
            ids.append(operation["operationId"])
            assert operation["summary"], path
            if path.startswith("/v1"):
                problems = operation["responses"]["401"]["content"]
                assert list(problems) == ["application/problem+json"]
                assert operation["security"]
    assert len(ids) == len(set(ids))
    assert "_" not in "".join(ids), "named by us, not derived from functions"


def test_the_submission_has_examples(web: TestClient) -> None:
    body = web.get("/openapi.json").json()["paths"]["/v1/jobs"]["post"]["requestBody"]
    assert {"demo", "hub"} <= set(body["content"]["application/json"]["examples"])


def test_references_resolve(web: TestClient) -> None:
    text = web.get("/openapi.json").text
    models = json.loads(text)["components"]["schemas"]
    refs = {part.split('"')[0] for part in text.split('"#/components/schemas/')[1:]}
    assert refs <= set(models)
    assert "HTTPValidationError" not in models
