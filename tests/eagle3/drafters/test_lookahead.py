"""Window and pool against the method written down literally, and what a tree proposes."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from eagle3.drafters.lookahead import Lookahead, LookaheadSession
from tests.eagle3.drafters.loop import Say, advance, cycle, decode, plain, scrambled, start


@dataclass
class Literal:
    """The method with no tree: each (level, column) asks the target about its own path."""

    settings: Lookahead
    level_0: list[int]
    upper: list[list[int]] = field(default_factory=list)
    pool: dict[int, list[tuple[int, ...]]] = field(default_factory=dict)

    def round(self, say: Say, text: list[int]) -> None:
        columns = len(self.level_0) + 1
        said = []
        for w in range(columns):
            path = [*self.level_0[:w], *(level[w] for level in self.upper)]
            said.append(say([*text, *path]))
        if len(self.upper) < self.settings.ngram - 2:
            self.upper = [[*level[1:]] for level in self.upper] + [said[1:]]
            self.level_0 = self.level_0[1:]
            return
        for w in range(columns):
            key = text[-1] if w == 0 else self.level_0[w - 1]
            kept = self.pool.setdefault(key, [])
            ngram = (*(level[w] for level in self.upper), said[w])
            if ngram in kept:
                kept.remove(ngram)
            kept.append(ngram)
            del kept[: -self.settings.guesses]
        rows = [*self.upper, said]
        self.level_0, self.upper = rows[0][1:], rows[1:]


@pytest.mark.parametrize(
    "settings",
    [
        Lookahead(window=5, ngram=4, guesses=3),
        Lookahead(window=1, ngram=5, guesses=2),
        Lookahead(window=6, ngram=2, guesses=1),
        Lookahead(window=4, ngram=3, guesses=2),
    ],
)
def test_window_and_pool_are_those_of_the_method(settings: Lookahead) -> None:
    say = scrambled(23)
    session = settings.session(2, 512)
    assert isinstance(session, LookaheadSession)
    out = [start(session, say, slot, prompt) for slot, prompt in enumerate([[3, 5, 9], [7, 1]])]
    literal = [Literal(settings, list(session.windows[slot].levels[0])) for slot in (0, 1)]
    assert [len(one.level_0) for one in literal] == [settings.window + settings.ngram - 3] * 2
    going = dict(enumerate(out))
    for _ in range(40):
        for one, decoded in zip(literal, out, strict=True):
            one.round(say, decoded.text)
        advance(settings, session, say, going, 400)
        for slot, one in enumerate(literal):
            window = session.windows[slot]
            assert window.levels == [one.level_0, *one.upper]
            assert {token: list(kept) for token, kept in window.pool.found.items()} == one.pool
    for decoded in out:
        assert decoded.tokens == plain(say, decoded.prompt, len(decoded.tokens))
    assert all(literal[slot].pool for slot in (0, 1))
    assert len(literal[0].level_0) == settings.window - 1


def test_it_guesses_a_text_that_never_repeats() -> None:
    """Each token is its own place: prompt lookup would find nothing, Jacobi iterations do."""
    settings = Lookahead(window=8, ngram=4, guesses=4)
    (out,) = decode(settings, len, [[0, 1, 2]], 122)
    assert out.tokens == list(range(3, 125))
    # 121 after the prefill. The window moves one token a round, so those behind it are stale.
    assert out.rounds < 70


def test_a_known_window_makes_a_known_tree() -> None:
    settings = Lookahead(window=3, ngram=3, guesses=2)
    session = settings.session(1, 64)
    out = start(session, cycle(100), 0, [10])
    window = session.windows[0]
    # Root 11. Level 0 is 20 and 21; level 1 says 12, 13, 14 in the columns of 11, 20 and 21.
    window.levels = [[20, 21], [12, 13, 14]]
    window.pool.add(11, (12, 5))
    window.pool.add(11, (9, 9))
    tree = session.propose({0: 50})[0].tree
    # The pool's last n-gram first; its 12 is the window's too, so it is there once.
    assert tree.tokens == [9, 9, 12, 5, 20, 21, 13, 14]
    assert tree.parents == [0, 1, 0, 3, 0, 5, 5, 6]
    assert window.tops == [3, 7, 8]
    narrow = session.propose({0: 2})[0].tree
    assert narrow.tokens == [9, 9, 12, 5, 20, 13]
    assert max(narrow.depths) == 2
    assert out.tokens == [11]


@pytest.mark.parametrize("count", range(2, 14))
def test_short_answers_end_where_plain_ones_do(count: int) -> None:
    """The room is smaller than the window while levels are still missing."""
    say = scrambled(11)
    for settings in (Lookahead(4, 5, 2), Lookahead(2, 3, 1), Lookahead(1, 2, 1)):
        (out,) = decode(settings, say, [[1, 2]], count)
        assert out.tokens == plain(say, [1, 2], count)


def test_the_text_fills_the_pool_when_asked() -> None:
    say, prompt = cycle(12), [*range(12), 0]
    (with_text,) = decode(Lookahead(2, 4, 3, from_text=True), say, [prompt], 40)
    (without,) = decode(Lookahead(2, 4, 3), say, [prompt], 40)
    assert with_text.tokens == without.tokens == plain(say, prompt, 40)
    assert with_text.rounds == 10  # three tokens of the pool and the target's own, from the start
    assert without.rounds > 10


def test_slots_do_not_mix_and_are_used_again() -> None:
    say, settings = scrambled(19), Lookahead(4, 3, 3)
    together = decode(settings, say, [[3, 5], [8, 8, 1], [2]], 80)
    session = settings.session(1, 512)
    for slot_prompt in ([3, 5], [8, 8, 1], [2]):
        going = {0: start(session, say, 0, slot_prompt)}
        one = going[0]
        while going:
            advance(settings, session, say, going, 80)
        assert one.tokens == next(o for o in together if o.prompt == slot_prompt).tokens
    assert session.windows == {}
    alone = decode(settings, say, [[3, 5]], 80)[0]
    assert alone.proposals == together[0].proposals


def test_settings_out_of_range_are_refused() -> None:
    for wrong in ((0, 2, 1), (1, 1, 1), (1, 2, 0)):
        with pytest.raises(ValueError, match="window >= 1, ngram >= 2 and guesses >= 1"):
            Lookahead(*wrong)
