"""The trie of stored K/V: returns them bit for bit, never exceeds its byte budget, evicts the least recently used."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from pardec.models.caches.kv_cache import KVCache
from pardec.models.caches.prefix_cache import Block, Lease, PrefixCache
from pardec.models.errors import SpecError
from pardec.models.plan import TargetStates
from tests.samplers.ar_toys import toy_ar
from tests.samplers.toys import toy

SIZE = 4
STATES = TargetStates((0,))
BYTES = SIZE * 2 * (2 * 3 + 1 * 5) * 4  # of a block of `filled`


def filled(batch: int = 2, capacity: int = 40, **options: Any) -> KVCache:
    """A cache of two layers of different shape with random K/V."""
    options = {"kv_heads": (2, 1), "head_dim": (3, 5), **options}
    cache = KVCache(layers=2, batch=batch, capacity=capacity, **options)
    for tensor in (*cache.k, *cache.v):
        tensor.copy_(torch.randn(tensor.shape).to(tensor.dtype))
    return cache


def text(*blocks: int) -> np.ndarray:
    """Tokens in which each block has its own number."""
    return np.repeat(np.array(blocks, dtype=np.int64), SIZE)


def put(prefixes: PrefixCache, tokens: np.ndarray, cache: KVCache | None = None) -> Lease:
    lease = prefixes.begin(tokens, len(tokens))
    prefixes.extend(lease, tokens, cache or filled(1), 0)
    return lease


@pytest.mark.parametrize(
    "options",
    [{}, {"dtype": torch.bfloat16}, {"capacity": 300, "kv_heads": (8, 4), "head_dim": (64, 64)}],
    ids=["two shapes", "bfloat16", "heads contiguous"],
)
def test_slots_hold_what_was_stored_bit_for_bit(options: dict[str, Any]) -> None:
    cache, other = filled(**options), filled(**options)
    prefixes, tokens = PrefixCache(1 << 24, SIZE), text(1, 2, 3)
    prefixes.extend(prefixes.begin(tokens, 12), tokens, cache, 1)
    before = [tensor.clone() for tensor in (*other.k, *other.v)]
    prefixes.load(prefixes.begin(np.append(tokens, 9), 11), other, 0)  # two whole blocks of at most 11 tokens
    for mine, theirs, old in zip((*other.k, *other.v), (*cache.k, *cache.v), before, strict=True):
        assert torch.equal(mine[0, :8], theirs[1, :8])
        assert torch.equal(mine[0, 8:], old[0, 8:])
        assert torch.equal(mine[1], old[1])


def test_blocks_outlive_the_cache_they_were_copied_from() -> None:
    cache, prefixes = filled(1), PrefixCache(1 << 20, SIZE)
    expected = cache.k[0][0, :8].clone()
    put(prefixes, text(1, 2), cache)
    for tensor in (*cache.k, *cache.v):
        tensor.fill_(torch.nan)
    prefixes.load(prefixes.begin(text(1, 2), 8), cache, 0)
    assert torch.equal(cache.k[0][0, :8], expected)


def test_what_stands_before_a_block_is_part_of_its_key() -> None:
    prefixes = PrefixCache(1 << 20, SIZE)
    put(prefixes, text(1, 2, 3))
    assert [len(prefixes.begin(text(*blocks), 12).path) for blocks in ((1, 2, 3), (1, 2, 4), (2, 3), (2, 1), (3,))] == [
        3, 2, 0, 0, 0,
    ]  # fmt: skip
    assert (prefixes.hits, prefixes.misses, prefixes.tokens) == (2, 4, 5 * SIZE)  # a miss of `put` too


def test_a_block_of_other_weights_is_never_copied() -> None:
    prefixes = PrefixCache(1 << 20, SIZE)
    lease = put(prefixes, text(1, 2))
    prefixes.match_weights(0)
    assert prefixes.blocks == 2
    prefixes.match_weights(1)
    assert (prefixes.blocks, prefixes.nbytes, prefixes.begin(text(1, 2), 8).path) == (0, 0, [])
    prefixes.extend(lease, text(1, 2, 3), filled(1), 0)  # of a request that began with the old weights
    prefixes.release(lease)
    assert (prefixes.blocks, prefixes.nbytes) == (0, 0)


def test_draft_models_share_the_budget_and_nothing_else() -> None:
    class Network:
        """A stand-in for a network."""

    prefixes, one, two = PrefixCache(3 * BYTES, SIZE), Network(), Network()
    prefixes.release(put(prefixes, text(1, 2)))
    counts = prefixes.hits, prefixes.misses
    for network in (one, two):
        lease = prefixes.begin_draft(network, 0, text(1, 2), 8)
        assert lease.path == []
        prefixes.extend(lease, text(1, 2), filled(1), 0)
        assert prefixes.nbytes <= prefixes.budget
        prefixes.release(lease)
    assert (prefixes.blocks, prefixes.evictions) == (3, 3)
    assert len(prefixes.begin_draft(two, 0, text(1, 2), 8).path) == 2
    assert prefixes.begin_draft(two, 1, text(1, 2), 8).path == []  # new weights
    assert (prefixes.hits, prefixes.misses) == counts


def test_states_are_stored_with_blocks_that_lack_them() -> None:
    prefixes, tokens, values = PrefixCache(1 << 20, SIZE), text(1, 2), torch.randn(9, 7)
    put(prefixes, tokens)
    lease = prefixes.begin(tokens, 8, STATES)
    assert lease.path == []
    prefixes.extend(lease, tokens, filled(1), 0, (STATES, values))
    assert prefixes.nbytes == 2 * BYTES + values[:8].nbytes
    again = prefixes.begin(tokens, 8, STATES)
    assert torch.equal(prefixes.states(again, STATES), values[:8])
    assert prefixes.begin(tokens, 8, TargetStates((1,))).path == []


def test_leased_blocks_stay_and_the_budget_with_them() -> None:
    prefixes = PrefixCache(3 * BYTES, SIZE)
    lease = put(prefixes, text(1, 2))
    other = put(prefixes, text(3, 4))  # the last has no room
    assert (prefixes.blocks, len(other.path), prefixes.evictions) == (3, 1, 0)
    prefixes.release(other)
    prefixes.release(put(prefixes, text(5)))
    assert (prefixes.blocks, prefixes.evictions) == (3, 1)
    assert len(prefixes.begin(text(1, 2), 8).path) == 2
    assert prefixes.begin(text(3), 4).path == []
    prefixes.release(lease)


def test_a_block_larger_than_the_budget_evicts_nothing() -> None:
    prefixes = PrefixCache(BYTES, SIZE)
    prefixes.release(put(prefixes, text(1)))
    put(prefixes, text(2), filled(1, dtype=torch.float64))
    assert (prefixes.blocks, prefixes.evictions) == (1, 0)


class Naive:
    """A plain version: stored texts as tuples of blocks, each with its last use."""

    def __init__(self, most: int) -> None:
        self.most, self.clock = most, 0
        self.used: dict[tuple[int, ...], tuple[int, int]] = {}
        self.leases: list[tuple[int, ...]] = []

    def touch(self, path: tuple[int, ...]) -> None:
        self.clock += 1
        for end in range(1, len(path) + 1):
            self.used[path[:end]] = (self.clock, -end)

    def begin(self, blocks: tuple[int, ...]) -> None:
        known = 0
        while blocks[: known + 1] in self.used and known < len(blocks):
            known += 1
        self.touch(blocks[:known])
        self.leases.append(blocks[:known])

    def extend(self, at: int, blocks: tuple[int, ...]) -> None:
        path = self.leases[at]
        while len(path) < len(blocks):
            path = blocks[: len(path) + 1]
            if path not in self.used:
                if len(self.used) == self.most and not self.evict():
                    path = path[:-1]
                    break
                self.used[path] = (self.clock, 0)
            self.leases[at] = path
        self.touch(path)

    def evict(self) -> bool:
        inner = {path[:-1] for path in self.used} | set(self.leases)
        free = [path for path in self.used if path not in inner]
        if free:
            del self.used[min(free, key=lambda path: self.used[path])]
        return bool(free)


def stored(block: Block, above: tuple[int, ...] = ()) -> set[tuple[int, ...]]:
    """The texts stored in a trie."""
    paths = {(*above, int(np.frombuffer(key, dtype=np.int64)[0])): each for key, each in block.below.items()}
    return set(paths).union(*(stored(each, path) for path, each in paths.items()))


@pytest.mark.parametrize("seed", range(6))
def test_any_order_of_requests_leaves_what_a_naive_cache_has(seed: int) -> None:
    random = np.random.RandomState(seed)
    prefixes, naive, cache = PrefixCache(6 * BYTES, SIZE), Naive(6), filled(1)
    leases: list[tuple[Lease, tuple[int, ...]]] = []
    for _ in range(300):
        move = random.randint(3)
        if move == 0 and len(leases) < 3:
            blocks = tuple(random.randint(0, 3, random.randint(1, 5)).tolist())
            leases.append((prefixes.begin(text(*blocks), len(blocks) * SIZE), blocks))
            naive.begin(blocks)
        elif move == 1 and leases:
            at = random.randint(len(leases))
            prefixes.extend(leases[at][0], text(*leases[at][1]), cache, 0)
            naive.extend(at, leases[at][1])
        elif move == 2 and leases:
            at = random.randint(len(leases))
            prefixes.release(leases.pop(at)[0])
            naive.leases.pop(at)
        assert stored(prefixes._root) == set(naive.used)
        assert prefixes.nbytes == BYTES * prefixes.blocks <= prefixes.budget
    assert prefixes.evictions > 20


def test_models_whose_keys_depend_on_more_than_the_prefix_are_refused() -> None:
    with pytest.raises(SpecError, match="bidirectional"):
        toy("llada").cache_prefixes(1)
    with pytest.raises(SpecError, match="processes share it"):
        replace(toy_ar(), processes=2).cache_prefixes(1)
    assert toy("llada").cache_prefixes(0) is None
    sdar = toy("sdar")
    wide = replace(sdar, decoding_config=replace(sdar.decoding_config, block=24))
    caches = [each.cache_prefixes(1) for each in (toy_ar(), sdar, wide)]
    assert [cache and cache.block for cache in caches] == [16, 16, 48]
