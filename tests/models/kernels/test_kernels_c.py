"""The kernels in C against their definitions: odd shapes, strides, poison around what they read and write."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pardec.models.kernels.cpu import layer
from pardec.models.kernels.cpu.attention import attend_c
from pardec.models.kernels.glu import glu_c
from pardec.models.rope import Rope, apply_rotary, default_frequencies

pytestmark = pytest.mark.usefixtures("in_c")


def random(*shape: int, seed: int = 0) -> Tensor:
    """Every other number of a longer row is poison, so that strides have to be minded."""
    held = torch.randn(*shape[:-1], 2 * shape[-1], generator=torch.Generator().manual_seed(seed))
    held[..., shape[-1] :] = float("nan")
    return held[..., : shape[-1]]


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    assert found.shape == expected.shape
    torch.testing.assert_close(found.double(), expected.double(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("shape", [(1, 1), (3, 5, 24), (2, 0, 8), (4, 96), (2, 1000), (1, 33)], ids=str)
def test_norms(shape):
    x, weight = random(*shape), torch.rand(shape[-1]) + 0.5
    exact = x.double() / (x.double().square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    close(layer.norm_c(x, weight, 1e-5), exact)
    assert torch.equal(layer.norm_c(torch.zeros(2, shape[-1]), weight, 1e-5), torch.zeros(2, shape[-1]))


@pytest.mark.parametrize("shape", [(1, 2), (3, 5, 48), (2, 0, 8), (7, 4096), (2, 66)], ids=str)
def test_gates(shape):
    both = random(*shape) * 30
    gate, up = both.double().chunk(2, -1)
    kept = both.clone()
    close(glu_c(both), F.silu(gate) * up)
    assert torch.equal(both, kept)


def test_gates_of_large_and_small_numbers_end_where_they_should():
    gate = torch.tensor([-1e30, -200.0, -90.0, -1e-30, 0.0, 1e-30, 90.0, 200.0, 1e30])
    both = torch.cat((gate, torch.ones(9)))[None]
    close(glu_c(both), F.silu(gate.double())[None])


@pytest.mark.parametrize(("dim", "turned"), [(32, 32), (32, 16), (6, 4), (128, 128)])
@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("kept", [True, False])
def test_rotations(dim, turned, batch, kept):
    heads, kv, queries, slots = 4, 2, 5, 9
    rope = Rope(default_frequencies(10000.0, turned))
    cos, sin = rope._angles(torch.arange(batch * queries).view(batch, queries))
    fused = random(batch, queries, heads + 2 * kv, dim)
    rotated = apply_rotary(fused[:, :, : heads + kv].contiguous(), cos, sin)
    if not kept:
        q, k = layer.apply_rotary_c(fused, cos, sin, heads, None)
    else:
        stores = [
            torch.full((batch, slots, kv, dim), 7.0),
            torch.full((kv, batch, slots, dim), 7.0).permute(1, 2, 0, 3),
        ]
        k, v = (store[:, 2 : 2 + queries] for store in stores)
        q, found = layer.apply_rotary_c(fused, cos, sin, heads, (k, v))
        assert found is k
        assert torch.equal(v, fused[:, :, heads + kv :])
        assert all((store[:, :2] == 7).all() and (store[:, 2 + queries :] == 7).all() for store in stores)
    close(q, rotated[:, :, :heads])
    close(k, rotated[:, :, heads:])


def test_rotations_of_rows_that_stand_alike_share_a_table():
    cos, sin = Rope(default_frequencies(10000.0, 8))._angles(torch.arange(3, 7)[None])
    fused = random(2, 4, 3, 8)
    q, k = layer.apply_rotary_c(fused, cos, sin, 1, None)
    close(torch.cat((q, k), 2), apply_rotary(fused[:, :, :2].contiguous(), cos, sin))


def attended(q, k, v):
    q, k, v = (each.double().transpose(1, 2) for each in (q, k, v))
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True).transpose(1, 2)


@pytest.mark.parametrize("dim", [32, 64, 20, 5, 80])
@pytest.mark.parametrize(("heads", "kv"), [(6, 2), (3, 3), (4, 1)])
@pytest.mark.parametrize("queries", [1, 2, 5, 16, 17, 20, 33, 48, 49, 52, 53, 100])
@pytest.mark.parametrize("slots", [1, 7, 64, 65, 200])
def test_attention(queries, slots, heads, kv, dim):
    q, k, v = random(2, queries, heads, dim), random(2, slots, kv, dim, seed=1), random(2, slots, kv, dim, seed=2)
    close(attend_c(q, k, v), attended(q, k, v))


@pytest.mark.parametrize("dim", [32, 20])
@pytest.mark.parametrize(("heads", "kv"), [(6, 2), (3, 3)])
@pytest.mark.parametrize("queries", [1, 2, 5, 17, 33, 53])
@pytest.mark.parametrize(("seen", "more"), [(0, 1), (3, 60), (60, 8), (64, 53), (200, 17)])
def test_attention_of_queries_that_do_not_see_all_of_the_last_slots(seen, more, queries, heads, kv, dim):
    slots = seen + more
    q, k, v = random(2, queries, heads, dim), random(2, slots, kv, dim, seed=1), random(2, slots, kv, dim, seed=2)
    sees = random(2, queries, slots, seed=3) > 0.3
    sees[..., :seen] = True
    sees[..., seen] |= ~sees[..., seen:].any(-1)  # one of the last at least
    mask = torch.zeros(sees.shape).masked_fill(~sees, -torch.inf)
    parts = (each.double().transpose(1, 2) for each in (q, k, v))
    expected = F.scaled_dot_product_attention(*parts, attn_mask=mask[:, None].double(), enable_gqa=True)
    close(attend_c(q, k, v, mask[..., seen:]), expected.transpose(1, 2))


@pytest.mark.parametrize("queries", [1, 33])
def test_threads_change_nothing_in_attention(in_two_threads, queries):
    q, k, v = random(3, queries, 6, 32), random(3, 70, 2, 32, seed=1), random(3, 70, 2, 32, seed=2)
    assert torch.equal(in_two_threads(lambda: attend_c(q, k, v)), attend_c(q, k, v))


@pytest.mark.parametrize("apart", ["slots", "heads"])
def test_attention_reads_a_cache_as_it_lies_and_nothing_behind(apart):
    shape = (2, 40, 3, 16)
    k, v = (random(*shape, seed=seed) for seed in (1, 2))
    if apart == "heads":
        k, v = (each.permute(2, 0, 1, 3).contiguous().permute(1, 2, 0, 3) for each in (k, v))
    k[:, 30:], v[:, 30:] = float("nan"), float("nan")
    q = random(2, 9, 6, 16)[:, :, :3]
    close(attend_c(q, k[:, :30], v[:, :30]), attended(q, k[:, :30], v[:, :30]))


def test_attention_of_scores_far_apart_and_far_from_zero():
    """Sums are scaled when a higher score comes, early, late or never."""
    slots, dim = 300, 16
    k = torch.ones(1, slots, 1, dim) * torch.linspace(-60, 60, slots)[None, :, None, None]
    v, q = random(1, slots, 1, dim), torch.ones(1, 40, 1, dim)
    for keys in (k, k.flip(1), k + 200, k - 200):
        close(attend_c(q, keys, v), attended(q, keys, v), 1e-4)


def test_attention_of_a_row_alone_is_that_of_the_row_in_any_batch_to_the_last_bit():
    q, k, v = random(5, 33, 6, 32), random(5, 90, 2, 32, seed=1), random(5, 90, 2, 32, seed=2)
    whole = attend_c(q, k, v)
    assert all(
        torch.equal(attend_c(q[row : row + 1], k[row : row + 1], v[row : row + 1])[0], whole[row]) for row in range(5)
    )
