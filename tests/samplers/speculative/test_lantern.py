"""`lantern`: the resulting distribution by enumeration, within its bound; exact settings, rows, and neighbours."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import permutations

import numpy as np
import pytest
import torch
from torch import Tensor

from pardec.models.errors import ModelError
from pardec.models.model import LanguageModel
from pardec.samplers import registry
from pardec.samplers.speculative.accept import lantern
from pardec.samplers.speculative.accept.code_features import CodeFeatures, nearest
from pardec.samplers.speculative.accept.lantern import Lantern, move_probability
from pardec.samplers.speculative.accept.speculative import Speculative
from pardec.samplers.speculative.contracts import Acceptance, Draft, TargetDistributions, Uniforms, Verdict
from tests.reference import naive_relaxed as naive
from tests.samplers.ar_toys import counted, joint, rows, run, toy_ar, variation
from tests.samplers.handmade_drafts import Given, distributions, emitted, pairs, tree
from tests.samplers.joint_distributions import drafting
from tests.samplers.speculative.test_rrs import random_tree

BOUNDS = [(0.02, None), (0.1, None), (0.4, None), (1.0, None), (0.2, 1.5), (0.1, 3.0)]  # delta and ratio


@dataclass(frozen=True)
class With(Acceptance):
    """A rule with given neighbours."""

    rule: Lantern
    features: CodeFeatures

    def accept(self, draft: Draft, distributions: TargetDistributions, uniforms: Uniforms, state: None) -> Verdict:
        return self.rule.accept(draft, distributions, uniforms, self.features)


def features(vocab: int, seed: int = 0, k: int | None = None) -> CodeFeatures:
    """The neighbours of random points in a plane."""
    table = torch.from_numpy(np.random.RandomState(seed).normal(size=(vocab, 2)))
    return CodeFeatures(nearest(table, vocab - 1 if k is None else k))


def distance(one: Tensor, other: Tensor) -> float:
    return float((one - other).abs().sum() / 2)


def adversarial() -> list[tuple[Tensor, Tensor]]:
    """Distributions with little in common: p mostly on even ids and q on odd ones; one heavy token and a flat one."""
    found = []
    for size in (4, 6):
        even = torch.tensor([1.0, 1e-4] * (size // 2), dtype=torch.float64)
        found.append((even / even.sum(), even.flip(0) / even.sum()))
        steep = torch.tensor([1.0] + [1e-3] * (size - 1), dtype=torch.float64)
        flat = torch.full((size,), 1 / size, dtype=torch.float64)
        found += [(steep / steep.sum(), flat), (flat, steep / steep.sum())]
    return found


# --- principled: a law near p, then the exact rule ---


@pytest.mark.parametrize("replacement", [False, True])
@pytest.mark.parametrize("siblings", [1, 2, 3, 4])
@pytest.mark.covers(1)
def test_what_comes_out_of_draws_has_the_moved_distribution_within_delta(siblings: int, replacement: bool) -> None:
    gained = []
    for number, (p, q) in enumerate([*pairs(18), *adversarial()]):
        if not replacement and siblings > len(p):
            continue
        delta, ratio = BOUNDS[number % len(BOUNDS)]
        k, near = 1 + number % 3, features(len(p), number)
        rule = With(Lantern(k, delta, ratio), near)
        distribution, accepted = emitted(rule, p, q, siblings, replacement=replacement)
        true = naive.transported(p.numpy(), q.numpy(), near.table.tolist(), k, delta, ratio)
        np.testing.assert_allclose(distribution.numpy(), true, atol=1e-12)
        assert distance(distribution, p) <= delta + 1e-12
        assert abs(float(distribution.sum()) - 1) < 1e-12
        gained.append(accepted - emitted(Speculative(), p, q, siblings, replacement=replacement)[1])
    assert max(gained) > 0.05


@pytest.mark.parametrize("siblings", [1, 2, 3, 4])
def test_what_comes_out_of_point_masses_has_the_moved_distribution_within_delta(siblings: int) -> None:
    moves = []
    for number, (p, _) in enumerate([*pairs(12, sizes=(4, 5, 6)), *adversarial()]):
        delta, ratio = BOUNDS[number % len(BOUNDS)]
        k, near = 1 + number % 3, features(len(p), number)
        for tokens in list(permutations(range(len(p)), siblings))[::17]:
            draft = tree(torch.tensor([[0, *tokens]]), [-1] + [0] * siblings)
            uniforms = Given(torch.full((1, siblings + 1), torch.inf))
            made = Lantern(k, delta, ratio).accept(draft, distributions(p.expand(1, siblings + 1, -1)), uniforms, near)
            assert made.ratio is not None
            distribution, going = torch.zeros_like(p), 1.0
            for at, token in enumerate(tokens, 1):
                uniform = float(made.ratio[0, at])
                distribution[token] += going * uniform
                going *= 1 - uniform
            distribution += going * uniforms.left[0]
            true = naive.transported(p.numpy(), tokens, near.table.tolist(), k, delta, ratio)
            np.testing.assert_allclose(distribution.numpy(), true, atol=1e-12)
            assert distance(distribution, p) <= delta + 1e-12
            assert made.deviation is not None
            assert float(made.deviation) == pytest.approx(distance(distribution, p), abs=1e-12)
            moves.append(distance(distribution, p))
    assert max(moves) > 0.1


def the_transport_by_hand() -> None:
    """p = (.5, .3, .1, .1), q = (.1, .1, .4, .4): 2 and 3 lack .3; 0, a neighbour of 2, can give .4; 1, of both, .2.

    Token 1 halves its .2, so that 2 is offered .5 and 3 gets .1; 2 takes its .3 of the offers alike, .6 of each: .24 of
    0 and .06 of 1. In all .4; with delta = .1 a quarter of each.
    """
    p = torch.tensor([0.5, 0.3, 0.1, 0.1], dtype=torch.float64)
    q = torch.tensor([0.1, 0.1, 0.4, 0.4], dtype=torch.float64)
    near = torch.tensor([[1, 2], [0, 2], [0, 1], [1, 2]], dtype=torch.int32)
    draft = tree(torch.tensor([[0, 2]]), None, q.expand(1, 2, 4))
    for delta, part in ((1.0, 1.0), (0.4, 1.0), (0.1, 0.25)):
        distribution, off = move_probability(draft, p.expand(1, 2, 4), near, delta, None)
        expected = [0.5 - 0.24 * part, 0.3 - 0.16 * part, 0.1 + 0.3 * part, 0.1 + 0.1 * part]
        assert distribution[0, 0].tolist() == pytest.approx(expected)
        assert off[0].tolist() == pytest.approx([0.4 * part, 0])
        assert distribution[0, 1].tolist() == p.tolist()  # nothing is tested after the leaf
    distribution, off = move_probability(draft, p.expand(1, 2, 4), near, 1.0, 1.5)
    assert distribution[0, 0, 2:].tolist() == pytest.approx([0.15, 0.15])  # (1.5 - 1) .1 each, and no more
    zero = torch.tensor([0.6, 0.4, 0.0, 0.0], dtype=torch.float64)
    distribution, off = move_probability(draft, zero.expand(1, 2, 4), near, 1.0, None)
    assert distribution[0, 0].tolist() == zero.tolist()  # what filters leave out borrows nothing
    assert float(off.abs().max()) == 0


def the_published_rejection_by_hand() -> None:
    """p = (.5, .3, .1, .1), q = (.1, .1, .4, .4): 2 borrows the .5 of 0, so that .6 of .4 is tested.

    Rejected, q is cleared at its neighbours 0 and 1 (one more than it borrows from): .5 and .3 are left, of .8.
    """
    near = nearest(torch.tensor([[2.0], [4.0], [1.0], [9.0]]), 3)
    assert near.tolist() == [[2, 1, 3], [0, 2, 3], [0, 1, 3], [1, 0, 2]]
    p = torch.tensor([0.5, 0.3, 0.1, 0.1], dtype=torch.float64).expand(1, 2, 4)
    q = torch.tensor([0.1, 0.1, 0.4, 0.4], dtype=torch.float64).expand(1, 2, 4)
    for delta, ratio in ((0.6, 1.0), (0.4, 0.25)):
        uniforms = Given(torch.full((1, 2), 9.0))
        rule = Lantern(1, delta, mode="reference")
        made = rule.accept(tree(torch.tensor([[0, 2]]), None, q), distributions(p), uniforms, CodeFeatures(near))
        assert made.ratio is not None
        assert float(made.ratio[0, 1]) == pytest.approx(ratio)
        left = [0.5 / 0.8, 0.3 / 0.8, 0, 0] if delta == 0.6 else [0.4 / 0.6, 0.2 / 0.6, 0, 0]
        assert uniforms.left[0].tolist() == pytest.approx(left)
    never = tree(torch.tensor([[0, 2]]), None, q.masked_fill(torch.arange(4) == 2, 0))  # q(2) = 0: it cannot be tested
    made = Lantern(1, 0.6, mode="reference").accept(
        never, distributions(p), Given(torch.zeros(1, 2)), CodeFeatures(near)
    )
    assert int(made.count) == 0


def equal_greedy_tokens_by_hand() -> None:
    """.25 and a neighbour's .25 are as much as the .5 of token 1: the lower id wins."""
    logits = torch.tensor([0.0, math.log(2), 0.0]).expand(1, 2, 3)
    assert logits.softmax(-1)[0, 0].tolist() == [0.25, 0.5, 0.25]
    near = CodeFeatures(torch.tensor([[2, 1], [0, 2], [0, 1]], dtype=torch.int32))
    for token, accepted in ((0, 1), (2, 0)):
        draft, target = tree(torch.tensor([[0, token]]), None), TargetDistributions(logits, logits, True)
        for delta in (0.3, 0.2):  # enough for the neighbour, or not
            made = Lantern(1, delta).accept(draft, target, Given(torch.zeros(1, 2)), near)
            assert int(made.count) == (accepted if delta == 0.3 else 0)
            assert made.deviation is not None
            assert float(made.deviation) == int(made.count), "as many tokens as are not the likeliest"


