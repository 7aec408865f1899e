"""Stage `resolve`: a target reference becomes files on this machine, checked and identified."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3.config import RunConfig
from eagle3.data.architecture import check_structure
from eagle3.data.checks import (
    check_config,
    check_files,
    check_lengths,
    check_tokenizer,
    describe,
)
from eagle3.data.fetch import fetch_all, fetch_small, pin
from eagle3.data.gguf import demo, from_gguf
from eagle3.data.probe import probe
from eagle3.data.prompts import count_prompts
from eagle3.data.room import check_room
from eagle3.errors import BadInput
from eagle3.fit import context_length
from eagle3.parity.engines import settled
from eagle3.run import Context, write_json
from eagle3.train.warm import check_draft


@dataclass(frozen=True)
class Located:
    """A target on this machine."""

    folder: Path
    identity: str
    """What the reference points to now, immutable; without a hash it gets that of the weights."""


def resolve(ctx: Context) -> None:
    """Write `target.json` (what the target is) and `local.json` (where it lies on this machine, and
    which engines take it there).

    Whatever can fail for a reason that the user controls fails here: a target that cannot be one,
    a recipe that does not fit it, a prompt file that cannot be read, a machine that is too small.

    Raises:
        BadInput, TargetUnavailable, DiskFull
    """
    config = ctx.config
    prompts = count_prompts(config)
    located = locate(config, ctx.progress.info)
    folder = located.folder
    model = check_config(folder)
    layers = check_structure(model, config.recipe.extract.capture_layers)
    check_files(folder, model)
    text = model.get_text_config()
    tokenizer = check_tokenizer(folder, text.vocab_size)
    check_lengths(config.recipe, context_length(text))
    facts: dict[str, Any] = {"ref": config.target, "kind": config.target_ref.kind}
    facts |= describe(folder, model, tokenizer, layers)
    identity = located.identity or f"{config.target}@sha256:{facts['weights_sha256'][:12]}"
    facts["resolved"] = identity
    if (start := config.recipe.train.start_from) is not None:
        check_draft(Path(start), text.hidden_size, text.vocab_size, text.num_hidden_layers, layers)
    if prompts is not None:
        check_room(ctx.run, config, folder, facts, prompts, ctx.progress.warning)
    known = _known(ctx.out, "target.json") == facts
    earlier = _known(ctx.out, "local.json").get("engines") if known else None
    engines = settled(config.recipe.engines, folder, facts["parameters"], earlier)
    for name, why in engines.left_out.items():
        ctx.progress.warning(f"the draft will not be tried in {name}: {why}")
    if not known:
        ctx.check_stop()
        probe(folder, layers)
        write_json(ctx.out / "target.json", facts)
    write_json(ctx.out / "local.json", {"path": str(folder), "engines": engines.record()})
    ctx.summary.update(facts)


def locate(config: RunConfig, say: Callable[[str], None]) -> Located:
    """Bring the target's files onto this machine.

    Raises:
        BadInput, TargetUnavailable
    """
    ref = config.target_ref
    match ref.kind:
        case "demo":
            folder, digest = demo(say)
            return Located(folder, f"demo@sha256:{digest[:12]}")
        case "gguf":
            folder, digest = from_gguf(Path(ref.location), say)
            return Located(folder, f"{ref}@sha256:{digest[:12]}")
        case "hub":
            return _from_hub(config, ref.location, ref.revision, say)
        case "file":
            folder = Path(ref.location)
        case "s3" | "mlflow":
            brought = config.brought_to(config.target)
            if brought is None:
                raise BadInput(
                    f"{ref} is not on this machine",
                    "the service's workers download it; without the service, download it and "
                    "give file:///abs/dir",
                )
            folder = brought
    if not folder.is_dir():
        raise BadInput(f"the target {ref} does not exist: {folder} is not a directory")
    return Located(folder, "")


def _from_hub(
    config: RunConfig, repo: str, revision: str | None, say: Callable[[str], None]
) -> Located:
    commit, files = pin(repo, revision)
    if not any(f.endswith(".safetensors") for f in files):
        raise BadInput(
            f"{repo} holds no safetensors: weights that are pickles are not loaded, for loading "
            "one runs its code",
            "give a revision that has safetensors (many have one on a pull request's branch)",
        )
    small = fetch_small(repo, commit)
    model = check_config(small)
    check_structure(model, config.recipe.extract.capture_layers)
    check_tokenizer(small, model.get_text_config().vocab_size)
    say(f"fetching {repo} at {commit[:12]}")
    return Located(fetch_all(repo, commit), f"{repo}@{commit}")


def _known(out: Path, name: str) -> dict[str, Any]:
    """What an earlier run on this machine found, and this one need not; empty where none did."""
    try:
        found: dict[str, Any] = json.loads((out / name).read_text())
    except (FileNotFoundError, json.JSONDecodeError):
        return {}
    return found
