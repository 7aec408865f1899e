"""The lossless proof: with the draft, the output is the target's own.

greedy.py      token for token, against stock transformers (`reference.py`)
tolerance.py   how near two logits must lie for a difference to be rounding
samples.py     the distribution of sampled text, by counting (`twosample.py`)
stage.py       the `prove` stage, which writes certificate.json and certificate.md
again.py       `eagle3 prove RUN --again`: prove once more, and say which fields differ
"""

from eagle3.proof.stage import prove

__all__ = ["prove"]
