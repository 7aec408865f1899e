"""Stage `regenerate`: the target writes the answers that the draft will learn from."""

from __future__ import annotations

from transformers import PreTrainedTokenizerBase

from eagle3.data.engines import Engine
from eagle3.data.engines.conversation import AGAIN, Ledger
from eagle3.data.engines.inprocess import InProcess
from eagle3.data.engines.server import Server
from eagle3.data.given import given_responses
from eagle3.data.local import open_target, open_tokenizer
from eagle3.data.records import Journal, Prompt, Response, read_records, write_records
from eagle3.data.spans import Reader
from eagle3.run import Context


def regenerate(ctx: Context) -> None:
    """Write `responses.jsonl`: greedy answers to every held-out prompt, and answers to the training
    prompts at the recipe's temperatures, in seeded order, until the token budget is reached.

    Training conversations that came as tokens keep the answers they have, and so do all of them
    where the recipe says so.
    Resumes: conversations are kept in `work/responses.jsonl` as they are finished.
    """
    everything = read_records(ctx.inputs["prepare"] / "prompts.jsonl", Prompt)
    keep = ctx.config.recipe.regenerate.mode == "given"
    answered = [p for p in everything if p.spans is not None or (keep and p.split == "train")]
    kept = {p.id for p in answered}
    prompts = asked_again(
        [p for p in everything if p.id not in kept], ctx.config.recipe.regenerate.answers
    )
    journal = Journal(ctx.out / "work" / "responses.jsonl", Response)
    try:
        tokenizer = open_tokenizer(ctx)
        engine = open_engine(ctx, tokenizer)
        ledger = Ledger(ctx, tokenizer, journal, prompts, engine.end_ids, engine.context)
        records = engine.answer(ledger, prompts)
    finally:
        journal.close()
    order = {prompt.id: i for i, prompt in enumerate(prompts)}
    records = [s for r in sorted(records, key=lambda r: order[r.id]) for s in r.samples()]
    limit = min(engine.context, ctx.config.recipe.train.max_length) if keep else engine.context
    if answered:
        reader = Reader(tokenizer, engine.end_ids)
        records += given_responses(ctx, reader, answered, engine.end_ids, limit)
    write_records(ctx.out / "responses.jsonl", records)
    ledger.summarise(records)


def open_engine(ctx: Context, tokenizer: PreTrainedTokenizerBase) -> Engine:
    """The engine that the recipe names."""
    target = open_target(ctx)
    if ctx.config.recipe.regenerate.engine == "openai":
        return Server(ctx, target, tokenizer)
    return InProcess(target)


def asked_again(prompts: list[Prompt], answers: int) -> list[Prompt]:
    """The prompts, then each training prompt once more for each further answer, under an id of its
    own: prompt `ab12` gives the answers `ab12`, `ab12-1`, …"""
    again = [
        prompt.model_copy(update={"id": f"{prompt.id}{AGAIN}{n}"})
        for n in range(1, answers)
        for prompt in prompts
        if prompt.split == "train"
    ]
    return prompts + again
