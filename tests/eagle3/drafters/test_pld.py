"""What is looked up, for texts that can be read by eye."""

from __future__ import annotations

import pytest
import torch

from eagle3.decode.drafter import Seen
from eagle3.decode.sampling import Sampling
from eagle3.drafters.pld import PromptLookup, PromptLookupSession, Text
from tests.eagle3.drafters.loop import advance, cycle, decode, plain, scrambled, start


def guess(text: str, settings: PromptLookup | None = None, length: int = 10) -> str:
    found = Text(settings or PromptLookup(), [ord(c) for c in text]).guess(length)
    return "".join(chr(i) for i in found)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("abcdXbc", "dXbcdXbcdX"),  # two tokens match; where the text ends the copy goes on
        ("abXcbYab", "XcbYabXcbY"),  # "b" alone occurs later too; the longer match wins
        ("zabQyabRxxzab", "QyabRxxzab"),  # "zab" before "yab" and "ab"
        ("aXaYa", "YaYaYaYaYa"),  # of equal matches the latest
        ("aaaa", "aaaaaaaaaa"),
        ("abcd", ""),
        ("a", ""),
        ("", ""),
    ],
)
def test_the_longest_ngram_that_was_seen_before_tells_what_follows(
    text: str, expected: str
) -> None:
    assert guess(text) == expected


def test_sizes_and_length_are_settings() -> None:
    text = "abcXdcYabc"
    assert guess(text, PromptLookup(longest=3)) == "XdcYabcXdc"
    assert guess(text, PromptLookup(longest=3), length=2) == "Xd"
    assert guess("bcXacYbdc", PromptLookup(shortest=2)) == ""
    assert guess("bcXacYbdc", PromptLookup(shortest=1)) == "YbdcYbdcYb"
    for wrong in ({"shortest": 0}, {"longest": 1, "shortest": 2}, {"length": 0}):
        with pytest.raises(ValueError, match="1 <= shortest <= longest"):
            PromptLookup(**wrong)


def test_a_repetition_is_copied_and_never_beyond_the_room() -> None:
    (out,) = decode(PromptLookup(), cycle(8), [[0, 1, 2]], 60)
    assert out.tokens == plain(cycle(8), [0, 1, 2], 60)
    # 3 … 7 0: the sixth token closes the cycle; from there on 11 tokens a round.
    assert out.rounds == 5 + 5
    assert max(len(p.tree.tokens) for p in out.proposals) == 10


def test_the_index_after_many_rounds_is_that_of_the_text_read_at_once() -> None:
    say, drafter = scrambled(40), PromptLookup()
    prompts = [[3, 5, 5], [7, 1], [2]]
    session = drafter.session(3, 512)
    out = [start(session, say, slot, prompt) for slot, prompt in enumerate(prompts)]
    going = dict(enumerate(out))
    for _ in range(60):
        advance(drafter, session, say, going, 500)
    assert set(going) == {0, 1, 2}
    for slot, one in enumerate(out):
        rebuilt = Text(drafter, one.text)
        assert session.texts[slot].tokens == rebuilt.tokens == one.text
        assert session.texts[slot].follows == rebuilt.follows
        assert one.tokens == plain(say, one.prompt, len(one.tokens))


def test_slots_do_not_mix_and_are_used_again() -> None:
    session = PromptLookup().session(2, 64)

    def opened(slot: int, prompt: list[int], first: int) -> list[int]:
        session.open(slot, prompt, Sampling(), torch.Generator())
        session.observe({slot: Seen(prompt, [*prompt[1:], first], None, None)})
        return session.propose({slot: 5})[slot].tree.tokens

    assert isinstance(session, PromptLookupSession)
    assert opened(0, [1, 2, 3], 1) == [2, 3, 1, 2, 3]
    assert opened(1, [1, 7, 8], 1) == [7, 8, 1, 7, 8]
    assert session.propose({0: 2, 1: 1})[0].tree.tokens == [2, 3]
    session.close(0)
    assert opened(0, [1, 9], 1) == [9, 1, 9, 1, 9]
    assert opened(0, [4, 5], 1) == []
