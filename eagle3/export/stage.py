"""The `export` stage: the best draft in the layout that engines load, read back and compared."""

from __future__ import annotations

from pathlib import Path

import torch

from eagle3 import vocab
from eagle3.attach.fingerprint import FILE, Fingerprint
from eagle3.data.features import CONVENTION
from eagle3.data.local import target_dir, target_facts
from eagle3.draft import Draft, DraftCache
from eagle3.export import official
from eagle3.run import Context, write_json
from eagle3.target import Target


def export(ctx: Context) -> None:
    """Write `draft/` in the target's dtype; read back, it must give the trained draft's logits.
    `fingerprint.json` says which checkpoint it is for, to tell how far another one is from it."""
    about = target_facts(ctx)
    target = Target.load(target_dir(ctx))
    embed = target.embed.weight.detach()
    trained = official.load(ctx.inputs["train"] / "draft", embed)
    dtype = getattr(torch, about["dtype"])
    folder: Path = ctx.out / "draft"
    official.save(trained, folder, target.num_layers, dtype)
    reloaded = official.load(folder, embed)
    _same_logits(trained, reloaded, dtype)
    write_json(ctx.out / FILE, Fingerprint.of(target_dir(ctx), about).model_dump())
    ctx.summary |= {
        "format": "official",
        "architecture": official.ARCHITECTURE,
        "files": {p.name: p.stat().st_size for p in sorted(folder.iterdir())},
        "dtype": about["dtype"],
        "parameters": sum(p.numel() for p in reloaded.parameters()),
        "draft_vocab_size": reloaded.config.draft_vocab_size,
        "draft_vocab_sha256": vocab.digest(reloaded.d2t),
        "capture_layers": list(reloaded.capture_layers),
        "convention": CONVENTION,
    }
    ctx.progress.info(f"draft written to {folder}")


@torch.inference_mode()
def _same_logits(trained: Draft, reloaded: Draft, dtype: torch.dtype) -> None:
    """Half precision may round the weights; anything beyond that is a broken file."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(0, trained.config.vocab_size, (16,), generator=generator)
    features = torch.randn(16, 3 * trained.config.hidden_size, generator=generator)
    logits = [
        d.logits(d(ids, d.fuse(features), torch.arange(16), DraftCache(16)))
        for d in (trained, reloaded)
    ]
    difference = float((logits[0] - logits[1]).abs().max() / logits[0].abs().max())
    allowed = 1e-5 if dtype == torch.float32 else 0.1
    if difference > allowed:
        raise ValueError(f"the exported draft's logits differ by {difference:.2g} from the trained")
