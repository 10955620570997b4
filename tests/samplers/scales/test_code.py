"""Two models for one image: the scales of each, the refiner's inputs, and the extreme splits."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

from pardec.models.errors import ModelError
from pardec.models.scales.contracts import ScaleModel
from pardec.samplers.events import Finished
from pardec.samplers.registry import resolve
from pardec.samplers.rng import Keyed
from pardec.samplers.scales.contracts import ScaleRequest
from pardec.samplers.scales.loop import decode
from tests.samplers.scale_toys import model as toy

LABELS, SEEDS = (3, -1, 0), (4, 5, 6)


def generate(model: ScaleModel, spec: str, **more: Any) -> Finished:
    *_, end = decode(model, resolve(spec, "scales"), ScaleRequest(LABELS, Keyed(SEEDS), **more))
    assert isinstance(end, Finished)
    return end


def small(**more: Any) -> ScaleModel:
    return toy(name="small", seed=9, layers=1, **more)


@pytest.mark.parametrize("cfg", [None, 1.5])
def test_both_ends_are_plain_sampling_bit_for_bit(cfg: float | None) -> None:
    large, refiner = toy(), small()
    alone = generate(refiner, "sequential", cfg=cfg)
    none = generate(large, "code:refiner=x,steps=0", cfg=cfg, refiner=refiner)
    assert (none.tokens == alone.tokens).all()
    assert (none.trace.commit_score == alone.trace.commit_score).all()
    assert (none.nfe, none.draft_forwards) == ((0,) * 3, (4,) * 3)
    assert large.transformer.calls == []  # type: ignore[attr-defined]
    assert none.forward_rows == none.tokens_fed == (0,) * 3
    every = generate(large, "code:refiner=x,steps=4", cfg=cfg, refiner=refiner)
    whole = generate(large, "sequential", cfg=cfg)
    assert (every.tokens == whole.tokens).all()
    assert (every.trace.commit_score == whole.trace.commit_score).all()
    assert (every.nfe, every.draft_forwards) == ((4,) * 3, (0,) * 3)
    assert (whole.tokens != alone.tokens).any()


@pytest.mark.parametrize("cfg", [None, 1.5])
@pytest.mark.parametrize("steps", [1, 2, 3])
def test_one_model_at_both_ends_is_plain_sampling(steps: int, cfg: float | None) -> None:
    whole = generate(toy(), "sequential", cfg=cfg)
    shared = generate(toy(), f"code:refiner=x,steps={steps}", cfg=cfg, refiner=toy(name="again"))
    assert (shared.tokens == whole.tokens).all()
    np.testing.assert_allclose(shared.trace.commit_score, whole.trace.commit_score, rtol=1e-4)


@pytest.mark.seeds("arXiv:2411.17787")
def test_the_first_scales_are_the_large_model_s_and_the_refiner_enters_once() -> None:
    without_steps_four_fifths_of_the_scales_are_the_large_model_s()
    the_refiner_has_the_guidance_of_its_scales()
    both_models_have_the_request_s_top_k_and_size()
    test_both_ends_are_plain_sampling_bit_for_bit(None)
    first = generate(toy(), "code:refiner=x,steps=1", refiner=small())
    assert (first.nfe, first.draft_forwards) == ((1,) * 3, (3,) * 3)
    large, refiner = toy(), small()
    end = generate(large, "code:refiner=x,steps=2", cfg=2.0, refiner=refiner)
    whole = generate(toy(), "sequential", cfg=2.0)
    assert (end.tokens[:, :5] == whole.tokens[:, :5]).all()
    assert (end.tokens != whole.tokens).any()
    calls = refiner.transformer.calls  # type: ignore[attr-defined]
    assert [(call["first"], call["last"], call["rows"]) for call in calls] == [(0, 2, 5), (3, 3, 5)]
    assert len(large.transformer.calls) == 2  # type: ignore[attr-defined]
    assert (end.nfe, end.draft_forwards) == ((2,) * 3, (2,) * 3)
    assert end.trace.fed[0] == (range(1), range(1, 5), range(14), range(14, 30))
    assert end.trace.commit_step[0].tolist() == [0] + [1] * 4 + [2] * 9 + [3] * 16
    assert end.tokens_fed == (10, 5, 10)
    assert set(end.seconds) == {"transformer", "refiner", "draw"}


def both_models_have_the_request_s_top_k_and_size() -> None:
    spec, asked = "code:refiner=x,steps=2", list[object]()
    greedy = generate(toy(), spec, refiner=small(), temperature=0.0)
    assert (generate(toy(), spec, refiner=small(), top_k=1).tokens == greedy.tokens).all()
    assert (generate(toy(), f"{spec},top_ks=0", refiner=small(), top_k=1).tokens != greedy.tokens).any(), "a list's"
    other = toy(1, 2, name="small")

    def sized(self: ScaleModel, size: object) -> ScaleModel:
        asked.append(size)
        return small() if self is other else self

    with patch.object(ScaleModel, "of_size", sized):
        whole = generate(toy(), spec, refiner=other, temperature=0.0, size=(8, 8))
    assert set(asked) == {(8, 8)}
    assert (whole.tokens == greedy.tokens).all()


def the_refiner_has_the_guidance_of_its_scales() -> None:
    whole, half = (
        generate(toy(), f"{spec}cfgs=1/2/0.5/0", cfg=1.5, refiner=toy(name="again"))
        for spec in ("sequential:", "code:refiner=x,steps=2,")
    )
    assert (half.tokens == whole.tokens).all()
    np.testing.assert_allclose(half.trace.commit_score, whole.trace.commit_score, rtol=1e-4)
    stage: Any = resolve("code:refiner=x,cfgs=1x2/0.5/3", "scales").method
    scales: list[Any] = [SimpleNamespace(maps=SimpleNamespace(scale=scale)) for scale in range(5)]
    assert [stage.guidance(each) for each in scales] == [1, 1, 0.5, 3, 3]


def without_steps_four_fifths_of_the_scales_are_the_large_model_s() -> None:
    counted, fixed = (generate(toy(), f"code:refiner=x,steps={steps}", refiner=small()) for steps in (-1, 3))
    assert (counted.tokens == fixed.tokens).all()
    sampler = resolve("code:refiner=x", "scales")
    large, refiner = toy(1, 2, 2, 2, 3), toy(1, 2, 2, 2, 3, name="small", seed=9, layers=1)
    *_, last = decode(large, sampler, ScaleRequest(LABELS, Keyed(SEEDS), refiner=refiner))
    assert isinstance(last, Finished)
    assert (last.nfe[0], last.draft_forwards[0]) == (4, 1)


@pytest.mark.parametrize(
    ("refiner", "message"),
    [
        (toy(1, 2, 3, name="small"), "its sides of the token maps are .1, 2, 3., not .1, 2, 3, 4."),
        (small(vocab=9), "its codes are 9, not 8"),
        (small(channels=4), "its dimensions of a code's vector are 4, not 3"),
        (small(classes=5), "its classes are 5, not 4"),
    ],
)
def test_models_of_other_maps_are_refused(refiner: ScaleModel, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        generate(toy(), "code:refiner=x,steps=2", refiner=refiner)


def test_another_image_tokenizer_of_the_same_size_is_refused() -> None:
    refiner = small()
    refiner.quantizer.codebook += 1  # type: ignore[attr-defined]
    with pytest.raises(ModelError, match="its image tokenizer has other vectors"):
        generate(toy(), "code:refiner=x,steps=2", refiner=refiner)


def test_a_request_without_the_refiner_is_refused() -> None:
    with pytest.raises(ModelError, match="the request has no refiner"):
        generate(toy(), "code:refiner=x")


def test_damaged_weights_of_the_refiner_are_named() -> None:
    refiner = small()
    refiner.transformer.head[:] = torch.inf  # type: ignore[attr-defined]
    with pytest.raises(ModelError, match="toy or small gives logits that are not finite"):
        generate(toy(), "code:refiner=x,steps=2", refiner=refiner)
