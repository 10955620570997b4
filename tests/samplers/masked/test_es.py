"""The cache `es` compared with a naive version and with `dual`, which it is where nothing is skipped."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import pardec
from pardec.models.caches.skip_cache import EarlySkip, SkipCache
from pardec.models.errors import ModelError, SpecError
from pardec.models.plan import Plan, Ranking
from pardec.samplers import registry
from pardec.samplers.masked.cache.es import EarlySkipping
from pardec.samplers.masked.canvas import Canvas
from tests.reference import naive_es as naive
from tests.samplers.spec_checks import refused_specs
from tests.samplers.toys import EOS, MASK, fill, prompts, request, run, same, toy

LENGTHS, NEW = (3, 6, 1, 5), (17, 6, 23, 2)
DEEP = "depth1=0,depth2=0"  # in a model of two layers


@lru_cache
def trained(name: str) -> pardec.Model:
    return pardec.load(name, device="cpu", dtype="float32")


class Watched:
    """Records the positions that each layer computes, row after row."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.steps: list[list[list[int]]] = []
        through = SkipCache.through

        def passed(cache: SkipCache, layer: Any, h: Tensor, step: Any, index: int) -> Tensor:
            if index == 0:
                self.steps.append([])
            order = step.plan.positions
            if index and (picked := cache._picked) is not None:
                order = torch.where(picked < 0, -1, order.gather(1, picked.clamp(min=0)))
            self.steps[-1].append(order[order >= 0].tolist())
            return through(cache, layer, h, step, index)

        patch.setattr(SkipCache, "through", passed)


