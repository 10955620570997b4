"""K/V of text prefixes, stored for later requests as whole blocks of tokens in a trie.

    K/V of block i = f(tokens of the blocks 0 .. i)      where attention is causal, or causal over blocks

SGLang: Efficient Execution of Structured Language Model Programs, https://arxiv.org/abs/2312.07104

So two texts with the same first tokens share them, whatever the sampler, the seed and the tokens after. A row has a
lease of the blocks that it has copied or stored, which are not evicted before it ends. Of the others, those that no
stored text goes on from are evicted, the least recently used first. Not thread-safe: one thread decodes.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import torch
from torch import Tensor

from ..plan import TargetStates
from .kv_cache import KVCache


@dataclass(slots=True, eq=False)
class Block:
    """One block of tokens; the blocks above it in the trie hold the tokens before it."""

    key: bytes  # its token ids
    above: Block | None  # None for the root, which has no tokens
    values: list[Tensor] = field(default_factory=list)  # per device [T, F]: see `KVCache.copy_out`
    states: dict[TargetStates, Tensor] = field(default_factory=dict)  # [T, S] the target's states that drafters read
    below: dict[bytes, Block] = field(default_factory=dict)
    leases: int = 0  # number of leases whose last block is this one

    @property
    def nbytes(self) -> int:
        """Bytes of its tensors."""
        return sum(tensor.nbytes for tensor in (*self.values, *self.states.values()))


@dataclass(slots=True, eq=False)
class Lease:
    """The blocks that one row holds, a path from the trie's root."""

    root: Block
    path: list[Block] = field(default_factory=list)

    @property
    def last(self) -> Block:
        """The deepest block; the root of an empty path."""
        return self.path[-1] if self.path else self.root


