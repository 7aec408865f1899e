"""What an answer says, found again in what a chat template makes of it."""

from __future__ import annotations

from eagle3.data.records import Message


def parts(message: Message) -> tuple[str, str]:
    """What an answer says: its reasoning, where it stands apart, and its content."""
    return message.get("reasoning_content", "").strip(), message["content"].strip()


def said(text: str, message: Message) -> int | None:
    """The end of what the answer says in a rendering; None where a part of it is missing."""
    end: int | None = 0
    for piece in parts(message):
        if piece and end is not None:
            end = find(text, piece, end)
    for call in message.get("tool_calls", []):
        found = find(text, str(call["function"]["name"]), 0)
        end = None if end is None or found is None else max(end, found)
    return end


def common(a: str, b: str) -> int:
    """How many characters two texts begin with alike."""
    return next(
        (k for k, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


def find(text: str, piece: str, start: int) -> int | None:
    """Where the first copy of `piece` in `text` ends, white space aside."""
    if (at := text.find(piece, start)) >= 0:
        return at + len(piece)
    spots = [k for k in range(start, len(text)) if not text[k].isspace()]
    plain, wanted = "".join(text[k] for k in spots), "".join(piece.split())
    at = plain.find(wanted)
    return None if at < 0 else spots[at + len(wanted) - 1] + 1
