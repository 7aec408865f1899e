"""The sections of a recipe, one for each stage."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from eagle3.config.reference import Strict

Auto = Literal["auto"]
EngineName = Literal["native", "llamacpp", "vllm", "sglang", "openvino"]
SERVER_URL = r"^https?://([A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\])(:[0-9]{1,5})?(/[A-Za-z0-9_~-][A-Za-z0-9._~-]*)*/?$"
"""An HTTP address: no credentials, no query, no `..` in it."""


class RegenerateConfig(Strict):
    """How the target writes the training responses."""

    mode: Literal["target", "given"] = "target"
    """`target`: the target writes all answers. `given`: training conversations keep the answers of
    the prompt set, of as many tokens as `train.max_length`; held-out ones are still answered by the
    target, since that is what a draft will see when it serves."""
    engine: Literal["transformers", "openai"] = "transformers"
    """`transformers`: the target in this process. `openai`: a server with an OpenAI-compatible API
    (vLLM, SGLang, llama.cpp); that it serves the target is checked first. If it wants a key, that
    is read from the environment: `UPDRAFT_ENGINE_API_KEY`."""
    base_url: Annotated[str, Field(pattern=SERVER_URL, max_length=512)] | None = None
    """The server's address up to `/v1`, as in `http://127.0.0.1:8000/v1`."""
    model: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    """The target's name at the server; may be left out where it serves one model."""
    concurrency: Annotated[int, Field(ge=1, le=1024)] = 64
    """Requests in progress at the server."""
    max_new_tokens: Annotated[int, Field(ge=4)] = 128
    """Cap on a response, in tokens."""
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    """Sampling temperature of training responses; held-out responses are always greedy."""
    answers: Annotated[int, Field(ge=1, le=64)] = 1
    """Answers to each training prompt: the first at `temperature`, each further one at
    `further_temperature` with random numbers of its own."""
    further_temperature: Annotated[float, Field(gt=0, le=2)] = 0.8
    """Sampling temperature of the answers after a training prompt's first."""
    batch_size: Annotated[int, Field(ge=1)] = 48
    """Sequences decoded together, in this process."""
    token_budget: Annotated[int, Field(ge=64)] | None = None
    """Stop after about this many training response tokens; no limit when empty."""

    @model_validator(mode="after")
    def _server_has_an_address(self) -> Self:
        if self.engine == "openai" and self.base_url is None:
            raise ValueError("engine openai needs base_url, as in http://127.0.0.1:8000/v1")
        if self.engine != "openai" and (self.base_url or self.model):
            raise ValueError("base_url and model name a server: set engine: openai")
        return self


class ExtractConfig(Strict):
    """How the target's features reach training."""

    mode: Literal["offline", "online", "streamed"] = "offline"
    """`offline`: stored on disk first, then read as often as wanted. `online`: the target runs in
    the training process and nothing is stored. `streamed`: it runs in a process of its own, a few
    batches ahead of training."""
    capture_layers: tuple[int, int, int] | None = None
    """Indices into HF `hidden_states` (the residual stream *entering* that layer); the default is
    (2, n // 2, n - 3) of an n-layer target (method: EAGLE-3, section 3.1)."""
    shard_tokens: Annotated[int, Field(ge=256)] = 16384
    """Tokens in one feature shard (offline)."""
    quota_gb: Annotated[float, Field(gt=0)] | None = None
    """What the features of a run may take on disk (offline); only free space limits when empty."""
    top_k: Annotated[int, Field(ge=1, le=4096)] | None = None
    """Store the target's k largest probabilities in place of its final hidden state (offline)."""
    queue_batches: Annotated[int, Field(ge=1, le=64)] = 2
    """Batches that may wait for training (streamed)."""
    device: Annotated[str, Field(pattern=r"^(cpu|cuda(:[0-9]{1,3})?)$")] | None = None
    """Where the target runs (streamed); the last GPU when empty, or else the CPU."""
    sharded: bool = False
    """Of several processes (`torchrun`), have each keep its part of the target's layers (FSDP2):
    for a target that one device cannot hold (offline, online)."""

    @model_validator(mode="after")
    def _spread_over_one_group(self) -> Self:
        if self.sharded and self.mode == "streamed":
            raise ValueError(
                "streamed features come from processes that each hold the whole target; a spread "
                "one goes with mode online or offline"
            )
        return self

    @model_validator(mode="after")
    def _only_what_is_stored_is_cut(self) -> Self:
        if self.top_k is not None and self.mode != "offline":
            raise ValueError(f"top_k shrinks what is stored; mode {self.mode} stores nothing")
        return self