def a_greedy_token_borrows_within_its_ratio_and_delta() -> None:
    """Token 0 has .25 and needs the .25 of its neighbour: twice its own, which a delta below that does not allow."""
    logits = torch.tensor([0.0, math.log(2), 0.0]).expand(1, 2, 3)
    near = CodeFeatures(torch.tensor([[2, 1], [0, 2], [0, 1]], dtype=torch.int32))
    draft, target = tree(torch.tensor([[1, 0]]), None), TargetDistributions(logits, logits, True)
    for delta, ratio, accepted in ((0.3, 2.0, 1), (0.3, 1.9, 0), (0.2, 9.0, 0)):
        made = Lantern(1, delta, ratio).accept(draft, target, Given(torch.zeros(1, 2)), near)
        assert int(made.count) == accepted


@pytest.mark.parametrize("points", [0, 1, 2])
def test_a_tree_is_judged_by_the_moved_distributions(points: int) -> None:
    """Node by node against the naive transport and recursion; of mixed siblings, point masses before any draw count."""
    drawn = np.random.RandomState(points)
    for trial in range(25):
        nodes, p, draft = random_tree(drawn, points=points)
        near, k, delta = features(5, trial), 1 + trial % 3, (0.05, 0.3)[trial % 2]
        distribution = p[0].numpy().copy()
        for parent in range(len(nodes)):
            below = [node for i, node in enumerate(nodes) if i and node.tested and node.parent == parent]
            if below and below[0].q is not None:
                distribution[parent] = naive.transported(
                    distribution[parent], np.array(below[0].q), near.table.tolist(), k, delta, None
                )
            elif below:
                first = next((i for i, node in enumerate(below) if node.q is not None), len(below))
                tokens = [node.token for node in below[:first]]
                distribution[parent] = naive.transported(
                    distribution[parent], tokens, near.table.tolist(), k, delta, None
                )
        found, off = move_probability(draft, p, near.table[:, :k], delta, None)
        np.testing.assert_allclose(found[0].numpy(), distribution, atol=1e-12)
        np.testing.assert_allclose(off[0].numpy(), np.abs(distribution - p[0].numpy()).sum(1) / 2, atol=1e-12)
        distribution = distribution.clip(0)  # rounding
        uniforms = torch.from_numpy(drawn.uniform(size=(1, len(nodes))))
        true, ours = Given(uniforms), Given(uniforms)
        made = Lantern(k, delta).accept(draft, distributions(p), ours, near)
        exact = Speculative().accept(draft, distributions(torch.from_numpy(distribution)[None]), true, None)
        path = exact.path[0, : int(exact.count) + 1]
        assert made.path[0, : int(made.count) + 1].tolist() == path.tolist()
        np.testing.assert_allclose(ours.left[0].numpy(), true.left[0].numpy(), atol=1e-9)
        assert made.deviation is not None
        assert float(made.deviation) == pytest.approx(float(off[0, path].sum()))


