"""Pruned maps: the tokens that layers compute, how the others are filled, and the limits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import adaptive_avg_pool2d

from pardec.models.scales.contracts import ScaleModel
from pardec.samplers.events import Finished
from pardec.samplers.registry import resolve
from pardec.samplers.rng import Keyed
from pardec.samplers.scales.contracts import ScaleRequest
from pardec.samplers.scales.loop import decode
from pardec.samplers.scales.methods.fastvar import Pruning
from tests.samplers.scale_toys import model as toy


def generate(model: ScaleModel, spec: str, **more: Any) -> Finished:
    *_, end = decode(model, resolve(spec, "scales"), ScaleRequest((3, -1, 0), Keyed((4, 5, 6)), **more))
    assert isinstance(end, Finished)
    return end


@pytest.mark.parametrize("cfg", [None, 2.0])
def test_keeping_all_is_sequential_bit_for_bit(cfg: float | None) -> None:
    whole, kept = (generate(toy(), spec, cfg=cfg) for spec in ("sequential", "fastvar:keep=1,layer=0,scales=3"))
    assert (whole.tokens == kept.tokens).all()
    assert (whole.trace.commit_score == kept.trace.commit_score).all()
    assert kept.tokens_fed == whole.tokens_fed
    assert resolve("fastvar:keep=1", "scales").exact == "distribution"


def test_complete_maps_are_those_of_sequential() -> None:
    whole, pruned = (generate(toy(), spec) for spec in ("sequential", "fastvar:layer=1"))
    assert (whole.tokens[:, :5] == pruned.tokens[:, :5]).all()
    np.testing.assert_array_equal(whole.trace.commit_score[:, :5], pruned.trace.commit_score[:, :5])
    assert not np.array_equal(whole.trace.commit_score[:, 5:], pruned.trace.commit_score[:, 5:])


def test_tokens_are_counted_by_the_layers_that_compute_them() -> None:
    """5 of 9 and 4 of 16 tokens stay in two of three layers: 9 - 4 * 2/3 = 6.3, and 16 - 12 * 2/3 = 8."""
    assert generate(toy(), "fastvar:layer=1").tokens_fed == (1 + 4 + 6 + 8,) * 3


@pytest.mark.parametrize(("keep", "kept"), [(0.8, 20), (0.6, 15), (0.72, 18), (0.7, 18)])
def test_the_share_that_is_kept_is_not_rounded_up_by_floating_point(keep: float, kept: int) -> None:
    """25 * (1 - 0.8) is 4.999999999999999."""
    assert generate(toy(1, 2, 5), f"fastvar:keep={keep},scales=1").tokens_fed == (1 + 4 + kept,) * 3


def naive(fine: Tensor, added: Tensor, count: int) -> tuple[list[int], Tensor]:
    """The computed tokens of one map, and how all others are filled: `added` is the part of a map of 2 by 2.

    Tokens are sorted by their distance to the mean, and adaptive pooling stands in for resizing.
    """
    mean = fine.mean(0)
    far = sorted(range(9), key=lambda at: -float(((fine[at] - mean) ** 2).sum()))[:count]
    filled = adaptive_avg_pool2d(added.T.reshape(1, 5, 2, 2), (3, 3))[0].reshape(5, 9).T + fine
    return sorted(far), filled


def test_tokens_far_from_the_mean_stay_and_others_take_the_coarser_map_s_part() -> None:
    source = torch.Generator().manual_seed(0)
    coarse, before, fine = (torch.randn(2, count, 5, generator=source) for count in (4, 4, 9))
    pruning = Pruning(first=1)
    assert pruning.select(0, coarse) is None
    pruning.observe(0, before)
    assert pruning.select(1, coarse) is None
    pruning.observe(1, coarse)  # of an earlier complete map: the last one counts
    pruning.observe(1, before)
    assert list(pruning.added) == [1]
    pruning.keep_all, pruning.count = False, 3
    assert pruning.select(0, fine) is None
    kept = pruning.select(1, fine)
    assert kept is not None
    computed = torch.randn(2, 3, 5, generator=source)
    restored = pruning.restore(1, computed, kept)
    pruning.observe(1, restored)  # a pruned map fills nothing
    for row in range(2):
        far, filled = naive(fine[row], (before - coarse)[row], 3)
        assert kept[row].tolist() == far
        for at in range(9):
            expected = computed[row, far.index(at)] if at in far else filled[at]
            torch.testing.assert_close(restored[row, at], expected)
    torch.testing.assert_close(pruning.added[1], before - coarse)
