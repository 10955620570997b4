"""float32 C kernels are as near to float64 as PyTorch's: kernel by kernel, and the likelihoods of a whole model.

Shapes are those of SmolLM2-135M, and heads those of larger models too; errors may be twice as large, the largest and
the root of their mean square.
"""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from pardec.models.kernels.cpu import panels
from pardec.models.kernels.cpu.attention import attend_c
from pardec.models.kernels.cpu.layers import apply_rotary_c, norm_c
from pardec.models.kernels.ops import apply_rotary, glu, glu_c
from pardec.models.layers.rope import Rope, default_frequencies
from pardec.models.load import load
from pardec.models.plan import Plan
from pardec.samplers.ops.confidence import greedy_c

WIDTH, INNER, HEADS, KV, DIM = 576, 1536, 9, 3, 64


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def as_near(found: Tensor, reference: Tensor, exact: Tensor) -> None:
    """Asserts that `found` is at most twice as far from `exact` (float64) as `reference` is."""
    (most, mean), (may, may_mean) = (
        (error.max(), error.square().mean().sqrt())
        for error in ((each.double() - exact).abs() for each in (found, reference))
    )
    assert mean <= 2 * may_mean, f"{mean / may_mean:.2f} times the reference's error"
    assert most <= 2 * may, f"{most / may:.2f} times the reference's largest error"


@pytest.mark.usefixtures("in_c")
@pytest.mark.parametrize("count", [1, 8, 50])
@pytest.mark.parametrize(
    ("rows", "columns"), [((HEADS + 2 * KV) * DIM, WIDTH), (2 * INNER, WIDTH), (WIDTH, INNER), (1000, 4096)], ids=str
)
def test_products(rows, columns, count):
    """Products, also added to a residual that is larger than they are and has a few far larger entries."""
    x, matrix, h = normal(count, columns), normal(rows, columns, seed=1) * columns**-0.5, normal(count, rows) * 5
    h[:, :3] *= 100
    weight = panels.empty(rows, columns)
    weight.fill(matrix)
    exact = x.double() @ matrix.double().t()
    as_near(weight.matmul(x), F.linear(x, matrix), exact)
    as_near(weight.matmul(x, h), torch.addmm(h, x, matrix.t()), exact + h)
    as_near(weight.matmul(x, h)[:, 3:], torch.addmm(h, x, matrix.t())[:, 3:], (exact + h)[:, 3:])


