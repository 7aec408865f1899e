"""Who writes the answers: the target in this process, or a server that serves the target.

conversation.py  conversations, their turns, the journal and the counts: the same for both
inprocess.py     transformers, batch by batch
server.py        any OpenAI-compatible server, many conversations at once
client.py        its HTTP requests, with retries
completions.py   what is asked of it and how its replies are read
served.py        is the model that it serves the target?
"""

from __future__ import annotations

from typing import Protocol

from eagle3.data.engines.conversation import Ledger
from eagle3.data.records import Prompt, Response


class Engine(Protocol):
    """Answers prompts. What it writes depends on prompts, recipe and seed, and not on where an
    earlier run was stopped."""

    end_ids: frozenset[int]
    """Token ids that end an answer."""
    context: int
    """Most tokens of a conversation."""

    def answer(self, ledger: Ledger, prompts: list[Prompt]) -> list[Response]:
        """Finish the conversations that the ledger does not have yet: all held-out prompts, and
        training prompts until the token budget is reached. Returns those that make the result.

        Raises:
            Stopped: TERM or INT has come; what is finished is in the ledger's journal.
        """
        ...
