"""A distribution with a few raised logits has the right statistics, computed without a pass over its logits."""

from __future__ import annotations

import pytest
import torch

from pardec.samplers.ops.confidence import confidence
from pardec.samplers.ops.distribution import DenseDistribution


def case(
    seed: int, *, compact: bool, scale: float, most: float, pairs: int
) -> tuple[DenseDistribution, torch.Tensor, torch.Tensor]:
    """A distribution over 23 tokens, the last impossible, and raised logits: often the argmax, sometimes none."""
    drawn = torch.Generator().manual_seed(seed)
    rows = torch.randn((7, 23) if compact else (2, 5, 23), generator=drawn) * scale
    rows[..., 22] = -torch.inf
    distribution = DenseDistribution(rows, torch.randint(7, (2, 5), generator=drawn) if compact else None)
    tokens = torch.rand(2, 5, 22, generator=drawn).argsort(-1)[..., :pairs]
    first = (tokens != distribution.logits.argmax(-1, keepdim=True)).all(-1) & (torch.rand(2, 5, generator=drawn) < 0.7)
    tokens[..., 0] = torch.where(first, distribution.logits.argmax(-1), tokens[..., 0])
    by = torch.rand(2, 5, pairs, generator=drawn) * most
    return distribution, tokens, by.masked_fill(torch.rand(2, 5, pairs, generator=drawn) < 0.3, 0)


CASES = [
    {"seed": seed, "compact": compact, "scale": scale, "most": most, "pairs": pairs}
    for seed, (compact, scale, most, pairs) in enumerate(
        (compact, scale, most, pairs)
        for compact in (False, True)
        for scale in (0.5, 5.0, 60.0)
        for most in (0.1, 3.0, 300.0)
        for pairs in (1, 2, 6)
    )
]


@pytest.mark.parametrize("given", CASES, ids=str)
def test_statistics_are_those_of_the_raised_logits(given: dict[str, float]) -> None:
    distribution, tokens, by = case(**given)
    plain = distribution.logits.clone()
    for place in range(tokens.shape[-1]):
        at = tokens[..., place : place + 1]
        plain.scatter_(-1, at, plain.gather(-1, at) + by[..., place : place + 1])
    expected = confidence(plain)
    boosted = DenseDistribution(distribution.row_logits, distribution.index).boosted(tokens, by)
    assert (boosted.greedy[0] == expected.ids).all()
    torch.testing.assert_close(boosted.greedy[1], expected.probability, rtol=3e-6, atol=1e-7)
    for found, wanted in zip(distribution.boosted(tokens, by).confidence, expected, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    assert torch.equal(boosted.logits, plain)
    assert torch.equal(boosted.logits_of(tokens), plain.gather(-1, tokens))


def test_raising_twice_adds_up() -> None:
    distribution, tokens, by = case(3, compact=True, scale=2.0, most=2.0, pairs=4)
    twice, once = distribution.boosted(tokens, by).boosted(tokens, by), distribution.boosted(tokens, 2 * by)
    torch.testing.assert_close(twice.logits, once.logits)
    for found, wanted in zip(twice.confidence, once.confidence, strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_equal_logits_go_to_the_lowest_id_before_and_after() -> None:
    rows = torch.tensor([[[1.0, 3.0, 2.0, 3.0, 2.0, -1.0]]])
    for tokens, by, best in (
        ([4, 2], [1.0, 1.0], 1),  # all reach 3: the old argmax has the lowest id
        ([0, 4], [2.0, 1.0], 0),
        ([4, 2], [1.5, 1.5], 2),
        ([3, 0], [0.0, 0.0], 1),  # nothing is raised
    ):
        distribution = DenseDistribution(rows).boosted(torch.tensor([[tokens]]), torch.tensor([[by]]))
        assert (
            distribution.greedy[0].item()
            == distribution.confidence.ids.item()
            == distribution.logits.argmax(-1).item()
            == best
        )


def test_boosting_leaves_the_base_unchanged() -> None:
    distribution, tokens, by = case(0, compact=False, scale=1.0, most=2.0, pairs=3)
    before = distribution.row_logits.clone()
    boosted = distribution.boosted(tokens, by)
    assert not torch.equal(boosted.logits, before)
    assert boosted.greedy
    assert torch.equal(distribution.row_logits, before)
    assert torch.equal(distribution.logits, before)
