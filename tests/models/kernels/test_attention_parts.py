"""Attention in two parts compared with plain attention over all slots."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from torch import Tensor

from pardec.models.errors import ModelError
from pardec.models.kernels.attention import AttentionPattern, visible_slots
from pardec.models.kernels.attention_parts import attend_part, attend_parts, pattern_parts
from pardec.models.plan import Plan, Visible
from tests.models.toys import ask, ids
from tests.reference.naive_attention import attention as naive
from tests.samplers.fake_draft_model import RAGGED
from tests.samplers.speculative import test_longspec as longspec

SHARED, OWN = 11, 9  # slots
TOLERANCE = {torch.float64: 1e-10, torch.float32: 2e-6, torch.bfloat16: 2e-2}
LENGTHS = torch.tensor([18, 14, 16])


def plan_of(kind: str) -> Plan:
    """Rows of unequal length whose queries are their last positions; the tree and the chain have a padded row."""
    if kind == "even":
        order = torch.tensor([[15]]).expand(3, 1)
        return Plan(ids(3, 1), order, order, Visible.causal(), order[:, 0] + 1, order * 0, uniform=16, span=(15, 16))
    if kind == "chain of even rows":
        order = torch.arange(12, 16).expand(3, 4)
        return Plan(ids(3, 4), order, order, Visible.causal(), order[:, 3] + 1, order, uniform=16, span=(12, 16))
    slots = LENGTHS[:, None] - 3 + torch.arange(3)
    if kind == "tree":
        parents, base = torch.tensor([-1, 0, 0]), LENGTHS - 3
        depth = torch.tensor([0, 1, 1])
        return ask(ids(3, 3), base[:, None] + depth, Visible.tree(parents, base), LENGTHS, slots=slots)
    if kind == "mask":  # some of the shared slots are hidden, too
        dense = torch.rand(3, 3, SHARED + OWN, generator=torch.Generator().manual_seed(2)) < 0.5
        dense.scatter_(2, slots[..., None], True)
        return ask(ids(3, 3), slots, Visible.mask(dense), LENGTHS)
    if kind == "mask of the last":
        dense = torch.ones(3, 3, 4, dtype=torch.bool).tril()
        return ask(ids(3, 3), slots, Visible.mask(dense, before=SHARED + 1), LENGTHS)
    positions = slots.clone()
    positions[1, 2] = -1
    return ask(ids(3, 3), positions, Visible.causal(), torch.where(torch.arange(3) == 1, LENGTHS - 1, LENGTHS))


KINDS = ["even", "chain of even rows", "ragged", "tree", "mask", "mask of the last"]


@pytest.mark.parametrize("dtype", TOLERANCE)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("heads", "kv"), [(4, 4), (6, 2), (3, 1)])
@pytest.mark.parametrize("reference", [True, False])
@torch.inference_mode()
@pytest.mark.covers(2)
def test_two_parts_are_one_attention(kind: str, heads: int, kv: int, dtype: torch.dtype, reference: bool) -> None:
    plan, generator = plan_of(kind), torch.Generator().manual_seed(3)
    q = torch.randn(3, plan.width, heads, 16, generator=generator).to(dtype)
    shared = [torch.randn(1, SHARED, kv, 16, generator=generator).to(dtype) for _ in range(2)]
    own = [torch.randn(3, OWN, kv, 16, generator=generator).to(dtype) for _ in range(2)]
    extent = int(plan.lengths.max())
    options = {"dtype": dtype, "device": q.device, "reference": reference}
    prefix, pattern = pattern_parts(plan, SHARED, extent=extent, **options)
    whole = [torch.cat((one.expand(3, -1, -1, -1), two), 1) for one, two in zip(shared, own, strict=True)]
    for each in own:  # what lies past a row's length is never read
        each.masked_fill_((torch.arange(OWN) + SHARED >= plan.lengths[:, None])[..., None, None], torch.nan)
    out = attend_parts(q, (*shared, prefix), (*own, pattern))
    expected = naive(q, *whole, visible_slots(plan, SHARED + OWN))
    real = plan.positions >= 0
    assert out.dtype == dtype
    assert out.isfinite().all()
    assert (out[real] - expected[real]).abs().max() < TOLERANCE[dtype]
    if dtype == torch.float64:
        capped = attend_parts(q, (*shared, prefix), (*own, pattern), 0.7)
        wanted = naive(q, *whole, visible_slots(plan, SHARED + OWN), cap=0.7)
        assert (capped[real] - wanted[real]).abs().max() < 1e-10
        assert (wanted - expected)[real].abs().max() > 1e-3, "the cap counts"


@torch.inference_mode()
def test_narrowed_patterns_are_those_of_the_queries_left() -> None:
    plan, generator = plan_of("mask"), torch.Generator().manual_seed(3)
    q = torch.randn(3, 3, 4, 16, generator=generator)
    shared, own = ([torch.randn(r, s, 2, 16, generator=generator)] * 2 for r, s in ((1, SHARED), (3, OWN)))
    patterns = pattern_parts(plan, SHARED, extent=int(LENGTHS.max()), dtype=q.dtype, device=q.device)
    picked = torch.tensor([[2], [0], [1]])
    rows = torch.arange(3)[:, None]
    one, two = (each.narrowed(picked) for each in patterns)
    out = attend_parts(q[rows, picked], (*shared, one), (*own, two))
    every = attend_parts(q, (*shared, patterns[0]), (*own, patterns[1]))
    assert torch.allclose(out, every[rows, picked], atol=1e-6)


@pytest.mark.parametrize("backend", ["reference", "c"])
@pytest.mark.parametrize("queries", [1, 3, 17])
@torch.inference_mode()
def test_the_log_sum_exps_are_those_of_the_scores(backend: str, queries: int) -> None:
    generator = torch.Generator().manual_seed(4)
    q = torch.randn(2, queries, 6, 32, generator=generator) * 3
    k, v = (torch.randn(2, 53, 2, 32, generator=generator) for _ in range(2))
    out, sums = attend_part(q, k, v, AttentionPattern(backend, 53))
    keys = k.double().repeat_interleave(3, 2)
    scores = torch.einsum("bqhd,bshd->bqhs", q.double(), keys) / math.sqrt(32)
    assert (sums - scores.logsumexp(-1)).abs().max() < 1e-4
    assert (out - naive(q, k, v, torch.ones(2, queries, 53, dtype=torch.bool))).abs().max() < 1e-5


def test_a_part_of_which_nothing_is_seen_counts_for_nothing() -> None:
    generator = torch.Generator().manual_seed(5)
    q = torch.randn(2, 1, 2, 8, dtype=torch.float64, generator=generator)
    k, v = (torch.randn(2, 5, 2, 8, dtype=torch.float64, generator=generator) for _ in range(2))
    seen, nothing = AttentionPattern("reference", 5), torch.full((2, 1, 1, 5), -torch.inf, dtype=torch.float64)
    empty = AttentionPattern("reference", 5, mask=nothing)
    expected = naive(q, k, v, torch.ones(2, 1, 5, dtype=torch.bool))
    for parts in (((k, v, seen), (v, k, empty)), ((v, k, empty), (k, v, seen))):
        assert torch.allclose(attend_parts(q, *parts), expected, atol=1e-12)


def test_other_patterns_are_refused() -> None:
    plan = Plan.full(ids(2, 3), Visible.bidirectional())
    with pytest.raises(ModelError, match="bidirectional"):
        pattern_parts(plan, 2, extent=3, dtype=torch.float32, device=torch.device("cpu"))


def masked_part(k: Tensor, v: Tensor, allowed: Tensor) -> tuple[Tensor, Tensor, AttentionPattern]:
    """A part in which query i of row b sees the slots allowed[b, i]."""
    mask = torch.zeros(allowed.shape, dtype=k.dtype).masked_fill_(~allowed, -torch.inf)
    return k, v, AttentionPattern("reference", k.shape[1], mask=mask[:, None])


def merge_parts(parts: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    """The attention over all slots together [B, Q, H, D], from the results of `attend_part` for disjoint parts.

    A query may see nothing of a part, and gets 0 where it sees nothing at all.
    """
    sums = torch.stack([part_sums for _, part_sums in parts])
    # A log-sum-exp of -inf in all parts would make NaN of their differences.
    weights = (sums - sums.amax(0).clamp(min=torch.finfo(sums.dtype).min)).exp()
    shares = weights / weights.sum(0).clamp(min=torch.finfo(sums.dtype).tiny)
    outs = torch.stack([out for out, _ in parts])
    return (outs.to(shares.dtype) * shares[..., None]).sum(0).to(outs.dtype)


@pytest.mark.parametrize("cuts", [(7,), (5, 9), (1, 2, 16)])
@pytest.mark.parametrize(("heads", "kv"), [(4, 4), (6, 2)])
def test_any_parts_are_one_attention(cuts: tuple[int, ...], heads: int, kv: int) -> None:
    """Random masks: for some queries a part is empty, and one query sees no slot at all."""
    generator, slots = torch.Generator().manual_seed(6), 17
    q = torch.randn(3, 4, heads, 8, dtype=torch.float64, generator=generator)
    k, v = (torch.randn(3, slots, kv, 8, dtype=torch.float64, generator=generator) for _ in range(2))
    allowed = torch.rand(3, 4, slots, generator=generator) < 0.4
    allowed[..., -1] = True
    allowed[0, 1, : cuts[0]] = False
    allowed[2, 3, cuts[-1] :] = False
    allowed[2, 3, 0] = True
    allowed[1, 2] = False
    bounds = (0, *cuts, slots)
    parts = [
        attend_part(q, *masked_part(k[:, start:stop], v[:, start:stop], allowed[..., start:stop]))
        for start, stop in pairwise(bounds)
    ]
    out, expected = merge_parts(parts), naive(q, k, v, allowed)
    assert (out[1, 2] == 0).all(), "it sees nothing"
    assert (out - expected).abs().max() < 1e-12
    assert (merge_parts(parts[::-1]) - out).abs().max() < 1e-12


@pytest.mark.seeds("arXiv:2502.17421")
@torch.inference_mode()
def test_prefix_and_tree_apart_are_the_attention_of_the_tree(tmp_path: Path) -> None:
    """LongSpec: tree nodes attend to the prefix without a mask and to each other with the tree's mask, in float32."""
    for shape, given in (("template:widths=3-2-1", RAGGED), ("chain", RAGGED[1:2])):
        longspec.test_every_node_has_the_logits_of_the_plain_version(tmp_path / shape[:5], shape, given)
    longspec.test_a_file_without_a_window_has_the_published_one(tmp_path)
    generator, prefix = torch.Generator().manual_seed(7), 300
    parents = torch.tensor([-1, 0, 0, 1, 1, 2, 3, 5])
    depth = torch.tensor([0, 1, 1, 2, 2, 2, 3, 3])
    nodes, base = len(parents), torch.full((2,), prefix)
    plan = ask(
        ids(2, nodes), base[:, None] + depth, Visible.tree(parents, base), base + nodes,
        slots=base[:, None] + torch.arange(nodes),
    )  # fmt: skip
    q = torch.randn(2, nodes, 9, 64, generator=generator)
    k, v = (torch.randn(2, prefix + nodes, 3, 64, generator=generator) for _ in range(2))
    tree = torch.zeros(nodes, nodes, dtype=torch.bool)
    for node in range(nodes):
        at = node
        while at >= 0:
            tree[node, at], at = True, int(parents[at])
    beginning = attend_part(q, k[:, :prefix], v[:, :prefix], AttentionPattern("reference", prefix))
    drafted = attend_part(q, *masked_part(k[:, prefix:], v[:, prefix:], tree.expand(2, -1, -1)))
    allowed = visible_slots(plan, prefix + nodes)
    assert torch.equal(allowed[..., prefix:], tree.expand(2, -1, -1))
    assert (merge_parts([beginning, drafted]) - naive(q, k, v, allowed)).abs().max() < 1e-5
    assert (beginning[0] - naive(q, k, v, allowed)).abs().max() > 1e-3, "the tree counts"
