"""What a stage's process gets to see of this one's environment: little, and no credential."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from pydantic import SecretStr

from jobs.settings import Settings

PASSED = (
    "PATH", "HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "VIRTUAL_ENV", "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES", "HF_HOME", "HF_HUB_OFFLINE", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE",
    "UPDRAFT_ENGINES", "XDG_CACHE_HOME",
)  # fmt: skip
PASSED_PREFIXES = ("OMP_", "MKL_", "NVIDIA_", "NCCL_")
NETWORK = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy")
NETWORK_PREFIXES = ("PIP_",)
"""The demo target comes from a package registry, by pip and the settings the user gave it."""
FETCHING = ("resolve", "prepare")
"""The stages that may talk to a model hub; they alone get its token and the proxies."""


@dataclass(frozen=True)
class OwnHub:
    """The hub with an owner's own token. What it lets in is cached apart: the hub's client takes
    from its cache what is there, and asks nobody whether the next owner may have it."""

    token: SecretStr
    cache: Path


def child_environment(
    settings: Settings,
    stage: str,
    gpus: str | None = None,
    own: OwnHub | None = None,
) -> dict[str, str]:
    """The environment of a stage's process. It ends with UPDRAFT_PARENT_PID.

    Args:
        gpus: CUDA_VISIBLE_DEVICES of the stage; this process's own when None.
        own: how the job's owner fetches; with the deployment's token when None.
    """
    fetching = stage in FETCHING
    env = {
        name: value
        for name, value in os.environ.items()
        if name in PASSED
        or name.startswith(PASSED_PREFIXES)
        or (fetching and (name in NETWORK or name.startswith(NETWORK_PREFIXES)))
    }
    env["UPDRAFT_CACHE"] = str(settings.cache)
    env["UPDRAFT_PARENT_PID"] = str(os.getpid())
    env["UPDRAFT_ASK"] = "1"
    env["PYTHONUNBUFFERED"] = "1"
    if gpus is not None:
        env["CUDA_VISIBLE_DEVICES"] = gpus
    if settings.hub_offline:
        env["HF_HUB_OFFLINE"] = "1"
    if stage == "regenerate" and settings.engine_api_key is not None:
        env["UPDRAFT_ENGINE_API_KEY"] = settings.engine_api_key.get_secret_value()
    if fetching:
        if endpoint := os.environ.get("HF_ENDPOINT"):
            env["HF_ENDPOINT"] = endpoint
        if token := own.token if own else settings.hub_token:
            env["HF_TOKEN"] = token.get_secret_value()
        if own:
            env["HF_HUB_CACHE"] = str(own.cache / "hub")
            env["HF_DATASETS_CACHE"] = str(own.cache / "datasets")
    return env
