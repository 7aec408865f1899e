"""Small tokenizers and chat templates of the shapes in use, for tests of masks and previews."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import PreTrainedTokenizerFast

FOLDER = Path(__file__).parent / "templates"

SPECIAL = (
    "<s>",
    "</s>",
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|begin_of_text|>",
    "<|start_header_id|>",
    "<|end_header_id|>",
    "<|eot_id|>",
    "<bos>",
    "<start_of_turn>",
    "<end_of_turn>",
    "<|system|>",
    "<|user|>",
    "<|assistant|>",
    "<|end|>",
    "<｜begin▁of▁sentence｜>",
    "<｜end▁of▁sentence｜>",
    "<｜User｜>",
    "<｜Assistant｜>",
    "[INST]",
    "[/INST]",
    "[TOOL_CALLS]",
)
PLAIN = ("<think>", "</think>", "<tool_call>", "</tool_call>")
"""Tokens of their own that are not special, as in the tokenizers of models that reason."""

CORPUS = [
    "the answer is that there are two of them\n\n",
    "an answer, and then another answer\n- one\n- two\n\n",
    "user\nassistant\nsystem\nmodel\nwhat is the answer? ### Answer:\n",
] * 8


def template(name: str) -> str:
    return (FOLDER / f"{name}.jinja").read_text()


@cache
def tokenizer(name: str, kind: str = "bytes") -> PreTrainedTokenizerFast:
    """A small tokenizer with a template.

    Args:
        kind: `bytes` (as GPT-2: offsets leave out white space), `exact` (offsets hold it) or
            `pieces` (as SentencePiece: a space in front, merges across words and lines).
    """
    model = Tokenizer(models.BPE(byte_fallback=kind == "pieces", unk_token="<unk>"))
    if kind == "pieces":
        model.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
        model.decoder = decoders.Sequence(
            [decoders.ByteFallback(), decoders.Fuse(), decoders.Replace("▁", " ")]
        )
        alphabet = [chr(c) for c in range(33, 127)] + ["▁", "\n", "é", "→"]
        extra = ["<unk>", *(f"<0x{b:02X}>" for b in range(256))]
    else:
        model.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        model.post_processor = processors.ByteLevel(trim_offsets=kind == "bytes")
        model.decoder = decoders.ByteLevel()
        alphabet, extra = pre_tokenizers.ByteLevel.alphabet(), ["<unk>"]
    trainer = trainers.BpeTrainer(
        vocab_size=len(extra) + len(alphabet) + 60,
        initial_alphabet=alphabet,
        special_tokens=extra,
        show_progress=False,
    )
    model.train_from_iterator(CORPUS, trainer)
    model.add_tokens([AddedToken(token, special=False, normalized=False) for token in PLAIN])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=model,
        unk_token="<unk>",
        additional_special_tokens=list(SPECIAL),
        clean_up_tokenization_spaces=False,
    )
    fast.chat_template = template(name)
    return fast
