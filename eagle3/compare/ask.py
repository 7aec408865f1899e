"""Questions answered by every method, one after the other, in an order drawn for each turn.

The history of a later turn is plain decoding's own answer, so that all methods read the same
prompt. What is answered is journalled by question: a stopped comparison goes on behind it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from transformers import PreTrainedTokenizerBase

from eagle3.bench.baseline import Loop, counts
from eagle3.bench.metrics import Counts
from eagle3.bench.tasks import Question, Task
from eagle3.data.chat import next_turn, prompt_ids
from eagle3.data.records import Journal, Record
from eagle3.decode.request import Generation, Request
from eagle3.decode.sampling import Sampling

PLAIN = "plain"
WARM_UP_TOKENS = 12
LEAST_TOKENS = 2
"""An answer of one token has no decode phase."""


class Row(Record):
    """One turn of a question, answered once by one method."""

    method: str
    turn: int
    place: int
    """Its place in the order in which the methods answered."""
    prompt_tokens: int
    tokens: int
    """Of the decode phase, as all that follows."""
    rounds: int
    seconds: float
    target_s: float
    draft_s: float
    reached: list[int]
    accepted: list[int]
    stamps: list[float]
    """When each token was emitted, the prefill's own too: seconds since the request."""
    equal: bool
    """The same tokens as plain decoding's; expected at temperature 0 alone."""

    @property
    def counts(self) -> Counts:
        return Counts(
            self.tokens, self.rounds, self.seconds, self.target_s, self.draft_s,
            self.reached, self.accepted,
        )  # fmt: skip


class Asked(Record):
    """A question with all its rows."""

    task: str
    question: str
    rows: list[Row]
    left_out: str = ""
    """Why a turn, and those after it, were not asked."""


@dataclass(frozen=True)
class Asking:
    """What is the same for every question."""

    loops: Mapping[str, Loop]
    """By method; plain decoding among them."""
    tokenizer: PreTrainedTokenizerBase
    context: int
    eos_ids: frozenset[int]
    max_new_tokens: int
    temperature: float
    seed: int

    def request(self, ids: Sequence[int], seed: int, cap: int | None = None) -> Request:
        most = cap or self.max_new_tokens
        return Request(ids, most, Sampling(self.temperature), self.eos_ids, seed=seed)

    def first_prompt(self, question: Question) -> list[int]:
        return prompt_ids(self.tokenizer, [{"role": "user", "content": question.turns[0]}])


def pick(questions: Sequence[Question], count: int, seed: int) -> list[Question]:
    """So many questions, chosen by seed, in their own order; all where there are fewer."""
    order = list(range(len(questions)))
    random.Random(seed).shuffle(order)  # noqa: S311 (no secret)
    return [questions[i] for i in sorted(order[:count])]


def ask_all(
    asking: Asking, tasks: Sequence[Task], journal: Path, said: Callable[[int, int, str], None]
) -> list[Asked]:
    """Ask what has not been asked; returns all, in order.

    Args:
        said: given how many questions are done, of how many, and which comes next; may raise.
    """
    total = sum(len(task.questions) for task in tasks)
    with closing(Journal(journal, Asked)) as done:
        known = {(asked.task, asked.question) for asked in done.records}
        todo = [(t, q) for t in tasks for q in t.questions if (t.name, q.id) not in known]
        if todo:
            _warm_up(asking, todo[0][1])
        for task, question in todo:
            said(len(done.records), total, f"{task.name} {question.id}")
            done.append(ask(asking, task.name, question))
        found = {(asked.task, asked.question): asked for asked in done.records}
    said(total, total, "")
    return [found[task.name, question.id] for task in tasks for question in task.questions]


def ask(asking: Asking, task: str, question: Question) -> Asked:
    """All turns of a question by all methods."""
    rows: list[Row] = []
    for turn, (ids, answers, order) in enumerate(_turns(asking, task, question)):
        if answers is None:
            why = (
                f"turn {turn + 1} has a prompt of {len(ids)} tokens; in a context of "
                f"{asking.context} that leaves no room for an answer of {LEAST_TOKENS}"
            )
            return Asked(task=task, question=question.id, rows=rows, left_out=why)
        plain = answers[PLAIN].tokens
        for place, name in enumerate(order):
            rows.append(_row(name, turn, place, len(ids), answers[name], plain))
    return Asked(task=task, question=question.id, rows=rows)


_Turn = tuple[list[int], dict[str, Generation] | None, list[str]]


def _turns(asking: Asking, task: str, question: Question) -> Iterator[_Turn]:
    """Each turn's prompt, answers (None: no room for any), and the order they came in."""
    history = [{"role": "user", "content": question.turns[0]}]
    ids = asking.first_prompt(question)
    for turn, following in enumerate([*question.turns[1:], None]):
        drawn = random.Random(f"{asking.seed} {task} {question.id} {turn}")  # noqa: S311
        order, seed = list(asking.loops), drawn.getrandbits(31)
        drawn.shuffle(order)
        if len(ids) + LEAST_TOKENS > asking.context:
            yield ids, None, order
            return
        request = asking.request(ids, seed)
        answers = {name: asking.loops[name].answer(request) for name in order}
        yield ids, answers, order
        if following is not None:
            said = answers[PLAIN].tokens
            ids, history, _ = next_turn(
                asking.tokenizer,
                history,
                [*ids, *said],
                said,
                [{"role": "user", "content": following}],
                asking.eos_ids,
            )


def _row(
    name: str, turn: int, place: int, prompt_tokens: int, answer: Generation, plain: list[int]
) -> Row:
    return Row(
        method=name,
        turn=turn,
        place=place,
        prompt_tokens=prompt_tokens,
        **vars(counts(answer)),
        stamps=[round(stamp, 6) for stamp in answer.stamps],
        equal=answer.tokens == plain,
    )


def _warm_up(asking: Asking, question: Question) -> None:
    """The first forwards of a process are slow, whichever method makes them."""
    ids = asking.first_prompt(question)
    if len(ids) + LEAST_TOKENS <= asking.context:
        for loop in asking.loops.values():
            loop.answer(asking.request(ids, asking.seed, WARM_UP_TOKENS))
