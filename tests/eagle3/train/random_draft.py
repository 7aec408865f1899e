"""A small random draft and random samples for it, in any float type."""

from __future__ import annotations

import torch

from eagle3.data.features import Sample
from eagle3.draft import Draft, DraftConfig

CONFIG = DraftConfig(
    hidden_size=16,
    intermediate_size=24,
    num_attention_heads=4,
    num_key_value_heads=2,
    head_dim=6,
    vocab_size=40,
    rms_norm_eps=1e-5,
    hidden_act="silu",
    rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
    max_position_embeddings=128,
    bos_token_id=None,
    eos_token_id=1,
    pad_token_id=None,
    draft_vocab_size=30,
    capture_layers=(2, 4, 5),
)


def random_draft(dtype: torch.dtype = torch.float32, seed: int = 0) -> Draft:
    generator = torch.Generator().manual_seed(seed)
    draft = Draft(CONFIG, torch.randn(40, 16, generator=generator).to(dtype)).to(dtype)
    with torch.no_grad():
        for parameter in draft.parameters():
            noise = torch.randn(parameter.shape, generator=generator).to(dtype)
            parameter.copy_(noise * 0.3 if parameter.dim() > 1 else 1 + 0.1 * noise)
    draft.set_vocab(torch.arange(5, 35))
    return draft


def random_sample(length: int, spans: list[tuple[int, int]], seed: int) -> Sample:
    generator = torch.Generator().manual_seed(seed)
    return Sample(
        id=str(seed),
        split="train",
        input_ids=torch.randint(0, 40, (length,), generator=generator),
        features=torch.randn(length, 48, generator=generator, dtype=torch.float64),
        hidden=torch.randn(length, 16, generator=generator, dtype=torch.float64),
        argmax=torch.randint(5, 35, (length,), generator=generator),
        lse=torch.zeros(length),
        spans=spans,
    )
