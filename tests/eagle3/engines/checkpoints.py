"""Golden targets and drafts on disk, as engines load them: acceptance is known in advance.

As in `tests/golden.py`, the target's next token depends on the last one alone and the draft knows
it. Twelve layers, so that the captured ones are inner ones. With `slot`, the draft reads one
captured row alone: there the target's rows are the embedding times `MARK`, in all other places the
embedding. A row from one layer earlier, one later, or another slot makes it wrong at every token.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, PreTrainedTokenizerFast, Qwen3Config

from eagle3.draft import Draft, DraftConfig
from eagle3.export import official
from eagle3.target import default_capture_layers

Family = Literal["llama", "qwen3"]
VOCAB, HIDDEN, HEADS, LAYERS = 48, 64, 2, 12
KEPT = 36
"""Tokens of the draft's vocabulary: the first ones of the cycle."""
CAPTURE = default_capture_layers(LAYERS)
OTHERS = (3, 5, 8)
"""Layers of which each lies one beside the usual one of its slot."""
MARK = 0.1


@dataclass(frozen=True)
class Checkpoint:
    target: Path
    draft: Path
    order: list[int]
    """All tokens, each one's most likely successor after it; the last one's is the first."""
    certainty: float
    """Logit of the successor; every other token has 0."""

    def prompts(self, count: int, length: int = 4, start: int = 0) -> list[list[int]]:
        """Distinct prompts that end at one token of the cycle each, from `start` on."""
        cycle = self.order * 3
        ends = [VOCAB + start + i for i in range(count)]
        return [cycle[end - length + 1 : end + 1] for end in ends]

    def chain(self, token: int, count: int) -> tuple[int, ...]:
        """The `count` tokens that greedily follow `token`."""
        at = self.order.index(token) + 1
        return tuple(self.order[(at + i) % VOCAB] for i in range(count))

    def likelihood(self, temperature: float) -> float:
        """Probability of the successor."""
        weight = math.exp(self.certainty / temperature)
        return weight / (weight + VOCAB - 1)


def build(
    folder: Path,
    family: Family = "llama",
    slot: int | None = None,
    layers: tuple[int, int, int] = CAPTURE,
    certainty: float = 20.0,
    kept: int = KEPT,
) -> Checkpoint:
    """Write `folder/target` and `folder/draft`.

    Args:
        slot: 0, 1 or 2: the one captured row that the draft reads; all alike where None.
        layers: those that are captured.
        kept: tokens that the draft can propose.
    """
    generator = torch.Generator().manual_seed(0)
    order = torch.randperm(VOCAB, generator=generator)
    embed_VH = torch.linalg.qr(torch.randn(HIDDEN, HIDDEN, generator=generator))[0][:VOCAB]
    model = AutoModelForCausalLM.from_config(_config(family), dtype=torch.float32).eval()
    model.requires_grad_(False)
    model.model.embed_tokens.weight.copy_(embed_VH)
    for layer in model.model.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()
    if slot is not None:
        _mark(model, layers[slot], embed_VH, generator)
    model.lm_head.weight[order.roll(-1)] = certainty / math.sqrt(HIDDEN) * embed_VH[order]
    model.save_pretrained(folder / "target")
    _tokenizer().save_pretrained(folder / "target")
    draft = _draft(model, order, kept, slot, layers)
    official.save(draft, folder / "draft", LAYERS, torch.float32)
    return Checkpoint(folder / "target", folder / "draft", order.tolist(), certainty)


def _mark(model: Any, captured: int, embed_VH: Tensor, generator: torch.Generator) -> None:
    """Let the row that enters layer `captured` be the embedding times MARK, and no other row."""
    for index, row_VH in ((captured - 1, MARK * embed_VH), (captured, embed_VH)):
        mlp = model.model.layers[index].mlp
        for projection in (mlp.gate_proj, mlp.up_proj):
            projection.weight.normal_(0, 0.5, generator=generator)
        inner: list[Tensor] = []
        hook = mlp.down_proj.register_forward_pre_hook(lambda _, args, to=inner: to.append(args[0]))
        before_VH = _rows(model, index)
        hook.remove()
        # More columns than tokens: a map that gives each token's row what it lacks.
        mlp.down_proj.weight.copy_((torch.linalg.pinv(inner[0][:, 0]) @ (row_VH - before_VH)).T)


def _rows(model: Any, index: int) -> Tensor:
    """transformers' `hidden_states[index]` of every token by itself, [V, H]."""
    states = model(torch.arange(VOCAB)[:, None], output_hidden_states=True).hidden_states
    row_VH: Tensor = states[index][:, 0]
    return row_VH


def _draft(
    model: Any, order: Tensor, kept: int, slot: int | None, layers: tuple[int, int, int]
) -> Draft:
    embed_VH = model.model.embed_tokens.weight
    kept_D = order[:kept].sort().values
    draft = Draft(DraftConfig.for_target(model.config, layers, kept), embed_VH)
    draft.set_vocab(kept_D)
    eye, zero = torch.eye(HIDDEN), torch.zeros(HIDDEN, HIDDEN)
    fc = [eye / 3] * 3
    if slot is not None:
        fc = [zero] * 3
        fc[slot] = eye / MARK
    successor = torch.empty(VOCAB, dtype=torch.int64)
    successor[order] = order.roll(-1)
    guess_VV = torch.nn.functional.one_hot(successor, VOCAB).float()
    attn = draft.midlayer.self_attn
    with torch.no_grad():
        draft.fc.weight.copy_(torch.cat(fc, 1))
        attn.q_proj.weight.copy_(torch.cat([4 * eye, zero], 1))
        attn.k_proj.weight.copy_(torch.cat([4 * eye, zero], 1))
        attn.v_proj.weight.copy_(torch.cat([eye, -eye], 1))
        attn.o_proj.weight.copy_(eye / math.sqrt(HIDDEN))
        draft.midlayer.mlp.down_proj.weight.zero_()
        draft.lm_head.weight.copy_(10 / math.sqrt(HIDDEN) * guess_VV[:, kept_D].T @ embed_VH)
    return draft


def _config(family: Family) -> Any:
    sizes: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": 64,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "head_dim": HIDDEN // HEADS,
        "max_position_embeddings": 256,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    return Qwen3Config(**sizes) if family == "qwen3" else LlamaConfig(**sizes)


def _tokenizer() -> PreTrainedTokenizerFast:
    words = {f"t{i}": i for i in range(VOCAB)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="t0"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, clean_up_tokenization_spaces=False)
