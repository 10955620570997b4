"""The cache `spa` compared with a naive version, its shares with the published ones, and exact special cases."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import pardec
from pardec.models.caches.reuse_cache import LayerReuse, ReuseCache, principal
from pardec.models.errors import ModelError, SpecError
from pardec.models.model import LanguageModel
from pardec.models.plan import Plan
from pardec.samplers import registry
from pardec.samplers.masked import compatibility
from pardec.samplers.masked.compatibility import fit
from tests.reference import naive_spa as naive
from tests.samplers.toys import EOS, MASK, fill, prompts, request, run, toy

GOLDEN = Path(__file__).parents[2] / "golden"
LENGTHS, NEW = (3, 6, 1, 5), (17, 6, 23, 2)


@lru_cache
def golden(name: str) -> LanguageModel:
    return pardec.load(GOLDEN / name / "checkpoint", device="cpu", dtype="float32").language_model


def layer_shares(spec: str, layers: int) -> tuple[float, ...]:
    reuse = registry.resolve(f"threshold@{spec}").cache.layer_reuse(layers)
    assert reuse is not None
    return reuse.shares


def test_the_published_shares_of_both_models() -> None:
    """LLaDA's 32 layers: 0.03 at the first, but at least 1/32, 0.25 at layer 24 and 0.13 after the last."""
    llada = layer_shares("spa", 32)
    assert llada == pytest.approx(naive.shares(32, 0.25, 0.75, 0.03 / 0.25, 0.13 / 0.25))
    assert llada[0] == 1 / 32
    assert llada[24] == 0.25
    assert max(llada) == 0.25
    dream = fit(registry.resolve("threshold@spa:ratio=0.3"), toy("dream"))
    assert dream.cache.layer_reuse(28).shares == pytest.approx(naive.shares(28, 0.3, 0.5, 0.05 / 0.3, 0.25 / 0.3))
    assert "@spa:ratio=0.3,refresh=50,response=7,rank=128,peak=0.5," in str(dream.spec)


class Watched:
    """Records the tokens that each layer computes."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.steps: list[list[list[int]]] = []
        pick, through = ReuseCache._picked_queries, ReuseCache.through

        def noted(cache: ReuseCache, cosine: Tensor, plan: Plan, index: int) -> Tensor | None:
            picked = pick(cache, cosine, plan, index)
            order = plan.positions[0]
            self.steps[-1][index] = (order if picked is None else order[picked[0]]).tolist()
            return picked

        def passed(cache: ReuseCache, layer: Any, h: Tensor, step: Any, index: int) -> Tensor:
            if index == 1:
                self.steps.append([step.plan.positions[0].tolist()] * len(cache.k))
            return through(cache, layer, h, step, index)

        patch.setattr(ReuseCache, "_picked_queries", noted)
        patch.setattr(ReuseCache, "through", passed)


@pytest.mark.parametrize("name", ["llada", "dream"])
@pytest.mark.parametrize(("refresh", "response", "ratio", "rank"), [(50, 7, 0.25, 128), (9, 4, 0.5, 6), (0, 0, 0.4, 3)])
@pytest.mark.seeds("arXiv:2602.02544")
def test_it_is_its_naive_version_layer_by_layer(
    name: str, refresh: int, response: int, ratio: float, rank: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A naive version in float64 commits the same tokens and computes the same tokens in every layer."""
    test_rows_of_a_batch_are_their_naive_versions("llada", 0.05)
    with monkeypatch.context() as patch:
        test_shares_are_not_rounded_down(patch)
    model, watched = golden(name), Watched(monkeypatch)
    mask, layers = model.decoding_config.mask_id, model.layers
    prompt = np.random.RandomState(5).randint(3, model.vocab_size - 10, 7).tolist()
    row = [*prompt, *[mask] * 18]
    peak, first, last = ((0.75, 0.12, 0.52), (0.5, 1 / 6, 5 / 6))[model.decoding_config.shift]
    spec = f"threshold:tau=0.1@spa:ratio={ratio},refresh={refresh},response={response},rank={rank}"
    got = run(model, spec, request([row], [7], block_length=6))
    tokens, when, computed = naive.decode(
        model,
        row,
        7,
        size=6,
        tau=0.1,
        every=(refresh, response),
        part=naive.shares(layers, ratio, peak, first, last),
        rank=rank,
    )
    assert got.tokens[0].tolist() == tokens
    assert got.trace.commit_step[0].tolist() == when
    assert [step[1:] for step in watched.steps] == [step[1:] for step in computed]
    assert [list(positions) for positions in got.trace.fed[0]] == [step[0] for step in computed]
    test_the_first_layer_computes_the_answer_and_others_their_share(monkeypatch)
    test_the_published_shares_of_both_models()
    cosines_that_differ_in_their_last_bits_tie()


def cosines_that_differ_in_their_last_bits_tie() -> None:
    """Three of four are .5 within 2e-6, and the first two of them are computed; all three of the row that has to."""
    model = toy()
    cache = model.new_cache(2, 10, reuse=LayerReuse((1.0, 0.5), 4))
    assert isinstance(cache, ReuseCache)
    plan = Plan.full(torch.zeros(2, 4, dtype=torch.int64), model.visible(), torch.tensor([4, 3]))
    plan = replace(plan, similar=torch.tensor([True, False]))
    picked = cache._picked_queries(torch.tensor([[0.500002, 0.5, 0.9, 0.500001]] * 2), plan, 1)
    assert picked is not None
    assert picked.tolist() == [[0, 1, -1], [0, 1, 2]]


