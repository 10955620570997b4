from __future__ import annotations

import pytest
import torch

from pardec.models.kernels import attention
from pardec.models.kernels.attention import attend, attention_pattern, visible_slots
from pardec.models.kernels.cpu import attention as cpu_attention
from pardec.models.plan import Plan, Visible
from tests.models.toys import ask, ids
from tests.reference import naive_attention
from tests.samplers.ar_toys import toy_ar

SLOTS = 13


def naive(q, k, v, allowed, sink=False):
    return naive_attention.attention(q, k, v, allowed, sink=sink).to(q.dtype)


def patterns(positions, lengths):
    batch, width = positions.shape
    generator = torch.Generator().manual_seed(1)
    return {
        "bidirectional": Visible.bidirectional(),
        "causal": Visible.causal(),
        "block": Visible.segments(4),
        "segments": Visible.segments(ids=torch.randint(0, 3, (batch, SLOTS), generator=generator).sort(-1).values),
        "mask": Visible.mask(torch.rand(batch, width, SLOTS, generator=generator) < 0.6),
        "tree": Visible.tree(torch.tensor([-1, 0, 0, 1]), (lengths - width).clamp(min=0)),
    }


def by_rule(visible, positions, slots, lengths):
    """Which slots each query sees, by the definitions in `Visible`."""
    batch, width = positions.shape
    allowed = torch.zeros(batch, width, SLOTS, dtype=torch.bool)
    for row, query, slot in ((b, i, s) for b in range(batch) for i in range(width) for s in range(SLOTS)):
        position = int(positions[row, query])
        if slot >= lengths[row] or (position < 0 and visible.kind != "bidirectional"):
            continue
        if visible.kind == "bidirectional":
            sees = True
        elif visible.kind == "causal":
            sees = slot <= position
        elif visible.block is not None:
            sees = slot // visible.block <= position // visible.block
        elif visible.ids is not None:
            sees = bool(visible.ids[row, slot] <= visible.ids[row, slots[row, query]])
        elif visible.dense is not None:
            sees = bool(visible.dense[row, query, slot])
        else:
            base, lineage, node = int(visible.base[row]), set(), query
            while node >= 0:
                lineage.add(base + node)
                node = int(visible.parents[node])
            sees = slot < base or slot in lineage
        allowed[row, query, slot] = sees
    return allowed


@pytest.fixture
def ragged():
    positions = torch.tensor([[9, 2, 0, 5], [6, -1, 3, 4], [1, 0, 2, 3]])
    return positions, torch.tensor([11, 7, 4])


@pytest.mark.parametrize("kind", ["bidirectional", "causal", "block", "segments", "mask", "tree"])
def test_seen_follows_the_words(kind, ragged):
    positions, lengths = ragged
    visible = patterns(positions, lengths)[kind]
    plan = ask(ids(3, 4), positions, visible, lengths)
    allowed = visible_slots(plan, SLOTS)
    if kind == "mask":  # a given mask says itself what padding sees
        allowed &= (positions >= 0)[..., None]
    assert torch.equal(allowed, by_rule(visible, positions, positions, lengths))


@pytest.mark.parametrize("kind", ["bidirectional", "causal", "block", "segments", "mask", "tree"])
@pytest.mark.parametrize("rows", [None, [4, 0, 2]], ids=["in order", "rows"])
@pytest.mark.parametrize("sink", [False, True], ids=["plain", "sink"])
@pytest.mark.parametrize("reference", [False, True], ids=["fastest", "definition"])
def test_attend_is_attention_over_what_is_seen(kind, rows, sink, reference, ragged):
    positions, lengths = ragged
    plan = ask(ids(3, 4), positions, patterns(positions, lengths)[kind], lengths, rows=rows and torch.tensor(rows))
    generator = torch.Generator().manual_seed(2)
    q = torch.randn(3, 4, 4, 8, generator=generator)
    k, v = torch.randn(2, 5 if rows else 3, SLOTS + 1, 2, 8, generator=generator)
    order = rows or [0, 1, 2]
    for row, stored in enumerate(order):  # nothing past a length may be looked at
        k[stored, lengths[row] :] = v[stored, lengths[row] :] = float("nan")
    pattern = attention_pattern(plan, extent=SLOTS, dtype=q.dtype, device=q.device, reference=reference)
    out = attend(q, k, v, pattern, sink=sink)
    assert out.isfinite().all()
    allowed = visible_slots(plan, SLOTS)
    held = allowed.any(-1)
    assert held.sum() >= 9
    torch.testing.assert_close(out[held], naive(q, k[order], v[order], allowed, sink)[held])


