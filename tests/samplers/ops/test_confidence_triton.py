"""The Triton kernel against the definition; without a GPU, test_attention_triton.py (models) runs this interpreted."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.grids import fewer_where
from tests.triton_runs import DEVICE, INTERPRETED, WHERE_TRITON_RUNS

pytestmark = WHERE_TRITON_RUNS


def define(logits):
    """Each statistic computed separately, in float64."""
    x = logits.double()
    distribution = x.softmax(-1)
    first = x.max(-1).values
    ids = (x == first[..., None]).int().argmax(-1)
    second = x.scatter(-1, ids[..., None], float("-inf")).max(-1).values
    entropy = -(distribution * distribution.clamp(min=1e-300).log()).sum(-1)
    return ids, first, second, (x - first[..., None]).exp().sum(-1), entropy


@fewer_where(INTERPRETED)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("vocab", [1, 2, 5, 97, 4096, 5001])
def test_kernel_equals_the_definition(vocab, dtype):
    from pardec.samplers.ops.confidence_triton import confidence

    generator = torch.Generator().manual_seed(vocab)
    logits = (torch.randn(2, vocab, 3, generator=generator) * 5).to(dtype).transpose(1, 2)  # not contiguous
    if vocab > 2:
        logits[0, 0, vocab - 1] = logits[0, 0].max()  # a tie
        logits[1, 1, 0] = float("-inf")  # a token that is ruled out
        logits[1, 2, : vocab - 1] = float("-inf")  # a token that is certain
    found = [value.cpu() for value in confidence(logits.to(DEVICE))]
    expected = define(logits)
    assert torch.equal(found[0], expected[0])
    for got, wanted in zip(found[1:], expected[1:], strict=True):
        torch.testing.assert_close(got.double(), wanted, rtol=1e-5, atol=1e-5)


def test_no_rows_give_no_rows():
    from pardec.samplers.ops.confidence_triton import confidence

    assert [value.shape for value in confidence(torch.empty(0, 4, 7, device=DEVICE))] == [(0, 4)] * 5


def boosted(count: int, vocab: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    """Three tokens [N, 3] of each row and their boosts: one of 0, one token twice."""
    tokens = torch.randint(0, vocab, (count, 3), generator=generator)
    tokens[0, 1] = tokens[0, 0]
    by = torch.rand(count, 3, generator=generator) * 4
    by[:, 2] = 0
    return tokens, by


def near(found, expected) -> None:
    assert torch.equal(found[0].cpu(), expected[0])
    for got, wanted in zip(found[1:], expected[1:], strict=True):
        torch.testing.assert_close(got.cpu().double(), wanted, rtol=1e-5, atol=1e-5)


@fewer_where(INTERPRETED)
@pytest.mark.parametrize("temperature", [1.0, 0.3, 2.5])
@pytest.mark.parametrize("vocab", [3, 97, 4500])
def test_temperature_and_raised_logits_are_folded_in(vocab, temperature, monkeypatch):
    from pardec.samplers.ops.confidence import confidence

    monkeypatch.setenv("PARDEC_KERNELS", "triton")
    generator = torch.Generator().manual_seed(vocab)
    logits = torch.randn(4, 2 * vocab, generator=generator)[:, :vocab]  # rows lie apart
    tokens, by = boosted(4, vocab, generator)
    by[1, 0] = float("-inf")  # ruled out
    changed = logits.double().scatter_add(-1, tokens, by.double()) / temperature
    found = confidence(logits.to(DEVICE), temperature=temperature, tokens=tokens.to(DEVICE), by=by.to(DEVICE))
    near(found, define(changed))


@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_a_distribution_over_a_temperature_keeps_no_logits_and_says_the_same(temperature, monkeypatch):
    from pardec.samplers.ops.distribution import DenseDistribution

    generator = torch.Generator().manual_seed(5)
    logits = torch.randn(2, 3, 50, generator=generator)
    tokens, by = boosted(6, 50, generator)
    base = DenseDistribution(logits).boosted(tokens.view(2, 3, 3), by.view(2, 3, 3))
    monkeypatch.setenv("PARDEC_KERNELS", "reference")
    plain = base.scaled(temperature)
    places = np.arange(6)

    def noise(some: np.ndarray) -> torch.Tensor:
        return (torch.arange(50)[None] * 7 % 50 + torch.from_numpy(some)[:, None] + 1).double() / 60

    expected, drawn = plain.confidence, plain.draw(places, noise)
    monkeypatch.setenv("PARDEC_KERNELS", "triton")
    distribution = DenseDistribution(logits.to(DEVICE)).boosted(
        tokens.view(2, 3, 3).to(DEVICE), by.view(2, 3, 3).to(DEVICE)
    )
    distribution = distribution.scaled(temperature)
    near(distribution.confidence, [each.double() if each.is_floating_point() else each for each in expected])
    assert torch.equal(distribution.draw(places, lambda some: noise(some).to(DEVICE)).cpu(), drawn)
    assert torch.allclose(distribution.greedy[1].cpu(), plain.greedy[1])
    torch.testing.assert_close(  # a GPU divides by the temperature with another rounding
        distribution.logits_of(distribution.greedy[0][..., None]).cpu(),
        plain.logits_of(plain.greedy[0][..., None]),
        rtol=3e-7 if DEVICE.type == "cuda" else 0,
        atol=0,
    )
    assert temperature == 1 or "rows" not in vars(distribution)


@fewer_where(INTERPRETED)
@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("vocab", [1, 97, 1500])
def test_draws_are_those_of_the_noise_of_the_same_keys(vocab, temperature):
    from pardec.samplers.ops.confidence_triton import statistics
    from pardec.samplers.rng import Keyed, gumbel

    source, order, positions = Keyed((3, -9)), np.arange(2), torch.tensor([[4, 5, 900]] * 2)
    logits = torch.randn(2, 3, vocab, generator=torch.Generator().manual_seed(vocab))
    if vocab > 2:
        logits[1, 1, :-1] = float("-inf")
    noise = gumbel(source.uniform(order, order * 7, positions, "token", vocab))
    keys = source.keys(order, order * 7, positions, "token")
    found = statistics(logits.to(DEVICE), temperature, keys=keys.to(DEVICE))
    assert torch.equal(found.drawn.cpu(), (noise + logits / temperature).argmax(-1))
    near(found[:5], define(logits / temperature))


def test_rows_that_are_no_distribution_are_found():
    from pardec.samplers.ops.confidence_triton import statistics

    logits = torch.randn(6, 700)
    logits[1, 650] = float("nan")
    logits[2, 3] = float("inf")
    logits[3] = float("-inf")
    logits[4, :699] = float("-inf")
    found = statistics(logits.to(DEVICE)).highest.cpu()
    assert found.isfinite().tolist() == [True, False, False, False, True, True]
    assert torch.equal(found[[0, 4, 5]], logits[[0, 4, 5]].amax(-1))


@pytest.mark.parametrize("programs", [1, 20])
def test_statistics_do_not_depend_on_the_number_of_programs(programs, monkeypatch):
    from pardec.samplers.ops import confidence_triton

    logits = torch.randn(3, 2000, device=DEVICE)
    keys = torch.arange(3, device=DEVICE)
    alone = [confidence_triton.statistics(logits[row : row + 1], keys=keys[row : row + 1]) for row in range(3)]
    monkeypatch.setattr(confidence_triton, "_PROGRAMS", programs)  # a program reads several blocks
    for together, *each in zip(confidence_triton.statistics(logits, keys=keys), *alone, strict=True):
        assert torch.equal(together, torch.cat(each))


def test_a_distribution_finds_all_in_one_pass(monkeypatch):
    from pardec.samplers.ops import confidence_triton
    from pardec.samplers.ops.distribution import DenseDistribution
    from pardec.samplers.rng import Keyed

    logits, source = torch.randn(1, 4, 60), Keyed((5,))
    positions = torch.arange(4)[None]
    order, zeros = np.arange(4), np.zeros(1, dtype=np.int64)

    def noise(some):
        return source.uniform(zeros, zeros, positions[:, some], "token", 60)[0].to(DEVICE)

    def keys(some):
        return source.keys(zeros, zeros, positions[:, some], "token")[0].to(DEVICE)

    calls, real = [], confidence_triton.statistics

    def counted(*arguments, **options):
        calls.append(1)
        return real(*arguments, **options)

    monkeypatch.setenv("PARDEC_KERNELS", "reference")
    plain = DenseDistribution(logits.to(DEVICE))
    for temperature in (1, 0.5):
        some = np.array([3, 1])
        expected = plain.scaled(temperature).draw(order, noise), plain.scaled(temperature).draw(some, noise)
        monkeypatch.setenv("PARDEC_KERNELS", "triton")
        calls.clear()
        monkeypatch.setattr(confidence_triton, "statistics", counted)
        whole = DenseDistribution(logits.to(DEVICE))
        distribution = whole.scaled(temperature)
        assert torch.equal(distribution.draw(order, noise, keys), expected[0])
        near(distribution.confidence, define(logits / temperature))
        assert len(calls) == 1
        assert whole.highest().isfinite()
        assert len(calls) == (1 if temperature == 1 else 2)
        assert torch.equal(distribution.draw(some, noise, keys), expected[1])
        monkeypatch.setattr(confidence_triton, "statistics", real)
        monkeypatch.setenv("PARDEC_KERNELS", "reference")
    whole = DenseDistribution(torch.tensor([[[1.0, float("nan")]]], device=DEVICE))
    monkeypatch.setenv("PARDEC_KERNELS", "triton")
    assert not whole.highest().isfinite()


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("raised", [False, True])
def test_all_positions_are_drawn_with_the_uniforms_of_their_keys(
    raised: bool, temperature: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a captured step, where keys come from the row's key and clock on the device."""
    from pardec.samplers.ops.distribution import DenseDistribution
    from pardec.samplers.rng import Keyed, gumbel, keys_at

    monkeypatch.setenv("PARDEC_KERNELS", "triton")
    generator = torch.Generator().manual_seed(3)
    logits, positions = torch.randn(2, 3, 40, generator=generator) * 2, torch.tensor([[4, 5, 6], [7, 8, 9]])
    tokens, by = torch.randint(0, 40, (2, 3, 2), generator=generator), torch.rand(2, 3, 2, generator=generator) * 4
    source, rows, step = Keyed((5, 9)), np.array([0, 1]), np.array([3, 8])
    keys = keys_at(torch.from_numpy(source.row_keys(rows, "token")), torch.from_numpy(step), positions)
    assert torch.equal(keys, source.keys(rows, step, positions, "token"))
    dense = DenseDistribution(logits.to(DEVICE))
    distribution = dense.boosted(tokens.to(DEVICE), by.to(DEVICE)) if raised else dense
    drawn = distribution.scaled(temperature).draw_all(keys.to(DEVICE)).cpu()
    changed = logits.scatter_add(-1, tokens, by) if raised else logits
    noise = gumbel(source.uniform(rows, step, positions, "token", 40))
    assert torch.equal(drawn, (noise + (changed / temperature).double()).argmax(-1))
