"""`d2cache`: the computed positions by hand, and against a naive version with eager attention."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pardec.models.errors import SpecError
from pardec.samplers.masked.cache.changes import rows_predicting
from pardec.samplers.masked.cache.d2cache import DualAdaptiveCache, State, attention_rollout
from pardec.samplers.masked.canvas import Canvas
from pardec.samplers.masked.contracts import AttentionMaps
from pardec.samplers.ops.position_sets import between, nucleus
from tests.reference import naive_dependence as naive
from tests.samplers.dependence_parity import MODELS, model_of
from tests.samplers.heldout_answers import answered
from tests.samplers.masked import test_density
from tests.samplers.spec_checks import refused_specs
from tests.samplers.toys import MASK, fill, prompts, request, run, same, toy


def the_parts_by_hand() -> None:
    row = np.array([[False, True, False, False, False, True, False, True, False, False]])
    assert between(row, 4).nonzero()[1].tolist() == [1, 2, 3, 4, 5, 6, 7]
    assert between(row, 3).nonzero()[1].tolist() == [1, 5, 6, 7]
    assert between(row, 0).tolist() == row.tolist()
    assert rows_predicting(row, 1).nonzero()[1].tolist() == [0, 4, 6]
    assert rows_predicting(np.array([[True, True, False]]), 1).nonzero()[1].tolist() == [0]
    values = np.array([[0.1, 0.5, 0.0, 0.4], [0.3, 0.3, 0.4, 0.0], [0, 0, 0, 0]], dtype=np.float32)
    assert nucleus(values, 0.2).tolist() == [[False, True, False, False], [False, False, True, False], [False] * 4]
    assert nucleus(values, 0.9).sum(1).tolist() == [2, 2, 0]
    assert nucleus(values, 1.0).sum(1).tolist() == [3, 3, 0]
    many = np.random.default_rng(0).random((50, 40), dtype=np.float32)
    assert nucleus(many, 1.0).all(), "the whole share leaves none out, however its sums are rounded"
    canvas = Canvas((torch.full((6,), MASK),), (0,), mask_id=MASK, pad_id=4, block_length=4)
    masks = DualAdaptiveCache(k=2)._masks(canvas, State(canvas))
    assert masks[0].nonzero()[0].tolist() == [0, 1], "of equal masks the first"


def the_masks_by_hand() -> None:
    """Blocks of 4 after a prompt of 1: six masks are the block's and two of the next one, however likely the third."""
    canvas = Canvas((torch.tensor([1, *[MASK] * 12]),), (1,), mask_id=MASK, pad_id=4, block_length=4)
    cache = DualAdaptiveCache(k=6)
    state = cache.start(canvas)
    state.probability[0] = [1, *[0.1] * 4, 0.2, 0.4, 0.1, 0.3, *[0.9] * 4]
    assert cache._masks(canvas, state)[0].nonzero()[0].tolist() == [1, 2, 3, 4, 6, 8]


def rollout_by_hand() -> None:
    """Three positions, first all queried, then only the first; in both layers 0 attends half to 1."""
    attention = torch.tensor([[[0.5, 0.5, 0, 0], [0, 1, 0, 0], [0, 0, 1.0, 0]]])
    positions = torch.tensor([[0, 1, 2]])
    every = AttentionMaps(positions, {0: attention, 1: attention}, 2)
    # A layer keeps 3/4 at 0 and sends 1/4 on to 1: 0 keeps 9/16 of itself, and 1 gets the rest.
    assert attention_rollout(every)[0, :3].tolist() == pytest.approx([9 / 16, 1 + 7 / 16, 1])
    first = AttentionMaps(torch.tensor([[0, 3, 3]]), {0: attention, 1: attention}, 2)
    assert attention_rollout(first)[0, :3].tolist() == pytest.approx([9 / 16, 1 + 7 / 16, 1])


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize(("k", "rollout", "fill_"), [(32, 0.1, 4), (6, 0.3, 2), (3, 0.05, 0)])
def test_it_computes_what_the_naive_version_does(name: str, k: int, rollout: float, fill_: int) -> None:
    model = model_of(name)
    mask = model.decoding_config.mask_id
    assert mask is not None
    given, new = prompts((9, 3, 14), vocab=min(100, model.vocab_size)), (18, 12, 5)
    rows = [row + [mask] * count for row, count in zip(given, new, strict=True)]
    spec = f"sequential@d2cache:k={k},rollout={rollout},fill={fill_},sigma=2"
    got = run(model, spec, request(rows, [len(row) for row in given], block_length=8))
    rule = naive.DualAdaptive(k, rollout, 2.0, fill_)
    for row, canvas in enumerate(rows):
        tokens, when, fed = rule.decode(model, canvas, len(given[row]), 8)
        assert [list(each) for each in got.trace.fed[row]] == fed
        assert got.trace.commit_step[row, : len(canvas)].tolist() == when
        assert got.tokens[row, : len(canvas)].tolist() == tokens
    assert sum(got.tokens_fed) < sum(len(canvas) * nfe for canvas, nfe in zip(rows, got.nfe, strict=True))


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("head", ["sequential", "threshold:tau=0.3", "wino:draft=0.3", "lopa+threshold:tau=0.3"])
def test_a_refresh_at_every_step_is_no_cache(family: str, head: str) -> None:
    model, given = toy(family, sharp=1.2, seed=1), prompts((5, 2, 9))
    one, other = (fill(model, f"{head}@{cache}", given, (10, 7, 4)) for cache in ("none", "d2cache:refresh=1"))
    assert all(same(one, row, other, row) for row in range(3))


test_bad_parameters = refused_specs(
    [
        ("sequential@d2cache:k=0", "k must be at least 1, got 0"),
        ("sequential@d2cache:rollout=1.5", r"rollout must lie in \[0, 1\], got 1.5"),
    ]
)


def test_families_whose_blocks_do_not_see_later_ones_are_refused() -> None:
    with pytest.raises(SpecError, match="computes masks in later blocks, which no block of this model sees"):
        fill(toy("sdar"), "sequential@d2cache", prompts((4,)), 4)


@pytest.mark.seeds("arXiv:2509.23094")
def test_fewer_positions_than_a_block_give_as_many_right_answers() -> None:
    the_parts_by_hand()
    the_masks_by_hand()
    rollout_by_hand()
    test_density.test_the_order_by_hand()
    test_density.test_a_drawn_token_counts_with_its_own_probability_before_the_temperature()
    for model, k, rollout, fill_ in ((MODELS[1], 6, 0.3, 2), (MODELS[2], 6, 0.3, 2), (MODELS[2], 3, 0.05, 0)):
        test_it_computes_what_the_naive_version_does(model, k, rollout, fill_)
    right, fed = {}, {}
    for cache in ("none", "dual", "d2cache"):
        right[cache], result = answered("tiny-dream", "replace", f"threshold@{cache}", 40)
        fed[cache] = sum(result.tokens_fed)
    assert fed["d2cache"] < 0.8 * fed["dual"] < 0.8 * fed["none"]
    assert right["none"] >= right["d2cache"] >= right["dual"]
