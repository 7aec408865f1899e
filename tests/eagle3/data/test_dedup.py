from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3.data.dedup import Copy, near_copies

STORY = (
    "A baker makes forty eight rolls in the morning and packs them in bags of six. "
    "How many bags does she fill before the shop opens, and how many rolls are left?"
)


def test_case_punctuation_and_space_make_no_difference() -> None:
    other = STORY.upper().replace(",", " -").replace(". ", " … ")
    assert near_copies([STORY, "Why is the sky blue?", other], 1.0) == [Copy(2, 0, 1.0)]


def test_one_word_changed_is_a_near_copy_and_a_new_question_is_not() -> None:
    near = STORY.replace("shop", "store")
    far = STORY.replace("forty eight rolls", "ninety buns").replace("bags of six", "boxes")
    [copy] = near_copies([STORY, near, far], 0.6)
    assert (copy.index, copy.of) == (1, 0)
    assert 0.6 < copy.similarity < 1
    assert near_copies([STORY, near, far], 0.9) == []


def test_short_prompts_are_copies_of_their_equals_alone() -> None:
    texts = ["Why?", "why", "Why not?", "Tell me more", "", ""]
    assert [(c.index, c.of) for c in near_copies(texts, 0.5)] == [(1, 0)]


def test_wording_that_many_prompts_share_does_not_make_them_copies() -> None:
    frame = "You are the assistant of a shop that sells garden tools. Be polite and be brief. " * 4
    questions = [f"{frame} Question number {i}: where is my order {i * 7919}?" for i in range(60)]
    assert near_copies(questions, 0.8) == []
    again = [*questions, questions[5].replace("garden", "GARDEN")]
    assert [(c.index, c.of) for c in near_copies(again, 0.8)] == [(60, 5)]


def test_scripts_without_spaces() -> None:
    text = "面包师早上做了四十八个面包卷,每袋装六个。她装了多少袋?"
    near = text.replace("早上", "今早")
    assert [c.index for c in near_copies([text, near, "为什么天空是蓝色的?"], 0.5)] == [1]


@given(st.lists(st.text("ab c", max_size=30), max_size=12))
@settings(max_examples=30, deadline=None)
def test_it_finds_what_comparing_every_pair_finds(texts: list[str]) -> None:
    """At similarity 1 banding misses nothing, so every pair's comparison is the reference."""
    seen: dict[frozenset[tuple[str, ...]], int] = {}
    expected = []
    for i, text in enumerate(texts):
        words = text.split()
        runs = {tuple(words[j : j + 5]) for j in range(max(1, len(words) - 4))}
        key = frozenset(run for run in runs if run)
        if key and key in seen:
            expected.append((i, seen[key]))
        else:
            seen.setdefault(key, i)
    assert [(c.index, c.of) for c in near_copies(texts, 1.0)] == expected