@pytest.mark.usefixtures("in_c")
@pytest.mark.parametrize("mean", [0, 2])
@pytest.mark.parametrize("count", [1, 3, 8])
@pytest.mark.parametrize("length", [40, 64, 77, 96, 130, 168, 192])
def test_products_of_short_rows(length, count, mean):
    """Partial sums that only grow have the largest rounding errors; PyTorch makes those of few rows in many parts."""
    x, matrix = normal(count, length) + mean, normal(12000 // count, length, seed=1) + mean
    weight = panels.empty(*matrix.shape)
    weight.fill(matrix)
    as_near(weight.matmul(x), F.linear(x, matrix), x.double() @ matrix.double().t())


@pytest.mark.usefixtures("in_c")
@pytest.mark.parametrize("scale", [1, 3])
@pytest.mark.parametrize("slots", [100, 512, 2048])
@pytest.mark.parametrize("queries", [1, 2, 33, 64])
def test_attention(queries, slots, scale):
    q, k, v = (
        normal(1, queries, HEADS, DIM) * scale,
        normal(1, slots, KV, DIM, seed=1),
        normal(1, slots, KV, DIM, seed=2),
    )

    def defined(*parts: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(*(part.transpose(1, 2) for part in parts), enable_gqa=True).transpose(
            1, 2
        )

    as_near(attend_c(q, k, v), defined(q, k, v), defined(q.double(), k.double(), v.double()))


@pytest.mark.usefixtures("in_c")
@pytest.mark.parametrize(("heads", "kv", "dim"), [(14, 2, 64), (32, 8, 64), (12, 2, 128), (32, 32, 128)], ids=str)
@pytest.mark.parametrize("queries", [3, 17])
def test_attention_with_high_scores_and_outliers(queries, heads, kv, dim):
    """Heads of Qwen2, Llama 3.2 and LLaDA; one dimension of the keys and one of the values are far larger."""
    found, reference, exact = [], [], []
    for seed, slots in enumerate((64, 300, 1000)):
        q = normal(1, queries, heads, dim, seed=seed) * 8
        k, v = normal(1, slots, kv, dim, seed=seed + 10), normal(1, slots, kv, dim, seed=seed + 20)
        k[..., 1] *= 10
        v[..., 2] *= 100
        found.append(attend_c(q, k, v))
        for to, kind in ((reference, torch.float32), (exact, torch.float64)):
            parts = (part.to(kind).transpose(1, 2) for part in (q, k, v))
            to.append(F.scaled_dot_product_attention(*parts, enable_gqa=True).transpose(1, 2))
    as_near(torch.cat(found), torch.cat(reference), torch.cat(exact))


@pytest.mark.usefixtures("in_c")
@pytest.mark.parametrize("scale", [0.1, 1, 30])
def test_norms(scale):
    x, weight = normal(50, WIDTH) * scale, normal(WIDTH, seed=1) + 1
    exact = x.double() * (x.double().square().mean(-1, keepdim=True) + 1e-5).rsqrt() * weight.double()
    as_near(norm_c(x, weight, 1e-5), F.rms_norm(x, (WIDTH,), weight, 1e-5), exact)


@pytest.mark.usefixtures("in_c")
@pytest.mark.parametrize("scale", [0.3, 1, 4])
def test_gates(scale):
    """Also the relative error: where a gate is nearly 0, the exponential's error dominates."""
    both = normal(50, 2 * INNER) * scale
    gate, up = both.double().chunk(2, -1)
    exact, reference, found = F.silu(gate) * up, glu(both.clone()), glu_c(both)
    as_near(found, reference, exact)
    as_near(found / exact, reference / exact, torch.ones_like(exact))


@pytest.mark.usefixtures("in_c")
def test_gates_that_are_shut_let_nothing_through():
    gate = torch.tensor([-3e38, -1e6, -89.0, -88.0])
    both = torch.cat((gate, torch.full((4,), 1e6)))[None]
    assert glu_c(both).abs().max() < 1e-29


@pytest.mark.usefixtures("in_c")
def test_rotations():
    at = torch.randint(0, 8192, (1, 50), generator=torch.Generator().manual_seed(0))
    cos, sin = Rope(default_frequencies(1e5, DIM))._angles(at)
    fused = normal(1, 50, HEADS + 2 * KV, DIM)
    turned = fused[:, :, : HEADS + KV]
    half = DIM // 2
    exact = turned.double() * cos.double() + turned.double().roll(half, -1) * sin.double()
    as_near(
        torch.cat(apply_rotary_c(fused, cos, sin, HEADS, None), 2), apply_rotary(turned.contiguous(), cos, sin), exact
    )


@pytest.mark.usefixtures("in_c")
@pytest.mark.parametrize("scale", [1, 4])
def test_confidence(scale):
    logits = normal(16, 49152) * scale
    exact = logits.double().softmax(-1).amax(-1)
    as_near(greedy_c(logits)[1] / exact, logits.softmax(-1).amax(-1) / exact, torch.ones_like(exact))


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """A random model with SmolLM2's layers, but fewer; ids, their likelihoods by transformers and in float64."""
    folder = tmp_path_factory.mktemp("small")
    sizes = {"hidden_size": WIDTH, "intermediate_size": INNER, "num_attention_heads": HEADS, "num_key_value_heads": KV}
    config = LlamaConfig(
        **sizes,
        vocab_size=4096,
        num_hidden_layers=8,
        rope_parameters={"rope_type": "default", "rope_theta": 1e5},
        rms_norm_eps=1e-5,
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 1:
                weight.uniform_(0.5, 1.5, generator=generator)
            else:
                weight.normal_(0, 0.12 if "embed" in name else 1.2 * weight.shape[1] ** -0.5, generator=generator)
        model.get_input_embeddings().weight[:, :2] += 5  # a few numbers of a state are far larger than the rest
        model.save_pretrained(folder)
        ids = torch.randint(0, 4096, (1, 128), generator=generator)
        reference = likelihoods(model(ids).logits, ids)
        exact = likelihoods(model.double()(ids).logits, ids)
    return folder, ids, reference, exact


def likelihoods(logits: Tensor, ids: Tensor) -> Tensor:
    return logits.log_softmax(-1)[:, :-1].gather(-1, ids[:, 1:, None])


def test_likelihoods_by_kernels_in_c(small, in_c):
    folder, ids, reference, exact = small
    model = load(folder, device="cpu", dtype="float32")
    assert type(model.decoder.layers[0].down_weight) is panels.Panels
    found = model.forward(Plan.full(ids, model.visible())).logits()
    as_near(likelihoods(found, ids), reference, exact)


@pytest.mark.parametrize("kernels", ["auto", "reference"])
def test_likelihoods_by_what_is_chosen_here_and_by_definitions(small, kernels, monkeypatch):
    folder, ids, reference, exact = small
    monkeypatch.setenv("PARDEC_KERNELS", kernels)
    model = load(folder, device="cpu", dtype="float32")
    as_near(likelihoods(model.forward(Plan.full(ids, model.visible())).logits(), ids), reference, exact)
