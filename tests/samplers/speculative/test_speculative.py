"""`speculative`: hand-computed chains and trees, numerical edge cases, independent rows, and the naive recursion."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pardec.samplers.rng import Keyed
from pardec.samplers.speculative.accept.speculative import Speculative
from pardec.samplers.speculative.contracts import RoundUniforms as Uniforms
from pardec.samplers.speculative.ops import verification
from tests.reference import naive_acceptance as naive
from tests.samplers.handmade_drafts import Given, InOrder, distributions, emitted, pairs, tree
from tests.samplers.speculative.test_rrs import random_tree

P = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).expand(1, 4, 3)


def test_a_chain_by_hand() -> None:
    """Drafts 1, 2 from q = (.2, .6, .2): .3/.6 = 1/2 and .2/.2 = 1; rejecting 1 leaves (.3, 0, 0), so token 0."""
    q = torch.tensor([0.2, 0.6, 0.2], dtype=torch.float64).expand(1, 3, 3)
    draft = tree(torch.tensor([[0, 1, 2]]), None, q)
    kept = Speculative().accept(draft, distributions(P[:, :3]), Given(torch.tensor([[0.0, 0.49, 0.99]])), None)
    assert (int(kept.count), kept.path[0].tolist()) == (2, [0, 1, 2])
    lost = Speculative().accept(
        draft, distributions(P[:, :3]), uniforms := Given(torch.tensor([[0.0, 0.51, 0.0]])), None
    )
    assert int(lost.count) == 0
    assert uniforms.left[0].tolist() == pytest.approx([1, 0, 0])
    assert lost.tested is not None
    assert lost.tested[0].tolist() == [False, True, False]
    assert lost.ratio is not None
    assert lost.ratio[0].tolist() == pytest.approx([0, 0.5, 0])


def test_a_rejected_copy_in_a_chain_of_samples_is_removed_whatever_q_says() -> None:
    """The copy of token 0 is accepted with .5; rejected, it leaves (.3, .2). q would leave (0, .1, 0)."""
    q = torch.tensor([0.6, 0.2, 0.2], dtype=torch.float64).expand(1, 3, 3)
    draft = tree(torch.tensor([[2, 0, 1]]), None, q, is_point_mass=torch.tensor([[False, True, False]]))
    for u, count, left in ((0.49, 1, [0.0, 1.0, 0.0]), (0.51, 0, [0.0, 0.6, 0.4])):
        uniforms = Given(torch.tensor([[0.0, u, 2.0]], dtype=torch.float64))
        made = Speculative().accept(draft, distributions(P[:, :3]), uniforms, None)
        assert int(made.count) == count
        assert (uniforms.left[0] / uniforms.left[0].sum()).tolist() == pytest.approx(left)


def test_copied_tokens_by_hand() -> None:
    """A point mass is accepted with its token's p and, if rejected, removed from p: siblings 0 (.5) and 1 (.3/.5)."""
    draft = tree(torch.tensor([[2, 0, 1]]), [-1, 0, 0])
    for u, path, left in (
        ([0.49, 0.0], [0, 1], [0.5, 0.3, 0.2]),
        ([0.51, 0.59], [0, 2], [0.5, 0.3, 0.2]),
        ([0.51, 0.61], [0], [0, 0, 1]),
    ):
        uniforms = Given(torch.tensor([[0.0, *u]], dtype=torch.float64))
        made = Speculative().accept(draft, distributions(P[:, :3]), uniforms, None)
        assert made.path[0, : int(made.count) + 1].tolist() == path
        assert uniforms.left[0].tolist() == pytest.approx(left)


def test_equal_distributions_are_always_accepted_and_disjoint_ones_never() -> None:
    p, q = torch.tensor([0.7, 0.3, 0.0, 0.0]).double(), torch.tensor([0.0, 0.0, 0.4, 0.6]).double()
    same, never = emitted(Speculative(), p, p, 1, replacement=True), emitted(Speculative(), p, q, 1, replacement=True)
    assert same[1] == pytest.approx(1)
    assert never[1] == 0
    torch.testing.assert_close(never[0], p)


def test_one_draft_is_accepted_as_often_as_the_distributions_overlap() -> None:
    for p, q in pairs(20):
        distribution, accepted = emitted(Speculative(), p, q, 1, replacement=True)
        assert accepted == pytest.approx(float(torch.minimum(p, q).sum()), abs=1e-12)
        assert float((distribution - p).abs().max()) < 1e-12


