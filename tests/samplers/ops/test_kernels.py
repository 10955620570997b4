"""Kernels compared with numpy in float64: confidence, distributions and filters, rank, schedule."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pardec.samplers.masked.ops.schedule import even_share
from pardec.samplers.ops import confidence as module
from pardec.samplers.ops.confidence import confidence, greedy
from pardec.samplers.ops.distribution import DenseDistribution, filter_logits
from pardec.samplers.ops.rank import best, descending, top

SHAPES = [(1, 1, 2), (2, 3, 7), (1, 5, 63), (3, 1, 129), (2, 2, 1031)]
INF = float("inf")


def logits_of(shape: tuple[int, ...], dtype: torch.dtype, *, holes: bool) -> torch.Tensor:
    drawn = np.random.RandomState(sum(shape))
    made = torch.from_numpy(drawn.standard_normal(shape) * 3).to(dtype)
    if holes:
        gone = torch.from_numpy(drawn.random_sample(shape) < 0.4)
        gone[..., drawn.randint(shape[-1])] = False
        made = made.masked_fill(gone, -INF)
    return made


@pytest.mark.parametrize("holes", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", SHAPES)
def test_confidence_is_its_definition(shape: tuple[int, ...], dtype: torch.dtype, holes: bool) -> None:
    logits = logits_of(shape, dtype, holes=holes)
    exact = logits.double().numpy()
    weights = np.exp(exact - exact.max(-1, keepdims=True))
    distribution = weights / weights.sum(-1, keepdims=True)
    found = confidence(logits)
    assert all(value.shape == shape[:-1] for value in found)
    assert {value.dtype for value in found[1:]} == {torch.float32}
    assert (found.ids.numpy() == exact.argmax(-1)).all()
    ordered = np.sort(exact, -1)
    np.testing.assert_allclose(found.top1, ordered[..., -1], rtol=1e-6)
    np.testing.assert_allclose(found.top2, ordered[..., -2], rtol=1e-6)
    np.testing.assert_allclose(found.mass, weights.sum(-1), rtol=1e-5)
    np.testing.assert_allclose(
        found.top1 + found.mass.log(), np.log(weights.sum(-1)) + exact.max(-1), rtol=1e-5, atol=1e-5
    )
    entropy = -(distribution * np.log(np.where(distribution > 0, distribution, 1))).sum(-1)
    np.testing.assert_allclose(found.entropy, entropy, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(found.probability, distribution.max(-1), rtol=1e-5)
    np.testing.assert_allclose(
        (logits[..., 0].float() - found.top1).exp() / found.mass, distribution[..., 0], rtol=1e-5, atol=1e-7
    )
    ids, probability = greedy(logits)
    assert torch.equal(ids, found.ids)
    assert probability.dtype == torch.float32
    np.testing.assert_allclose(probability, distribution.max(-1), rtol=1e-5)


@pytest.mark.parametrize("apiece", [1, 2 * 1031, 5 * 1031])
def test_greedy_proposals_a_few_rows_at_a_time_are_those_at_once(apiece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    logits = logits_of((2, 3, 1031), torch.float32, holes=True)
    whole = greedy(logits)
    monkeypatch.setattr(module, "_APIECE", apiece)
    for found, expected in zip(greedy(logits), whole, strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("held", [1, 4200])  # one row at a time; four, of which the last three are alone
def test_rows_taken_a_few_at_a_time_give_what_they_give_at_once(held: int, monkeypatch: pytest.MonkeyPatch) -> None:
    logits = logits_of((1, 7, 1031), torch.float32, holes=True)
    expected = confidence(logits)
    monkeypatch.setattr(module, "CACHED", held)
    assert all(torch.equal(one, other) for one, other in zip(confidence(logits), expected, strict=True))


def test_ties_go_to_the_lowest_id() -> None:
    logits = torch.tensor([[0.0, 2.0, -1.0, 2.0, 2.0], [5.0, 5.0, 5.0, 5.0, 5.0]])
    found = confidence(logits)
    assert found.ids.tolist() == [1, 0]
    assert found.top2.tolist() == [2.0, 5.0]
    assert greedy(logits)[0].tolist() == [1, 0]
    assert found.entropy[1].item() == pytest.approx(np.log(5))


def test_a_certain_token() -> None:
    found = confidence(torch.tensor([[-INF, 3.0, -INF], [0.0, 90.0, -90.0]]))
    assert found.probability.tolist() == [1.0, 1.0]
    assert found.entropy.tolist() == pytest.approx([0.0, 0.0])
    assert found.top2.tolist() == [-INF, 0.0]


def test_far_logits_do_not_overflow() -> None:
    found = confidence(torch.tensor([[3e4, 3e4 - 1, -3e4]]))
    assert found.probability.item() == pytest.approx(1 / (1 + np.exp(-1)), rel=1e-5)
    assert found.entropy.isfinite().all()


def test_a_distribution_gives_the_probability_of_any_token() -> None:
    logits = logits_of((2, 3, 11), torch.float32, holes=True)
    distribution = DenseDistribution(logits)
    tokens = torch.arange(6).reshape(2, 3)
    exact = logits.double().softmax(-1).gather(-1, tokens[..., None])[..., 0]
    torch.testing.assert_close(distribution.probability(tokens).double(), exact, rtol=1e-5, atol=1e-8)
    torch.testing.assert_close(distribution.probability(distribution.greedy[0]), distribution.greedy[1])
    assert distribution.greedy[0] is distribution.greedy[0]  # worked out once


def test_a_draw_is_the_gumbel_max_rule_in_float64() -> None:
    logits = logits_of((4, 5, 9), torch.float32, holes=True)
    uniform = torch.from_numpy(np.random.RandomState(0).random_sample((4, 5, 9)))
    noise, every = -np.log(-np.log(uniform.numpy())), np.arange(20)

    def drawn(logits: torch.Tensor, place: torch.Tensor | None = None, places: np.ndarray = every) -> np.ndarray:
        return DenseDistribution(logits, place).draw(places, lambda some: uniform.flatten(0, 1)[some]).numpy()

    expected = (logits.double().numpy() + noise).argmax(-1).flatten()
    assert (drawn(logits) == expected).all()
    for places in (np.array([0, 3, 7, 12, 19]), every[:0]):
        assert (drawn(logits, places=places) == expected[places]).all()
    order = torch.randperm(20, generator=torch.Generator().manual_seed(1))
    assert (drawn(logits.flatten(0, 1)[order], order.argsort().view(4, 5)) == expected).all()
    # Logits that undo the noise leave its rounding alone to decide, which lower precision does not see.
    undone = torch.from_numpy(-noise).float()
    exact = (undone.double().numpy() + noise).argmax(-1)
    assert (drawn(undone) == exact.flatten()).all()
    assert ((undone.numpy() + noise.astype(np.float32)).argmax(-1) != exact).any()


def kept(logits: torch.Tensor, **options: float | int | None) -> list[list[int]]:
    """The ids that a filter keeps, per position of the single row."""
    out = filter_logits(logits, **({"temperature": 0.0, "top_k": None, "top_p": None} | options))  # type: ignore[arg-type]
    return [row.isfinite().nonzero().flatten().tolist() for row in out[0]]


LOGITS = torch.tensor([[[0.1, 0.4, 0.05, 0.25, 0.2]]]).log()


@pytest.mark.parametrize(
    ("top_p", "ids"),
    [
        (0.0, [1]),
        (0.39, [1]),
        (0.41, [1, 3]),
        (0.64, [1, 3]),
        (0.66, [1, 3, 4]),
        (0.86, [0, 1, 3, 4]),
        (0.96, [0, 1, 2, 3, 4]),
        (1.0, [0, 1, 2, 3, 4]),
    ],
)
def test_top_p_keeps_the_smallest_set_of_that_mass(top_p: float, ids: list[int]) -> None:
    assert kept(LOGITS, top_p=top_p) == [ids]


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10_000), st.floats(0.01, 0.99), st.integers(2, 40))
def test_top_p_on_any_distribution(seed: int, top_p: float, size: int) -> None:
    logits = torch.from_numpy(np.random.RandomState(seed).standard_normal((1, 1, size)) * 2).float()
    distribution = logits[0, 0].double().softmax(-1)
    (ids,) = kept(logits, top_p=top_p)
    assert float(distribution[ids].sum()) >= top_p - 1e-5
    assert float(distribution[ids].sum() - distribution[ids].min()) < top_p + 1e-5
    assert float(distribution[ids].min()) >= max(
        (float(distribution[v]) for v in range(size) if v not in ids), default=0.0
    )


@pytest.mark.parametrize(("top_k", "ids"), [(1, [1]), (2, [1, 3]), (5, [0, 1, 2, 3, 4]), (50, [0, 1, 2, 3, 4])])
def test_top_k_keeps_the_k_likeliest(top_k: int, ids: list[int]) -> None:
    assert kept(LOGITS, top_k=top_k) == [ids]


def test_top_p_comes_before_top_k() -> None:
    # Alone top_k=2 leaves 0.4 and 0.25, of which 0.61 is the first; after top-p both stay.
    assert kept(LOGITS, top_p=0.6, top_k=2) == [[1, 3]]
    assert kept(LOGITS, top_p=0.3, top_k=2) == [[1]]
    assert kept(LOGITS, top_p=0.7, top_k=2) == [[1, 3]]


def test_temperature_comes_before_top_p() -> None:
    assert kept(LOGITS, temperature=0.2, top_p=0.8) == [[1]]
    assert kept(LOGITS, temperature=5.0, top_p=0.8) == [[0, 1, 3, 4]]
    divided = filter_logits(LOGITS, temperature=0.5, top_k=None, top_p=None)
    torch.testing.assert_close(divided, LOGITS * 2)
    assert filter_logits(LOGITS, temperature=0.0, top_k=None, top_p=None) is LOGITS


def test_what_is_impossible_stays_so() -> None:
    logits = torch.tensor([[[1.0, -INF, 0.5, -INF], [-INF, -INF, 2.0, 1.0]]])
    assert kept(logits, top_k=3) == [[0, 2], [2, 3]]
    assert kept(logits, top_p=0.999, temperature=2.0) == [[0, 2], [2, 3]]


def test_filters_work_row_by_row() -> None:
    logits = logits_of((3, 4, 17), torch.float32, holes=False)
    whole = filter_logits(logits, temperature=0.7, top_k=5, top_p=0.9)
    assert whole.shape == logits.shape
    for row in range(3):
        assert torch.equal(filter_logits(logits[row : row + 1], temperature=0.7, top_k=5, top_p=0.9)[0], whole[row])


def test_ranks_are_descending_and_stable() -> None:
    score = torch.tensor([[0.3, 0.9, 0.3, -INF, 0.9], [-INF, -INF, 0.0, 0.1, 0.0]])
    ordered, rank = descending(score)
    assert ordered[0].tolist() == pytest.approx([0.9, 0.9, 0.3, 0.3, -INF])
    assert rank.tolist() == [[2, 0, 3, 4, 1], [3, 4, 1, 0, 2]]
    assert best(score).int().tolist() == [[0, 1, 0, 0, 0], [0, 0, 0, 1, 0]]
    assert top(score, torch.tensor([[3], [0]])).int().tolist() == [[1, 1, 0, 0, 1], [0] * 5]


@pytest.mark.parametrize("width", [1, 2, 7, 33, 200])
def test_the_best_of_equal_scores_is_the_first(width: int) -> None:
    score = torch.full((3, width), 0.5)
    assert best(score).nonzero().tolist() == [[0, 0], [1, 0], [2, 0]]
    assert descending(score)[1].tolist() == [list(range(width))] * 3


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 200), st.integers(1, 60))
def test_an_even_share_is_even_and_whole(total: int, parts: int) -> None:
    share = even_share(total, parts, np.arange(parts))
    assert share.sum() == total
    assert share.max() - share.min() <= 1
    assert (np.diff(share) <= 0).all()
    assert even_share(total, parts, parts) == total // parts


def test_shares_of_many_rows_at_once() -> None:
    assert even_share(np.array([7, 4, 0]), np.array([3, 4, 2]), np.array([0, 3, 1])).tolist() == [3, 1, 0]
