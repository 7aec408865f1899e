"""What a run will cost before it runs, and how its draft will be served. Torch-free."""

from eagle3.plan.estimate import Plan, make_plan
from eagle3.plan.hardware import Hardware, device_names, hardware
from eagle3.plan.lookup import Unreachable, read_config
from eagle3.plan.serving import TargetSize, drafted_nodes, estimate, serving
from eagle3.plan.shape import DraftShape, TargetShape, UnknownShape
from eagle3.plan.text import describe
from eagle3.plan.workload import Workload, workload

__all__ = [
    "DraftShape",
    "Hardware",
    "Plan",
    "TargetShape",
    "TargetSize",
    "UnknownShape",
    "Unreachable",
    "Workload",
    "describe",
    "device_names",
    "drafted_nodes",
    "estimate",
    "hardware",
    "make_plan",
    "read_config",
    "serving",
    "workload",
]
