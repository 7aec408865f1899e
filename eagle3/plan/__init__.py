"""What a run will cost before it runs, and how its draft will be served. Torch-free."""

from eagle3.plan.devices import Hardware, device_names, hardware, machine_memory
from eagle3.plan.estimate import Plan, bytes_per_token, make_plan
from eagle3.plan.lookup import HUB, Hub, Unreachable, read_config
from eagle3.plan.prompts import PromptCount, count_prompts
from eagle3.plan.serve import FORMATS, drafted_nodes, serving
from eagle3.plan.shape import DraftShape, TargetShape, UnknownShape
from eagle3.plan.text import describe
from eagle3.plan.tokens import TYPICAL_PROMPT_TOKENS, Workload, workload

__all__ = [
    "FORMATS",
    "HUB",
    "TYPICAL_PROMPT_TOKENS",
    "DraftShape",
    "Hardware",
    "Hub",
    "Plan",
    "PromptCount",
    "TargetShape",
    "UnknownShape",
    "Unreachable",
    "Workload",
    "bytes_per_token",
    "count_prompts",
    "describe",
    "device_names",
    "drafted_nodes",
    "hardware",
    "machine_memory",
    "make_plan",
    "read_config",
    "serving",
    "workload",
]