class PrefixCache:
    """The stored blocks of one model and of its draft models, at most `budget` bytes.

    Attributes:
        block: tokens of a block.
        nbytes: bytes of all blocks.
        hits, misses: prompts whose first block was stored, and those whose was not; not of draft models.
        tokens: prompt tokens whose K/V were copied from here instead of computed; not of draft models.
        evictions: blocks that made room for others.
    """

    def __init__(self, budget: int, block: int = 16) -> None:
        self.budget, self.block = budget, block
        self.nbytes = self.hits = self.misses = self.tokens = self.evictions = 0
        self._root = Block(b"", None)
        self._drafts: WeakKeyDictionary[Any, tuple[int, Block]] = WeakKeyDictionary()  # version and root by network
        self._order: OrderedDict[Block, None] = OrderedDict()  # by last use, latest last, before their ancestors
        self._version = 0  # version of the weights

    @property
    def blocks(self) -> int:
        """Blocks stored."""
        return len(self._order)

    def __repr__(self) -> str:
        return (
            f"<PrefixCache {self.blocks} blocks of {self.block} tokens, {self.nbytes} of {self.budget} bytes, "
            f"{self.hits} hits, {self.misses} misses, {self.tokens} tokens reused, {self.evictions} evictions>"
        )

    def match_weights(self, version: int) -> None:
        """Empties the cache unless its blocks were computed with the weights of this `version`."""
        if version != self._version:
            self.clear()
            self._version = version

    def clear(self) -> None:
        """Drops every block; leases stay valid but hold no blocks."""
        for block in self._order:
            block.values, block.states = [], {}
        self._root = Block(b"", None)
        self._drafts.clear()
        self._order.clear()
        self.nbytes = 0

    def begin_draft(self, network: object, version: int, tokens: np.ndarray, most: int) -> Lease:
        """`begin` for the texts of a draft network; blocks of its earlier weights are no longer found."""
        if self._drafts.get(network, (None, None))[0] != version:
            self._drafts[network] = version, Block(b"", None)
        root = self._drafts[network][1]
        return self._lease(root, self._find(root, tokens, most))

    def begin(self, tokens: np.ndarray, most: int, states: TargetStates | None = None) -> Lease:
        """A lease of the longest stored prefix of `tokens` [n] int64, of at most `most` of them.

        Blocks that lack `states` do not count where a drafter asks for these.
        """
        lease = self._lease(self._root, self._find(self._root, tokens, most, states))
        self.hits += bool(lease.path)
        self.misses += not lease.path and most >= self.block
        self.tokens += len(lease.path) * self.block
        return lease

    def missing(self, tokens: np.ndarray, most: int, states: TargetStates | None = None) -> bytes | None:
        """The text up to the first block that `begin` would not find; None where all of them are stored."""
        end = (len(self._find(self._root, tokens, most, states)) + 1) * self.block
        return tokens[:end].tobytes() if end <= most else None

    def _lease(self, root: Block, path: list[Block]) -> Lease:
        lease = Lease(root, path)
        lease.last.leases += 1
        self._touch(lease)
        return lease

    def _find(self, root: Block, tokens: np.ndarray, most: int, states: TargetStates | None = None) -> list[Block]:
        path, last, size = list[Block](), root, self.block
        for start in range(0, most - size + 1, size):
            block = last.below.get(tokens[start : start + size].tobytes())
            if block is None or (states is not None and states not in block.states):
                break
            path.append(last := block)
        return path

    def load(self, lease: Lease, cache: KVCache, row: int) -> None:
        """Copies the K/V of the lease to the first slots of a row."""
        if lease.path:
            values = zip(*(block.values for block in lease.path), strict=True)
            cache.copy_in(row, [torch.cat(parts) for parts in values])

    def extend(
        self,
        lease: Lease,
        tokens: np.ndarray,
        cache: KVCache,
        row: int,
        states: tuple[TargetStates, Tensor] | None = None,
    ) -> None:
        """Stores the whole blocks of `tokens` [n] int64 while there is room, and extends the lease to them.

        Their K/V are in the first n slots of a row, and their `states` are the tensor [>= n, S]. A block is stored with
        these or not at all.
        """
        if all(lease.root is not root for root in (self._root, *(root for _, root in self._drafts.values()))):
            return  # the cache has been emptied since
        size, count = self.block, len(tokens) // self.block
        values: list[Tensor] = []
        for index in range(len(lease.path), count):
            at = slice(index * size, (index + 1) * size)
            block = lease.last.below.get(tokens[at].tobytes())
            if block is None and not values:  # no deeper block is stored either
                values, first = cache.copy_out(row, at.start, count * size), at.start
            kv = [part[at.start - first :][:size] for part in values] if block is None else []
            more = {states[0]: states[1][at]} if states and (block is None or states[0] not in block.states) else {}
            nbytes = sum(part.nbytes for part in (*kv, *more.values()))
            if not self._make_room(nbytes, block):
                break
            if block is None:
                block = lease.last.below[tokens[at].tobytes()] = Block(tokens[at].tobytes(), lease.last)
                block.values = [part.clone() for part in kv]
                self._order[block] = None
            block.states |= {key: part.clone() for key, part in more.items()}
            self.nbytes += nbytes
            lease.last.leases -= 1
            block.leases += 1
            lease.path.append(block)
        self._touch(lease)

    def release(self, lease: Lease) -> None:
        """Releases the blocks, which may then be evicted."""
        lease.last.leases -= 1
        lease.path.clear()

    def states(self, lease: Lease, states: TargetStates) -> Tensor:
        """[n, S] the states at all tokens of a lease that has them."""
        return torch.cat([block.states[states] for block in lease.path])

    def _make_room(self, nbytes: int, but: Block | None) -> bool:
        """Evicts blocks other than `but` until `nbytes` more fit; False where that is impossible."""
        if nbytes > self.budget:
            return False
        while self.nbytes + nbytes > self.budget:
            idle = (block for block in self._order if not (block.below or block.leases or block is but))
            if (block := next(idle, None)) is None:
                return False
            assert block.above is not None, "the root is not in order"
            del block.above.below[block.key], self._order[block]
            self.nbytes -= block.nbytes
            self.evictions += 1
        return True

    def _touch(self, lease: Lease) -> None:
        for block in reversed(lease.path):
            self._order.move_to_end(block)
