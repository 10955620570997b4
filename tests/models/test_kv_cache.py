from __future__ import annotations

import pytest
import torch

from pardec.models.caches import kv_cache
from pardec.models.caches.kv_cache import KVCache
from pardec.models.errors import CacheError, CapacityError
from pardec.models.kernels.cpu import memory
from pardec.models.plan import Plan, Visible
from tests.models.toys import ask, ids


@pytest.fixture(autouse=True, params=["slots together", "heads together"])
def lies(request, monkeypatch) -> str:
    """The strides of the K/V tensors, on which only speed may depend."""
    monkeypatch.setattr(kv_cache, "_LARGE", 0 if request.param == "heads together" else 1 << 60)
    return str(request.param)


def make(batch: int = 2, capacity: int = 6) -> KVCache:
    return KVCache(layers=2, batch=batch, capacity=capacity, kv_heads=2, head_dim=1)


def numbered(batch: int, width: int) -> torch.Tensor:
    first = torch.arange(1.0, batch * width + 1).view(batch, width, 1, 1)
    return torch.cat((first, first + 0.5), 2)


def test_layers_of_any_shapes_lie_in_memory_of_their_own(monkeypatch):
    monkeypatch.setattr(memory, "_CHUNK", 1 << 10)
    monkeypatch.setattr(memory, "_PAGE", 1 << 9)
    cache = KVCache(layers=5, batch=2, capacity=6, kv_heads=[2, 1, 3, 9, 1], head_dim=[1, 4, 3, 7, 2])
    parts = [part for layer in zip(cache.k, cache.v, strict=True) for part in layer]
    for number, part in enumerate(parts):
        assert not part.any()
        part.fill_(number + 1)
    assert all((part == number + 1).all() for number, part in enumerate(parts))
    assert len({part.untyped_storage().data_ptr() for part in parts}) > 2  # blocks of 1 KiB, and two larger layers
    assert {part.data_ptr() % 64 for part in parts} == {0}
    before = parts[1]._version
    parts[0].zero_()
    assert parts[1]._version == before  # autograd would refuse to go back through what it takes for overwritten


def test_queries_are_stored_in_their_slots_and_padding_in_the_bin():
    cache = make()
    slots = torch.tensor([[4, -1, 0], [-1, 2, 5]])
    plan = ask(ids(2, 3), slots, Visible.bidirectional(), torch.tensor([5, 6]))
    values = numbered(2, 3)
    cache.slots(plan).write(1, values, -values)
    assert cache.k[1][:, :6, 0, 0].tolist() == [[3, 0, 0, 0, 1, 0], [0, 0, 5, 0, 0, 6]]
    assert cache.v[1][:, :6, 0, 0].tolist() == [[-3, 0, 0, 0, -1, 0], [0, 0, -5, 0, 0, -6]]
    assert not cache.k[0].any()


def test_a_span_is_written_as_a_slice():
    cache = make()
    positions = torch.tensor([[2, 3]]).expand(2, 2)
    plan = Plan(
        ids(2, 2), positions, positions, Visible.causal(), torch.tensor([4, 4]), positions, span=(2, 4), uniform=4
    )
    k, _ = cache.slots(plan).write(0, numbered(2, 2), numbered(2, 2))
    assert k[..., 0, 0].tolist() == [[0, 0, 1, 2], [0, 0, 3, 4]]


def test_rows_address_rows_of_the_cache():
    cache = make(batch=3)
    plan = ask(ids(2, 1), torch.tensor([[1], [0]]), Visible.causal(), torch.tensor([2, 1]), rows=torch.tensor([2, 0]))
    cache.slots(plan).write(0, numbered(2, 1), numbered(2, 1))
    assert cache.k[0][:, :2, 0, 0].tolist() == [[2, 0], [0, 0], [0, 1]]


def test_keep_reorders_rows():
    cache = make(batch=3)
    cache.k[0][:, 0, 0, 0] = torch.tensor([1.0, 2.0, 3.0])
    cache.keep(torch.tensor([2, 0]))
    assert cache.batch == 2
    assert cache.k[0][:, 0, 0, 0].tolist() == [3, 1]


@pytest.mark.parametrize("kernels", ["auto", "reference"])
def test_move_reads_everything_before_it_writes(kernels, monkeypatch):
    monkeypatch.setenv("PARDEC_KERNELS", kernels)
    cache = make()
    for tensor in (*cache.k, *cache.v):
        tensor[:, :6, 0, 0] = torch.arange(6.0)
    cache.move(torch.tensor([[3, 5], [1, 0]]), torch.tensor([[2, 3], [0, -1]]))
    assert cache.k[0][:, :6, 0, 0].tolist() == [[0, 1, 3, 5, 4, 5], [1, 1, 2, 3, 4, 5]]
    assert cache.v[1][:, :6, 0, 0].tolist() == cache.k[0][:, :6, 0, 0].tolist()


