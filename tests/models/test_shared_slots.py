"""Caches whose rows share their first slots, compared with caches whose rows each have all slots."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pardec.models.caches.kv_cache import KVCache
from pardec.models.errors import CacheError, CapacityError
from pardec.models.model import LanguageModel
from pardec.models.plan import Plan, Visible
from tests.models.toys import ask, ids, model

SHARED, CAPACITY = 7, 20


def make(batch: int = 3, capacity: int = 6, shared: int = 2) -> KVCache:
    cache = KVCache(layers=2, batch=batch, capacity=capacity, kv_heads=2, head_dim=1, shared=shared)
    for number, tensor in enumerate((*cache.shared.k, *cache.shared.v)):
        tensor.copy_(torch.arange(shared + 1).view(1, -1, 1, 1) - 10.0 * number)
    for tensor in (*cache.k, *cache.v):
        own = tensor.shape[1]
        tensor.copy_((torch.arange(batch)[:, None] * 100 + shared + torch.arange(own)).view(batch, own, 1, 1))
    return cache


def slots_of(cache: KVCache) -> list[list[float]]:
    """The contents of the rows' own slots, without the scratch slot."""
    result: list[list[float]] = cache.k[0][:, :-1, 0, 0].tolist()
    return result


def both(target: LanguageModel, batch: int) -> tuple[KVCache, KVCache]:
    """A cache with a shared prompt and one without; both were fed the same."""
    prompt = ids(1, SHARED, seed=3)
    shared = target.new_cache(batch, CAPACITY, shared=SHARED)
    target.forward(Plan.full(prompt, Visible.causal()), shared.shared)
    plain = target.new_cache(batch, CAPACITY)
    target.forward(Plan.full(prompt.expand(batch, -1), Visible.causal()), plain)
    return shared, plain


def chain(lengths: list[int], starts: list[int], rows: list[int] | None = None) -> Plan:
    """A plan of `lengths` tokens per row from positions `starts` on."""
    count, first = torch.tensor(lengths)[:, None], torch.tensor(starts)[:, None]
    order = torch.arange(max(lengths)).expand(len(lengths), -1)
    positions = torch.where(order < count, first + order, -1)
    where = None if rows is None else torch.tensor(rows)
    return ask(ids(*order.shape, seed=4), positions, Visible.causal(), (first + count)[:, 0], rows=where)


def tree(starts: list[int]) -> Plan:
    base = torch.tensor(starts)
    depth = torch.tensor([0, 1, 1, 2])
    visible = Visible.tree(torch.tensor([-1, 0, 0, 2]), base)
    slots = base[:, None] + torch.arange(4)
    return ask(ids(len(starts), 4, seed=6), base[:, None] + depth, visible, base + 4, slots=slots)


def agree(target: LanguageModel, plan: Plan, shared: KVCache, plain: KVCache, atol: float) -> None:
    one, two = target.forward(plan, shared).logits(), target.forward(plan, plain).logits()
    real = plan.positions >= 0
    assert torch.allclose(one[real], two[real], atol=atol)


@pytest.mark.parametrize(("dtype", "atol"), [(torch.float64, 1e-6), (torch.float32, 1e-4)])
@pytest.mark.parametrize("shape", [{}, {"attention_cap": 2.0}, {"qk_norm": True, "query_scale": 0.7}])
def test_forwards_equal_those_of_rows_that_hold_all_of_it(dtype: torch.dtype, atol: float, shape: dict) -> None:
    """Chains and trees of ragged rows, leaving rows, a moved path, and rows given by index."""
    target = model(dtype=dtype, **shape)
    shared, plain = both(target, 4)
    agree(target, chain([3, 1, 4, 2], [SHARED] * 4), shared, plain, atol)
    nodes = tree([SHARED + each for each in (3, 1, 4, 2)])
    agree(target, nodes, shared, plain, atol)
    base = nodes.slots[:, :1]
    path = torch.tensor([[2, 3]])  # the second child, and its child, after the root
    for cache in (shared, plain):
        cache.move(base + path, (base + torch.tensor([[1, 2]])).where(torch.tensor([[1], [0], [1], [1]]) > 0, -1))
        cache.keep(torch.tensor([3, 0, 2]))
    after = [SHARED + each + 3 for each in (2, 3, 4)]
    agree(target, chain([2, 1, 1], after), shared, plain, atol)
    agree(target, chain([2, 3], [after[2], after[0] + 2], rows=[2, 0]), shared, plain, atol)
    for cache in (shared, plain):
        cache.grow(CAPACITY + 5)
    agree(target, chain([1, 1, 1], [after[0] + 5, after[1] + 1, after[2] + 2]), shared, plain, atol)


