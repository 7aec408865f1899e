"""What a run will cost before it runs, and how its draft will be served. Torch-free."""

from eagle3.plan.serving import TargetSize, drafted_nodes, estimate, serving

__all__ = ["TargetSize", "drafted_nodes", "estimate", "serving"]
