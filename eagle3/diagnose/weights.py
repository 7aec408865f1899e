"""Causes that lie in the tensors: missing, misshapen, broken, exchanged, or of something else.

Shapes: H hidden size, V target vocabulary, Vd draft vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations

import torch
from torch import Tensor

from eagle3 import vocab
from eagle3.diagnose.case import Case, Sign, Trial
from eagle3.export import official

HALVES = ("q_proj", "k_proj", "v_proj")


def missing(case: Case) -> Iterator[Trial | Sign]:
    """A tensor that the layout asks for is not in the file; `d2t` can be made from `t2d`."""
    gone = case.reading.missing()
    if gone:
        yield Sign("missing tensors", f"the file lacks {', '.join(gone)}", certain=True)
    ids = _kept_by_mask(case)
    if "d2t" in gone and ids is not None:
        d2t = ids - torch.arange(len(ids))
        yield Trial("missing tensors", "d2t made from t2d", case.reading.holding(d2t=d2t))
    for name in gone:
        if name.endswith("lm_head.weight"):
            head = _target_head(case, ids)
            if head is not None:
                text = "the target's own head rows as lm_head"
                yield Trial("missing tensors", text, case.reading.holding(lm_head__weight=head))


def shapes(case: Case) -> Iterator[Trial | Sign]:
    """A tensor of another shape than the config asks for; square ones may be transposed unseen."""
    reading = case.reading
    for name, wanted in reading.misshapen().items():
        found = tuple(reading.tensors[name].shape)
        yield Sign("tensor shapes", f"{name} is {found}, expected {wanted}", certain=True)
        if found == wanted[::-1]:
            turned = {name: reading.tensors[name].T.contiguous()}
            yield Trial("tensor shapes", f"{name} transposed", reading.holding(**turned))
    for name in official.tensor_shapes(reading.config):
        tensor = reading.tensors.get(name)
        if tensor is not None and tensor.dim() == 2 and tensor.shape[0] == tensor.shape[1]:
            turned = {name: tensor.T.contiguous()}
            yield Trial("tensor shapes", f"{name} transposed", reading.holding(**turned))


def broken(case: Case) -> Iterator[Trial | Sign]:
    """NaN or infinity in the file: training, or the type that it was saved in, overflowed."""
    for name, tensor in case.reading.tensors.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            share = float((~tensor.isfinite()).float().mean())
            text = f"{share:.2%} of {name} is NaN or infinite"
            yield Sign("broken values", text, certain=True)


def d2t(case: Case) -> Iterator[Trial | Sign]:
    """`d2t` holds target ids in place of offsets, or disagrees with `t2d`."""
    reading = case.reading
    found = reading.tensors.get("d2t")
    if found is None or found.dim() != 1:
        return
    count = torch.arange(len(found))
    ids = vocab.kept_ids(found)
    if bool((ids[1:] <= ids[:-1]).any()) or int(ids[-1]) >= case.target.vocab_size:
        text = "d2t + index is not ascending within the vocabulary, as offsets would be"
        yield Sign("d2t semantics", text)
    if int(found.min()) >= 0 and int(found.max()) < case.target.vocab_size:
        text = "d2t read as target ids, not as offsets"
        yield Trial("d2t semantics", text, reading.holding(d2t=found - count))
    told = _kept_by_mask(case)
    if told is not None and not torch.equal(told, ids):
        yield Sign("d2t semantics", "d2t and t2d name different draft vocabularies")
        text = "d2t made anew from t2d"
        yield Trial("d2t semantics", text, reading.holding(d2t=told - torch.arange(len(told))))
    identity = torch.zeros_like(found)
    if bool((found != 0).any()):
        text = "the draft vocabulary read as the target's first ids"
        yield Trial("d2t semantics", text, reading.holding(d2t=identity))


def order(case: Case) -> Iterator[Trial | Sign]:
    """Attention reads the embedding first, then the feature; `fc` reads low, mid, high."""
    reading = case.reading
    names = [f"midlayer.self_attn.{name}.weight" for name in HALVES]
    halves = {name: reading.tensors[name] for name in names if name in reading.tensors}
    if halves:
        swapped = {name: torch.cat(t.chunk(2, -1)[::-1], -1) for name, t in halves.items()}
        text = "feature first, then embedding, in q, k and v"
        yield Trial("feature or embedding order", text, reading.holding(**swapped))
    fc = reading.tensors.get("fc.weight")
    if fc is None or fc.dim() != 2 or fc.shape[1] % 3:
        return
    slots = ("low", "mid", "high")
    for places in ((0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)):
        text = f"fc reads {', '.join(slots[i] for i in places)}"
        turned = torch.cat([fc.chunk(3, -1)[places.index(i)] for i in range(3)], -1)
        yield Trial("feature or embedding order", text, reading.holding(fc__weight=turned))


def exchanged(case: Case) -> Iterator[Trial | Sign]:
    """Two tensors of one shape stand under each other's names: norms, gate and up, k and v."""
    reading = case.reading
    known = [name for name in official.tensor_shapes(reading.config) if name in reading.tensors]
    for a, b in combinations(known, 2):
        x, y = reading.tensors[a], reading.tensors[b]
        if x.shape == y.shape and x.is_floating_point() and not torch.equal(x, y):
            text = f"{_short(a)} and {_short(b)} exchanged"
            yield Trial("tensors exchanged", text, reading.holding(**{a: y, b: x}))


