from __future__ import annotations

import hashlib

import pytest
from fastapi.testclient import TestClient

from api.state import State
from tests.api.conftest import problem_of


@pytest.mark.usefixtures("succeeded")
def test_drafts_are_listed_and_found(web: TestClient) -> None:
    page = web.get("/v1/drafts?base_model=demo&alias=champion").json()
    assert [d["id"] for d in page["data"]] == ["dft_01test"]
    assert web.get("/v1/drafts?alias=candidate").json()["data"] == []
    for ref in ("dft_01test", "eagle3--demo", "eagle3--demo@champion"):
        assert web.get(f"/v1/drafts/{ref}").json()["name"] == "eagle3--demo"
    problem_of(web.get("/v1/drafts/dft_nope"), 404)
    problem_of(web.get("/v1/drafts?alias=king"), 422)


@pytest.mark.usefixtures("succeeded")
def test_files_come_with_their_hashes(web: TestClient) -> None:
    files = web.get("/v1/drafts/dft_01test/files").json()["data"]
    assert [f["path"] for f in files] == ["draft/config.json", "draft/model.safetensors"]
    for file in files:
        got = web.get(f"/v1/drafts/dft_01test/files/{file['path']}")
        assert len(got.content) == file["size"]
        assert hashlib.sha256(got.content).hexdigest() == file["sha256"]
        assert got.headers["x-content-sha256"] == file["sha256"]


@pytest.mark.usefixtures("succeeded")
@pytest.mark.parametrize("path", ["nope", "../../updraft.db", "%2e%2e/%2e%2e/updraft.db"])
def test_only_files_of_the_manifest_are_served(web: TestClient, path: str) -> None:
    assert web.get(f"/v1/drafts/dft_01test/files/{path}").status_code == 404


@pytest.mark.usefixtures("succeeded")
def test_another_manifest_than_the_registered_one_is_refused(web: TestClient, state: State) -> None:
    state.store.put_bytes("drafts/dft_01test/manifest.json", b'{"files": {}}')
    found = problem_of(web.get("/v1/drafts/dft_01test/files"), 500)
    assert found["type"].endswith(":checksum-mismatch")
