"""Tiny targets on disk, built by hand in a second, and prompts for them.

A permutation target's layers are identities and its head maps token t to `perm[t]`, so greedy
output is known, and a draft can learn it. Words are `t5 t6 …`; ids below 5 are special and lie
outside the cycle. Its chat template puts nothing between a user's last word and the answer: each
prompt leads to another answer.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

SPECIAL = ("<s>", "</s>", "<unk>", "<user>", "<system>")
BOS, EOS, UNK, USER, SYSTEM = range(5)

TEMPLATE = (
    "<s> {% for m in messages %}{% if m['role'] == 'assistant' %}{{ m['content'] + ' </s> ' }}"
    "{% else %}{{ '<' + m['role'] + '> ' + m['content'] + ' ' }}{% endif %}{% endfor %}"
)


@dataclass(frozen=True)
class Tiny:
    """A permutation target in the directory `path`."""

    path: Path
    perm: list[int]
    """Greedy successor of each token."""
    order: list[int]
    """The words in the order of the permutation's one cycle."""

    def chain(self, token: int, count: int) -> list[int]:
        """The `count` tokens that greedily follow a token; ends early at the end of an answer."""
        out: list[int] = []
        while len(out) < count and token != EOS:
            token = self.perm[token]
            out.append(token)
        return out

    def prompts(self, count: int, words: int = 4) -> list[dict[str, str]]:
        """Distinct prompts (lines of a prompt file) that end all around the cycle."""
        n = len(self.order)
        return [
            {"prompt": " ".join(f"t{self.order[(i + i // n * j + j) % n]}" for j in range(words))}
            for i in range(count)
        ]


def build_permutation_target(
    path: Path,
    vocab: int = 64,
    layers: int = 8,
    seed: int = 0,
    *,
    certainty: float = 20.0,
    ends: bool = False,
    context: int = 256,
) -> Tiny:
    """Write a permutation target; its hidden size is at least `vocab`, so that embeddings can be
    orthogonal.

    Args:
        certainty: logit of the successor; every other word has logit 0.
        ends: the last word of `order` leads to the end of the answer; otherwise answers end by
            length only.
    """
    generator = torch.Generator().manual_seed(seed)
    words = torch.randperm(vocab - len(SPECIAL), generator=generator) + len(SPECIAL)
    perm = torch.arange(vocab)
    perm[: len(SPECIAL)] = words[0]
    perm[words] = words.roll(-1)
    if ends:
        perm[words[-1]] = EOS
    hidden = max(64, vocab)
    model = _llama(vocab, hidden, layers, context, seed)
    embed_VH = torch.linalg.qr(torch.randn(hidden, hidden, generator=generator))[0][:vocab]
    scale = certainty / math.sqrt(hidden)
    with torch.no_grad():
        model.model.embed_tokens.weight.copy_(embed_VH)
        model.lm_head.weight.zero_()
        model.lm_head.weight.index_add_(0, perm, embed_VH * scale)
        for layer in model.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
    _save(model, path, vocab)
    return Tiny(path, perm.tolist(), words.tolist())


def build_random_target(
    path: Path, vocab: int = 64, layers: int = 8, seed: int = 0, context: int = 256
) -> Path:
    """Write a target with random weights: its next token depends on the whole context."""
    model = _llama(vocab, 64, layers, context, seed)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() > 1:
                parameter.normal_(std=0.3, generator=generator)
    _save(model, path, vocab)
    return path


def write_prompts(path: Path, lines: Iterable[Mapping[str, object]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def _llama(vocab: int, hidden: int, layers: int, context: int, seed: int) -> LlamaForCausalLM:
    torch.manual_seed(seed)
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=vocab,
            hidden_size=hidden,
            intermediate_size=2 * hidden,
            num_hidden_layers=layers,
            num_attention_heads=2,  # of 32 values or more, the least that vLLM has on a CPU
            num_key_value_heads=1,
            max_position_embeddings=context,
            bos_token_id=BOS,
            eos_token_id=EOS,
            pad_token_id=EOS,
            tie_word_embeddings=False,
        )
    ).float()


def _save(model: LlamaForCausalLM, path: Path, vocab: int) -> None:
    model.save_pretrained(path)
    words = {word: i for i, word in enumerate(SPECIAL)}
    words |= {f"t{i}": i for i in range(len(SPECIAL), vocab)}
    tokenizer = Tokenizer(WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        pad_token="</s>",
        additional_special_tokens=["<user>", "<system>"],
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(path)
