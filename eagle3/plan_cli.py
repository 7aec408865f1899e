"""`eagle3 plan`: what a run will take, before anything is fetched or run."""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path
from typing import Any

from huggingface_hub import get_token
from pydantic import ValidationError

from eagle3.config import PromptsConfig, TargetRef, explain, load_recipe
from eagle3.errors import BadInput, TargetUnavailable
from eagle3.plan import (
    HUB,
    TYPICAL_PROMPT_TOKENS,
    Hub,
    Plan,
    PromptCount,
    TargetShape,
    Unreachable,
    count_prompts,
    describe,
    device_names,
    hardware,
    make_plan,
    read_config,
    workload,
)

MOST = 10**12
"""Of any number that an option takes."""


def register(commands: Any) -> None:
    """Add the command to an argparse collection of them."""
    plan = commands.add_parser("plan", help="what a run will take: memory, disk, hours, money")
    plan.set_defaults(run_command=run)
    plan.add_argument("target", metavar="TARGET", help="demo, org/name[@rev] or a directory")
    plan.add_argument("--recipe", default="standard", help="a shipped recipe or a YAML file")
    plan.add_argument("--data", help="prompts in place of the recipe's: a file, a data set, demo")
    plan.add_argument("--prompts", type=int, help="how many, where that is not known")
    plan.add_argument("--prompt-tokens", type=float, default=TYPICAL_PROMPT_TOKENS)
    plan.add_argument("--gpu", default="cpu", metavar="NAME", help=", ".join(device_names()))
    plan.add_argument("--gpus", type=int, help="how many; of `cpu` cores, all when empty")
    plan.add_argument("--price", type=float, help="of an hour of all the hardware together")
    plan.add_argument("--disk", type=float, metavar="GB", help="free space for features")
    plan.add_argument("--json", action="store_true", help="print the plan as JSON")


def run(args: argparse.Namespace) -> int:
    try:
        plan = _plan(args)
    except (ValidationError, ValueError) as e:
        text = explain(e) if isinstance(e, ValidationError) else str(e)
        return _refuse(text, BadInput.exit_code)
    except Unreachable as e:
        return _refuse(str(e), TargetUnavailable.exit_code)
    text = json.dumps(plan.model_dump(mode="json"), indent=2) if args.json else describe(plan)
    sys.stdout.write(text + "\n")
    return 0


def _plan(args: argparse.Namespace) -> Plan:
    for name in ("prompts", "prompt_tokens", "gpus", "price", "disk"):
        given = getattr(args, name)
        if given is not None and not 0 < given <= MOST:
            option = name.replace("_", "-")
            raise ValueError(f"--{option} {given}: expected a positive number, {MOST:g} at most")
    recipe = load_recipe(args.recipe)
    if args.data is not None or args.prompts is None:
        recipe = recipe.with_prompts({} if args.data is None else {"source": args.data})
    offline = os.environ.get("HF_HUB_OFFLINE", "").lower() in ("1", "true", "yes", "on")
    hub = Hub(os.environ.get("HF_ENDPOINT") or HUB, get_token(), offline)
    found = TargetShape.from_config(read_config(_reference(args.target), hub))
    heldout = recipe.prompts.heldout
    if args.prompts is not None:
        heldout = min(heldout, args.prompts // 4)
        prompts = PromptCount(train=args.prompts - heldout, heldout=heldout)
    else:
        prompts = _counted(recipe.prompts, hub)
    return make_plan(
        recipe,
        found,
        workload(recipe, prompts.train, prompts.heldout, args.prompt_tokens),
        hardware(args.gpu, args.gpus),
        price_per_hour=args.price,
        disk_bytes=None if args.disk is None else round(args.disk * 1e9),
    )


def _counted(prompts: PromptsConfig, hub: Hub) -> PromptCount:
    try:
        return count_prompts(prompts, hub.rows)
    except Unreachable as e:
        raise Unreachable(f"{e}; say how many: --prompts N") from None


def _reference(text: str) -> TargetRef:
    """A reference, or the directory that a path names."""
    path = Path(text).expanduser()
    named = text.startswith(("/", "./", "../", "~")) or text in (".", "..")
    return TargetRef.parse(f"file://{path.resolve()}" if named else text)


def _refuse(message: str, code: int) -> int:
    sys.stderr.write(f"eagle3 plan: {message}\n")
    return code
