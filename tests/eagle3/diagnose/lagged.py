"""A target whose layers all differ and whose greedy text is known, built by hand, and a draft that
learns it in seconds.

The next token is `perm` of the token two before the last. Layer 0 attends to the row two back (its
keys and queries are constant, so scores depend on distance alone) and puts that row's code beside
the row's own. Each later layer turns all codes by a rotation of its own, so that features of one
layer mean nothing at another; the head undoes them. A draft has to look back by one row: it needs
the right layers, the right order and the right rotary positions.

`perm` maps each half of the words into itself; the draft is taught the first half alone.
"""

from __future__ import annotations

import copy
import math
import random
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from eagle3.draft import Draft, DraftConfig
from eagle3.target import Target
from eagle3.train.batch import pack
from eagle3.train.ttt import unroll
from tests.eagle3.drafters.learned import read
from tests.tiny import SPECIAL, build_permutation_target

VOCAB, HIDDEN, LAYERS, HEADS, DIM = 45, 64, 8, 4, 16
CODE = 31
CAPTURE = (2, 4, 5)
CERTAINTY = 30.0
SHARP = 20.0
"""Size of a constant key: attention then sees one row alone."""
THETA = 10_000.0
FAMILIAR = range(len(SPECIAL), 25)
STRANGE = range(25, VOCAB)
KEPT = torch.tensor([*FAMILIAR, *STRANGE[3:]])
"""The draft vocabulary."""


@dataclass(frozen=True)
class Lagged:
    target: Target
    folder: Path
    perm: list[int]

    def text(self, prompt: list[int], count: int) -> list[int]:
        ids = list(prompt)
        for _ in range(count):
            ids.append(self.perm[ids[-3]])
        return ids


def prompts(words: range, count: int, seed: int) -> list[list[int]]:
    draw = random.Random(seed)
    return [[0, 3, *draw.choices(words, k=draw.randrange(4, 9))] for _ in range(count)]


def build_lagged(folder: Path, seed: int = 0) -> Lagged:
    """Write the target, with the tokenizer and template of `tests.tiny`."""
    generator = torch.Generator().manual_seed(seed)
    perm = torch.arange(VOCAB)
    for words in (FAMILIAR, STRANGE):
        cycle = torch.randperm(len(words), generator=generator) + words.start
        perm[cycle] = cycle.roll(-1)
    code_VC = torch.nn.functional.normalize(torch.randn(VOCAB, CODE, generator=generator), dim=-1)
    build_permutation_target(folder, VOCAB, LAYERS, context=128)
    model = LlamaForCausalLM(_config()).float()
    copied = slice(1 + CODE, 1 + 2 * CODE)
    with torch.no_grad():
        embed = model.model.embed_tokens.weight.zero_()
        embed[:, 0] = 1
        embed[:, 1 : 1 + CODE] = code_VC
        turned = torch.eye(HIDDEN)
        for index, layer in enumerate(model.model.layers):
            layer.mlp.down_proj.weight.zero_()
            attn, length = layer.self_attn, math.sqrt(HIDDEN / (2 if index == 0 else 3))
            for weight in (attn.q_proj.weight, attn.k_proj.weight, attn.o_proj.weight):
                weight.zero_()
            attn.v_proj.weight.copy_(torch.eye(HIDDEN))
            attn.k_proj.weight[:, 0] = _key(0)
            attn.q_proj.weight[:, 0] = _key(2 if index == 0 else 0)
            if index == 0:
                attn.o_proj.weight[copied, 1 : 1 + CODE] = torch.eye(CODE) / length
                continue
            rotation = torch.eye(HIDDEN)
            noise = torch.randn(HIDDEN - 1, HIDDEN - 1, generator=generator)
            rotation[1:, 1:] = torch.linalg.qr(noise)[0]
            attn.o_proj.weight.copy_((rotation - torch.eye(HIDDEN)) / length)
            turned = rotation @ turned
        # Of both signs: a draft bears a norm that is merely of other sizes than its own.
        norm = model.model.norm.weight.uniform_(-2, 2, generator=generator)
        model.lm_head.weight.zero_()
        model.lm_head.weight[perm] = CERTAINTY / math.sqrt(HIDDEN) * code_VC @ turned[:, copied].T
        model.lm_head.weight.div_(norm)
    model.save_pretrained(folder)
    return Lagged(Target.load(folder), folder, perm.tolist())