def test_the_joint_distribution_stays_within_what_is_reported() -> None:
    """Whole rows sampled by the loop deviate from the truth by at most the mean deviation and the noise."""
    model, prompt, draws = toy_ar(3, 4), [1, 3], 2000
    truth = joint(model, prompt, 3)
    with drafting(4):
        found = {}
        for spec in ("model:name=draft,k=3+lantern:k=2,delta=0.3", "model:name=draft,k=3+speculative"):
            done = run(model, spec, [prompt] * draws, 3, temperature=1.0, seeds=range(draws))
            found[spec] = variation(counted(done, 2, 3, 4), truth), np.mean(done.deviation or 0)
    (off, bound), (noise, none) = found.values()
    assert none == 0
    assert 2 * noise < off < bound + noise
    assert bound < 3 * 0.3


# --- exact settings, rows, errors ---


@pytest.mark.parametrize("drafter", ["model:name=draft,k=3", "model:name=draft,k=3+template:widths=3-2", "lookup:k=3"])
def test_without_anything_to_borrow_it_is_the_exact_rule(drafter: str) -> None:
    """delta=1e-12 computes the transform; k=0 and delta=0 do not."""
    model, given = toy_ar(4, 6), [[1, 2, 1], [3, 0, 3, 0], [5, 5]]
    with drafting(6):
        true = run(model, f"{drafter}+speculative", given, 12, temperature=1.0)
        for setting in ("k=0", "delta=0", "ratio=1", "delta=1e-12", "k=0,mode=reference", "delta=0,mode=reference"):
            done = run(model, f"{drafter}+lantern:{setting}", given, 12, temperature=1.0)
            assert rows(done) == rows(true), setting
            assert done.trace.accepted == true.trace.accepted
            exact = registry.resolve(f"{drafter}+lantern:{setting}", "ar", sampling=True).exact
            assert exact == ("relaxed" if "1e-12" in setting else "distribution")


