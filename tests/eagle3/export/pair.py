"""A small draft of random weights and its target, on disk: the official layout, an HF directory.

The target has twelve layers; the draft captures others than the default ones.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig

from eagle3.draft import Draft, DraftCache, DraftConfig
from eagle3.export import official
from eagle3.export.layers import Layers
from eagle3.export.official import Stored

LAYERS = 12
CAPTURE: Layers = (1, 5, 8)
DEFAULT: Layers = (2, 6, 9)
VOCAB, HIDDEN, KEPT = 40, 32, 30

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}


@dataclass(frozen=True)
class Pair:
    target: Path
    draft: Path
    config: LlamaConfig
    embed_VH: torch.Tensor

    @property
    def stored(self) -> Stored:
        return official.read(self.draft, LAYERS)

    def logits(self, stored: Stored) -> torch.Tensor:
        """What a draft says of fixed tokens and features."""
        draft = Draft(stored.config, self.embed_VH)
        draft.load_state_dict(stored.tensors)
        generator = torch.Generator().manual_seed(1)
        ids = torch.randint(0, VOCAB, (9,), generator=generator)
        features = torch.randn(9, 3 * HIDDEN, generator=generator)
        with torch.inference_mode():
            out = draft(ids, draft.fuse(features), torch.arange(9), DraftCache(9))
            found: torch.Tensor = draft.logits(out)
        return found


def make(folder: Path, layers: Layers = CAPTURE, kept: int = KEPT, **config: Any) -> Pair:
    """Write `folder/target` (a config, no weights) and `folder/draft`."""
    sizes: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": 48,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "max_position_embeddings": 128,
        "bos_token_id": 0,
        "eos_token_id": 1,
        "pad_token_id": None,
    }
    target = LlamaConfig(**(sizes | config))
    target.architectures = ["LlamaForCausalLM"]
    target.save_pretrained(folder / "target")
    generator = torch.Generator().manual_seed(0)
    embed_VH = torch.randn(target.vocab_size, target.hidden_size, generator=generator)
    draft = Draft(DraftConfig.for_target(target, layers, kept), embed_VH)
    with torch.no_grad():
        for parameter in draft.parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise * 0.3 if parameter.dim() > 1 else 1 + 0.1 * noise)
    draft.set_vocab(torch.arange(VOCAB - kept, VOCAB))
    official.save(draft, folder / "draft", LAYERS, torch.float32)
    return Pair(folder / "target", folder / "draft", target, embed_VH)