@pytest.mark.parametrize("name", ["tiny-llada", "tiny-dream"])
@pytest.mark.parametrize(
    ("refresh", "block_refresh", "share", "alpha"), [(64, 4, 0.25, 0.5), (9, 0, 0.5, 0.2), (0, 3, 0.4, 0.9)]
)
@pytest.mark.seeds("arXiv:2603.10088")
def test_it_is_its_naive_version_layer_by_layer(
    name: str, refresh: int, block_refresh: int, share: float, alpha: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A naive version in float64 commits the same tokens and computes the same positions in every layer."""
    test_rows_of_a_batch_skip_for_themselves()
    test_a_known_token_is_not_one_of_the_two_surest()
    with monkeypatch.context() as patch:
        test_random_models_skip_as_the_naive_version_does("llada", 0.3, patch)
        test_shares_are_not_rounded_down(patch)
    model, watched = trained(name).language_model, Watched(monkeypatch)
    mask = model.decoding_config.mask_id
    prompt = np.random.RandomState(5).randint(3, model.vocab_size - 10, 7).tolist()
    row = [*prompt, *[mask] * 25]
    rule = f"refresh={refresh},block_refresh={block_refresh},share1=0.7,share2={share},alpha={alpha}"
    got = run(model, f"threshold:tau=0.6@es:{rule},depth1=0,depth2=0.5", request([row], [7], block_length=12))
    skips = {0: 0.7, -(-model.layers // 2): share}
    tokens, when, computed = naive.decode(
        model, row, 7, size=12, tau=0.6, every=(refresh, block_refresh), skips=skips, alpha=alpha
    )
    assert watched.steps == computed
    assert got.tokens[0].tolist() == tokens
    assert got.trace.commit_step[0].tolist() == when
    assert any(len(step[0]) > len(step[1]) > len(step[3]) for step in computed)
    the_importance_is_that_of_the_position_which_an_output_predicts(model.decoding_config.shift)
    test_layers_at_one_depth_have_the_smaller_share()
    importances_that_differ_in_their_last_bits_tie()


def importances_that_differ_in_their_last_bits_tie() -> None:
    """Three of four are .5 within 2e-6, and the first two of them go on."""
    model = toy()
    cache = model.new_cache(1, 10, reuse=EarlySkip(((0, 0.5),), 0.0))
    assert isinstance(cache, SkipCache)
    plan = Plan.full(torch.zeros(1, 4, dtype=torch.int64), model.visible())
    ranking = Ranking(torch.tensor([[0.5, 0.500002, 0.1, 0.500001]]), np.array([0]))
    states = torch.arange(4.0)[:, None].expand(4, cache.width)
    cache._counts = cache._picked = None
    gone = cache._go_on(states, torch.zeros(11, cache.width), torch.arange(4), plan, ranking, 0)
    assert gone[:, 0].tolist() == [0, 1]


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.6])
@pytest.mark.parametrize("family", ["llada", "dream"])
def test_random_models_skip_as_the_naive_version_does(
    family: str, alpha: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In blocks of 9 the changes of states decide which of six positions go on."""
    watched = Watched(monkeypatch)
    for seed in range(4):
        model, row = toy(family, sharp=1.2, seed=seed), [*prompts((3,), seed=seed)[0], *[MASK] * 20]
        watched.steps.clear()
        spec = f"threshold:tau=0.6@es:share1=0.7,share2=0.7,alpha={alpha},block_refresh=3,{DEEP}"
        got = run(model, spec, request([row], [3], block_length=9))
        tokens, when, computed = naive.decode(
            model, row, 3, size=9, tau=0.6, every=(64, 3), skips={0: 0.7}, alpha=alpha
        )
        assert watched.steps == computed
        assert got.tokens[0].tolist() == tokens
        assert got.trace.commit_step[0].tolist() == when


def the_importance_is_that_of_the_position_which_an_output_predicts(shift: int) -> None:
    """A prompt of 2 and a block of 4: .9 and .6 are the surest, 2 is the first open position, 5 was just committed."""
    canvas = Canvas((torch.tensor([1, 1, *[MASK] * 4]),), (2,), mask_id=MASK, pad_id=4, block_length=4, shift=shift)
    rule = EarlySkipping(alpha=0.5)
    state = rule.start(canvas)
    state.confidence[0, 2:6] = torch.tensor([0.2, 0.9, 0.4, 0.6])
    changed = np.arange(6)[None] == 5
    ranking = rule._ranking(canvas, state, changed)
    predicted = [0.1 + 5, 0.45 + 2, 0.2, 0.3 + 2]
    expected = [0, *predicted, 3] if shift else [0, 0, *predicted[:3], 0.3 + 2 + 3]
    assert ranking.values[0, :6].tolist() == pytest.approx(expected)
    assert ranking.least.tolist() == [3]


def test_a_known_token_is_not_one_of_the_two_surest() -> None:
    """A block of 4 from position 0 on, of which only 2 is open."""
    canvas = Canvas((torch.tensor([1, 1, MASK, 1]),), (1,), mask_id=MASK, pad_id=4, block_length=4, absolute=True)
    rule = EarlySkipping(alpha=0.5)
    state = rule.start(canvas)
    state.confidence[0, 2] = 0.8
    assert rule._ranking(canvas, state, np.zeros((1, 4), dtype=bool)).values[0, :4].tolist() == pytest.approx(
        [0, 0, 0.4 + 5 + 2, 0]
    )


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("rest", ["sequential", "threshold:tau=0.3", "remdm+threshold:tau=0.3"])
@pytest.mark.parametrize("refresh", [0, 3])
@pytest.mark.parametrize("all_of_it", [f"share1=1,share2=1,{DEEP}", f"share2=0.2,block_refresh=1,{DEEP}"])
@pytest.mark.parametrize("options", [{}, {"cfg": 1.5, "temperature": 0.7}], ids=["greedy", "guided"])
@pytest.mark.covers(2)
def test_where_nothing_is_skipped_it_is_dual(
    family: str, rest: str, refresh: int, all_of_it: str, options: dict[str, float]
) -> None:
    dual, es = (
        fill(toy(family, sharp=1.2), f"{rest}@{cache}", prompts(LENGTHS), NEW, stop_ids=(EOS,), **options)
        for cache in (f"dual:refresh={refresh}", f"es:refresh={refresh},{all_of_it}")
    )
    assert dual.tokens.tolist() == es.tokens.tolist()
    assert dual.trace.commit_step.tolist() == es.trace.commit_step.tolist()


def test_guided_rows_share_the_positions_that_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    watched = Watched(monkeypatch)
    fill(toy(sharp=1.2), f"sequential@es:share2=0.25,{DEEP}", prompts((5,)), 8, block_length=8, cfg=1.5)
    last = [step[-1] for step in watched.steps]
    assert all(row[: len(row) // 2] == row[len(row) // 2 :] for row in last)
    assert [len(row) // 2 for row in last] == [13, 3, 3, 3, 8, 3, 3, 3]  # 2 surest and the last committed


def test_rows_of_a_batch_skip_for_themselves() -> None:
    rows, spec = prompts(LENGTHS), f"threshold:tau=0.6@es:share1=0.5,share2=0.5,alpha=0.3,{DEEP}"
    for seed in range(3):
        model = toy("dream", sharp=1.2, seed=seed)
        together = fill(model, spec, rows, NEW, block_length=12)
        for row, prompt in enumerate(rows):
            alone = fill(model, spec, [prompt], NEW[row], block_length=12)
            assert same(together, row, alone, 0)


@pytest.mark.slow  # seconds for texts of 64 steps; the tests above have the rule
def test_it_computes_fewer_positions_than_dual_at_no_lower_accuracy(monkeypatch: pytest.MonkeyPatch) -> None:
    """On `chains-64`, positions times layers of `es` are at most 0.8 of those of `dual`."""
    task, model = pardec.tasks.task("chains-64"), trained("tiny-dream")
    problems = task.problems(split="heldout", n=3, seed=3)
    texts, watched = [problem.prompt for problem in problems], Watched(monkeypatch)

    def decoded(cache: str) -> tuple[float, int]:
        got = model.generate(texts, sampler=f"sequential@{cache}", max_new_tokens=64, block_length=64)
        return sum(map(task.score, problems, got.text)), sum(got.tokens_fed)

    (right, fed), (right_es, _) = decoded("dual"), decoded("es")
    assert right_es >= right > 0
    assert sum(len(layer) for step in watched.steps for layer in step) < 0.8 * fed * model.language_model.layers


def test_layers_at_one_depth_have_the_smaller_share() -> None:
    def skip(spec: str, layers: int) -> EarlySkip:
        found = registry.resolve(f"threshold@{spec}").cache.layer_reuse(layers)
        assert isinstance(found, EarlySkip)
        return found

    assert skip("es", 32) == EarlySkip(((4, 0.5), (8, 0.25)), 0.5)
    assert skip("es:alpha=0.3", 28) == EarlySkip(((4, 0.5), (7, 0.25)), 0.7)
    assert skip("es", 4) == EarlySkip(((1, 0.25),), 0.5)
    assert skip("es:depth1=0.14,depth2=0.28", 50) == EarlySkip(((7, 0.5), (14, 0.25)), 0.5), "not rounded up"


def test_shares_are_not_rounded_down(monkeypatch: pytest.MonkeyPatch) -> None:
    """0.29 of a block of 100 are 29, more than the 25 last commits and the two surest."""
    watched = Watched(monkeypatch)
    fill(toy(), f"fixed:steps=4@es:share2=0.29,{DEEP}", prompts((2,)), 100, block_length=100)
    assert [len(step[1]) for step in watched.steps] == [102, 29, 29, 29]


def test_memory_counts_the_states() -> None:
    cache = toy().new_cache(2, 10, reuse=EarlySkip(((0, 0.5),), 0.5))
    assert isinstance(cache, SkipCache)
    empty = cache.nbytes
    cache.states[0] = torch.zeros(2, 11, 16)
    assert cache.nbytes == empty + 4 * 2 * 11 * 16
    cache.grow(15)
    assert cache.states[0].shape == (2, 16, 16)
    cache.keep(torch.tensor([1, 0, 1]))
    assert cache.states[0].shape == (3, 16, 16)


def test_what_cannot_skip_is_refused() -> None:
    with pytest.raises(SpecError, match="wino needs new leave-one-out predictions"):
        registry.resolve("wino+threshold@es")
    with pytest.raises(SpecError, match="the cache 'es' is for bidirectional models"):
        pardec.Model(toy("sdar")).prepare("a", sampler="threshold@es")
    model = toy()
    model.processes = 2
    with pytest.raises(ModelError, match="compares states of layers, and each process of toy has a part of them"):
        model.new_cache(1, 8, reuse=EarlySkip(((0, 0.5),), 0.5))


test_bad_parameters = refused_specs(
    [
        ("share1=1.5", r"es: share1 must lie in \[0, 1\], got 1.5"),
        ("depth2=-1", r"es: depth2 must lie in \[0, 1\], got -1.0"),
        ("alpha=2", r"es: alpha must lie in \[0, 1\], got 2.0"),
        ("refresh=-1", "es: refresh must be at least 0, got -1"),
        ("block_refresh=-1", "es: block_refresh must be at least 0, got -1"),
    ],
    before="sequential@es:",
)
