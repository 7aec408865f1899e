"""What is asked of `/v1/completions`, and how its replies are read.

The prompt goes out as token ids, so that the template is rendered once, here, and the answer is
wanted back as token ids: text that is tokenised again may come out as other tokens than the target
wrote. Servers differ in what they give; which way a server takes is found out once (`served.py`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from transformers import PreTrainedTokenizerBase

from eagle3.data.batch import Sequence
from eagle3.data.chat import encode
from eagle3.data.engines.client import Client
from eagle3.engines.http import MAX_SEED, PLAIN_SAMPLING

Way = Literal["token_ids", "logprobs", "text"]
"""How the ids of an answer come: by themselves (vLLM and SGLang, `return_token_ids`), as the names
of log-probabilities (llama.cpp, older vLLM), or not at all."""
WAYS: tuple[Way, ...] = ("token_ids", "logprobs", "text")

WHOLE_TEXT: dict[str, Any] = {
    "skip_special_tokens": False,
    "spaces_between_special_tokens": False,
    "include_stop_str_in_output": True,
    "no_stop_trim": True,
    "add_special_tokens": False,
}
"""Text as the tokens have it, for servers that give nothing else."""


@dataclass(frozen=True)
class Dialect:
    """How one server is spoken to."""

    model: str
    way: Way = "token_ids"
    prompt_as_text: bool = False


@dataclass(frozen=True)
class Answer:
    ids: list[int]
    exact: bool
    """False where ids were made from text that does not come back as it was, or of which the server
    counts another number of tokens."""


class Reader:
    """Makes requests for a server, and reads its replies.

    Args:
        end_ids: token ids that end an answer.
        vocab: how many ids the target has.
    """

    def __init__(
        self,
        tokenizer: PreTrainedTokenizerBase,
        end_ids: frozenset[int],
        vocab: int,
        dialect: Dialect,
    ) -> None:
        self.tokenizer, self.end_ids, self.vocab = tokenizer, end_ids, vocab
        self.dialect = dialect

    def request(self, sequence: Sequence) -> dict[str, Any]:
        """The body of a request for the answer to `sequence.prompt`."""
        prompt: list[int] | str = sequence.prompt
        if self.dialect.prompt_as_text:
            prompt = self.tokenizer.decode(sequence.prompt, skip_special_tokens=False)
        body: dict[str, Any] = {
            "model": self.dialect.model,
            "prompt": prompt,
            "max_tokens": sequence.max_new_tokens,
            "temperature": sequence.temperature,
            "seed": sequence.seed % MAX_SEED,
            "stop_token_ids": sorted(self.end_ids),
            **PLAIN_SAMPLING,
            **WHOLE_TEXT,
        }
        match self.dialect.way:
            case "token_ids":
                body |= {"return_token_ids": True}
            case "logprobs":
                body |= {"logprobs": 1, "return_tokens_as_token_ids": True}
        return body

    def answer(self, reply: Any, sequence: Sequence) -> Answer:
        """The answer in a reply to `request(sequence)`.

        Raises:
            KeyError, IndexError, TypeError, ValueError: the reply does not hold a whole answer.
        """
        choice = reply["choices"][0]
        stopped = choice["finish_reason"] == "stop"
        if not stopped and choice["finish_reason"] != "length":
            raise ValueError(f"it ended by {choice['finish_reason']!r}, not by stop or length")
        self._check_prompt(reply, sequence)
        if self.dialect.way == "text":
            answer = self._from_text(choice["text"], stopped, reply.get("usage") or {})
        else:
            ids = choice["token_ids"] if self.dialect.way == "token_ids" else _named_ids(choice)
            if not all(isinstance(i, int) and 0 <= i < self.vocab for i in ids):
                raise ValueError("it holds ids that the target does not have")
            answer = Answer(self._ended(ids, stopped), exact=True)
        if not answer.ids:
            raise ValueError("it is empty")
        return Answer(answer.ids[: sequence.max_new_tokens], answer.exact)

    def _ended(self, ids: list[int], stopped: bool) -> list[int]:
        """The ids up to the end of the answer, which some servers leave off and some pass over."""
        end = next((i for i, token in enumerate(ids) if token in self.end_ids), None)
        if end is not None:
            return ids[: end + 1]
        return [*ids, self._end_id()] if stopped and self.end_ids else list(ids)

    def _end_id(self) -> int:
        """The id that ends an answer where a server does not say which one did."""
        eos = self.tokenizer.eos_token_id
        return eos if eos in self.end_ids else min(self.end_ids)

    def _from_text(self, text: str, stopped: bool, usage: dict[str, Any]) -> Answer:
        """Ids of an answer that came as text only. A character that the limit cut in two is left
        off: its replacement is nothing that the target wrote."""
        whole = text if stopped else text.rstrip("�")
        ids = encode(self.tokenizer, whole)
        back = self.tokenizer.decode(
            ids, skip_special_tokens=False, clean_up_tokenization_spaces=False
        )
        ended = self._ended(ids, stopped)
        counted = usage.get("completion_tokens")
        same_count = counted is None or counted in (len(ids), len(ended))
        return Answer(ended, exact=back == text and same_count)

    def _check_prompt(self, reply: Any, sequence: Sequence) -> None:
        read = (reply.get("usage") or {}).get("prompt_tokens")
        if read is not None and read != len(sequence.prompt):
            raise ValueError(f"it read {read} prompt tokens, {len(sequence.prompt)} were sent")


async def written(client: Client, reader: Reader, sequence: Sequence) -> Answer:
    """The server's answer to a sequence's prompt."""
    return await client.post(
        "completions", reader.request(sequence), lambda reply: reader.answer(reply, sequence)
    )


def _named_ids(choice: dict[str, Any]) -> list[int]:
    """Ids out of log-probabilities: `token_id:17` as a token's name, or an `id` beside it."""
    logprobs = choice["logprobs"]
    if "content" in logprobs:
        return [int(entry["id"]) for entry in logprobs["content"]]
    names: list[str] = logprobs["tokens"]
    if not all(name.startswith("token_id:") for name in names):
        raise ValueError("its log-probabilities do not name token ids")
    return [int(name.removeprefix("token_id:")) for name in names]
