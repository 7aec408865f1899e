"""EAGLE-2 (Li et al. 2024b, arXiv 2406.16858): EAGLE's draft with a dynamic tree.

The draft's own probabilities decide at each round which nodes are worth expanding and which are
verified (`grow`). Nothing is trained anew. HASS's draft is decoded in the same way.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from eagle3.decode.tree import Shape
from eagle3.drafters.eagle import Eagle, HiddenSession
from eagle3.drafters.eagle3 import Eagle3


@dataclass(frozen=True)
class Eagle2:
    """A trained draft of EAGLE or HASS, and how its trees are grown."""

    draft: Eagle
    shape: Shape = field(default_factory=Shape)

    capture_layers = None
    reads_hidden = True
    lossless = True

    @property
    def name(self) -> str:
        return "eagle2" if self.draft.name == "eagle" else self.draft.name

    @property
    def most_nodes(self) -> int:
        return self.shape.kept

    def session(self, slots: int, capacity: int) -> HiddenSession:
        return HiddenSession(Eagle3(self.draft, self.shape), slots, capacity)
