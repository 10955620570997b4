"""Conditions before tokens: both halves of a guided model compared with each half alone, for any lengths."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pardec.models.caches.kv_cache import KVCache
from pardec.models.errors import CacheError, ModelError
from pardec.models.images.conditioned import Conditioned, Prefix
from pardec.models.model import LanguageModel
from pardec.models.plan import Plan, Visible
from tests.models.toys import VOCAB, ids, model

WIDTH, CFG = 32, 2.5
LENGTHS = (3, 1, 4, 2)


def states(lengths: tuple[int, ...], seed: int) -> tuple[Tensor, ...]:
    drawn = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(size, WIDTH, generator=drawn) for size in lengths)


SAID, UNSAID = states(LENGTHS, 1), states((2, 4, 4, 1), 2)  # halves of unequal length, either way round
EVEN = Prefix(SAID, states(LENGTHS, 3))
UNEVEN = Prefix(SAID, UNSAID)
BOTH = pytest.mark.parametrize("prefix", [EVEN, UNEVEN], ids=["even", "uneven"])


def dressed(prefix: Prefix, extra: int = 0, **options: float | int | None) -> LanguageModel:
    toy = model()
    places = [length + extra for length in prefix.lengths]
    return replace(toy, decoder=Conditioned(toy.decoder, prefix, places, **options))  # type: ignore[arg-type]


def half(cond: Tensor, tokens: list[int]) -> Tensor:
    """Logits after the condition and after each token of a single row, without cache and without guidance."""
    toy, size = model(), len(cond)
    row = torch.tensor([[-1] * size + tokens])
    soft = torch.nn.functional.pad(cond, (0, 0, 0, len(tokens)))[None]
    with torch.inference_mode():
        return toy.decoder(replace(Plan.full(row, Visible.causal()), soft=soft)).logits()[0, size - 1 :]


def truth(prefix: Prefix, row: int, tokens: list[int], cfg: float | None = CFG) -> Tensor:
    cond = half(prefix.cond[row], tokens)
    if cfg is None:
        return cond
    uncond = half(prefix.uncond[row], tokens)
    return uncond + cfg * (cond - uncond)


def whole(made: LanguageModel, places: list[int], tokens: Tensor, cache: KVCache | None = None) -> Tensor:
    """Logits [B, n + 1, V] after the conditions and after each of `tokens` [B, n], in one forward of ragged rows."""
    width = max(places) + tokens.shape[1]
    order = torch.arange(width)
    sizes = torch.tensor(places)[:, None] + tokens.shape[1]
    rows = torch.full((len(tokens), width), -1)
    for row, start in enumerate(places):
        rows[row, start : start + tokens.shape[1]] = tokens[row]
    slots = torch.where(order < sizes, order, -1).expand(len(tokens), -1)
    want = torch.tensor(places)[:, None] - 1 + torch.arange(tokens.shape[1] + 1)
    plan = Plan(rows, slots, slots, Visible.causal(), sizes[:, 0], want)
    cache = made.new_cache(len(tokens), width) if cache is None else cache
    with torch.inference_mode():
        return made.run(plan, cache).logits()


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("cfg", [None, 1.0, CFG])
@pytest.mark.parametrize("extra", [0, 2])
@BOTH
def test_both_halves_are_what_each_is_alone(prefix: Prefix, extra: int, cfg: float | None) -> None:
    made, tokens = dressed(prefix, extra, cfg=cfg), ids(4, 6)
    found = whole(made, [length + extra for length in prefix.lengths], tokens)
    for row in range(4):
        close(found[row], truth(prefix, row, tokens[row].tolist(), cfg if cfg != 1 else None))


@BOTH
def test_token_by_token_rows_at_their_own_pace(prefix: Prefix) -> None:
    made, tokens, places = dressed(prefix, cfg=CFG), ids(4, 6, seed=1), prefix.lengths
    cache = made.new_cache(4, max(places) + 6)
    whole(made, places, tokens[:, :2], cache)
    at = [2, 2, 2, 2]
    for fed in ((1, 3, 2, 1), (2, 1, 0, 3), (1, 0, 2, 0)):
        width = max(fed)
        order, base = torch.arange(width), torch.tensor([p + n for p, n in zip(places, at, strict=True)])[:, None]
        slots = torch.where(order < torch.tensor(fed)[:, None], base + order, -1)
        some = torch.stack(
            [torch.nn.functional.pad(tokens[row, n : n + width], (0, width))[:width] for row, n in enumerate(at)]
        )
        lengths = base[:, 0] + torch.tensor(fed)
        with torch.inference_mode():
            found = made.run(Plan(some, slots, slots, Visible.causal(), lengths, order.expand(4, -1)), cache).logits()
        for row, count in enumerate(fed):
            if count:
                text = tokens[row, : at[row] + count].tolist()
                close(found[row, :count], truth(prefix, row, text)[-count:])
            at[row] += count


@BOTH
@pytest.mark.parametrize("interval", [0, 2, None])
def test_only_the_first_tokens_are_guided_inside_an_interval(prefix: Prefix, interval: int | None) -> None:
    made, tokens = dressed(prefix, cfg=CFG, interval=interval), ids(4, 5, seed=2)
    found = whole(made, prefix.lengths, tokens)
    last = 99 if interval is None else interval + 2  # tokens that are guided
    for row in range(4):
        guided, plain = (truth(prefix, row, tokens[row].tolist(), cfg) for cfg in (CFG, None))
        close(found[row, :last], guided[:last])
        close(found[row, last:], plain[last:])


@BOTH
def test_rows_leave_and_both_their_halves_stay_together(prefix: Prefix) -> None:
    made, tokens, places = dressed(prefix, cfg=CFG), ids(4, 6, seed=3), prefix.lengths
    cache = made.new_cache(4, max(places) + 6)
    whole(made, places, tokens[:, :4], cache)
    cache.keep(torch.tensor([1, 3]))
    cache.keep(torch.tensor([1]))  # row 3 of the request
    assert (cache.batch, cache.copies, cache.ids.tolist()) == (2, 2, [3])
    slots = torch.tensor([[places[3] + 4, places[3] + 5]])
    plan = Plan(tokens[3:, 4:], slots, slots, Visible.causal(), slots[:, -1] + 1, torch.tensor([[0, 1]]))
    with torch.inference_mode():
        close(made.run(plan, cache).logits()[0], truth(prefix, 3, tokens[3].tolist())[-2:])


@BOTH
@pytest.mark.parametrize("some", [False, True], ids=["all rows", "some rows"])
def test_trees_and_the_way_to_a_leaf(prefix: Prefix, some: bool) -> None:
    """Tree nodes attend to their ancestors, and the accepted path is moved in both halves of guidance."""
    made, tokens, places = dressed(prefix, cfg=CFG), ids(4, 3, seed=4), prefix.lengths
    cache = made.new_cache(4, max(places) + 12)
    whole(made, places, tokens[:, :2], cache)
    rows = [2, 0] if some else [0, 1, 2, 3]
    parents, depth = torch.tensor([-1, 0, 0, 2, 2, 4]), torch.tensor([0, 1, 1, 2, 2, 3])
    base = torch.tensor([places[row] + 2 for row in rows])
    nodes = torch.cat((tokens[rows, 2:], ids(len(rows), 5, seed=5)), 1)
    slots = base[:, None] + torch.arange(6)
    plan = Plan(
        nodes,
        base[:, None] + depth,
        slots,
        Visible.tree(parents, base),
        base + 6,
        torch.arange(6).expand(len(rows), -1),
        rows=torch.tensor(rows) if some else None,
    )
    path = [0, 2, 4, 5]
    with torch.inference_mode():
        found = made.run(plan, cache).logits()
        cache.move(
            base[:, None] + torch.tensor(path),
            base[:, None] + torch.arange(4).expand(len(rows), -1),
            torch.tensor(rows),
        )
        after = (base + 4)[:, None]
        plan = Plan(
            nodes[:, :1],
            after,
            after,
            Visible.causal(),
            base + 5,
            torch.zeros(len(rows), 1, dtype=torch.int64),
            rows=torch.tensor(rows),
        )
        behind = made.run(plan, cache).logits()
    for index, row in enumerate(rows):
        start = tokens[row, :2].tolist()
        for node, way in enumerate(([0], [0, 1], [0, 2], [0, 2, 3], [0, 2, 4], path)):
            text = [*start, *nodes[index, way].tolist()]
            close(found[index, node], truth(prefix, row, text)[-1])
        text = [*start, *nodes[index, path].tolist(), int(nodes[index, 0])]
        close(behind[index, 0], truth(prefix, row, text)[-1])


@BOTH
def test_a_mask_hides_the_same_tokens_in_both_halves(prefix: Prefix) -> None:
    made, tokens, places = dressed(prefix, cfg=CFG), ids(4, 4, seed=6), prefix.lengths
    cache = made.new_cache(4, max(places) + 5)
    whole(made, places, tokens, cache)
    slot = torch.arange(max(places) + 5)
    start = torch.tensor(places)[:, None]
    seen = (slot < start + 1) | (slot == start + 4)  # the condition, the first token, and the one that is fed
    plan = Plan(
        tokens[:, 3:], start + 1, start + 4, Visible.mask(seen[:, None]), start[:, 0] + 5, torch.zeros(4, 1).long()
    )
    with torch.inference_mode():
        found = made.run(plan, cache).logits()
    for row in range(4):
        text = [int(tokens[row, 0]), int(tokens[row, 3])]
        close(found[row, 0], truth(prefix, row, text)[-1])


def test_a_part_of_the_stack_goes_on_from_the_states_of_both_halves() -> None:
    for prefix in (EVEN, UNEVEN):
        made, tokens, places = dressed(prefix, cfg=CFG), ids(4, 3, seed=7), prefix.lengths
        cache = made.new_cache(4, max(places) + 3)
        whole(made, places, tokens[:, :1], cache)
        slots = torch.tensor(places)[:, None] + 1 + torch.arange(2)
        plan = Plan(tokens[:, 1:], slots, slots, Visible.causal(), slots[:, -1] + 1, torch.arange(2).expand(4, -1))
        with torch.inference_mode():
            first = made.run(replace(plan, layers=slice(0, 1)), cache)
            found = made.run(replace(plan, layers=slice(1, None), soft=first.states), cache).logits()
        assert len(first.states) == 8
        for row in range(4):
            close(found[row], truth(prefix, row, tokens[row].tolist())[-2:])


def test_which_positions_can_be_asked() -> None:
    made = dressed(UNEVEN, cfg=CFG)
    places, cache = UNEVEN.lengths, made.new_cache(4, 10)
    order = torch.arange(max(places))
    slots = torch.where(order < torch.tensor(places)[:, None], order, -1)
    last = torch.tensor(places)[:, None] - 1
    plan = Plan(torch.full((4, 4), -1), slots, slots, Visible.causal(), last[:, 0] + 1, last)
    with torch.inference_mode():
        hidden = made.run(plan, cache)
        close(hidden.logits(last), hidden.logits())
    assert hidden.has(last).all()
    assert not hidden.has(last + 1).any()


def test_prefixes_by_row() -> None:
    taken = UNEVEN.take([2, 2, 0])
    assert taken.lengths == [4, 4, 3]
    assert torch.equal(taken.uncond[2], UNSAID[0])
    assert Prefix(SAID).take([1]).uncond is None
    assert Prefix(SAID).lengths == list(LENGTHS)


def test_what_cannot_be_is_refused() -> None:
    toy = model()
    with pytest.raises(ModelError, match="cfg=2.0 needs an unconditional input"):
        Conditioned(toy.decoder, Prefix(SAID), LENGTHS, cfg=2.0)
    with pytest.raises(ModelError, match="conditions of 4 positions do not fit into 3"):
        Conditioned(toy.decoder, Prefix(SAID), [3, 1, 3, 2])
    made = dressed(EVEN)
    with pytest.raises(CacheError, match="4 rows, and a cache of 3"):
        made.new_cache(3, 9)
    with pytest.raises(CacheError, match="this forward has none"):
        made.run(Plan.full(ids(4, 2), Visible.causal()))
    assert made.decoder.embedding.shape == (VOCAB, WIDTH)
    assert len(list(made.decoder.parameters())) == len(list(toy.decoder.parameters()))