def of_target(case: Case) -> Iterator[Trial | Sign]:
    """The target's head or final norm stands where the draft's own belongs.

    The draft's own is lost then; what can be tried is what it began as, or a head that fits.
    """
    reading = case.reading
    norm = reading.tensors.get("norm.weight")
    final = getattr(case.target.body, "norm", None)
    plain = torch.ones(reading.config.hidden_size)
    if norm is not None and final is not None and norm.shape == final.weight.shape:
        same = torch.allclose(norm.float(), final.weight.detach().float().cpu(), rtol=1e-2)
        if same and not torch.allclose(norm.float(), plain, rtol=1e-2):
            text = "norm.weight is the target's final norm"
            yield Sign("head or norm of the target", text)
            text = "norm.weight of ones, the draft's own being lost"
            yield Trial("head or norm of the target", text, reading.holding(norm__weight=plain))
    head = reading.tensors.get("lm_head.weight")
    size = reading.config.draft_vocab_size
    whole = case.target.head_weight().detach().float().cpu()
    rows = _target_head(case, None)
    if head is None or head.dim() != 2 or rows is None or head.shape[1] != whole.shape[1]:
        return
    same = bool(len(head) <= len(whole)) and _alike(head, whole[: len(head)])
    if same and not _alike(head, rows):
        text = f"lm_head holds the target's first {len(head)} head rows, whatever d2t says"
        yield Sign("head or norm of the target", text)
    if len(head) == len(whole) and size < len(whole):
        own = head[vocab.kept_ids(reading.tensors["d2t"])]
        text = "of an lm_head for the whole vocabulary, the rows that d2t names"
        yield Trial("head or norm of the target", text, reading.holding(lm_head__weight=own))
    if not _alike(head, rows):
        text = "the target's head rows that d2t names as lm_head"
        yield Trial("head or norm of the target", text, reading.holding(lm_head__weight=rows))


def embedding(case: Case) -> Iterator[Trial | Sign]:
    """The file's own embedding is not the target's: engines read the one or the other."""
    own = case.reading.tensors.get("embed_tokens.weight")
    theirs = case.target.embed.weight.detach()
    if own is None or own.shape != theirs.shape or _alike(own, theirs.cpu()):
        return
    yield Sign("embedding", "embed_tokens in the file is not the target's embedding")
    reading = replace(case.reading, own_embedding=True)
    yield Trial("embedding", "the embedding in the draft's own file", reading)


def _kept_by_mask(case: Case) -> Tensor | None:
    """Target ids of the draft vocabulary by `t2d`, where it fits."""
    t2d = case.reading.tensors.get("t2d")
    if t2d is None or t2d.dim() != 1:
        return None
    ids = t2d.bool().nonzero()[:, 0]
    return ids if len(ids) == case.reading.config.draft_vocab_size else None


def _target_head(case: Case, ids: Tensor | None) -> Tensor | None:
    """The target's head rows of the draft vocabulary, [Vd, H]."""
    whole = case.target.head_weight().detach().float().cpu()
    if ids is None:
        d2t = case.reading.tensors.get("d2t")
        ids = torch.arange(case.reading.config.draft_vocab_size)
        ids = ids if d2t is None or len(d2t) != len(ids) else vocab.kept_ids(d2t)
    if not len(ids) or int(ids.min()) < 0 or int(ids.max()) >= len(whole):
        return None
    return whole[ids]


def _alike(a: Tensor, b: Tensor) -> bool:
    """The same but for rounding to half precision."""
    return a.shape == b.shape and torch.allclose(a.float(), b.float(), rtol=1e-2, atol=1e-3)


def _short(name: str) -> str:
    return name.removesuffix(".weight").split(".")[-1]
