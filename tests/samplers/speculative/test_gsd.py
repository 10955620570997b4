"""`gsd`: the group by hand, the naive rule on chains and trees, its special case, and the reported deviation."""

from __future__ import annotations

from dataclasses import replace
from typing import Literal, get_args

import numpy as np
import pytest
import torch

from pardec.samplers import registry
from pardec.samplers.speculative.accept.code_features import CodeFeatures
from pardec.samplers.speculative.accept.gsd import Grouped
from pardec.samplers.speculative.accept.speculative import Speculative
from pardec.samplers.speculative.contracts import Draft, TargetDistributions
from tests.reference import naive_relaxed as naive
from tests.reference.naive_acceptance import Node
from tests.samplers.ar_toys import plain_greedy, rows, run, toy_ar
from tests.samplers.handmade_drafts import Given, InOrder, distributions, pairs, tree
from tests.samplers.joint_distributions import drafting
from tests.samplers.speculative.test_rrs import random_tree

Mode = Literal["vectorised", "reference"]
MODES: tuple[Mode, ...] = get_args(Mode)
ALIKE = CodeFeatures(torch.zeros(24, 2))


def test_the_group_s_mass_by_hand() -> None:
    """p = (.1, .2, .3, .4): the four ranks around token 2 are all tokens; within .15 of .3 are 1, 2 and 3.

    q = (.7, .1, .1, .1): sum p = .9 against sum q = .3, accepted; alone .3/.1 too. Token 0 has the lowest rank and
    is tested alone, .1/.7. With group=2 token 3 has ranks 2 and 3: (.3 + .4) / .2.
    """
    p = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64).expand(1, 2, 4)
    q = torch.tensor([0.7, 0.1, 0.1, 0.1], dtype=torch.float64)

    def uniform(token: int, distribution: torch.Tensor, group: int, looks: CodeFeatures = ALIKE) -> float:
        draft = tree(torch.tensor([[0, token]]), None, distribution.expand(1, 2, 4))
        made = Grouped(group).accept(draft, distributions(p), Given(torch.full((1, 2), 2.0)), looks)
        assert made.ratio is not None
        return float(made.ratio[0, 1])

    assert uniform(2, q, 4) == 1
    assert uniform(0, q, 4) == pytest.approx(1 / 7)
    steep = torch.tensor([0.0, 0.0, 0.5, 0.5], dtype=torch.float64)
    assert uniform(3, steep, 2) == pytest.approx(0.7)
    assert uniform(2, steep, 4) == pytest.approx(0.9)
    far = CodeFeatures(torch.tensor([[0.0], [0.7], [0.0], [0.8]]))  # token 1 is .49 from 2, token 3 is .64
    assert uniform(2, steep, 4, far) == pytest.approx((0.2 + 0.3) / 0.5)


def test_equal_logits_rank_by_id() -> None:
    """All of p = (.25, .25, .25, .25): the two ranks around token 2 are those of 1 and 2, .5 against .7."""
    p = torch.full((1, 2, 4), 0.25, dtype=torch.float64)
    q = torch.tensor([0.1, 0.2, 0.5, 0.2], dtype=torch.float64)
    draft = tree(torch.tensor([[0, 2]]), None, q.expand(1, 2, 4))
    made = Grouped(2).accept(draft, distributions(p), Given(torch.full((1, 2), 2.0)), ALIKE)
    assert made.ratio is not None
    assert float(made.ratio[0, 1]) == pytest.approx(0.5 / 0.7)


def test_a_token_of_low_rank_is_tested_alone() -> None:
    """Ranks 0 to 6 have no group; rank 7 has one. The published code gives them p/q."""
    drawn = np.random.RandomState(0)
    p, q = np.sort(drawn.dirichlet([1.0] * 24)), drawn.dirichlet([1.0] * 24)
    distribution, drafted = torch.from_numpy(p).expand(24, 2, 24), torch.from_numpy(q).expand(24, 2, 24)
    draft = tree(torch.stack((torch.zeros(24, dtype=torch.int64), torch.arange(24)), 1), None, drafted)
    for mode in MODES:
        made = Grouped(prob=1.0, mode=mode).accept(
            draft, distributions(distribution), Given(torch.full((24, 2), 9.0)), ALIKE
        )
        assert made.ratio is not None
        assert made.deviation is not None
        alone = np.minimum(1, p / q)
        np.testing.assert_allclose(made.ratio[:7, 1].numpy(), alone[:7])
        assert made.deviation[:7].tolist() == [0] * 7
        group = [p[r - 7 : r + 7].sum() / q[r - 7 : r + 7].sum() for r in range(7, 24)]
        np.testing.assert_allclose(made.ratio[7:, 1].numpy(), np.minimum(1, group))
        np.testing.assert_allclose(made.deviation.numpy(), np.abs(made.ratio[:, 1].numpy() - alone), atol=1e-12)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("points", [0, 1, 2])
