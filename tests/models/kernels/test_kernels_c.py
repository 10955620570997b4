"""The C kernels compared with their definitions: odd shapes and strides, with NaN around inputs and outputs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pardec.models.kernels.cpu import layers
from pardec.models.kernels.cpu.attention import attend_c
from pardec.models.kernels.ops import apply_rotary, glu_c
from pardec.models.layers.rope import Rope, default_frequencies

pytestmark = pytest.mark.usefixtures("in_c")

SHORT = torch.bfloat16
DTYPES = pytest.mark.parametrize("dtype", [torch.float32, SHORT], ids=str)


def random(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    """Random numbers in the first half of longer rows whose second half is NaN, so that wrong strides are detected."""
    held = torch.randn(*shape[:-1], 2 * shape[-1], generator=torch.Generator().manual_seed(seed)).to(dtype)
    held[..., shape[-1] :] = float("nan")
    return held[..., : shape[-1]]


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-5, roundings: int = 1) -> None:
    """Asserts equality; bfloat16 may have been rounded `roundings` times, each time to the nearest."""
    assert found.shape == expected.shape
    relative = roundings * 2**-8 * 1.01 + tolerance if found.dtype == SHORT else tolerance
    torch.testing.assert_close(found.double(), expected.double(), rtol=relative, atol=tolerance)


def test_bfloat16_is_rounded_as_pytorch_rounds_it():
    """All upper halves, each with lower halves that are ties and values next to ties."""
    lower = torch.tensor([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], dtype=torch.int64)
    upper = torch.arange(2**16, dtype=torch.int64)[:, None] << 16
    numbers = (upper | lower).to(torch.int32).flatten().view(torch.float32)
    numbers = numbers[numbers.isfinite()]
    turned = numbers.view(1, -1, 1, 2)  # tables may have any numbers, which those of a head are multiplied with
    one = torch.ones(1, turned.shape[1], 3, 2, dtype=SHORT)
    q, _ = layers.apply_rotary_c(one, turned, torch.full_like(turned, -0.0), 1, None)
    assert torch.equal(q.flatten().view(torch.int16), numbers.to(SHORT).view(torch.int16))


@DTYPES
def test_what_is_no_number_stays_none(dtype):
    x = torch.tensor([[float("nan"), 1.0], [float("inf"), 1.0], [1.0, 1.0]], dtype=dtype)
    assert layers.norm_c(x, torch.ones(2, dtype=dtype), 1e-5).isfinite().all(-1).tolist() == [False, False, True]


@pytest.mark.parametrize("shape", [(1, 1), (3, 5, 24), (2, 0, 8), (4, 96), (2, 1000), (1, 33)], ids=str)
@DTYPES
def test_norms(shape, dtype):
    x, weight = random(*shape, dtype=dtype), (torch.rand(shape[-1]) + 0.5).to(dtype)
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    close(layers.norm_c(x, weight, 1e-5), exact)
    zeros = torch.zeros(2, shape[-1], dtype=dtype)
    assert torch.equal(layers.norm_c(zeros, weight, 1e-5), zeros)


@pytest.mark.parametrize("shape", [(1, 2), (3, 5, 48), (2, 0, 8), (7, 4096), (2, 66)], ids=str)
@DTYPES
def test_gates(shape, dtype):
    both = random(*shape, dtype=dtype) * 30
    gate, up = both.double().chunk(2, -1)
    kept = both.clone()
    close(glu_c(both), F.silu(gate) * up, roundings=2)
    assert torch.equal(both, kept)


def test_gates_of_large_and_small_numbers_end_where_they_should():
    gate = torch.tensor([-1e30, -200.0, -90.0, -1e-30, 0.0, 1e-30, 90.0, 200.0, 1e30])
    both = torch.cat((gate, torch.ones(9)))[None]
    close(glu_c(both), F.silu(gate.double())[None])


@pytest.mark.parametrize(("dim", "turned"), [(32, 32), (32, 16), (6, 4), (128, 128)])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("kept", [True, False])
@DTYPES
def test_rotations(dim, turned, batch, kept, dtype):
    heads, kv, queries, slots = 4, 2, 5, 9
    rope = Rope(default_frequencies(10000.0, turned))
    cos, sin = rope._angles(torch.arange(batch * queries).view(batch, queries))
    fused = random(batch, queries, heads + 2 * kv, dim, dtype=dtype)
    rotated = apply_rotary(fused[:, :, : heads + kv].float().contiguous(), cos, sin)
    if not kept:
        q, k = layers.apply_rotary_c(fused, cos, sin, heads, None)
    else:
        stores = [
            torch.full((batch, slots, kv, dim), 7.0, dtype=dtype),
            torch.full((kv, batch, slots, dim), 7.0, dtype=dtype).permute(1, 2, 0, 3),
        ]
        k, v = (store[:, 2 : 2 + queries] for store in stores)
        q, found = layers.apply_rotary_c(fused, cos, sin, heads, (k, v))
        assert found is k
        assert torch.equal(v, fused[:, :, heads + kv :])
        assert all((store[:, :2] == 7).all() and (store[:, 2 + queries :] == 7).all() for store in stores)
    close(q, rotated[:, :, :heads])
    close(k, rotated[:, :, heads:])


def test_rotations_of_rows_that_stand_alike_share_a_table():
    cos, sin = Rope(default_frequencies(10000.0, 8))._angles(torch.arange(3, 7)[None])
    fused = random(2, 4, 3, 8)
    q, k = layers.apply_rotary_c(fused, cos, sin, 1, None)
    close(torch.cat((q, k), 2), apply_rotary(fused[:, :, :2].contiguous(), cos, sin))


def operands(batch, queries, slots, heads, kv, dim, dtype=torch.float32):
    shapes = (queries, heads), (slots, kv), (slots, kv)
    return [random(batch, *shape, dim, seed=seed, dtype=dtype) for seed, shape in enumerate(shapes)]


def attended(q, k, v, mask=None):
    q, k, v = (each.double().transpose(1, 2) for each in (q, k, v))
    mask = None if mask is None else mask[:, None].double()
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True).transpose(1, 2)


def close_attention(q, k, v, mask=None, hidden=None, tolerance=1e-5):
    """Asserts equality; in bfloat16 the weights, their sum and the result may each be rounded."""
    found, expected = attend_c(q, k, v, mask), attended(q, k, v, hidden)
    if found.dtype != SHORT:
        return close(found, expected, tolerance)
    assert found.shape == expected.shape
    weights = 2 * 2**-9 * attended(q, k, v.abs(), hidden)
    excess = (found.double() - expected).abs() - weights - 2**-8 * (expected.abs() + weights)
    assert excess.max() <= tolerance


@pytest.mark.parametrize(
    ("dim", "dtype"),
    [*((dim, torch.float32) for dim in (32, 64, 20, 5, 80)), *((dim, SHORT) for dim in (64, 80, 20, 5))],
)
@pytest.mark.parametrize(("heads", "kv"), [(6, 2), (3, 3), (4, 1), (20, 10)])
@pytest.mark.parametrize("queries", [1, 2, 5, 16, 17, 20, 33, 48, 49, 52, 53, 100])
@pytest.mark.parametrize("slots", [1, 7, 64, 65, 200])
@pytest.mark.covers(2)
def test_attention(queries, slots, heads, kv, dim, dtype):
    q, k, v = operands(2, queries, slots, heads, kv, dim, dtype)
    close_attention(q, k, v)


@pytest.mark.parametrize("dim", [32, 20])
@pytest.mark.parametrize(("heads", "kv"), [(6, 2), (3, 3), (10, 10)])
@pytest.mark.parametrize("queries", [1, 2, 5, 17, 33, 53])
@pytest.mark.parametrize(("seen", "more"), [(0, 1), (3, 60), (60, 8), (64, 53), (200, 17)])
@DTYPES
@pytest.mark.covers(2)
def test_attention_of_queries_that_do_not_see_all_of_the_last_slots(seen, more, queries, heads, kv, dim, dtype):
    slots = seen + more
    q, k, v = operands(2, queries, slots, heads, kv, dim, dtype)
    sees = random(2, queries, slots, seed=3) > 0.3
    sees[..., :seen] = True
    sees[..., seen] |= ~sees[..., seen:].any(-1)  # one of the last at least
    mask = torch.zeros(sees.shape).masked_fill(~sees, -torch.inf)
    close_attention(q, k, v, mask[..., seen:], mask)


@pytest.mark.parametrize("queries", [1, 33])
@DTYPES
def test_threads_change_nothing_in_attention(in_two_threads, queries, dtype):
    q, k, v = operands(3, queries, 70, 6, 2, 32, dtype)
    assert torch.equal(in_two_threads(lambda: attend_c(q, k, v)), attend_c(q, k, v))


@pytest.mark.parametrize("apart", ["slots", "heads"])
@DTYPES
def test_attention_reads_a_cache_as_it_lies_and_nothing_behind(apart, dtype):
    q, k, v = operands(2, 9, 40, 6, 3, 16, dtype)
    if apart == "heads":
        k, v = (each.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3) for each in (k, v))
    k[:, 30:], v[:, 30:] = float("nan"), float("nan")
    q = q[:, :, :3]
    close_attention(q, k[:, :30], v[:, :30])


def test_attention_of_scores_far_apart_and_far_from_zero():
    """Running sums are rescaled when a higher score arrives: early, late or never."""
    slots, dim = 300, 16
    k = torch.ones(1, slots, 1, dim) * torch.linspace(-60, 60, slots)[None, :, None, None]
    v, q = random(1, slots, 1, dim), torch.ones(1, 40, 1, dim)
    for keys in (k, k.flip(1), k + 200, k - 200):
        close_attention(q, keys, v, tolerance=1e-4)


@pytest.mark.parametrize("queries", [1, 7, 33])
@DTYPES
def test_attention_of_a_row_alone_is_that_of_the_row_in_any_batch_to_the_last_bit(queries, dtype):
    q, k, v = operands(5, queries, 90, 6, 2, 32, dtype)
    whole = attend_c(q, k, v)
    assert all(
        torch.equal(attend_c(q[row : row + 1], k[row : row + 1], v[row : row + 1])[0], whole[row]) for row in range(5)
    )


@DTYPES
def test_a_row_alone_is_the_row_in_any_batch_in_norm_gate_and_rotation(dtype):
    x, weight = random(5, 70, dtype=dtype), random(70, seed=1, dtype=dtype)
    fused, (cos, sin) = random(5, 1, 4, 20, dtype=dtype), Rope(default_frequencies(1e4, 20))._angles(torch.ones(1, 1))
    for row in range(5):
        one = slice(row, row + 1)
        assert torch.equal(layers.norm_c(x[one], weight, 1e-5), layers.norm_c(x, weight, 1e-5)[one])
        assert torch.equal(layers.swiglu_c(x[one]), layers.swiglu_c(x)[one])
        whole, alone = (layers.apply_rotary_c(part, cos, sin, 2, None) for part in (fused, fused[one]))
        assert all(torch.equal(own, of_all[one]) for own, of_all in zip(alone, whole, strict=True))


@pytest.mark.parametrize(("heads", "kv"), [(9, 3), (4, 4), (8, 1)])
@pytest.mark.parametrize("dim", [8, 24, 64, 128])
@pytest.mark.parametrize("seen", [1, 47, 100])
@pytest.mark.parametrize("tree", [False, True], ids=["chain", "tree"])
@DTYPES
@pytest.mark.covers(2)
def test_a_query_gives_the_same_bits_alone_and_beside_the_others_of_a_draft(tree, seen, dim, heads, kv, dtype):
    """Query i of a chain sees all before it, node i of a tree its ancestors: alone, only those are in the cache."""
    count = 13
    q, k, v = operands(1, count, seen + count, heads, kv, dim, dtype)
    parents = [-1, 0, 0, 1, 1, 2, 0, 3, 5, 5, 7, 8, 10] if tree else range(-1, count - 1)
    paths: list[list[int]] = []
    for node, parent in enumerate(parents):
        paths.append([*(paths[parent] if parent >= 0 else []), node])
    mask = torch.full((1, count, count), -torch.inf)
    for node, path in enumerate(paths):
        mask[0, node, path] = 0
    together = attend_c(q, k, v, mask)
    for node, path in enumerate(paths):
        slots = [*range(seen), *(seen + each for each in path)]
        alone = attend_c(q[:, node : node + 1], k[:, slots].contiguous(), v[:, slots].contiguous())
        assert torch.equal(alone, together[:, node : node + 1])