def test_a_rejection_by_rounding_draws_from_p() -> None:
    """p and q equal up to the last bits: nothing remains, so p itself is sampled, never a token without probability."""
    p = torch.tensor([0.25, 0.75, 0.0])
    assert torch.equal(verification.residual(p, p), p)
    assert torch.equal(verification.residual(p, p + 1e-14), p)
    gone = torch.tensor([[True, True, False]])
    assert torch.equal(verification.without(p[None], gone), p[None])


def test_a_token_without_probability_is_not_accepted() -> None:
    """Not even if its siblings have taken all probability, or a little more by rounding."""
    p = torch.tensor([[0.6000001, 0.4, 0.0]]).expand(1, 4, 3)
    draft = tree(torch.tensor([[0, 0, 1, 2]]), [-1, 0, 0, 0])
    made = Speculative().accept(draft, distributions(p), Given(torch.tensor([[0.0, 0.99, 2.0, 0.0]])), None)
    assert int(made.count) == 0


@pytest.mark.parametrize("points", [1, 2])
def test_trees_follow_the_naive_recursion(points: int) -> None:
    drawn = np.random.RandomState(points)
    for _ in range(60):
        nodes, p, draft = random_tree(drawn, points=points)
        uniforms = torch.from_numpy(drawn.uniform(size=(1, len(nodes))))
        true = naive.recursive(nodes, p.numpy()[0], lambda node: float(uniforms[0, node]))  # noqa: B023
        for given_uniforms in (Given(uniforms), InOrder([float(uniforms[0, node]) for node in true.tested])):
            made = Speculative().accept(draft, distributions(p), given_uniforms, None)
            assert made.path[0, 1 : int(made.count) + 1].tolist() == true.path
            np.testing.assert_allclose(given_uniforms.left[0].numpy(), true.distribution, atol=1e-9)


def test_a_chain_is_a_tree_with_one_path() -> None:
    drawn = np.random.RandomState(3)
    p, q = (torch.from_numpy(drawn.dirichlet([0.6] * 6, (200, 5))) for _ in range(2))
    tokens, uniforms = torch.from_numpy(drawn.randint(0, 6, (200, 5))), torch.from_numpy(drawn.uniform(size=(200, 5)))
    for distribution in (None, q):
        found = []
        for parents in (None, [-1, 0, 1, 2, 3]):
            given_uniforms = Given(uniforms)
            made = Speculative().accept(tree(tokens, parents, distribution), distributions(p), given_uniforms, None)
            found.append((made.count, made.tested, made.ratio, given_uniforms.left))
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", ["chain", "points", "distributions"])
@pytest.mark.parametrize("vocab", [7, 40_000])
def test_a_row_alone_decides_as_in_a_batch_to_the_last_bit(kind: str, vocab: int) -> None:
    """Also with several threads, where a row alone would be summed by all of them, in another order."""
    made = torch.Generator().manual_seed(5)
    tokens = torch.randint(0, vocab, (3, 6), generator=made)
    parents = None if kind == "chain" else [-1, 0, 0, 0, 1, 1]
    p, q = ((torch.randn(3, 6, vocab, generator=made) * 3).softmax(-1) for _ in range(2))
    distribution = None if kind == "points" else q

    def decide(rows: slice) -> list[torch.Tensor]:
        source = Keyed((4, 5, 6)[rows])
        count = len(tokens[rows])
        seen: list[torch.Tensor] = []

        class Kept(Uniforms):
            def draw(self, weights: torch.Tensor, purpose: str, node: int = 0) -> torch.Tensor:
                seen.append(weights)
                return super().draw(weights, purpose, node)

        uniforms = Kept(source, np.arange(count), np.zeros(count, np.int64), torch.device("cpu"))
        draft = tree(tokens[rows], parents, None if distribution is None else distribution[rows])
        found = Speculative().accept(draft, distributions(p[rows]), uniforms, None)
        assert found.ratio is not None
        return [found.count, found.next, found.ratio, *seen]

    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        together = decide(slice(0, 3))
        for row in range(3):
            for one, other in zip(decide(slice(row, row + 1)), together, strict=True):
                assert torch.equal(one[0], other[row])
    finally:
        torch.set_num_threads(threads)