def test_what_the_host_knows_changes_nothing() -> None:
    target = model()
    shared, plain = both(target, 3)
    order = torch.arange(SHARED, SHARED + 3).expand(3, 3)
    known = Plan(
        ids(3, 3), order, order, Visible.causal(), order[:, 2] + 1, order - SHARED, uniform=SHARED + 3,
        span=(SHARED, SHARED + 3),
    )  # fmt: skip
    with torch.inference_mode():
        agree(target, known, shared, plain, 1e-5)
        nodes = replace(tree([SHARED + 3] * 3), uniform=SHARED + 7)
        agree(target, nodes, shared, plain, 1e-5)


def test_a_narrow_forward_gives_the_wanted_logits() -> None:
    target = model()
    shared, plain = both(target, 2)
    plan = replace(chain([4, 2], [SHARED, SHARED]), want=torch.tensor([[3], [1]]), narrow=True)
    one, two = target.forward(plan, shared).logits(), target.forward(plan, plain).logits()
    assert torch.allclose(one, two, atol=1e-5)


def test_masks_may_hide_shared_slots() -> None:
    target = model(dtype=torch.float64)
    shared, plain = both(target, 2)
    dense = torch.rand(2, 3, SHARED + 3, generator=torch.Generator().manual_seed(0)) < 0.6
    dense[..., SHARED:] = torch.ones(3, 3, dtype=torch.bool).tril()
    assert not dense[..., :SHARED].all()
    plan = replace(chain([3, 3], [SHARED, SHARED]), visible=Visible.mask(dense))
    agree(target, plan, shared, plain, 1e-6)


def test_bytes_are_those_of_the_prompt_once_and_of_each_rows_own_slots() -> None:
    cache, whole = make(batch=5, capacity=30, shared=20), make(batch=1, capacity=30, shared=29)
    slot = 2 * 2 * 2 * 4  # K and V of two layers and two heads in float32
    assert cache.nbytes == slot * ((20 + 1) + 5 * (10 + 1))
    assert whole.nbytes == slot * (30 + 2)


def test_rows_write_and_move_their_own_slots() -> None:
    cache = make()
    before = [tensor.clone() for tensor in cache.shared.k]  # type: ignore[union-attr]
    slots = torch.tensor([[2, -1], [5, 3], [4, 2]])
    plan = ask(ids(3, 2), slots, Visible.causal(), torch.tensor([6, 6, 6]))
    values = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])[..., None, None].expand(3, 2, 2, 1)
    cache.slots(plan, in_parts=True).write(0, values, values)
    assert slots_of(cache) == [[1, 3, 4, 5], [102, 4, 104, 3], [6, 203, 5, 205]]
    cache.move(torch.tensor([[5], [5], [5]]), torch.tensor([[2], [-1], [3]]))
    assert slots_of(cache) == [[5, 3, 4, 5], [102, 4, 104, 3], [6, 205, 5, 205]]
    cache.keep(torch.tensor([2, 0, 0]))
    assert slots_of(cache) == [[6, 205, 5, 205], [5, 3, 4, 5], [5, 3, 4, 5]]
    assert all(torch.equal(*pair) for pair in zip(before, cache.shared.k, strict=True))  # type: ignore[union-attr]


def test_slots_are_copied_across_the_end_of_the_shared_part() -> None:
    cache = make()

    def keys(parts: list[Tensor]) -> list[float]:
        return parts[0][:, 0].tolist()

    assert keys(cache.copy_out(1, 0, 5)) == [0, 1, 102, 103, 104]
    assert keys(cache.copy_out(1, 1, 2)) == [1]
    assert keys(cache.copy_out(2, 3, 5)) == [203, 204]
    cache.copy_in(0, [part + 7 for part in cache.copy_out(0, 0, 1)])
    assert keys(cache.copy_out(2, 0, 3)) == [7, 1, 202]
    with pytest.raises(CapacityError, match="3 slots cannot be copied"):
        cache.copy_in(0, cache.copy_out(0, 0, 3))


def test_what_cannot_read_it_is_refused() -> None:
    cache = make()
    low = ask(ids(3, 1), torch.tensor([[1], [2], [3]]), Visible.causal(), torch.tensor([2, 3, 4]))
    with pytest.raises(CacheError, match="which this stack cannot read"):
        cache.slots(low)
    for call in (cache.check, cache.flat):
        with pytest.raises(CacheError, match="first 2 slots are shared"):
            call(low)
    with pytest.raises(CacheError, match="slot 1"):
        cache.views(replace(low, span=(1, 2), uniform=2))
    with pytest.raises(CacheError, match="same shared part"):
        cache.put(torch.tensor([0]), make(batch=1))
    with pytest.raises(CacheError, match="same shared part"):
        make().put(torch.tensor([0]), KVCache(layers=2, batch=1, capacity=6, kv_heads=2, head_dim=1))
    with pytest.raises(CapacityError, match="shared must lie in"):
        make(capacity=6, shared=6)
    with pytest.raises(CacheError, match="sliding window"):
        model(window=4).new_cache(2, 10, shared=3)
    with pytest.raises(CacheError, match="not causal"):
        model("bidirectional").new_cache(2, 10, shared=3)
