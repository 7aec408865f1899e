"""Text as it comes: whole characters only, nothing of a stop string, and the same wherever tokens
and rounds are split."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast
from transformers.convert_slow_tokenizer import bytes_to_unicode

from eagle3.decode.stopping import Answer, Detokeniser, Stop
from eagle3.errors import BadInput

EOS = 256


@cache
def byte_level() -> PreTrainedTokenizerFast:
    """Every byte is a token (byte b is id b), as a byte-level BPE without merges; 256 ends."""
    vocab = {letter: byte for byte, letter in bytes_to_unicode().items()}
    tokenizer = Tokenizer(BPE(vocab | {"</s>": EOS}, []))
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")


@cache
def spaced() -> PreTrainedTokenizerFast:
    """Words with their space before them; the decoder drops the very first space, and single
    bytes stand for what has no word."""
    words = ["▁the", "▁cat", "▁", "s", "END", *(f"<0x{b:02X}>" for b in range(256))]
    tokenizer = Tokenizer(BPE({w: i for i, w in enumerate(words)}, [], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def rounds_of(tokens: list[int], sizes: list[int]) -> list[list[int]]:
    rounds, at = [], 0
    for size in sizes:
        rounds.append(tokens[at : at + size])
        at += size
    return [*rounds, tokens[at:]]


@settings(max_examples=150, deadline=None)
@given(st.text(max_size=30), st.lists(st.integers(0, 5), max_size=20))
def test_text_comes_in_whole_characters(text: str, sizes: list[int]) -> None:
    tokens = list(text.encode())
    answer = Answer(Stop(len(tokens) + 1), byte_level())
    shown = ""
    for piece in rounds_of(tokens, sizes):
        shown += answer.push(piece).text
        assert text.startswith(shown)
        assert shown == answer.text
    done = len(text.rstrip("\ufffd"))  # a real U+FFFD at the end is sure only when it has ended
    assert shown == text[:done]
    answer.push([65])
    assert (answer.text, answer.finish) == (text + "A", "length")


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=24))
def test_bytes_that_are_no_text_are_marked(data: bytes) -> None:
    decoded = Detokeniser(byte_level())
    pieces = [decoded.push(b) for b in data]
    assert "".join(pieces) + decoded.rest() == data.decode(errors="replace")


@settings(max_examples=200, deadline=None)
@given(
    st.text("abé€\U0001f600", max_size=14),
    st.lists(st.text("abé€\U0001f600", min_size=1, max_size=4), min_size=1, max_size=3),
    st.lists(st.integers(1, 5), max_size=20),
)
def test_a_stop_string_is_found_wherever_it_is_split(
    text: str, stops: list[str], sizes: list[int]
) -> None:
    """Against reading one character at a time."""
    expected, ended = text, False
    for end in range(1, len(text) + 1):
        found = [s for s in stops if text[:end].endswith(s)]
        if found:
            expected, ended = text[: end - max(map(len, found))], True
            break
    tokens = list(text.encode())
    answer = Answer(Stop(len(tokens) + 1, frozenset({EOS}), tuple(stops)), byte_level())
    taken = 0
    for piece in rounds_of([*tokens, EOS], sizes):
        stands = answer.push(piece)
        taken += stands.tokens
        if answer.finish is None:
            so_far = bytes(answer.tokens).decode(errors="ignore")
            begun = [s[:n] for s in stops for n in range(len(s)) if so_far.endswith(s[:n])]
            assert answer.text == so_far[: len(so_far) - max(map(len, begun))]
    assert answer.text == expected
    assert taken == len(answer.tokens)
    if ended:
        assert answer.finish == "stop"
        assert taken == len(text[:end].encode())
    else:
        assert answer.finish == "eos"
        assert taken == len(tokens) + 1


@pytest.mark.parametrize("first", range(1, 9))
@pytest.mark.parametrize("second", range(1, 9))
def test_nothing_of_a_stop_string_is_shown(first: int, second: int) -> None:
    """`</done>` after two letters, its bytes split at any two places."""
    data = list(b"hi</done>x")
    answer = Answer(Stop(99, strings=("</done>",)), byte_level())
    shown = [answer.push(p).text for p in rounds_of(data, [first, second])]
    assert "".join(shown) == answer.text == "hi"
    assert (answer.finish, answer.tokens) == ("stop", data[:9])


def test_what_only_looked_like_a_stop_string_is_shown_late() -> None:
    answer = Answer(Stop(99, strings=("STOP", "OX")), byte_level())
    shown = [answer.push([b]).text for b in b"aSTOSTOA"]
    assert shown == ["a", "", "", "", "STO", "", "", "STOA"]


def made_of(*tokens: str) -> PreTrainedTokenizerFast:
    """A byte-level tokenizer of these tokens, in the letters that stand for bytes."""
    tokenizer = Tokenizer(BPE({token: i for i, token in enumerate(tokens)}, []))
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def test_the_stop_that_is_complete_first_counts() -> None:
    answer = Answer(Stop(99, strings=("ab_c", "b")), made_of("aab_c"))
    assert answer.push([0]).text == "aa"
    assert answer.finish == "stop"


def test_a_stop_string_next_to_an_unfinished_character_ends_at_once() -> None:
    """One token holds the end of the stop string and the first byte of a character."""
    fast = made_of("S", "Tð", "ŁĺĢ")
    assert fast.decode([0, 1, 2]) == "ST\U0001f600"
    answer = Answer(Stop(99, strings=("ST",)), fast)
    assert answer.push([0, 1, 2]).tokens == 2
    assert (answer.text, answer.finish) == ("", "stop")


def test_spaces_are_those_of_decoding_all_at_once() -> None:
    fast = spaced()
    tokens = [0, 1, 3, 2, *(5 + b for b in "né".encode()), 0]
    decoded = Detokeniser(fast)
    text = "".join(decoded.push(t) for t in tokens)
    assert text == fast.decode(tokens) == "the cats né the"


def test_tokens_without_text_are_not_decoded_again_and_again() -> None:
    """A model that goes on past its end; the space after that is still there."""
    fast, longest = spaced(), 0
    fast.add_special_tokens({"pad_token": "<pad>"})
    assert fast.pad_token_id is not None

    class Watched:
        def decode(self, ids: list[int], **how: bool) -> str:
            nonlocal longest
            longest = max(longest, len(ids))
            text: str = fast.decode(ids, **how)
            return text

    half = 5 + "é".encode()[0]
    tokens = [0, *[fast.pad_token_id] * 50, 1, half, 1]
    decoded = Detokeniser(Watched())
    text = "".join(decoded.push(t) for t in tokens) + decoded.rest()
    assert text == fast.decode(tokens, skip_special_tokens=True) == "the cat\ufffd cat"
    assert longest < 6


def test_ids_and_length() -> None:
    answer = Answer(Stop(3, frozenset({7})))
    assert answer.push([1, 7, 2]).tokens == 2
    assert (answer.tokens, answer.finish, answer.text) == ([1, 7], "eos", "")
    assert answer.push([3]).tokens == 0
    short = Answer(Stop(3, frozenset({7})))
    assert short.push([1, 2, 3, 4]).tokens == 3
    assert short.finish == "length"
    both = Answer(Stop(2, frozenset({7})))
    both.push([1, 7])
    assert both.finish == "eos"


def test_a_stop_id_has_no_text_and_lets_out_what_was_held() -> None:
    answer = Answer(Stop(9, frozenset({ord("b")}), ("aX",)), byte_level())
    assert answer.push(b"a").text == ""
    assert answer.push(b"b").text == "a"
    assert answer.finish == "eos"


def test_what_cannot_stop_is_refused() -> None:
    with pytest.raises(BadInput, match="max_new_tokens 0: expected 1 or more"):
        Stop(0)
    with pytest.raises(BadInput, match="a stop string is empty"):
        Stop(1, strings=("",))
    with pytest.raises(ValueError, match="need the target's tokenizer"):
        Answer(Stop(1, strings=("a",)))
