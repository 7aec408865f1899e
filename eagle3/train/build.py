"""The draft that training begins with: its sizes, its vocabulary, its first weights.

One decoder layer: the layout that serving engines load (`eagle3.export.official`) has one
`midlayer` and no name for a second, so more layers could be trained and not served.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch

from eagle3 import vocab
from eagle3.data.features import SampleRef
from eagle3.data.local import open_tokenizer
from eagle3.data.source import FeatureSource
from eagle3.draft import Draft, DraftConfig
from eagle3.run import Context
from eagle3.target import Target
from eagle3.train.start import start_from_target
from eagle3.train.warm import warm_draft


def new_draft(
    ctx: Context, target: Target, source: FeatureSource, refs: Sequence[SampleRef]
) -> Draft:
    """A draft for a target, on its device; the same seed gives the same weights.

    Args:
        refs: the training samples, whose answers decide the draft vocabulary.
    """
    torch.manual_seed(ctx.config.recipe.seed)
    train = ctx.config.recipe.train
    if train.start_from is not None:
        draft = warm_draft(Path(train.start_from), target, source)
        ctx.progress.info(
            f"starting from {train.start_from}: its draft vocabulary of "
            f"{draft.config.draft_vocab_size} and MLP width of {draft.config.intermediate_size} "
            "are kept"
        )
        return draft
    config = DraftConfig.for_target(
        target.config, source.capture_layers, train.draft_vocab_size, train.intermediate_size
    )
    draft = Draft(config, target.embed.weight.detach()).to(target.device)
    answers = (source.input_ids(ref)[start:end] for ref in refs for start, end in ref.spans)
    counts_V = vocab.count(answers, target.vocab_size)
    distinct = int((counts_V > 0).sum())
    if distinct < config.draft_vocab_size < target.vocab_size:
        ctx.progress.info(
            f"answers hold {distinct} distinct tokens; the draft vocabulary of "
            f"{config.draft_vocab_size} is filled up with the lowest unused ids"
        )
    special = {*target.eos_ids(), *open_tokenizer(ctx).all_special_ids}
    draft.set_vocab(vocab.choose(counts_V, config.draft_vocab_size, special))
    start_from_target(draft, target.head_weight().detach(), train.head)
    return draft