def test_a_row_is_the_same_alone_and_in_a_batch() -> None:
    drawn = np.random.RandomState(5)
    batch, width, vocab = 5, 6, 12
    p = torch.from_numpy(drawn.dirichlet([0.5] * vocab, (batch, width)))
    q = torch.from_numpy(drawn.dirichlet([0.5] * vocab, (batch, width)))
    tokens = torch.from_numpy(drawn.randint(0, vocab, (batch, width)))
    point = torch.from_numpy(drawn.uniform(size=(batch, width)) < 0.3)
    uniforms = torch.from_numpy(drawn.uniform(size=(batch, width)) ** 2)
    sizes, near = np.array([6, 3, 1, 5, 6]), features(vocab)

    def judged(rule: Lantern, which: slice) -> list[tuple[int, int, float]]:
        part = sizes[which]
        draft = Draft(tokens[which], part, np.zeros(len(part), np.int64), q=q[which], is_point_mass=point[which])
        made = rule.accept(draft, distributions(p[which]), Given(uniforms[which]), near)
        off = torch.zeros(len(part)) if made.deviation is None else made.deviation
        return list(zip(made.count.tolist(), made.next.tolist(), off.double().round(decimals=12).tolist(), strict=True))

    for rule in (Lantern(4, 0.3), Lantern(4, 0.3, mode="reference"), Lantern(4, 0.3, 2.0)):
        together = judged(rule, slice(None))
        assert together == [judged(rule, slice(at, at + 1))[0] for at in range(batch)]
        assert len({count for count, _, _ in together}) > 2


