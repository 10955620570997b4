"""`sequential` of token maps, VAR's own sampling: guidance, filters, its distribution, and the events of each scale."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pardec.models.errors import ModelError, SpecError
from pardec.models.scales.contracts import ScaleModel
from pardec.samplers.events import Finished, RowFinished, Started, Step
from pardec.samplers.registry import resolve
from pardec.samplers.rng import Keyed
from pardec.samplers.scales.contracts import ScaleRequest
from pardec.samplers.scales.loop import decode
from tests.samplers.scale_toys import generate
from tests.samplers.scale_toys import model as toy
from tests.samplers.spec_checks import refused_specs


def plain(
    model: ScaleModel, label: int, uniforms: Tensor, *, cfg: float = 0, top_k: int = 0, top_p: float = 0
) -> Tensor:
    """[L]: codes of one image, written from the paper: both halves of guidance at every scale, a loop over codes."""
    scales, quantizer, transformer = model.scales, model.quantizer, model.transformer
    null, total, at, codes = transformer.classes, quantizer.start(1), 0, []
    caches = [transformer.new_cache(1) for _ in range(2)]
    for scale in range(len(scales)):
        read = quantizer.map_of(total, scale) if scale else torch.zeros(1, 0, quantizer.channels)
        cond, uncond = (
            transformer(torch.tensor([each]), read, cache, first=scale, last=scale)[0]
            for each, cache in zip((null if label < 0 else label, null), caches, strict=True)
        )
        t = cfg * scale / (len(scales) - 1)
        logits = (1 + t) * cond - t * uncond
        chosen = []
        for row in logits.double():
            if top_k:
                row[row < row.sort().values[-top_k]] = -torch.inf
            if top_p:
                order = row.argsort()
                below = row.softmax(0)[order].cumsum(0) <= 1 - top_p
                below[-1] = False
                row[order[below]] = -torch.inf
            cumulative = row.softmax(0).cumsum(0)
            chosen.append(int((cumulative / cumulative[-1] <= uniforms[at]).sum()))
            at += 1
        codes += chosen
        total = quantizer.add(total, torch.tensor([chosen]), scale)
    assert len(codes) == scales.tokens
    return torch.tensor(codes)


def uniforms(seed: int, count: int) -> Tensor:
    return Keyed((seed,)).uniform(np.array([0]), np.array([0]), torch.arange(count)[None], "token")[0]


@pytest.mark.parametrize("label", [-1, 2])
@pytest.mark.parametrize("shaping", [{}, {"cfg": 1.5}, {"cfg": 4.0, "top_k": 5, "top_p": 0.8}, {"top_p": 0.5}])
def test_codes_are_those_of_a_plain_loop(label: int, shaping: dict[str, Any]) -> None:
    model = toy()
    expected = plain(model, label, uniforms(7, model.scales.tokens), **shaping)
    assert generate(model, labels=(label,), seeds=(7,), **shaping).tokens[0].tolist() == expected.tolist()


def test_the_unconditioned_half_is_there_where_it_counts() -> None:
    model = toy()
    generate(model, labels=(1, -1), seeds=(1, 2))
    assert [call["rows"] for call in model.transformer.calls] == [2, 2, 2, 2]  # type: ignore[attr-defined]
    model = toy()
    end = generate(model, labels=(1, -1, 2), seeds=(1, 2, 3), cfg=2.0)
    calls = model.transformer.calls  # type: ignore[attr-defined]
    assert [(call["first"], call["last"], call["rows"]) for call in calls] == [(s, s, 5) for s in range(4)]
    assert calls[0]["logits"].tolist() == [True, True, True, False, False]
    assert all(call["logits"] is None for call in calls[1:])
    assert end.forward_rows == (8, 4, 8)
    assert end.tokens_fed == (60, 30, 60)
    assert end.nfe == (4, 4, 4)


def test_events_show_each_scale() -> None:
    model = toy(1, 2, 3)
    first, *steps, row, last = decode(model, resolve("sequential", "scales"), ScaleRequest((1,), Keyed((8,))))
    assert isinstance(first, Started)
    assert first.open.all()
    assert isinstance(row, RowFinished)
    assert isinstance(last, Finished)
    for number, step in enumerate(steps):
        assert isinstance(step, Step)
        start, stop = model.scales.starts[number : number + 2]
        assert np.flatnonzero(step.committed[0]).tolist() == list(range(start, stop))
        assert step.tokens[0].tolist() == [*last.tokens[0, :stop], *[-1] * (14 - stop)]
        assert (step.open == (step.tokens < 0)).all()
        assert step.settled.tolist() == [stop]
    assert row.tokens.tolist() == last.tokens[0].tolist()
    assert row.commit_step is not None
    assert row.commit_step.tolist() == [0] + [1] * 4 + [2] * 9
    assert last.trace.fed == ((range(1), range(1, 5), range(5, 14)),)
    assert not any(
        isinstance(event, Step)
        for event in decode(model, resolve("sequential", "scales"), ScaleRequest((1,), Keyed((8,))), steps=False)
    )


def test_sampled_images_follow_the_enumerated_distribution() -> None:
    """Two scales of 1 and 4 codes, 2 codes in the codebook: 32 images; 8000 samples stay within 4 deviations."""
    model = toy(1, 2, vocab=2)
    expected = {}
    for codes in itertools.product(range(2), repeat=5):
        total = model.quantizer.add(model.quantizer.start(1), torch.tensor([[codes[0]]]), 0)
        caches = [model.transformer.new_cache(1) for _ in range(2)]
        probs = []
        for scale, read in ((0, torch.zeros(1, 0, 3)), (1, model.quantizer.map_of(total, 1))):
            cond, uncond = (
                model.transformer(torch.tensor([each]), read, cache, first=scale, last=scale)[0]
                for each, cache in zip((1, 4), caches, strict=True)
            )
            t = 1.5 * scale
            probs += ((1 + t) * cond - t * uncond).double().softmax(-1).tolist()
        expected[codes] = np.prod([probs[at][code] for at, code in enumerate(codes)])
    count = 8000
    end = generate(model, labels=(1,) * count, seeds=tuple(range(count)), cfg=1.5)
    images, counts = np.unique(end.tokens, axis=0, return_counts=True)
    observed = {tuple(image): number for image, number in zip(images.tolist(), counts.tolist(), strict=True)}
    assert sum(expected.values()) == pytest.approx(1)
    for codes, probability in expected.items():
        deviation = (count * probability * (1 - probability)) ** 0.5
        assert abs(observed.get(codes, 0) - count * probability) < 4 * deviation + 1
    assert float(end.trace.commit_score[0].prod()) == pytest.approx(expected[tuple(end.tokens[0].tolist())], rel=1e-5)


def test_temperature_0_takes_the_likeliest_and_needs_no_seed() -> None:
    model = toy()
    first, second = (generate(model, seeds=(seed,), temperature=0.0).tokens for seed in (1, 2))
    assert (first == second).all()
    assert (generate(model, seeds=(3,), top_k=1).tokens == first).all()
    assert (generate(model, "sequential:temperatures=0.5", temperature=0.0).tokens == first).all()


def test_lists_give_each_scale_its_own_temperature_and_top_k() -> None:
    model = toy()
    greedy = generate(model, seeds=(3,), temperature=0.0).tokens[0]
    some = generate(model, "sequential:top_ks=1x2/0", seeds=(3,))
    mixed, certain = some.tokens[0], some.trace.commit_score[0] == 1  # a single code is left
    assert mixed[:5].tolist() == greedy[:5].tolist()
    assert mixed[5:].tolist() != greedy[5:].tolist()
    assert certain.tolist() == [True] * 5 + [False] * (len(mixed) - 5)
    assert (generate(model, "sequential:temperatures=1.3").tokens == generate(model, temperature=1.3).tokens).all()
    assert (generate(model, "sequential:top_ks=3").tokens == generate(model, top_k=3).tokens).all()
    cold = generate(model, "sequential:temperatures=1e-3x3/1", seeds=(3,)).tokens[0]
    assert cold[:14].tolist() == greedy[:14].tolist()


def test_filters_come_before_the_temperature_unless_the_order_says_otherwise() -> None:
    """At temperature 3 the distribution is flatter, so top-p keeps more codes if the temperature is applied first."""
    model, kept = toy(1, vocab=64), {}
    for order in ("filters", "temperature"):
        end = generate(model, f"sequential:order={order}", (1,) * 2000, tuple(range(2000)), temperature=3.0, top_p=0.5)
        kept[order] = set(end.tokens[:, 0].tolist())
    assert kept["filters"] < kept["temperature"]
    sequential, divided = (generate(model, f"sequential:order={order}").tokens for order in kept)
    assert (sequential == divided).all()


def test_weights_that_are_not_finite_are_an_error() -> None:
    model = toy()
    model.transformer.head[:, 3] = torch.nan  # type: ignore[attr-defined]
    with pytest.raises(ModelError, match="toy gives logits that are not finite"):
        generate(model)


test_specs_that_cannot_work_are_refused = refused_specs(
    [
        ("sequential:temperatures=1.1x7/0", "temperatures has the entry '0'"),
        ("sequential:temperatures=hot", "temperatures has the entry 'hot'"),
        ("sequential:temperatures=1x0", "temperatures has the entry '1x0'"),
        ("sequential:temperatures=nan", "temperatures has the entry 'nan'"),
        ("sequential:top_ks=-1", "top_ks has the entry '-1'"),
        ("sequential:top_ks=1.5", "top_ks has the entry '1.5'"),
        ("sequential:top_ks=3x99999", "top_ks has the entry '3x99999'"),
        ("sequential:order=none", "order must be one of"),
    ],
    family="scales",
)


def test_more_than_the_codes_of_a_model_is_refused() -> None:
    with pytest.raises(SpecError, match="top_ks has 9, and toy has 8 codes"):
        generate(toy(), "sequential:top_ks=9")
