"""The decoding engine: draft trees, verify them in one target forward, keep what stands.

Many prompts are decoded with a few slots, each sequence at its own length; a finished one gives
its slot to the next prompt at once. Plain decoding is the same loop with empty trees, so all
methods run the same code, sample alike and stop alike.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from eagle3.decode.drafter import Drafter
from eagle3.decode.request import Emission, Generation, Request
from eagle3.decode.slots import Slots
from eagle3.errors import BadInput
from eagle3.target import Target


class Engine:
    """A target that decodes with a drafting method.

    Args:
        slots: sequences that are decoded together.
        tokenizer: the target's, for text and stop strings; without one there are tokens alone.

    Raises:
        BadInput: the method reads features of other layers than the target captures.
    """

    def __init__(
        self, target: Target, drafter: Drafter, slots: int = 1, tokenizer: Any = None
    ) -> None:
        if drafter.capture_layers not in (None, target.capture_layers):
            raise BadInput(
                f"the draft reads features of layers {drafter.capture_layers}; the target captures "
                f"{target.capture_layers}: load the target with the draft's layers"
            )
        if slots < 1:
            raise BadInput(f"slots {slots}: expected 1 or more")
        self.target, self.drafter, self.slots, self.tokenizer = target, drafter, slots, tokenizer

    def stream(self, requests: Iterable[Request]) -> Iterator[Emission]:
        """Tokens of every request as rounds end; requests are taken up as slots become free, and
        one that this target cannot answer is refused in its turn (`Emission.refused`)."""
        slots = Slots(self.target, self.drafter, self.slots, self.tokenizer)
        waiting = enumerate(requests)
        more = True
        while more or slots.open:
            while more and slots.free:
                number, request = next(waiting, (0, None))
                more = request is not None
                if request is None:
                    continue
                try:
                    request.check(self.target.context, self.target.vocab_size, self.tokenizer)
                except BadInput as refusal:
                    yield Emission(number, [], "", refused=refusal)
                else:
                    yield slots.take_up(number, request)
            if slots.open:
                yield from slots.round()

    def generate(self, requests: Iterable[Request]) -> list[Generation]:
        """The whole answers, in the order of the requests.

        Raises:
            BadInput: a request that this target cannot answer.
        """
        done: dict[int, Generation] = {}
        for emission in self.stream(requests):
            if emission.refused is not None:
                raise emission.refused
            if emission.done is not None:
                done[emission.request] = emission.done
        return [done[number] for number in sorted(done)]