@pytest.mark.covers(1)
def test_trees_and_chains_follow_the_naive_rule(points: int, mode: Mode) -> None:
    """With uniforms generated at once and one by one; chains in one computation and node by node."""
    drawn = np.random.RandomState(points)
    used = set()
    for trial in range(40):
        vocab, size = 9, 4
        nodes, p, draft = random_tree(drawn, points=points, size=7, vocab=vocab)
        if trial % 2:
            nodes = [node._replace(parent=i - 1) for i, node in enumerate(nodes)]
            draft = replace(draft, parents=None, depths=None, levels=None)
        table = torch.from_numpy(drawn.normal(size=(vocab, 2)) * 0.4)
        raw = torch.from_numpy(drawn.normal(size=(1, 7, vocab)))  # ranks need not be those of p
        uniforms = torch.from_numpy(drawn.uniform(size=(1, 7)) ** 0.5)

        def test(distribution: np.ndarray, node: Node, above: int) -> naive.Test:
            members = naive.group(distribution, raw[0, above].numpy(), node.token, table.numpy(), size, 0.2, 0.5)  # noqa: B023
            used.add(len(members))
            uniform, left = naive.grouped(distribution, node, members, reference=mode == "reference")
            gaps.append(abs(uniform - naive.grouped(distribution, node, set(), reference=True)[0]))  # noqa: B023
            return uniform, left

        gaps: list[float] = []
        true = naive.in_turn(nodes, p.numpy()[0], lambda node: float(uniforms[0, node]), test)  # noqa: B023
        distribution = TargetDistributions(raw, p.log(), greedy=False)
        in_order = InOrder([float(uniforms[0, node]) for node in true.tested])
        for given_uniforms in (Given(uniforms), in_order):
            made = Grouped(size, 0.2, 0.5, mode).accept(
                draft, distribution, given_uniforms, CodeFeatures(table.double())
            )
            assert made.path[0, 1 : int(made.count) + 1].tolist() == true.path
            assert made.tested is not None
            assert made.tested[0].nonzero()[:, 0].tolist() == sorted(true.tested)
            np.testing.assert_allclose(given_uniforms.left[0].numpy(), true.distribution, atol=1e-9)
            assert made.deviation is not None
            assert float(made.deviation) == pytest.approx(sum(gaps))
    assert {0, 1, 2, 3} <= used


def test_the_mean_deviation_bounds_the_total_variation() -> None:
    """Over x ~ q: the distribution of the token after one draft, compared with p."""
    loose = 0.0
    for p, q in pairs(60, sizes=(6, 8)):
        vocab = len(p)
        draft = tree(
            torch.stack((torch.zeros(vocab, dtype=torch.int64), torch.arange(vocab)), 1),
            None,
            q.expand(vocab, 2, vocab),
        )
        uniforms = Given(torch.full((vocab, 2), torch.inf))
        made = Grouped(4).accept(
            draft, distributions(p.expand(vocab, 2, vocab)), uniforms, CodeFeatures(torch.zeros(vocab, 1))
        )
        assert made.ratio is not None
        assert made.deviation is not None
        uniform = made.ratio[:, 1]
        distribution = q * uniform + ((q * (1 - uniform))[:, None] * uniforms.left).sum(0)
        bound, off = float((q * made.deviation).sum()), float((distribution - p).abs().sum() / 2)
        assert off <= bound + 1e-12
        loose = max(loose, off)
    assert loose > 0.1, "the rule does change laws"


def test_what_filters_leave_out_is_accepted_as_published_only() -> None:
    """Token 1 has probability 0, and its group .5."""
    p = torch.tensor([0.1, 0.0, 0.1, 0.4, 0.4], dtype=torch.float64).expand(1, 2, 5)
    raw = torch.tensor([0.1, 0.2, 0.3, 0.4, 0.5]).expand(1, 2, 5)
    draft = tree(torch.tensor([[0, 1]]), None)
    distribution, uniforms = TargetDistributions(raw, p.log(), greedy=False), Given(torch.full((1, 2), 0.15))
    ours = Grouped(2).accept(draft, distribution, uniforms, CodeFeatures(torch.zeros(5, 1)))
    theirs = Grouped(2, mode="reference").accept(
        draft, distribution, Given(torch.full((1, 2), 0.05)), CodeFeatures(torch.zeros(5, 1))
    )
    assert (int(ours.count), int(theirs.count)) == (0, 1)


