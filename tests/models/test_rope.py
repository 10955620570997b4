from __future__ import annotations

import torch

from pardec.models.kernels.ops import apply_rotary
from pardec.models.layers.rope import Rope, default_frequencies
from pardec.models.plan import Visible
from tests.models.toys import ask, ids


def by_hand(x, position, frequencies):
    """Pairs (x_i, x_{i+R/2}) rotated by position * frequency_i."""
    half = frequencies.numel()
    out = x.clone()
    for i, frequency in enumerate(frequencies.tolist()):
        angle = torch.tensor(position * frequency)
        a, b = x[i], x[i + half]
        out[i], out[i + half] = a * angle.cos() - b * angle.sin(), a * angle.sin() + b * angle.cos()
    return out


def test_pairs_are_turned_by_their_position():
    frequencies = default_frequencies(100.0, 4)
    positions = torch.tensor([[0, 3, 11]])
    plan = ask(ids(1, 3), positions, Visible.causal(), torch.tensor([12]))
    x = torch.randn(1, 3, 2, 6, generator=torch.Generator().manual_seed(0))  # the last two dimensions are not rotated
    for limit in (None, 16):
        cos, sin = Rope(frequencies).rows(plan, limit=limit, device=torch.device("cpu"))
        out = apply_rotary(x, cos, sin)
        for query, position in enumerate(positions[0].tolist()):
            torch.testing.assert_close(out[0, query, 1], by_hand(x[0, query, 1], position, frequencies))


def test_tables_grow_and_stay_usable_for_training():
    rope = Rope(default_frequencies(100.0, 4), scale=2.0)
    plan = ask(ids(1, 1), torch.tensor([[70]]), Visible.causal(), torch.tensor([71]))
    with torch.inference_mode():
        short, _ = rope.rows(
            ask(ids(1, 1), torch.tensor([[3]]), Visible.causal(), torch.tensor([4])),
            limit=8,
            device=torch.device("cpu"),
        )
        cos, _ = rope.rows(plan, limit=100, device=torch.device("cpu"))
    torch.testing.assert_close(cos[0, 0, 0, 0], 2.0 * torch.tensor(70.0).cos())
    torch.testing.assert_close(short[0, 0, 0, 0], 2.0 * torch.tensor(3.0).cos())
    assert not rope.rows(plan, limit=100, device=torch.device("cpu"))[0].is_inference()
