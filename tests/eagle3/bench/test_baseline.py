"""Plain decoding by every loop."""

from __future__ import annotations

from pathlib import Path

import pytest

from eagle3.bench.baseline import BareLoop, Baseline, EngineLoop, Loop, StockLoop, counts
from eagle3.decode.engine import Engine
from eagle3.decode.request import Request
from eagle3.decode.sampling import Sampling
from eagle3.drafters.plain import Plain
from tests.golden import golden_target


@pytest.mark.usefixtures("quick_calibration")
def test_all_loops_say_the_same_and_count_alike(tmp_path: Path) -> None:
    golden = golden_target()
    golden.target.model.save_pretrained(tmp_path)
    found: dict[str, Loop] = {
        "engine": EngineLoop(Engine(golden.target, Plain())),
        "bare": BareLoop(golden.target),
        "transformers": StockLoop(tmp_path, golden.target),
    }
    chain = golden.chain(5, 9)
    stops = Request([3, 5], 9, stop_ids=frozenset({chain[4]}))
    at_the_limit = Request([*range(40)] * 12 + [*range(29), 5], 9)  # 510 of 512 tokens
    for name, loop in found.items():
        long = loop.answer(Request([3, 5], 9))
        assert long.tokens == chain, name
        assert long.finish == "length"
        assert counts(long).tokens == counts(long).rounds == 8
        assert len(long.stamps) == 9
        assert long.decode_s > 0
        assert loop.answer(stops).tokens == chain[:5], name
        assert loop.answer(stops).finish == "eos"
        one = counts(loop.answer(Request([3, 5], 1)))
        assert (one.tokens, one.rounds) == (0, 0)
        assert loop.answer(at_the_limit).tokens == chain[:2], name
        warm = loop.answer(Request([3, 5], 9, Sampling(1.0), seed=4)).tokens
        assert warm == loop.answer(Request([3, 5], 9, Sampling(1.0), seed=4)).tokens


@pytest.mark.usefixtures("quick_calibration")
def test_every_loop_is_measured_on_the_same_requests(tmp_path: Path) -> None:
    golden = golden_target()
    golden.target.model.save_pretrained(tmp_path)
    requests = [Request([n, n + 1], 6) for n in range(2)]
    chosen = Baseline.choose(golden.target, tmp_path, requests)
    assert set(chosen.tokens_per_s) == {"engine", "bare", "transformers"}
    assert chosen.tokens_per_s[chosen.name] == max(chosen.tokens_per_s.values()) > 0
    assert f"the baseline is {chosen.name}" in chosen.said()
    known = Baseline.known(golden.target, tmp_path, {**chosen.tokens_per_s, "bare": 1e9})
    assert isinstance(known.loop, BareLoop)
    assert known.name == "bare"