def test_ids_from_10000_on_are_not_compared_as_published() -> None:
    p = torch.full((1, 2, 10002), 1e-9, dtype=torch.float64)
    p[..., 5], p[..., 10001] = 0.5005, 0.4995  # of the two, 5 has the higher rank, and 10001 stands below it
    far = CodeFeatures(torch.arange(10002.0)[:, None])
    draft = tree(torch.tensor([[0, 5]]), None)

    def uniform(mode: Mode) -> float:
        made = Grouped(2, mode=mode).accept(draft, distributions(p), Given(torch.full((1, 2), 9.0)), far)
        assert made.ratio is not None
        return float(made.ratio[0, 1])

    assert uniform("vectorised") == pytest.approx(0.5, abs=1e-2)
    assert uniform("reference") == pytest.approx(1, abs=1e-2)


@pytest.mark.parametrize("setting", ["group=0", "group=1", "prob=0", "dist=0"])
def test_it_has_exact_settings(setting: str) -> None:
    assert registry.resolve(f"sjd+gsd:{setting}", "ar", sampling=True).exact == "distribution"
    model, given = toy_ar(4, 6), [[1, 2], [3, 0, 4], [5]]
    with drafting(6):
        done = run(model, f"model:name=draft,k=3+gsd:{setting}", given, 20, temperature=1.0)
        assert rows(done) == rows(run(model, "model:name=draft,k=3+speculative", given, 20, temperature=1.0))


def test_the_tests_themselves_agree_with_the_exact_ones_where_groups_have_one_member() -> None:
    """dist is just above 0, so that groups have one member and still run the code for groups."""
    drawn = np.random.RandomState(3)
    looks = CodeFeatures(torch.arange(5.0)[:, None])
    for points in (0, 1, 2):
        for _ in range(20):
            _, p, draft = random_tree(drawn, points=points)
            uniforms = torch.from_numpy(drawn.uniform(size=(1, 9)))
            one, other = Given(uniforms), Given(uniforms)
            made = Grouped(4, dist=1e-9).accept(draft, distributions(p), one, looks)
            true = Speculative().accept(draft, distributions(p), other, None)
            assert (made.count, made.path[0, : int(made.count) + 1].tolist()) == (
                true.count,
                true.path[0, : int(true.count) + 1].tolist(),
            )
            assert torch.allclose(one.left, other.left, atol=1e-12)
            assert made.deviation is not None
            assert float(made.deviation) < 1e-12


def test_a_row_is_the_same_alone_and_in_a_batch() -> None:
    drawn = np.random.RandomState(5)
    batch, width, vocab = 5, 6, 12
    p = torch.from_numpy(drawn.dirichlet([0.5] * vocab, (batch, width)))
    q = torch.from_numpy(drawn.dirichlet([0.5] * vocab, (batch, width)))
    tokens = torch.from_numpy(drawn.randint(0, vocab, (batch, width)))
    point = torch.from_numpy(drawn.uniform(size=(batch, width)) < 0.3)
    uniforms = torch.from_numpy(drawn.uniform(size=(batch, width)) ** 2)
    sizes, looks = np.array([6, 3, 1, 5, 6]), CodeFeatures(torch.from_numpy(drawn.normal(size=(vocab, 2)) * 0.5))

    def judged(which: slice) -> list[tuple[list[int], float]]:
        draft = Draft(
            tokens[which], sizes[which], np.zeros(len(sizes[which]), np.int64), q=q[which], is_point_mass=point[which]
        )
        own = Given(uniforms[which])
        made = Grouped(6).accept(draft, distributions(p[which]), own, looks)
        assert made.deviation is not None
        found = zip(made.count.tolist(), made.next.tolist(), made.deviation.tolist(), strict=True)
        return [([count, token], off) for count, token, off in found]

    together = judged(slice(None))
    assert together == [judged(slice(at, at + 1))[0] for at in range(batch)]
    assert len({count for (count, _), _ in together}) > 2
    assert all(count < size for ((count, _), _), size in zip(together, sizes.tolist(), strict=True))


def test_greedy_decoding_at_temperature_0() -> None:
    model, given = toy_ar(2, 20, 1.5), [[1, 2, 1, 2], [3], [5, 5, 0, 5, 5]]
    for mode in MODES:
        done = run(model, f"jacobi+gsd:mode={mode}", given, 12)
        assert rows(done) == [plain_greedy(model, prompt, 12) for prompt in given]
        assert max(done.deviation) == 0


def test_more_is_accepted_and_told() -> None:
    model, given = toy_ar(2, 40, 0.9), [[1, 2, 1, 2]] * 20
    plain, loose = (
        run(model, f"sjd:window=8+{rule}", given, 24, temperature=1.0)
        for rule in ("speculative", "gsd:dist=1e9,prob=1.0")
    )
    assert sum(loose.nfe) < 0.8 * sum(plain.nfe)
    assert min(loose.deviation) > 0
    assert registry.resolve("sjd+gsd", "ar", sampling=True).exact == "relaxed"