@pytest.mark.parametrize("ratio", [0.05, 0.4])
@pytest.mark.parametrize("family", ["llada", "dream"])
def test_rows_of_a_batch_are_their_naive_versions(family: str, ratio: float) -> None:
    """Layer 1 of 2, the peak, computes at least one token of a row, whose number depends on that row alone."""
    for seed in range(3):
        model, given = toy(family, sharp=1.2, seed=seed), prompts(LENGTHS, seed=seed)
        rule = f"ratio={ratio},refresh=0,response=9,peak=0.5"
        got = fill(model, f"threshold:tau=0.6@spa:{rule}", given, NEW, block_length=8)
        for row, (prompt, new) in enumerate(zip(given, NEW, strict=True)):
            canvas = [*prompt, *[MASK] * new]
            tokens, when, _ = naive.decode(
                model, canvas, len(prompt), size=8, tau=0.6, every=(0, 9), part=[1, ratio], rank=128
            )
            assert got.tokens[row, : len(canvas)].tolist() == tokens
            assert got.trace.commit_step[row, : len(canvas)].tolist() == when


def test_the_first_layer_computes_the_answer_and_others_their_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """12 tokens: layer 1 of 2, after the peak of 0.4, computes floor(0.5 * 12) = 6 of them."""
    watched = Watched(monkeypatch)
    spec = "sequential@spa:ratio=0.5,refresh=8,response=3,peak=0.4,first=0.5,last=1"
    got = fill(toy(), spec, prompts((5,)), 12)
    assert [len(positions) for positions in got.trace.fed[0]] == [17, *[12] * 7, 17, *[12] * 3]
    expected = [17 if step % 8 == 0 else 12 if step % 3 == 0 else 6 for step in range(12)]
    assert [len(step[1]) for step in watched.steps] == expected


def test_shares_are_not_rounded_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """The layer at the peak computes 29 of 100 tokens at a ratio of 0.29."""
    watched = Watched(monkeypatch)
    fill(toy(), "fixed:steps=2@spa:ratio=0.29,peak=0.5", prompts((2,)), 100, block_length=100)
    assert [len(step[1]) for step in watched.steps] == [102, 29]


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize(
    "rest", ["sequential", "threshold:tau=0.3", "remdm+threshold:tau=0.3", "prophet+threshold:tau=0.3"]
)
@pytest.mark.parametrize("options", [{}, {"cfg": 1.5, "temperature": 0.7}], ids=["greedy", "guided"])
@pytest.mark.covers(2)
def test_refreshing_always_changes_nothing(family: str, rest: str, options: dict[str, float]) -> None:
    plain, cached = (
        fill(toy(family, sharp=1.2), f"{rest}@{cache}", prompts(LENGTHS), NEW, stop_ids=(EOS,), **options)
        for cache in ("none", "spa:refresh=1")
    )
    assert plain.tokens.tolist() == cached.tokens.tolist()
    assert plain.trace.commit_step.tolist() == cached.trace.commit_step.tolist()


def test_the_projection_has_the_largest_directions_of_the_values() -> None:
    layer = toy(width=16).decoder.layers[1]
    values = layer.qkv_weight[-8:]
    _, size, vectors = torch.linalg.svd(values.double(), full_matrices=False)
    x = torch.randn(5, 16, generator=torch.Generator().manual_seed(0))
    for rank in (1, 3, 8, 99):
        projected = x @ principal(layer, rank, torch.float32).T
        truth = x.double() @ (size[:rank, None] * vectors[:rank]).T
        assert projected.shape == (5, min(rank, 8))
        assert torch.allclose(projected @ projected.T, (truth @ truth.T).float(), atol=1e-4)


def test_memory_counts_what_layers_keep() -> None:
    cache = toy().new_cache(2, 10, reuse=LayerReuse((1.0, 0.5), 4))
    assert isinstance(cache, ReuseCache)
    empty = cache.nbytes
    cache.projected[1], cache.added[1] = torch.zeros(2, 11, 4), torch.zeros(2, 11, 16)
    assert cache.nbytes == empty + 4 * 2 * 11 * 20
    cache.grow(15)
    assert cache.added[1].shape == (2, 16, 16)
    cache.keep(torch.tensor([1, 0, 1]))
    assert cache.projected[1].shape == (3, 16, 4)


def test_what_cannot_be_compared_is_refused() -> None:
    with pytest.raises(
        SpecError, match="wino needs new leave-one-out predictions at every step, and spa reuses old predictions"
    ):
        registry.resolve("wino+threshold@spa")
    with pytest.raises(SpecError, match="the cache 'spa' is for bidirectional models"):
        pardec.Model(toy("sdar")).prepare("a", sampler="threshold@spa")
    for bad in ("ratio=1.5", "ratio=-1", "refresh=-1", "rank=0", "peak=1", "first=0", "last=2"):
        with pytest.raises(SpecError, match="must be|must lie"):
            registry.resolve(f"threshold@spa:{bad}")
    model = toy()
    model.processes = 2
    with pytest.raises(ModelError, match="each process of toy has a part of them"):
        model.new_cache(1, 8, reuse=LayerReuse((1.0, 0.5), 4))
    with torch.device("meta"):
        layer = type(toy().decoder.layers[0])(toy().decoder.config)
    with pytest.raises(ModelError, match="only while their layer runs"):
        principal(layer, 4, torch.float32)


def test_images_refuse_it() -> None:
    asked = request([[3, MASK]], [1], conditions=(object(),))
    with pytest.raises(SpecError, match="spa reuses layer outputs by position"):
        compatibility.check(registry.resolve("threshold@spa"), request=asked)
