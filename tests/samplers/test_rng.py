"""Keyed randomness: uniform, independent in every part of the key, the same in any batch; no global seed changes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pardec.samplers import rng
from pardec.samplers.rng import Keyed, gumbel, row_seeds
from tests.samplers.toys import fill, prompts, toy

COUNT = 40_000


def numbers(
    *,
    seeds: tuple[int, ...] = (1,),
    rows: int = 1,
    step: int = 0,
    places: int = COUNT,
    purpose: str = "token",
    width: int = 0,
) -> torch.Tensor:
    where = torch.arange(places).expand(rows, places)
    seeds = seeds if len(seeds) == rows else tuple(range(rows))
    return Keyed(seeds).uniform(np.arange(rows), np.full(rows, step), where, purpose, width)


def independent(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Uniform marginals and no association on a grid of 8 x 8 cells: chi-square within 5 deviations of its mean."""
    cells = (one.flatten() * 8).long() * 8 + (other.flatten() * 8).long()
    expected = len(cells) / 64
    statistic = float(((cells.bincount(minlength=64) - expected) ** 2 / expected).sum())
    return abs(statistic - 63) < 5 * (2 * 63) ** 0.5


PAIRS = {
    "positions": lambda: (numbers()[0, :-1], numbers()[0, 1:]),
    "steps": lambda: (numbers(), numbers(step=1)),
    "later steps": lambda: (numbers(step=7), numbers(step=1000)),
    "purposes": lambda: (numbers(), numbers(purpose="order")),
    "seeds": lambda: (numbers(seeds=(1,)), numbers(seeds=(2,))),
    "rows": lambda: (numbers(rows=2)[0], numbers(rows=2)[1]),
    "ranks": lambda: (numbers(places=1, width=COUNT)[0, 0, :-1], numbers(places=1, width=COUNT)[0, 0, 1:]),
    "rank and position": lambda: (
        numbers(places=300, width=300)[0, 1:, :-1],
        numbers(places=300, width=300)[0, :-1, 1:],
    ),
    "step and position": lambda: (numbers(step=5)[0, 1:], numbers(step=6)[0, :-1]),
}


@pytest.mark.parametrize("pair", PAIRS)
def test_numbers_of_different_keys_are_independent(pair: str) -> None:
    assert independent(*PAIRS[pair]())


def test_dependence_would_be_noticed() -> None:
    found = numbers()
    assert not independent(found, found)
    assert not independent(found, 1 - found)
    assert not independent(found, (found * 3) % 1)


def test_derived_seeds_are_as_independent_as_chosen_ones() -> None:
    for seed in (0, 1, -1):
        first, second = row_seeds(seed, 2)
        assert independent(numbers(seeds=(first,)), numbers(seeds=(second,)))
    across = torch.cat([numbers(seeds=row_seeds(seed, 1), places=1) for seed in range(1000)])
    assert abs(float(across.mean()) - 0.5) < 5 / (12 * 1000) ** 0.5


def test_moments_and_tail_are_those_of_a_uniform() -> None:
    found = numbers(places=200_000)
    assert abs(float(found.mean()) - 1 / 2) < 5 / (12 * 200_000) ** 0.5
    assert abs(float(found.var()) - 1 / 12) < 1e-3
    assert abs(int((found < 1e-3).sum()) - 200) < 5 * 200**0.5
    assert abs(int((found > 1 - 1e-3).sum()) - 200) < 5 * 200**0.5
    assert abs(float(gumbel(found).mean()) - 0.5772) < 0.02


