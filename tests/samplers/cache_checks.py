"""Shared by the tests of caches of masked models: hand-driven forwards, and the K/V that each forward read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pardec.models.plan import Plan
from pardec.samplers import registry
from pardec.samplers.events import Finished, Started, Step
from pardec.samplers.masked.loop import decode
from tests.reference import naive_caches as naive
from tests.samplers.query_parity import queried
from tests.samplers.toys import BLOCK, FAMILIES, MASK, fill, prompts, request, toy

LENGTHS, NEW = (5, 2, 9), (10, 7, 4)


class ByHand:
    """Decodes one row greedily, most confident position first; each forward computes exactly the given positions."""

    def __init__(self, family: str, prompt: list[int], new: int) -> None:
        self.model = toy(family, sharp=1.2)
        self.tokens = [*prompt, *[MASK] * new]
        self.end = len(self.tokens)
        self.cache = self.model.new_cache(1, self.end)
        self.order: list[int] = []

    def step(self, asked: range, block: range) -> None:
        """Computes the positions `asked`, overwriting their K/V, and commits the most confident open position of
        `block`.
        """
        open_ = [p for p in block if self.tokens[p] == MASK]
        at = torch.tensor([list(asked)])
        rows = [max(p - self.model.decoding_config.shift, 0) for p in open_]
        plan = Plan(
            tokens=torch.tensor([[self.tokens[p] for p in asked]]),
            positions=at,
            slots=at,
            visible=self.model.visible(),
            lengths=torch.tensor([self.end]),
            want=torch.tensor([[asked.index(row) for row in rows]]),
        )
        logits = self.model.forward(plan, self.cache).logits()[0].index_fill(1, torch.tensor([MASK]), -torch.inf)
        best, ids = logits.softmax(-1).max(-1)
        at_best = int(best.argmax())
        self.tokens[open_[at_best]] = int(ids[at_best])
        self.order.append(open_[at_best])


def check_by_hand(family: str, cache: str, asked: Sequence[range]) -> None:
    """Checks the positions of each forward, for a prompt of five tokens and ten new tokens in blocks of four."""
    (prompt,) = prompts((5,), seed=3)
    hand = ByHand(family, prompt, 10)
    for number, positions in enumerate(asked):
        hand.step(positions, (FIRST, SECOND, LAST)[number // 4])
    got = fill(toy(family, sharp=1.2), f"sequential@{cache}", [prompt], 10)
    assert list(got.trace.fed[0]) == list(asked)
    assert got.tokens[0].tolist() == hand.tokens
    assert got.trace.commit_step[0, 5:].argsort().tolist() == [p - 5 for p in hand.order]
    assert got.tokens_fed == (sum(map(len, asked)),)


def rows_refresh_for_themselves(cache: str) -> Callable[[], None]:
    """Makes a test: a row queries the positions that it queries alone, though others enter blocks at other steps."""

    def test() -> None:
        model, given = toy("llada", sharp=1.2), prompts(LENGTHS)
        spec = f"threshold:tau=0.4@{cache}"
        together = fill(model, spec, given, NEW).trace.fed
        for row, prompt in enumerate(given):
            assert together[row] == fill(model, spec, [prompt], NEW[row]).trace.fed[0]
        whole = [{at for at, fed in enumerate(row) if fed[0] == 0} for row in together]
        assert whole[0] != whole[1], "rows enter their blocks at the same steps: the test shows nothing"

    return test


FIRST, SECOND, LAST = range(5, 9), range(9, 13), range(13, 15)  # the blocks of `check_by_hand`
ALL = range(15)

# A prompt of five tokens and a block of eight, whose positions are committed in this order, for `in_order`.
WHOLE, ORDER, OPEN = tuple(range(13)), [7, 9, 6, 5, 12, 11, 8, 10], range(5, 13)


def check_plain(family: str, cache: str, rule: naive.Rule) -> None:
    """Compares rows of different lengths with the plain version of the cache in tests/reference/naive_caches.py."""
    model, lengths, counts = toy(family, seed=5, sharp=1.2), (5, 9, 2), (10, 6, 9)
    given = prompts(lengths, seed=5)
    for size in (BLOCK,) if FAMILIES[family][1] == "block-causal" else (BLOCK, 9):
        got = fill(model, f"sequential@{cache}", given, counts, block_length=size)
        for row, (prompt, new) in enumerate(zip(given, counts, strict=True)):
            tokens, when, fed = naive.decode(model, prompt, new, rule, size=size)
            end = len(tokens)
            assert queried(got, row) == fed
            assert got.tokens[row, :end].tolist() == tokens
            assert dict(enumerate(got.trace.commit_step[row, :end].tolist()[-new:], end - new)) == when


class Descending:
    """A source of numbers that fall in the given order of positions, at every step and for every purpose."""

    def __init__(self, order: Sequence[int]) -> None:
        self.rank = {position: at for at, position in enumerate(order)}

    def uniform(self, rows: np.ndarray, step: np.ndarray, positions: Tensor, purpose: str, width: int = 0) -> Tensor:
        fallen = [[1 - (1 + self.rank.get(p, 97)) / 100 for p in row] for row in positions.tolist()]
        return torch.tensor(fallen, dtype=torch.float64)


def in_order(family: str, cache: str, order: list[int], **options: Any) -> list[tuple[int, ...]]:
    """The positions that each forward computes if commits follow this order, after a prompt of five tokens."""
    spec = f"random+fixed:steps={options.pop('steps')}@{cache}"
    got = fill(toy(family, sharp=1.2), spec, prompts((5,), seed=3), 8, source=Descending(order), **options)
    return queried(got)


def both(family: str, one: str, other: str, **options: Any) -> tuple[Finished, Finished]:
    """Ragged rows with two specs."""
    model, given = toy(family, seed=1, sharp=1.2), prompts(LENGTHS)
    new = options.pop("new", NEW)
    return fill(model, one, given, new, **options), fill(model, other, given, new, **options)


def agree(one: Finished, other: Finished) -> bool:
    """Whether tokens, commit steps and forwards of all rows are equal; the computed positions may differ."""
    found = zip((one.tokens, one.trace.commit_step), (other.tokens, other.trace.commit_step), strict=True)
    return one.nfe == other.nfe and all((x == y).all() for x, y in found)


def stale(model: Any, spec: str, rows: list[list[int]], starts: list[int], **options: Any) -> tuple[int, Finished]:
    """How often a forward read a position's K/V that were computed from another token than its current one."""
    options.setdefault("absolute", model.decoding_config.attention == "block-causal")
    tokens: dict[int, list[np.ndarray]] = {}
    for event in decode(model, registry.resolve(spec), request(rows, starts, **options)):
        if isinstance(event, Started):
            tokens = {row: [held.copy()] for row, held in enumerate(event.tokens)}
        elif isinstance(event, Step):
            for row, held in zip(event.rows, event.tokens, strict=True):
                tokens[int(row)].append(held.copy())
    assert isinstance(event, Finished)
    count = 0
    for row, fed in enumerate(event.trace.fed):
        stored = np.full(event.trace.lengths[row], -1)
        reach = 0
        for number, positions in enumerate(fed):
            stored[list(positions)] = tokens[row][number][list(positions)]
            reach = max(reach, *positions) + 0
            count += int((stored[: reach + 1] != tokens[row][number][: reach + 1]).sum())
    return count, event