Share = Annotated[float, Field(ge=0, lt=1)]
DRAFT = re.compile(r"/[^\x00]*|draft:[A-Za-z0-9][\w.-]{0,255}(@(champion|candidate))?")


class TrainConfig(Strict):
    """EAGLE-3 with training-time test."""

    ttt_steps: Annotated[int, Field(ge=1, le=16)] = 4
    """S: how many draft steps are unrolled in training."""
    step_decay: Annotated[float, Field(gt=0, le=1)] = 0.8
    """Weight of step k's loss is step_decay ** k."""
    loss: Literal["soft_ce", "tv", "lk_alpha", "lk_lambda"] = "soft_ce"
    """`soft_ce`: cross-entropy with the target's distribution (EAGLE-3). `tv`: one minus the
    acceptance rate of sampling (arXiv 2211.17192). `lk_alpha`, `lk_lambda`: minus its logarithm,
    and KL that turns into `tv` as acceptance grows (arXiv 2602.23881)."""
    loss_per: Literal["token", "sequence"] = "token"
    """Mean over all rows, or over sequences of each one's mean: a long answer then counts as much
    as a short one."""
    draft_vocab_size: Annotated[int, Field(ge=2)] = 8192
    """Vd; capped at the target's vocabulary."""
    intermediate_size: Annotated[int, Field(ge=8)] | None = None
    """MLP width of the midlayer; the target's when empty."""
    head: Literal["random", "target", "target_rescaled"] = "target_rescaled"
    """The draft's LM head at the start: random, the target's rows, or these behind a norm that is
    turned down to 0.3."""
    start_from: Annotated[str, Field(max_length=1024)] | None = None
    """A draft to go on from: a directory in the official layout, or in a service a registered one,
    `draft:ID` or `draft:NAME[@alias]`. Its draft vocabulary and sizes are kept, so the three fields
    above have no say."""
    learning_rate: Annotated[float, Field(gt=0)] = 1e-3
    """Peak learning rate of AdamW."""
    betas: tuple[Share, Share] = (0.9, 0.95)
    """AdamW's decay rates of the gradient's two running moments."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    """AdamW's, of all weights."""
    schedule: Literal["cosine", "linear", "constant"] = "cosine"
    """How the learning rate goes after the warm-up; cosine and linear fall to 5% of the peak."""
    warmup_fraction: Annotated[float, Field(ge=0, lt=1)] = 0.05
    """Share of all steps with a linearly rising learning rate."""
    warmup_steps: Annotated[int, Field(ge=1)] | None = None
    """The same as a number of steps; takes the place of `warmup_fraction`."""
    grad_clip: Annotated[float, Field(gt=0)] = 0.5
    """Cap on the gradient's norm."""
    epochs: Annotated[float, Field(gt=0)] = 4.0
    """Passes over the training tokens."""
    data_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Share of the training samples to use, chosen by seed; a smaller share lies inside a larger
    one."""
    batch_tokens: Annotated[int, Field(ge=16)] = 2048
    """Tokens (prompt and response) in one forward."""
    accumulate: Annotated[int, Field(ge=1)] = 1
    """Forwards whose gradients make one optimiser step."""
    precision: Literal["auto", "float32", "bfloat16"] = "float32"
    """What products are computed in; weights and optimiser stay in float32. `auto`: bfloat16 where
    this machine is faster with it, as measured at the start."""
    recompute: bool = False
    """Keep no more of a draft step than its inputs, and make it again for its gradient: less memory
    for about a third more arithmetic in the decoder layer (gradient checkpointing)."""
    sharded: bool = False
    """Of several processes (`torchrun`), have each keep its part of the draft's weights, gradients
    and moments (FSDP2), and not all of them: less memory for more traffic, the same draft."""
    max_length: Annotated[int, Field(ge=16)] = 2048
    """A longer sample is cut there, and counted."""
    eval_every: Annotated[int, Field(ge=1)] = 50
    """Optimiser steps between held-out evaluations."""
    eval_samples: Annotated[int, Field(ge=1)] = 24
    """Held-out samples of an evaluation, the last by id; the benchmark takes the first by id, so
    that choosing the best checkpoint does not flatter it."""
    patience: Annotated[int, Field(ge=1)] | None = None
    """Stop early after so many evaluations in a row without a longer held-out acceptance length."""
    checkpoint_every: Annotated[int, Field(ge=1)] = 50
    """Optimiser steps between checkpoints."""
    keep_checkpoints: Annotated[int, Field(ge=1)] = 2
    """The newest so many stay on this machine while training runs; each holds the best draft."""
    max_skipped: Annotated[int, Field(ge=0)] = 8
    """Batches that NaN or infinity may cost before training fails; each is kept in `skipped/`."""

    @field_validator("start_from")
    @classmethod
    def _names_a_draft(cls, named: str | None) -> str | None:
        if named is not None and not DRAFT.fullmatch(named):
            raise ValueError(
                f"{named!r} names no draft; expected /abs/dir, draft:ID, draft:NAME, "
                "draft:NAME@champion or draft:NAME@candidate"
            )
        return named


HOUSEKEEPING = frozenset({"checkpoint_every", "keep_checkpoints", "sharded"})
"""Fields of `TrainConfig` that decide nothing about the draft."""


class BenchmarkConfig(Strict):
    """Plain decoding against EAGLE-3 decoding."""

    prompts: Annotated[int, Field(ge=2)] = 8
    """Held-out prompts, the same for both."""
    max_new_tokens: Annotated[int, Field(ge=4)] = 64
    """Cap on an answer."""
    repeats: Annotated[int, Field(ge=1)] = 1
    """Times each prompt is decoded by each method, alternating."""
    depth: Annotated[int, Field(ge=1, le=16)] | Auto = 3
    """Draft tokens on the longest path of a round; `auto` chooses what is fastest on the device, no
    deeper than `train.ttt_steps`, and so for the next two."""
    top_k: Annotated[int, Field(ge=1, le=32)] | Auto = 1
    """Children of a node; 1 drafts a chain."""
    total_tokens: Annotated[int, Field(ge=1, le=256)] | Auto | None = None
    """Draft nodes verified in a round; `depth` * `top_k` when empty."""
    temperature: Annotated[float, Field(ge=0, le=2)] = 0.0
    """Sampling temperature of both methods; 0 is greedy."""
    threads: Annotated[int, Field(ge=1)] | None = None
    """CPU threads for both methods; measured and chosen when empty."""

    @property
    def chooses(self) -> bool:
        """Whether something of the tree is still to be chosen."""
        return "auto" in (self.depth, self.top_k, self.total_tokens)

    @property
    def shape(self) -> tuple[int, int, int | None]:
        """Depth, children of a node, and nodes.

        Raises:
            ValueError: some of it is still to be chosen.
        """
        depth, top_k, total = self.depth, self.top_k, self.total_tokens
        if depth == "auto" or top_k == "auto" or total == "auto":
            raise ValueError("the tree is chosen by the benchmark, which has not run")
        return depth, top_k, total

    def chosen(self, summary: Mapping[str, Any]) -> Self:
        """With the tree that the benchmark chose, where it had to; from the stage's summary."""
        if not self.chooses or "depth" not in summary:
            return self
        names = ("depth", "top_k", "total_tokens")
        return self.model_copy(update={name: summary[name] for name in names})


class ParityConfig(Strict):
    """Each engine against what training says, before anything else is measured."""

    prompts: Annotated[int, Field(ge=1)] = 8
    """Held-out prompts; all there are where the set has fewer."""
    max_new_tokens: Annotated[int, Field(ge=4)] = 32
    """Cap on an answer."""


SAMPLED_PROMPTS, SAMPLED_TOKENS = 4, 8
"""What `ProveConfig.samples` draws: from so many prompts, texts of so many tokens."""


class ProveConfig(Strict):
    """The lossless proof."""

    prompts: Annotated[int, Field(ge=1)] = 16
    """Held-out prompts; all there are where the set has fewer."""
    max_new_tokens: Annotated[int, Field(ge=4)] = 64
    """Cap on an answer."""
    samples: Annotated[int, Field(ge=0, le=100_000)] = 0
    """Texts drawn on each side, with the draft and without it, from each of 4 held-out prompts, 8
    tokens long at temperature 1, to compare how tokens are spread; none when 0."""
