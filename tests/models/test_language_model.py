from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from pardec.models.errors import CacheError, CapacityError, ModelError
from pardec.models.plan import Plan, Visible
from tests.models.toys import ask, ids, model


def test_a_shifted_family_reads_the_row_before():
    positions = torch.tensor([[0, 1, 7]])
    assert model("causal").rows(positions).tolist() == [[0, 0, 6]]
    assert model("bidirectional").rows(positions).tolist() == [[0, 1, 7]]


def test_decoding_config_tells_masked_models_from_ar_ones():
    assert model("bidirectional").decoding_config.masked
    assert model("block-causal", block=2).decoding_config.masked
    assert not model("causal").decoding_config.masked


def test_the_pattern_follows_the_family():
    assert model("bidirectional").visible().kind == "bidirectional"
    assert model("causal").visible().kind == "causal"
    assert model("block-causal", block=4).visible().block == 4


def wrong(name):
    plan = Plan.full(ids(2, 4), Visible.causal())
    two = torch.zeros(2, dtype=torch.int64)
    return {
        "positions": (replace(plan, positions=plan.positions[:, :3]), "must agree on"),
        "lengths": (replace(plan, lengths=plan.lengths[:1]), r"lengths must be \[2\]"),
        "want": (replace(plan, want=plan.want[0]), r"want \[2, K\]"),
        "soft": (replace(plan, soft=torch.zeros(2, 4, 3)), r"soft must be \[2, 4, 32\], got \[2, 4, 3\]"),
        "span": (replace(plan, span=(0, 3)), "covers 3 positions and the plan has 4"),
        "token": (replace(plan, tokens=plan.tokens + 60), r"token ids must lie in 0\.\.49"),
        "tree": (replace(plan, visible=Visible.tree(torch.zeros(3), two)), r"parents must be \[4\]"),
        "mask": (replace(plan, visible=Visible.mask(torch.ones(2, 3, 4, dtype=torch.bool))), r"expected \[2, 4, C\]"),
        "ids": (replace(plan, visible=Visible.segments(ids=torch.zeros(3, 4))), r"ids must be \[2, C\]"),
        "kind": (replace(plan, visible=Visible("diagonal")), "unknown visibility 'diagonal'"),  # type: ignore[arg-type]
        "hidden": (replace(plan, hidden=(3,)), r"has 0\.\.2"),
        "skip": (replace(plan, skip=frozenset({(0, "norm")})), "skip must name"),
        "layers": (replace(plan, layers=slice(2, 1)), "contiguous part"),
    }[name]


@pytest.mark.parametrize(
    "name",
    [
        "positions",
        "lengths",
        "want",
        "soft",
        "span",
        "token",
        "tree",
        "mask",
        "ids",
        "kind",
        "hidden",
        "skip",
        "layers",
    ],
)
def test_a_wrong_plan_is_refused_before_the_forward(name):
    plan, message = wrong(name)
    toy = model()
    cache = toy.new_cache(2, 4)
    with pytest.raises(ModelError, match=message):
        toy.forward(plan, cache)
    assert not any(tensor.any() for tensor in cache.k)


def test_a_plan_that_does_not_fit_the_cache_is_refused():
    toy = model()
    with pytest.raises(CapacityError, match="needs 5 slots and the cache has 4"):
        toy.forward(Plan.full(ids(2, 5), toy.visible()), toy.new_cache(2, 4))
    with pytest.raises(CacheError, match="2 rows and the cache 3"):
        toy.forward(Plan.full(ids(2, 4), toy.visible()), toy.new_cache(3, 4))
    with pytest.raises(CacheError, match="has 2 layers and toy has 3"):
        toy.forward(Plan.full(ids(2, 4), toy.visible()), model(layers=2).new_cache(2, 4))
    rows = ask(ids(1, 1), torch.tensor([[0]]), toy.visible(), torch.tensor([1]), rows=torch.tensor([0]))
    with pytest.raises(CacheError, match="this forward has no cache"):
        toy.forward(rows)
    with pytest.raises(CapacityError, match="only 4 positions are visible, and the plan has uniform=6"):
        toy.forward(replace(Plan.full(ids(1, 4), toy.visible()), uniform=6))


def test_past_its_limit_a_model_is_not_run():
    toy = model()
    toy.limit = 6
    assert toy.new_cache(1, 6).capacity == 6
    with pytest.raises(CapacityError, match="up to 6 positions, and 7"):
        toy.new_cache(1, 7)
    with pytest.raises(CapacityError, match="up to 6 positions, got 7"):
        toy.forward(Plan.full(ids(1, 7), toy.visible()))


def test_no_forward_tracks_gradients():
    toy = model()
    toy.decoder.requires_grad_(True)
    assert not toy.forward(Plan.full(ids(1, 3), toy.visible())).states.requires_grad


def test_describe_is_one_line():
    toy = model()
    assert toy.describe() == "toy: toy"
    toy.choice = "on cpu (no GPU found), float32 (default on a CPU)"
    assert toy.describe() == "toy: toy, on cpu (no GPU found), float32 (default on a CPU)"
