"""What the small model learns and how it is judged, against plain sums and real decoding."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from eagle3.data.features import Sample
from eagle3.drafters import small
from eagle3.drafters.small import SmallModel
from eagle3.drafters.sps import Speculative
from eagle3.errors import BadInput
from eagle3.target import Target, load_tokenizer
from eagle3.train.batch import pack
from tests.eagle3.drafters.learned import permuted, read, trained
from tests.eagle3.drafters.loop import decode, plain
from tests.golden import random_target
from tests.tiny import build_random_target

VOCAB = 48
DEPTH = 3


def answered(target: Target, prompt: list[int], count: int) -> Sample:
    """A prompt with the target's own greedy answer."""

    def say(text: list[int]) -> int:
        hidden, _ = target.forward(torch.tensor([text]), target.new_cache(len(text)))
        return int(target.logits(hidden[0, -1]).argmax())

    ids = [*prompt, *plain(say, prompt, count)]
    return read(target, ids, [(len(prompt), len(ids))], str(prompt))


@pytest.fixture(scope="module")
def target() -> Target:
    return random_target(VOCAB, seed=0)


@pytest.fixture
def model(target: Target) -> SmallModel:
    """Random layers that say something: the norm is turned up."""
    torch.manual_seed(1)
    found = SmallModel(target, layers=2, depth=DEPTH)
    found.module.model.norm.weight.data.fill_(3.0)
    return found


def test_it_starts_with_the_targets_embedding_and_head(target: Target) -> None:
    module = SmallModel(target, layers=3).module
    assert len(module.model.layers) == 3
    assert torch.equal(module.model.embed_tokens.weight, target.embed.weight)
    assert torch.equal(module.lm_head.weight, target.head_weight())
    trained = {name for name, p in module.named_parameters() if p.requires_grad}
    assert "lm_head.weight" in trained
    assert "model.embed_tokens.weight" not in trained
    assert not target.embed.weight.requires_grad


def test_the_loss_is_the_mean_over_places_where_drafting_can_stand(
    target: Target, model: SmallModel
) -> None:
    samples = [
        read(target, [1, 2, 3, 4, 5, 6, 7, 8], [(2, 5), (6, 8)], "a"),
        read(target, [9, 8, 7, 6, 5, 4], [(1, 6)], "b"),
    ]
    loss, metrics = model.loss(pack(samples, model.steps))
    each, hits = [], []
    for sample in samples:
        logits_LV = model.module(input_ids=sample.input_ids[None]).logits[0]
        target_LV = target.logits(sample.hidden)
        for start, end in sample.spans:
            for place in range(start, end - 1):  # reads an answer's token, guesses the next one
                label_V = target_LV[place].softmax(-1)
                each.append(-(label_V * logits_LV[place].log_softmax(-1)).sum())
                hits.append(bool(logits_LV[place].argmax() == label_V.argmax()))
    assert len(each) == 2 + 1 + 4
    torch.testing.assert_close(loss, torch.stack(each).mean())
    assert metrics["train/loss"] == pytest.approx(float(loss.detach()))
    assert metrics["train/acc_step_0"] == pytest.approx(sum(hits) / len(hits))
    torch.autograd.backward(loss)
    assert float(model.module.lm_head.weight.grad.abs().sum()) > 0
    assert float(model.module.model.layers[0].mlp.up_proj.weight.grad.abs().sum()) > 0


def test_the_acceptance_along_answers_is_that_of_decoding(
    target: Target, model: SmallModel
) -> None:
    """Half of the target is in the model, so that some of its guesses are right."""
    with torch.no_grad():
        for layer, its in zip(model.module.model.layers, target.model.model.layers, strict=False):
            layer.load_state_dict(its.state_dict(), strict=False)
    samples = [answered(target, prompt, 40) for prompt in ([1, 2], [7], [30, 4, 4])]
    model.module.eval()
    tau = model.acceptance(samples)
    drafter = Speculative.of(model.module, VOCAB, DEPTH)
    emitted = rounds = 0
    for sample in samples:
        text: list[int] = sample.input_ids.tolist()
        prompt = text[: sample.spans[0][0]]

        def say(before: list[int], text: list[int] = text) -> int:
            return text[len(before)]

        (out,) = decode(drafter, say, [prompt], 40)
        emitted, rounds = emitted + len(out.tokens) - 1, rounds + out.rounds
    assert tau == pytest.approx(emitted / rounds)
    assert 1.0 < tau < DEPTH + 1


def test_training_teaches_it_what_the_target_says() -> None:
    """The target's own head would be right from the start here, so the model gets a random one."""
    target, samples = permuted()
    torch.manual_seed(0)
    model = SmallModel(target, layers=1, depth=DEPTH)
    model.module.lm_head.weight.data.normal_(std=0.02)
    before = model.acceptance(samples[-8:])
    out = trained(model, 20_000)
    assert before < 1.5
    assert out.tau == model.acceptance(samples[-8:]) > 3


def test_it_is_saved_as_a_plain_directory_and_read_back(tmp_path: Path) -> None:
    folder = build_random_target(tmp_path / "target", layers=7)
    target, tokenizer = Target.load(folder), load_tokenizer(folder)
    model = SmallModel(target, layers=2)
    small.save(model.module, tmp_path / "small", tokenizer)
    theirs = AutoModelForCausalLM.from_pretrained(tmp_path / "small")
    drafter = small.load(tmp_path / "small", target, tokenizer, length=2)
    ids = torch.tensor([[5, 9, 30]])
    hidden, _ = drafter.lm.forward(ids, drafter.lm.new_cache(3))
    torch.testing.assert_close(drafter.lm.logits(hidden), theirs(ids).logits)
    assert (drafter.vocab_size, drafter.length) == (target.vocab_size, 2)


def test_a_model_of_another_tokenizer_is_refused(tmp_path: Path) -> None:
    folder = build_random_target(tmp_path / "target", layers=7)
    other = build_random_target(tmp_path / "other", layers=2, vocab=60)
    with pytest.raises(BadInput, match=r"another tokenizer than the target \(4 entries differ\)"):
        small.load(other, Target.load(folder), load_tokenizer(folder))