@pytest.mark.parametrize("bits", [-1, 0, 1, (1 << 63) - 1, -(1 << 63)])
def test_no_number_is_zero_or_one(bits: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """For any 64 bits of the mixing function; at 0 or 1 the Gumbel noise would be infinite."""
    for mix in ("_mix", "_mix_"):
        monkeypatch.setattr(rng, mix, lambda value: value * 0 + bits)
    elsewhere = rng._on_device(torch.tensor([1]), torch.tensor([[0]]), 0)
    for found in (numbers(places=1), elsewhere):
        assert 0 < float(found) < 1
        assert gumbel(found).isfinite().all()


@pytest.mark.parametrize("width", [0, 1, 3000])
def test_a_processor_makes_the_numbers_of_any_device(width: int) -> None:
    key, positions = torch.tensor([-(1 << 63), 7, (1 << 63) - 1]), torch.arange(6).view(3, 2) << 40
    found = rng._on_host(key.numpy(), positions.numpy(), width)
    assert (found == rng._on_device(key, positions, width).numpy()).all()


def test_all_bits_of_the_key_count() -> None:
    base = numbers(places=1)
    for bit in range(64):
        assert float(numbers(seeds=(1 ^ (1 << bit),), places=1)) != float(base)
    assert float(numbers(seeds=(1 + (1 << 64),), places=1)) == float(base)  # seeds are read modulo 2 ** 64
    assert float(numbers(seeds=(-1,), places=1)) == float(numbers(seeds=((1 << 64) - 1,), places=1))


def test_a_row_draws_the_same_alone_and_in_any_batch() -> None:
    source, where = Keyed((11, 12, 13)), torch.tensor([[4, 9], [0, 3], [4, 9]])
    whole = source.uniform(np.arange(3), np.array([2, 5, 2]), where, "token", 6)
    alone = Keyed((13,)).uniform(np.array([0]), np.array([2]), where[2:], "token", 6)
    assert torch.equal(whole[2:], alone)
    assert torch.equal(source.uniform(np.array([2]), np.array([2]), where[2:], "token", 6), alone)
    assert not torch.equal(whole[0], whole[2])
    narrow = source.uniform(np.array([1]), np.array([5]), where[1:2, 1:], "token", 4)
    assert torch.equal(narrow[0, 0], whole[1, 1, :4])
    assert whole.dtype == torch.float64


def test_few_numbers_are_those_of_many() -> None:
    """Few numbers are computed by another library than many."""
    source = Keyed((11, -12, 1 << 63))
    rows, step, where = np.arange(3), np.array([0, 5, 1 << 40]), torch.arange(3 * 1000).reshape(3, 1000) - 7
    many = source.uniform(rows, step, where, "token")
    assert torch.equal(many[:, :5], source.uniform(rows, step, where[:, :5], "token"))
    wide = source.uniform(rows, step, where[:, :2], "token", 1000)
    assert torch.equal(wide[:, :1, :4], source.uniform(rows, step, where[:, :1], "token", 4))


def test_row_seeds() -> None:
    assert row_seeds([5, 6, 5], 3) == (5, 6, 5)
    many = row_seeds(7, 1000)
    assert len(set(many)) == 1000
    assert row_seeds(7, 3) == many[:3]
    assert not set(many) & set(row_seeds(8, 1000))


def test_the_numbers_stay_what_they_are() -> None:
    """Golden values: stored results must be reproducible after an upgrade."""
    found = Keyed((42,)).uniform(np.array([0]), np.array([3]), torch.tensor([[7]]), "token", 3)
    assert found.flatten().tolist() == pytest.approx(GOLDEN, abs=1e-12)


GOLDEN = [0.2527978700559072, 0.8524063594399878, 0.34203460849883754]


def test_decoding_leaves_every_global_seed_alone() -> None:
    model, given = toy(sharp=0.3), prompts((3,))
    torch.manual_seed(0)
    state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()
    fill(model, "random+fixed:order=random@dual", prompts((3, 2)), 5, temperature=1.0, top_p=0.9)
    assert torch.equal(torch.get_rng_state(), state)
    assert (np.random.get_state()[1] == numpy_state).all()
    first = fill(model, "sequential", given, 6, temperature=1.0)
    torch.manual_seed(1)
    assert (fill(model, "sequential", given, 6, temperature=1.0).tokens == first.tokens).all()


class Recorded:
    """Records its numbers, or replays recorded ones."""

    def __init__(self, inner: Keyed | None, kept: dict[tuple[object, ...], torch.Tensor]) -> None:
        self.inner, self.kept = inner, kept

    def uniform(self, rows, step, positions, purpose, width=0):  # type: ignore[no-untyped-def]
        key = (tuple(rows), tuple(step), tuple(positions.flatten().tolist()), purpose, width)
        if self.inner is not None:
            self.kept[key] = self.inner.uniform(rows, step, positions, purpose, width)
        return self.kept[key]


@pytest.mark.parametrize("spec", ["threshold:tau=0.5@dual", "random+fixed:steps=4", "fixed:order=random"])
def test_recorded_numbers_are_replayed_in_place_of_a_seed(spec: str) -> None:
    model, given, kept = toy(sharp=0.5), prompts((3, 5)), {}
    first = fill(model, spec, given, 6, temperature=1.0, source=Recorded(Keyed((1, 2)), kept))
    again = fill(model, spec, given, 6, temperature=1.0, source=Recorded(None, kept))
    seeded = fill(model, spec, given, 6, temperature=1.0, seeds=[1, 2])
    assert (again.tokens == first.tokens).all()
    assert (seeded.tokens == first.tokens).all()