def test_move_can_name_rows():
    cache = make()
    cache.k[0][:, :2, 0, 0] = torch.tensor([[1.0, 2.0], [3.0, 4.0]])
    cache.move(torch.tensor([[1]]), torch.tensor([[0]]), rows=torch.tensor([1]))
    assert cache.k[0][:, :2, 0, 0].tolist() == [[1, 2], [4, 4]]
    with pytest.raises(CacheError, match="must agree"):
        cache.move(torch.tensor([[1]]), torch.tensor([[0, 1]]))


@pytest.mark.parametrize(
    ("positions", "lengths", "more"),
    [([[6]], [7], {}), ([[5]], [7], {}), ([[0]], [1], {"uniform": 9})],
    ids=["slot", "length", "uniform"],
)
def test_what_does_not_fit_is_refused_with_the_numbers(positions, lengths, more):
    plan = ask(ids(1, 1), torch.tensor(positions), Visible.causal(), torch.tensor(lengths), **more)
    with pytest.raises(CapacityError, match=r"needs [79] slots and the cache has 6"):
        make(batch=1).check(plan)


def test_rows_that_are_not_there_are_refused():
    plan = ask(ids(3, 1), torch.zeros(3, 1, dtype=torch.int64), Visible.causal(), torch.ones(3, dtype=torch.int64))
    with pytest.raises(CacheError, match="3 rows and the cache 2"):
        make().check(plan)
    plan = ask(plan.tokens, plan.positions, plan.visible, plan.lengths, rows=torch.tensor([0, 1, 2]))
    with pytest.raises(CacheError, match=r"0\.\.1"):
        make().check(plan)


def test_an_empty_cache_is_refused():
    with pytest.raises(CapacityError, match="0 rows of 4 slots"):
        KVCache(layers=1, batch=0, capacity=4, kv_heads=1, head_dim=1)


def test_nbytes_counts_keys_values_and_the_bin():
    assert make().nbytes == 2 * 2 * 2 * 7 * 2 * 4


def test_a_cache_made_in_inference_mode_can_be_used_outside_it():
    with torch.inference_mode():
        cache = make()
        cache.keep(torch.tensor([1, 0]))
    cache.move(torch.tensor([[0], [0]]), torch.tensor([[1], [1]]))
    plan = ask(ids(2, 1), torch.tensor([[0], [1]]), Visible.causal(), torch.tensor([1, 2]))
    cache.slots(plan).write(0, numbered(2, 1), numbered(2, 1))
    assert cache.k[0][:, :2, 0, 0].tolist() == [[1, 0], [0, 2]]


def test_a_text_that_grows_leaves_no_views_of_its_steps_behind() -> None:
    cache = KVCache(layers=2, batch=1, capacity=64, kv_heads=1, head_dim=4)
    for place in range(64):
        at = torch.tensor([[place]])
        plan = Plan(at, at, at, Visible.causal(), at[0] + 1, at * 0, uniform=place + 1, span=(place, place + 1))
        views = cache.views(plan)
        assert cache.views(plan) is views  # a window that comes again has its own
        assert views[1][3].data_ptr() == cache.v[1].data_ptr()
        assert views[1][2].shape[1] == place + 1
    assert len(cache._views) <= 8


def test_what_lies_together_still_does_when_rows_leave_and_slots_are_added(lies):
    cache = make(batch=3)
    for change in (lambda: None, lambda: cache.keep(torch.tensor([2, 0])), lambda: cache.grow(9)):
        change()
        for held in (*cache.k, *cache.v):
            rows, slots = held.shape[:2]
            assert held.stride()[1:3] == ((1, rows * slots) if lies == "heads together" else (2, 1))
            assert held.flatten(0, 1).data_ptr() == held.data_ptr()  # a view: writing goes by flat slots


def test_nothing_that_is_done_to_a_cache_depends_on_how_it_lies(lies, monkeypatch):
    def used(cache: KVCache) -> KVCache:
        slots = torch.tensor([[4, -1, 0], [-1, 2, 5], [1, 3, 0]])
        plan = ask(ids(3, 3), slots, Visible.bidirectional(), torch.tensor([5, 6, 4]))
        cache.slots(plan).write(0, numbered(3, 3), -numbered(3, 3))
        cache.move(torch.tensor([[0, 4], [2, 5], [1, 3]]), torch.tensor([[1, -1], [5, 2], [0, 1]]))
        cache.keep(torch.tensor([2, 0]))
        cache.grow(9)
        cache.put(torch.tensor([1]), make(batch=1))
        span = torch.tensor([[7, 8]]).expand(2, 2)
        plan = Plan(ids(2, 2), span, span, Visible.causal(), torch.tensor([9, 9]), span, span=(7, 9), uniform=9)
        cache.slots(plan).write(1, numbered(2, 2), -numbered(2, 2))
        return cache

    found = used(make(batch=3))
    monkeypatch.setattr(kv_cache, "_LARGE", 1 << 60)
    expected = used(make(batch=3))
    for one, other in zip((*found.k, *found.v), (*expected.k, *expected.v), strict=True):
        assert torch.equal(one, other)
    assert expected.k[0][0, 0].flatten().tolist() == [7, 7.5]