def test_many_ids_and_many_nodes_go_another_way(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = np.random.RandomState(6)
    p, q = (torch.from_numpy(drawn.dirichlet([0.5] * 9, (4, 7))) for _ in range(2))
    point = torch.from_numpy(drawn.uniform(size=(4, 7)) < 0.3)
    draft = tree(torch.from_numpy(drawn.randint(0, 9, (4, 7))), None, q, is_point_mass=point)

    def by(dense: int, gathered: int) -> tuple[Tensor, Tensor]:
        monkeypatch.setattr(lantern, "_DENSE", dense)
        monkeypatch.setattr(lantern, "_GATHERED", gathered)
        return move_probability(draft, p, features(9).table[:, :3], 0.2, 2.5)

    distribution, off = by(9, 0)
    for sparse, far in (by(8, 1 << 20), by(8, 60)):
        np.testing.assert_allclose(sparse.numpy(), distribution.numpy(), atol=1e-15)
        np.testing.assert_allclose(far.numpy(), off.numpy(), atol=1e-15)
    assert float(off.max()) > 0.05


def test_more_is_accepted_and_told() -> None:
    model, given = toy_ar(2, 40, 0.9), [[1, 2, 1, 2]] * 20

    def decoded(rule: str) -> tuple[int, Sequence[float]]:
        done = run(model, f"sjd:window=8+{rule}", given, 24, temperature=1.0)
        return sum(done.nfe), done.deviation

    plain, _ = decoded("speculative")
    principled, bounds = decoded("lantern:k=39,delta=0.3")
    published, none = decoded("lantern:k=39,delta=0.3,mode=reference")
    assert published < principled < plain
    assert 0 < min(bounds) <= max(bounds) <= 0.3 * 24
    assert none == ()


def test_the_codebook_says_who_is_near(monkeypatch: pytest.MonkeyPatch) -> None:
    """With codes in pairs each token's nearest neighbour is its twin, whatever the embeddings are."""
    model, seen, accept = toy_ar(2, 6), [], Lantern.accept

    def watched(
        self: Lantern, draft: Draft, distributions: TargetDistributions, uniforms: Uniforms, state: CodeFeatures
    ) -> Verdict:
        seen.append(state.table)
        return accept(self, draft, distributions, uniforms, state)

    monkeypatch.setattr(Lantern, "accept", watched)
    codes = torch.tensor([[0.0], [5.0], [0.1], [5.1], [9.0], [9.1]])
    monkeypatch.setattr(LanguageModel, "codebook", codes)
    run(model, "sjd+lantern:k=1,mode=reference", [[1, 2], [3]], [2, 6], temperature=1.0)
    assert all(table[:, 0].tolist() == [2, 3, 0, 1, 5, 4] for table in seen), "also when a row has left"
    assert seen[0].shape == (6, 2)
    monkeypatch.setattr(LanguageModel, "codebook", codes[:5])
    with pytest.raises(ModelError, match="toy has a codebook of 5 rows for 6 ids"):
        run(model, "sjd+lantern", [[1, 2]], 4, temperature=1.0)


@pytest.mark.seeds("arXiv:2410.03355")
def test_nothing_borrowed_is_exact_no_more_moves_than_delta_and_more_neighbours_accept_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with monkeypatch.context() as patch:
        test_the_codebook_says_who_is_near(patch)
    """The paper's k counts a token as its own neighbour: its k=1 is k=0 here."""
    the_transport_by_hand()
    the_published_rejection_by_hand()
    equal_greedy_tokens_by_hand()
    a_greedy_token_borrows_within_its_ratio_and_delta()
    for points in (0, 1):
        import_module("tests.samplers.speculative.test_lantern_published").test_the_published_rule_on_trees_and_chains(
            points
        )
    test_what_comes_out_of_draws_has_the_moved_distribution_within_delta(1, False)
    model, given = toy_ar(2, 20, 0.9), [[1, 2, 1, 2]] * 20
    exact, *same = (
        run(model, f"sjd:window=8+{rule}", given, 16, temperature=1.0)
        for rule in ("speculative", "lantern:delta=0", "lantern:k=0")
    )
    assert all(rows(each) == rows(exact) for each in same)
    for p, q in pairs(12):
        for delta in (0.05, 0.3):
            distribution, _ = emitted(
                With(Lantern(3, delta), features(len(p), k=len(p) - 1)), p, q, 1, replacement=True
            )
            assert 0 < distance(distribution, p) + 1e-12 <= delta + 1e-9
    accepted = [
        sum(map(sum, run(model, f"sjd:window=8+lantern:k={k},delta=0.3", given, 24, temperature=1.0).trace.accepted))
        for k in (0, 3, 19)
    ]
    assert accepted[0] < accepted[1] < accepted[2]