def refreshed_is_no_cache(name: str) -> Callable[..., None]:
    """Makes a test: the cache `name` that refreshes at every step changes nothing, and declares itself exact."""

    @pytest.mark.parametrize("distribution", [{}, {"temperature": 0.9, "top_p": 0.9}, {"cfg": 1.7}])
    @pytest.mark.parametrize("family", FAMILIES)
    @pytest.mark.covers(1)
    def test(family: str, distribution: dict[str, Any]) -> None:
        for select in ("threshold:tau=0.4", "origin:steps=30"):
            assert agree(*both(family, f"{select}@{name}:refresh=1", f"{select}@none", **distribution))
        exact = [registry.resolve(f"sequential@{cache}").exact for cache in (f"{name}:refresh=1", name)]
        assert exact == ["greedy", "relaxed"]

    return test


def loses_nothing_if_block_causal(*caches: str) -> Callable[..., None]:
    """Makes a test: block-causal models decode the same with these caches, and compute fewer positions."""

    @pytest.mark.parametrize("distribution", [{}, {"temperature": 0.9}, {"cfg": 1.7}])
    @pytest.mark.parametrize("cache", caches)
    @pytest.mark.parametrize("family", ["sdar", "shifted-sdar"])
    @pytest.mark.covers(1)
    def test(family: str, cache: str, distribution: dict[str, Any]) -> None:
        for select in ("threshold:tau=0.4", "sequential"):
            cached, plain = both(family, f"{select}@{cache}", f"{select}@none", **distribution)
            assert agree(cached, plain)
            assert sum(cached.tokens_fed) < sum(plain.tokens_fed)

    return test
