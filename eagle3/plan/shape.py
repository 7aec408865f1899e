"""The sizes of a target and of the draft that fits it, read from `config.json` without torch."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from eagle3 import fit
from eagle3.config import explain
from eagle3.plan import gemma4
from eagle3.plan.families import DEFAULTS, FAMILIES, count, head_dim
from eagle3.plan.images import TEXT_PARTS, image_parameters, text_config


class Figures(BaseModel):
    """Base of everything a plan says. Readers ignore members they do not know."""

    model_config = ConfigDict(frozen=True, extra="ignore", use_attribute_docstrings=True)


class UnknownShape(ValueError):
    """A config that no sizes can be read from; the message says why."""


class TargetShape(Figures):
    """Sizes of a target."""

    model_type: str = ""
    parameters: int = Field(gt=0)
    """Exact, counted from the layout of the model's family."""
    active_parameters: int = Field(gt=0)
    """Weights that one token is multiplied with: fewer than all of them in a mixture of experts."""
    num_layers: int = Field(gt=0)
    hidden_size: int = Field(gt=0)
    intermediate_size: int = Field(gt=0)
    vocab_size: int = Field(gt=0)
    query_width: int = Field(gt=0)
    """All query heads together."""
    cache_width: int = Field(gt=0)
    """Numbers that one token adds to the key and value cache of one layer."""
    tied: bool = False
    """Whether the LM head is the embedding."""
    max_position_embeddings: int | None = None
    checkpoint_bytes: int = 2
    """Bytes of one weight as the checkpoint stores it."""
    draft_heads: tuple[int, int, int]
    """Query heads, key/value heads and head_dim of the draft that fits this target."""
    draft_width: int
    """Width of that draft's MLP, unless the recipe says another."""

    @classmethod
    def from_config(cls, raw: Mapping[str, Any]) -> Self:
        """Read the sizes of a Hugging Face `config.json`: of an image model, its text part's, and
        the parameters of both.

        Raises:
            UnknownShape: another kind of model, a family that is not counted here, or a size that
                is missing.
        """
        kind = str(raw.get("model_type"))
        family = FAMILIES.get(TEXT_PARTS.get(kind, kind))
        if family is None:
            known = ", ".join((*FAMILIES, *TEXT_PARTS))
            raise UnknownShape(f"model_type {kind!r} is not one that can be counted: {known}")
        try:
            given = {k: v for k, v in text_config(raw).items() if v is not None}
            c = {**DEFAULTS, **family.defaults, **given}
            counted = count(family, given)
            heads = c["num_attention_heads"]
            wide = heads * head_dim(c)
            cached = 2 * (c.get("num_key_value_heads") or heads) * head_dim(c)
            if family.latent:
                wide = heads * (c["qk_nope_head_dim"] + c["qk_rope_head_dim"])
                cached = wide + heads * c["v_head_dim"]
            if family.uneven:
                cached = gemma4.cache_width(c)
            config = SimpleNamespace(**{"head_dim": None, **c})
            return cls(
                model_type=kind,
                parameters=counted.total + image_parameters(raw, c["hidden_size"]),
                active_parameters=counted.active,
                num_layers=c["num_hidden_layers"],
                hidden_size=c["hidden_size"],
                intermediate_size=c["intermediate_size"],
                vocab_size=c["vocab_size"],
                query_width=wide,
                cache_width=cached,
                tied=bool(c["tie_word_embeddings"]),
                max_position_embeddings=c.get("max_position_embeddings"),
                checkpoint_bytes=_stored_bytes(c),
                draft_heads=fit.heads(config),
                draft_width=fit.mlp_width(config),
            )
        except KeyError as e:
            raise UnknownShape(f"its config.json has no {e.args[0]}") from None
        except (TypeError, ValueError, ZeroDivisionError) as e:
            line = " ".join((explain(e) if isinstance(e, ValidationError) else str(e)).split())
            raise UnknownShape(f"its config.json has sizes that cannot be: {line}") from None

    @classmethod
    def from_facts(cls, facts: Mapping[str, Any]) -> Self:
        """The sizes that `target.json` records; what it leaves out is taken at its largest: every
        head with keys and values of its own.

        Raises:
            UnknownShape: the facts are not those of a resolved target.
        """
        try:
            hidden = int(facts["hidden_size"])
            return cls(
                model_type=facts.get("model_type", ""),
                parameters=facts["parameters"],
                active_parameters=facts["parameters"],
                num_layers=facts["num_layers"],
                hidden_size=hidden,
                intermediate_size=facts["intermediate_size"],
                vocab_size=facts["vocab_size"],
                query_width=hidden,
                cache_width=2 * hidden,
                max_position_embeddings=facts.get("max_position_embeddings"),
                checkpoint_bytes=4 if facts.get("dtype") == "float32" else 2,
                draft_heads=(hidden, hidden, 1),
                draft_width=facts["intermediate_size"],
            )
        except (KeyError, ValueError) as e:
            raise UnknownShape(f"not the facts of a resolved target: {e}") from None

    def cache_bytes(self, element_bytes: int) -> int:
        """Bytes that one token takes in the key and value caches of all layers."""
        return self.cache_width * self.num_layers * element_bytes


class DraftShape(Figures):
    """Sizes of the draft (EAGLE-3, section 3.1): one decoder layer, `fc`, and a head of its own."""

    hidden_size: int
    intermediate_size: int
    vocab_size: int
    """Vd, the draft vocabulary."""
    query_width: int
    key_width: int
    num_heads: int
    parameters: int
    """Trained parameters: exact. The embedding is the target's, frozen and not stored."""

    @classmethod
    def for_target(
        cls, target: TargetShape, draft_vocab: int, intermediate: int | None = None
    ) -> Self:
        """The draft that the `train` stage makes for a target."""
        h, i = target.hidden_size, intermediate or target.draft_width
        heads, groups, dim = target.draft_heads
        q, n = heads * dim, groups * dim
        vocab = min(draft_vocab, target.vocab_size)
        attention = 2 * h * q + 2 * 2 * h * n + q * h
        return cls(
            hidden_size=h,
            intermediate_size=i,
            vocab_size=vocab,
            query_width=q,
            key_width=n,
            num_heads=heads,
            parameters=3 * h * h + attention + 3 * h * i + 4 * h + vocab * h,
        )


def _stored_bytes(config: Mapping[str, Any]) -> int:
    """Bytes of a weight by the config's `dtype` (`torch_dtype` in older ones)."""
    said = str(config.get("dtype") or config.get("torch_dtype") or "bfloat16")
    return 4 if said.removeprefix("torch.") == "float32" else 2