@pytest.mark.parametrize(
    ("visible", "start", "masked"),
    [
        (Visible.bidirectional(), 6, False),
        (Visible.causal(), 0, False),
        (Visible.causal(), 6, True),
        (Visible.causal(), 9, False),
        (Visible.segments(5), 5, False),
        (Visible.segments(4), 6, True),
    ],
    ids=["bidirectional", "causal from 0", "causal tail", "causal single", "last block", "two blocks"],
)
@pytest.mark.parametrize("sink", [False, True], ids=["plain", "sink"])
def test_what_the_host_knows_replaces_the_mask_and_changes_nothing(visible, start, masked, sink):
    positions = torch.arange(start, 10).expand(2, -1)
    lengths = torch.tensor([10, 10])
    loose = ask(ids(2, 10 - start), positions, visible, lengths)
    known = Plan(loose.tokens, positions, positions, visible, lengths, loose.want, uniform=10, span=(start, 10))
    generator = torch.Generator().manual_seed(3)
    q = torch.randn(2, 10 - start, 4, 8, generator=generator)
    k, v = torch.randn(2, 2, SLOTS, 2, 8, generator=generator)
    pattern = attention_pattern(known, extent=10, dtype=q.dtype, device=q.device)
    assert (pattern.mask is not None) == masked
    expected = attend(q, k, v, attention_pattern(loose, extent=10, dtype=q.dtype, device=q.device), sink=sink)
    torch.testing.assert_close(attend(q, k, v, pattern, sink=sink), expected)
    allowed = visible_slots(loose, SLOTS)
    torch.testing.assert_close(expected, naive(q, k, v, allowed, sink))


@torch.no_grad()
def test_a_mask_of_the_last_slots_is_the_whole_mask(in_c):
    seen = torch.rand(1, 3, 5, generator=torch.Generator().manual_seed(5)) < 0.5
    slots = torch.arange(7, 10)[None]
    last, whole = Visible.mask(seen, 5), Visible.mask(torch.cat((torch.ones(1, 3, 5, dtype=torch.bool), seen), -1))
    assert last.from_first_slot().dense.equal(whole.dense)
    loose = ask(ids(1, 3), slots, whole, torch.tensor([10]))
    known = Plan(loose.tokens, slots, slots, last, loose.lengths, loose.want, uniform=10, stored=(7, 10))
    generator = torch.Generator().manual_seed(3)
    q = torch.randn(1, 3, 4, 8, generator=generator)
    k, v = torch.randn(2, 1, SLOTS, 2, 8, generator=generator)
    pattern = attention_pattern(known, extent=10, dtype=q.dtype, device=q.device)
    assert pattern.last is not None
    assert pattern.last.shape[-1] == 5
    definition = attention_pattern(loose, extent=10, dtype=q.dtype, device=q.device, reference=True)
    torch.testing.assert_close(attend(q, k, v, pattern), attend(q, k, v, definition))
    picked = torch.tensor([[2, 0]])
    torch.testing.assert_close(
        attend(q[:, [2, 0]], k, v, pattern.narrowed(picked)), attend(q, k, v, definition)[:, [2, 0]]
    )
    assert visible_slots(known, 10).equal(visible_slots(loose, 10))


def test_a_deep_tree_sees_every_ancestor():
    width = 9
    plan = ask(
        ids(1, width),
        torch.arange(2, 11)[None],
        Visible.tree(torch.arange(-1, width - 1), torch.tensor([2])),
        torch.tensor([11]),
    )
    chain = ask(plan.tokens, plan.positions, Visible.causal(), plan.lengths)
    assert torch.equal(visible_slots(plan, 11), visible_slots(chain, 11))


def test_trees_may_differ_by_row():
    parents = torch.tensor([[-1, 0, 1], [-1, 0, 0]])
    plan = ask(
        ids(2, 3),
        torch.tensor([[1, 2, 3], [2, 3, 3]]),
        Visible.tree(parents, torch.tensor([1, 2])),
        torch.tensor([4, 5]),
    )
    assert visible_slots(plan, 5)[0, 2].tolist() == [True, True, True, True, False]
    assert visible_slots(plan, 5)[1, 2].tolist() == [True, True, True, False, True]


def test_narrowing_a_sight_keeps_the_picked_queries():
    generator = torch.Generator().manual_seed(4)
    q = torch.randn(2, 4, 4, 8, generator=generator)
    k, v = torch.randn(2, 2, SLOTS, 2, 8, generator=generator)
    picked = torch.tensor([[3, 0], [1, 1]])
    rows = torch.tensor([[0], [1]])
    tail = torch.arange(6, 10).expand(2, -1)
    head = torch.arange(4).expand(2, -1)
    lengths = torch.tensor([10, 10])
    plans = [
        ask(ids(2, 4), tail, Visible.causal(), lengths),
        Plan(ids(2, 4), head, head, Visible.causal(), torch.tensor([4, 4]), head, uniform=4, span=(0, 4)),
        Plan(ids(2, 4), tail, tail, Visible.bidirectional(), lengths, tail, uniform=10, span=(6, 10)),
    ]
    for plan in plans:
        pattern = attention_pattern(plan, extent=plan.uniform or 10, dtype=q.dtype, device=q.device)
        whole = attend(q, k, v, pattern)
        torch.testing.assert_close(attend(q[rows, picked], k, v, pattern.narrowed(picked)), whole[rows, picked])


