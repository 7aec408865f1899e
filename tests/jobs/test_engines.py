"""Which servers a job may have its answers written by."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from jobs.errors import InvalidSpec
from jobs.settings import Settings
from jobs.spec import JobSpec, check_allowed


def asking(url: str) -> JobSpec:
    return JobSpec(target="demo", overrides={"regenerate": {"engine": "openai", "base_url": url}})


def test_a_job_reaches_listed_servers_only(settings: Settings) -> None:
    listed = settings.model_copy(update={"engines_allowed": ("http://gpu-1:8000/v1",)})
    for url in ("http://gpu-1:8000/v1", "http://gpu-1:8000/v1/"):
        check_allowed(asking(url), listed)
    for url in (
        "http://gpu-1:8000", "http://gpu-1:8000/v1/x", "https://gpu-1:8000/v1", "http://gpu-1/v1",
        "http://169.254.169.254/v1", "http://localhost:8000/v1",
    ):  # fmt: skip
        with pytest.raises(InvalidSpec, match="UPDRAFT_ENGINES_ALLOWED") as e:
            check_allowed(asking(url), listed)
        assert e.value.errors[0]["pointer"] == "overrides.regenerate.base_url"


def test_no_server_is_allowed_unless_listed(settings: Settings) -> None:
    check_allowed(JobSpec(target="demo"), settings)
    with pytest.raises(InvalidSpec, match="not an allowed place"):
        check_allowed(asking("http://127.0.0.1:8000/v1"), settings)


@pytest.mark.parametrize(
    "url",
    [
        "gpu-1:8000",
        "ftp://gpu-1/v1",
        "http://key@gpu-1/v1",
        "http://gpu-1/v1?to=x",
        "http://gpu-1/../v1",
    ],
)
def test_an_address_holds_no_credentials_and_no_tricks(url: str) -> None:
    with pytest.raises(ValidationError, match="base_url"):
        asking(url)
