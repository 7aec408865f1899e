"""Where an answer ends, and which of its text may be shown before it has ended.

Tokens come in rounds of one or more. Each is turned into text at once, but for what is not sure
yet: the bytes of an unfinished character, and text that may turn out to be the beginning of a stop
string. A stop string ends the answer at the token that completes it, and its text just before it; a
stop id (an end-of-sequence token) is the last token and has no text. No token after the end is
taken.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from eagle3.errors import BadInput

Finish = Literal["eos", "stop", "length"]
"""A stop id, a stop string, or as many tokens as were asked for."""

UNKNOWN = "\ufffd"
"""What decoders make of bytes that are no character, or not one yet."""


@dataclass(frozen=True, slots=True)
class Stop:
    """What ends an answer.

    Raises:
        BadInput: no room for a token, or an empty stop string.
    """

    max_tokens: int
    ids: frozenset[int] = frozenset()
    strings: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if self.max_tokens < 1:
            raise BadInput(f"max_new_tokens {self.max_tokens}: expected 1 or more")
        if "" in self.strings:
            raise BadInput("a stop string is empty: expected one character or more")


@dataclass(frozen=True, slots=True)
class Taken:
    """What stands of the tokens of a round."""

    tokens: int
    text: str


class Answer:
    """One answer as it grows.

    Args:
        tokenizer: a tokenizer of transformers; without one there is no text.

    Raises:
        ValueError: stop strings without a tokenizer.
    """

    def __init__(self, stop: Stop, tokenizer: Any = None) -> None:
        if stop.strings and tokenizer is None:
            raise ValueError("stop strings need the target's tokenizer: give one, or stop by ids")
        self.tokens: list[int] = []
        self.text = ""
        """What may be shown: all text before the end, once `finish` is set."""
        self.finish: Finish | None = None
        self._stop = stop
        self._decoded = None if tokenizer is None else Detokeniser(tokenizer)
        self._held = ""
        self._longest = max(map(len, stop.strings), default=0)

    def push(self, tokens: Iterable[int]) -> Taken:
        """Take tokens up to the end; returns how many stand, and the text that became sure."""
        count, shown = 0, len(self.text)
        for token in tokens:
            if self.finish is not None:
                break
            self._take(token)
            count += 1
        return Taken(count, self.text[shown:])

    def _take(self, token: int) -> None:
        self.tokens.append(token)
        if token in self._stop.ids:
            self.finish = "eos"
        elif self._decoded is not None:
            self._read(self._decoded.push(token))
        if self.finish is None and len(self.tokens) >= self._stop.max_tokens:
            self.finish = "length"
        if self._decoded is not None and self.finish in ("eos", "length"):
            self._read(self._decoded.rest())
            self.text, self._held = self.text + self._held, ""

    def _read(self, new: str) -> None:
        """Look for a stop string in what was held back and what is new; show what is sure.

        The one that ends first counts, so that it does not matter how text came in pieces.
        """
        text = self._held + new
        found = [(text.find(stop) + len(stop), -len(stop)) for stop in self._stop.strings]
        found = [(end, length) for end, length in found if end + length >= 0]
        if found:
            self.finish = "stop"
            self.text, self._held = self.text + text[: sum(min(found))], ""
            return
        sure = len(text) - self._unsure(text)
        self.text, self._held = self.text + text[:sure], text[sure:]

    def _unsure(self, text: str) -> int:
        """Characters at the end that may be the beginning of a stop string."""
        for length in range(min(self._longest - 1, len(text)), 0, -1):
            if any(stop.startswith(text[-length:]) for stop in self._stop.strings):
                return length
        return 0


class Detokeniser:
    """The text of tokens as they come; an unfinished character is held back.

    Tokens are decoded together with those just before them, since a decoder may treat the first one
    otherwise (a leading space). Bytes that never become a character come out as U+FFFD.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._window: list[int] = []
        self._split = 0
        """Tokens of the window that were there when its text last ended in a whole character."""
        self._given = 0
        """Characters of the window's text that were given out."""

    def push(self, token: int) -> str:
        """The text that this token makes sure."""
        self._window.append(token)
        text = self._decode(self._window)
        whole = text.rstrip(UNKNOWN)
        new = whole[self._given :]
        if whole == text and len(text) == self._given > 0:  # no text of its own: a special token
            self._window.pop()
        self._given = max(self._given, len(whole))
        if new and whole == text:
            self._window, self._split = self._window[self._split :], len(self._window) - self._split
            self._given = len(self._decode(self._window))
        return new

    def rest(self) -> str:
        """What is held back, at the end."""
        text = self._decode(self._window)
        new, self._given = text[self._given :], len(text)
        return new

    def _decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(
            ids, skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text