def train_draft(lagged: Lagged, steps: int = 70) -> Draft:
    """A draft that has learned the target's answers to the familiar half of its words."""
    torch.manual_seed(0)
    config = DraftConfig.for_target(lagged.target.config, CAPTURE, len(KEPT), intermediate_size=96)
    draft = Draft(config, lagged.target.embed.weight.detach())
    draft.set_vocab(KEPT)
    found = prompts(FAMILIAR, 48, seed=1)
    texts = [(lagged.text(ids, 20), len(ids)) for ids in found]
    samples = [read(lagged.target, ids, [(n, len(ids))], "") for ids, n in texts]
    adam = torch.optim.AdamW(draft.parameters(), lr=1e-2, weight_decay=0.0)
    slope = torch.optim.lr_scheduler.OneCycleLR(adam, 1e-2, total_steps=steps)
    for step in range(steps):
        batch = pack(samples[step % 4 :: 4], 3)
        rows_R = batch.supervised_ST[0].nonzero()[:, 0]
        loss = torch.tensor(0.0)
        for k, out_RH in enumerate(unroll(draft, batch, rows_R, 3)):
            taught = batch.supervised_ST[k][rows_R]
            label = torch.searchsorted(KEPT, batch.ids_T[(rows_R + 2 + k)[taught]])
            loss = loss + torch.nn.functional.cross_entropy(draft.logits(out_RH[taught]), label)
        adam.zero_grad()
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_(draft.parameters(), 1.0)
        adam.step()
        slope.step()
    draft.eval().requires_grad_(False)
    _spread_norms(draft)
    return draft


def _spread_norms(draft: Draft) -> None:
    """Give every norm weights of its own, which short training does not, and take them back in the
    linears that read it: the draft computes the same."""
    generator = torch.Generator().manual_seed(3)
    layer, attn = draft.midlayer, draft.midlayer.self_attn
    halves = {layer.input_layernorm: slice(HIDDEN), layer.hidden_norm: slice(HIDDEN, 2 * HIDDEN)}
    read_by = {
        **{norm: [attn.q_proj, attn.k_proj, attn.v_proj] for norm in halves},
        layer.post_attention_layernorm: [layer.mlp.gate_proj, layer.mlp.up_proj],
        draft.norm: [draft.lm_head],
    }
    for norm, linears in read_by.items():
        factor = torch.empty(HIDDEN).uniform_(0.3, 3.0, generator=generator)
        norm.weight.mul_(factor)
        for linear in linears:
            linear.weight[:, halves.get(norm, slice(HIDDEN))].div_(factor)


def _key(back: int) -> Tensor:
    """A constant key for every head, turned so that it meets those of the row so far back."""
    angle = back * THETA ** (-torch.arange(0, DIM, 2) / DIM)
    return SHARP * torch.cat([angle.cos(), -angle.sin()]).repeat(HEADS)


def _config() -> LlamaConfig:
    return LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS,
        max_position_embeddings=128,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
        bos_token_id=0,
        eos_token_id=1,
        pad_token_id=1,
        tie_word_embeddings=False,
    )


def reordered(lagged: Lagged) -> Lagged:
    """A target that writes the same text, the entries of its residual stream in another order."""
    model = copy.deepcopy(lagged.target.model)
    generator = torch.Generator().manual_seed(5)
    order = torch.randperm(HIDDEN, generator=generator)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "o_proj" in name or "down_proj" in name:
                weight.copy_(weight[order])
            else:  # it reads the stream: norms, embedding, head, all other linears
                weight.copy_(weight[..., order])
    return Lagged(Target(model, (0, 0, 0)), lagged.folder, lagged.perm)