@pytest.mark.parametrize("rows", [None, [4, 0, 2]], ids=["in order", "rows"])
@pytest.mark.parametrize("kind", ["bidirectional", "causal", "one query", "mask", "tree"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@torch.no_grad()
def test_rows_of_any_lengths_are_read_to_their_ends_by_the_kernel_in_c(kind, rows, in_c, dtype):
    """Queries are the last positions of their rows; one row has fewer queries, followed by padding."""
    lengths = torch.tensor([12, 8, 4])
    width = 1 if kind == "one query" else 4
    sizes = torch.tensor([width, max(1, width - 1), width])[:, None]
    order = torch.arange(width)
    positions = torch.where(order < sizes, lengths[:, None] - sizes + order, -1)
    dense = torch.ones(3, 4, SLOTS, dtype=torch.bool)
    dense[0, 2, 9] = dense[1, 1, 5] = dense[2, 3, 0] = False
    visible = {
        "bidirectional": Visible.bidirectional(),
        "mask": Visible.mask(dense),
        "tree": Visible.tree(torch.tensor([-1, 0, 0, 1]), lengths - sizes[:, 0]),
    }.get(kind, Visible.causal())
    plan = ask(ids(3, width), positions, visible, lengths, rows=rows and torch.tensor(rows))
    generator = torch.Generator().manual_seed(5)
    q = torch.randn(3, width, 4, 8, generator=generator).to(dtype)
    k, v = torch.randn(2, 5 if rows else 3, SLOTS + 1, 2, 8, generator=generator).to(dtype)
    for row, stored in enumerate(rows or [0, 1, 2]):
        k[stored, lengths[row] :] = v[stored, lengths[row] :] = float("nan")
    pattern = attention_pattern(plan, extent=SLOTS, dtype=q.dtype, device=q.device)
    assert pattern.ends is not None
    assert (pattern.last is None) == (kind in ("bidirectional", "one query"))
    out, real = attend(q, k, v, pattern), positions >= 0
    assert out.isfinite().all()
    # In bfloat16 weights are rounded, too, so that values which cancel leave what those were rounded by.
    near = {"rtol": 1e-4 if dtype == torch.float32 else 2**-7, "atol": 1e-5 if dtype == torch.float32 else 2**-7}
    stored_rows = rows or [0, 1, 2]
    expected = naive(q.float(), k[stored_rows].float(), v[stored_rows].float(), visible_slots(plan, SLOTS))
    torch.testing.assert_close(out[real].float(), expected[real], **near)
    if width > 1:
        picked = torch.tensor([[3, 0], [1, 2], [2, 2]])
        some = attend(q[torch.arange(3)[:, None], picked], k, v, pattern.narrowed(picked))
        torch.testing.assert_close(some, out[torch.arange(3)[:, None], picked], **near)
    for row in range(3):  # to the last bit: a row alone is the row in any batch
        stored = (rows or [0, 1, 2])[row]
        end = int(lengths[row])
        alone = ask(plan.tokens[row : row + 1], positions[row : row + 1], _of_row(visible, row), lengths[row : row + 1])
        own = attention_pattern(alone, extent=end, dtype=q.dtype, device=q.device)
        result = attend(q[row : row + 1], k[stored : stored + 1], v[stored : stored + 1], own)
        assert torch.equal(result[0][real[row]], out[row][real[row]])


@pytest.mark.parametrize("width", [5, 70, 300])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@torch.no_grad()
def test_prompts_of_unequal_length_have_the_bits_of_each_alone(width, dtype, in_c):
    lengths = torch.tensor([width, 3, 1])
    order = torch.arange(width)
    positions = torch.where(order < lengths[:, None], order, -1)
    plan = ask(ids(3, width), positions, Visible.causal(), lengths)
    generator = torch.Generator().manual_seed(9)
    q = torch.randn(3, width, 6, 16, generator=generator).to(dtype)
    k, v = torch.randn(2, 3, width, 2, 16, generator=generator).to(dtype)
    for row, length in enumerate(lengths):
        k[row, length:] = v[row, length:] = float("nan")
    out = attend(q, k, v, attention_pattern(plan, extent=width, dtype=dtype, device=q.device))
    assert out.isfinite().all()
    for row, length in enumerate(lengths.tolist()):
        first = order[None, :length]
        end = torch.tensor([length])
        alone = Plan(first, first, first, Visible.causal(), end, first, uniform=length, span=(0, length))
        own = attention_pattern(alone, extent=length, dtype=dtype, device=q.device)
        result = attend(q[row : row + 1, :length], k[row : row + 1], v[row : row + 1], own)
        assert torch.equal(result[0], out[row, :length])


def _of_row(visible, row):
    if visible.kind == "mask":
        return Visible.mask(visible.dense[row : row + 1])
    return Visible.tree(visible.parents, visible.base[row : row + 1]) if visible.kind == "tree" else visible


@torch.no_grad()
def test_a_mask_that_is_longer_than_a_row_ends_where_the_row_does(in_c):
    positions, lengths = torch.tensor([[9, 2], [6, 5]]), torch.tensor([10, 7])
    dense = torch.rand(2, 2, 10, generator=torch.Generator().manual_seed(6)) < 0.5
    dense[1, :, 0] = False
    plan = ask(ids(2, 2), positions, Visible.mask(dense), lengths)
    q, (k, v) = torch.randn(2, 2, 4, 8), torch.randn(2, 2, 10, 2, 8)
    pattern = attention_pattern(plan, extent=10, dtype=q.dtype, device=q.device)
    assert pattern.ends is not None
    torch.testing.assert_close(attend(q, k, v, pattern), naive(q, k, v, visible_slots(plan, 10)))
    wide = 300  # a mask of so many slots keeps the definition
    dense = torch.ones(2, 2, wide, dtype=torch.bool)
    dense[..., 3] = False
    plan = ask(ids(2, 2), positions, Visible.mask(dense), torch.tensor([wide, 290]))
    assert attention_pattern(plan, extent=wide, dtype=q.dtype, device=q.device).ends is None


@pytest.mark.parametrize("width", [2, 64, 65, 200])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@torch.no_grad()
def test_a_causal_prompt_is_attended_to_in_c_some_queries_after_the_other(width, dtype, in_c):
    order = torch.arange(width).expand(2, -1)
    tokens, lengths = ids(2, width), torch.tensor([width, width])
    plan = Plan(tokens, order, order, Visible.causal(), lengths, order, uniform=width, span=(0, width))
    generator = torch.Generator().manual_seed(7)
    q = torch.randn(2, width, 6, 16, generator=generator).to(dtype)
    k, v = torch.randn(2, 2, width + 9, 2, 16, generator=generator).to(dtype)
    k[:, width:] = v[:, width:] = float("nan")
    pattern = attention_pattern(plan, extent=width, dtype=dtype, device=q.device)
    assert (pattern.backend, pattern.causal) == ("c", True)
    definition = attention_pattern(plan, extent=width, dtype=dtype, device=q.device, reference=True)
    near = {"rtol": 1e-4 if dtype == torch.float32 else 2**-6, "atol": 1e-5 if dtype == torch.float32 else 2**-7}
    out = attend(q, k, v, pattern)
    torch.testing.assert_close(out, attend(q, k, v, definition), **near)
    picked = torch.tensor([[width - 1, 0], [1, 1]])
    some = attend(q[torch.arange(2)[:, None], picked], k, v, pattern.narrowed(picked))
    assert torch.equal(some, out[torch.arange(2)[:, None], picked])


@torch.no_grad()
def test_slots_that_a_query_does_not_see_weigh_nothing(in_c):
    width = 60
    order = torch.arange(width)[None]
    plan = Plan(
        ids(1, width), order, order, Visible.causal(), torch.tensor([width]), order, uniform=width, span=(0, width)
    )
    q, k, v = (torch.randn(1, width, heads, 16, generator=torch.Generator().manual_seed(8)) for heads in (6, 2, 2))
    v[:, -1] = 3e38  # the last query alone sees it
    pattern = attention_pattern(plan, extent=width, dtype=q.dtype, device=q.device)
    assert pattern.backend == "c"
    definition = attention_pattern(plan, extent=width, dtype=q.dtype, device=q.device, reference=True)
    torch.testing.assert_close(
        attend(q, k, v, pattern)[:, :-1], attend(q, k, v, definition)[:, :-1], rtol=1e-4, atol=1e-5
    )


def test_a_causal_forward_takes_pytorch_where_the_kernel_could_not_be_compiled(monkeypatch):
    """Other files of kernels may be there: a compiler that ran out of time fails at one of them."""
    model, plan = toy_ar(3), Plan.full(torch.tensor([[1, 2, 3, 4, 1, 0]]), Visible.causal())
    expected = model.forward(plan).logits()
    monkeypatch.setattr(attention, "kernel", lambda: None)
    monkeypatch.setattr(cpu_attention, "kernel", lambda: None)
    torch.testing.assert_close(model.forward(plan).logits(), expected)
