"""8-bit weights: products equal those of the rounded numbers, a row is the same in any batch, drafting stays exact."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from torch import nn

import pardec
from pardec.models.draft_modules import eagle, few_pairs, load
from pardec.models.errors import ModelError, SpecError
from pardec.models.kernels import matmul
from pardec.models.kernels.cpu import int8, library, panels
from pardec.models.kernels.cpu.blocks import BlockWeight
from pardec.models.kernels.ops import choose_ops
from pardec.samplers.spec import parse
from pardec.samplers.spec_values import check

PROMPTS = [
    "Tom has 18 cups. He loses 4. He finds 12 cups. How many cups does Tom have now?",
    "Hugo has 55 apples. Olga removes 9. Ravi buys 3. How many remain?",
]


@pytest.fixture
def able(in_c):
    """Skips the test if the processor cannot multiply bytes."""
    int8._able.cache_clear()
    if not int8.runs():
        pytest.skip("AVX-512 without VNNI")
    yield
    int8._able.cache_clear()


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def rounded(x):
    """[M, K]: x rounded by plain arithmetic; 64 numbers share a scale."""
    parts = [part / (part.abs().amax(1, keepdim=True) / 127).clamp(min=1e-30) for part in x.split(64, 1)]
    scales = [(part.abs().amax(1, keepdim=True) / 127).clamp(min=1e-30) for part in x.split(64, 1)]
    return torch.cat([part.round() * scale for part, scale in zip(parts, scales, strict=True)], 1)


@pytest.mark.usefixtures("able")
@pytest.mark.parametrize(("rows", "columns"), [(64, 64), (100, 1), (33, 193), (5, 5), (1, 400), (336, 577)])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 5, 6, 7, 17, 40])
def test_products_are_those_of_the_rounded_numbers(rows, columns, count):
    weights, x, h, bias = randn(rows, columns, seed=1), randn(count, columns), randn(count, rows), randn(rows)
    x[:, :1] *= 300  # one that is much larger than the others
    weight = nn.Parameter(int8.quantized(weights), requires_grad=False)
    scale = weights.abs().amax(1, keepdim=True) / 127
    assert ((weight.dense - weights).abs() <= scale * 0.5001).all()
    whole = rounded(x).double() @ weight.dense.double().t()
    for found, expected in (
        (matmul.matmul(x, weight), whole),
        (matmul.matmul(x, weight, bias), whole + bias),
        (matmul.add_matmul(h, x, weight), whole + h),
        (matmul.add_matmul(h, x, weight, bias), whole + h + bias),
    ):
        torch.testing.assert_close(found, expected.float(), rtol=1e-4, atol=1e-3)
    narrow = matmul.add_matmul(h.bfloat16(), x.bfloat16(), weight)
    exact = matmul.matmul(x.bfloat16().float(), weight) + h.bfloat16().float()
    torch.testing.assert_close(narrow, exact.bfloat16(), rtol=1e-2, atol=1e-3)


@pytest.mark.usefixtures("able")
def test_a_row_alone_is_the_row_in_any_batch_to_the_last_bit(in_two_threads):
    weight, x, h = int8.quantized(randn(500, 389, seed=1)), randn(30, 389), randn(30, 500)
    whole = weight.matmul(x, h)
    for count in (1, 2, 3, 5, 6, 7, 16):
        assert torch.equal(weight.matmul(x[:count], h[:count]), whole[:count])
    assert torch.equal(weight.matmul(x[20:21], h[20:21]), whole[20:21])
    assert torch.equal(in_two_threads(lambda: weight.matmul(x, h)), whole)
    assert torch.equal(weight.matmul(x.t().contiguous().t(), h), whole)
    assert torch.equal(weight.matmul(x.view(5, 6, 389)), weight.matmul(x).view(5, 6, 500))


@pytest.mark.usefixtures("able")
@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_what_is_not_finite_stays_so(value):
    weight, x = int8.quantized(randn(40, 130, seed=1)), randn(3, 130)
    x[1, 127] = value
    assert weight.matmul(x).isfinite().all(1).tolist() == [True, False, True]


@pytest.mark.usefixtures("able")
def test_other_operations_see_a_matrix():
    weight = nn.Parameter(int8.quantized(randn(50, 6, seed=1).bfloat16()), requires_grad=False)
    assert (weight.shape, weight.dtype) == ((50, 6), torch.bfloat16)
    assert torch.equal(weight[3:9], weight.dense[3:9])
    for again in (copy.deepcopy(weight), pickle.loads(pickle.dumps(weight))):
        assert type(again) is int8.Int8Weight
        assert isinstance(again, nn.Parameter)
        assert torch.equal(again.dense, weight.dense)
    x = randn(2, 6).requires_grad_()
    matmul.matmul(x, weight).sum().backward()
    torch.testing.assert_close(x.grad, weight.dense.float().sum(0).expand(2, 6))
    with pytest.raises(NotImplementedError, match="read-only"):
        weight.fill_(0)


@pytest.mark.usefixtures("able")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", ["dflash", "eagle", "hydra", "kangaroo", "medusa", "mtp"])
@pytest.mark.covers(1)
def test_a_drafter_drafts_about_as_well_and_the_text_stays_the_same(kind, dtype):
    model = pardec.load("tiny-llama", device="cpu", dtype=dtype)
    spec = f"{kind}:name=tiny-llama-{kind}"
    plain, whole, eight, four = (
        model.generate(PROMPTS, sampler=each)
        for each in ("sequential", spec, f"{spec},quantize=int8", f"{spec},quantize=int4")
    )
    modules = list(model.language_model.draft_modules.values())
    kinds = [{type(weight) for weight in module.parameters()} for module in modules]
    assert [int8.Int8Weight in each for each in kinds] == [True, False], "the last two modules are kept"
    assert [BlockWeight in each for each in kinds] == [False, True]
    assert eight.tokens == four.tokens == whole.tokens == plain.tokens if dtype == "float32" else four.tokens
    assert sum(eight.nfe) <= sum(whole.nfe) + 3
    assert sum(four.nfe) <= 1.1 * sum(whole.nfe)


@pytest.mark.usefixtures("able")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("shape", ["", "+beam:beams=4,nodes=6", "+beam:beams=8,nodes=20", "+template:widths=2-2"])
def test_a_layer_in_one_go_gives_the_bits_of_its_operations(monkeypatch, dtype, shape):
    model = pardec.load("tiny-llama", device="cpu", dtype=dtype)
    module = load.load_draft_module("tiny-llama-eagle", model.language_model, quantize="int8")
    ways = []

    def both(layer, h, inputs, plan, cache, rope, *, last):
        found = few_pairs.few_pairs(layer, h, inputs, plan, cache, rope, last=last)
        ways.append((plan.batch, plan.visible.kind, last, found is not None))
        if found is None:
            return None
        stored = cache.k[0].clone(), cache.v[0].clone()
        slots = slice(plan.uniform - plan.width, plan.uniform)
        cache.k[0][:, slots], cache.v[0][:, slots] = torch.nan, torch.nan
        picked = plan.want if last else None
        step = module.layer_pass(plan, cache, choose_ops(module.device, module.dtype))
        assert torch.equal(module._layers(h, inputs, step, picked), found)
        assert torch.equal(cache.k[0], stored[0])
        assert torch.equal(cache.v[0], stored[1])
        return found

    monkeypatch.setattr(eagle, "few_pairs", both)
    monkeypatch.setattr(eagle.EagleModule, "chain", lambda *_: None)  # what drafts chains without it
    spec = f"eagle:name=tiny-llama-eagle,k=3,quantize=int8{shape}"
    model.generate(PROMPTS[0], sampler=spec, max_new_tokens=24)
    assert {way[3] for way in ways[1:]} == {True}, "all but the prompt"
    assert {way[1] for way in ways} == ({"causal", "mask"} if shape else {"causal"})
    assert any(way[2] for way in ways)
    ways.clear()
    model.generate(PROMPTS, sampler=spec, max_new_tokens=8)
    assert (2, False) in {(way[0], way[3]) for way in ways}, "rows side by side go operation by operation"


@pytest.mark.usefixtures("able")
def test_products_go_where_they_are_wanted():
    weight, x, out = int8.quantized(randn(70, 33, seed=1)), randn(5, 33).bfloat16(), torch.full((5, 100), 7.0)
    matmul.matmul_into(out[:, 3:73], x, weight)
    assert torch.equal(out[:, 3:73].bfloat16(), matmul.matmul(x, weight))
    assert (out[:, :3] == 7).all()
    assert (out[:, 73:] == 7).all()
    laid = panels.empty(70, 33)
    laid.fill(weight.dense)
    for plain in (weight.dense, nn.Parameter(laid, requires_grad=False)):
        matmul.matmul_into(out[:, :70], x.float(), plain)
        assert torch.equal(out[:, :70], matmul.matmul(x.float(), plain))


@pytest.mark.usefixtures("able")
def test_a_module_without_matrices_is_refused():
    model = pardec.load("tiny-llama", device="cpu")
    with pytest.raises(ModelError, match="no matrix that can be multiplied"):
        model.generate(PROMPTS[0], sampler="prompts:name=tiny-llama-prompts,quantize=int8")


def test_other_numbers_of_bits_and_other_devices_are_refused(monkeypatch):
    with pytest.raises(SpecError, match="quantize must be one of int8, int4, got 'int3'"):
        check(parse("eagle:name=tiny-llama-eagle,quantize=int3"))
    model = pardec.load("tiny-llama", device="cpu").language_model
    with pytest.raises(ModelError, match="quantize='fp8' is unknown"):
        load.load_draft_module("tiny-llama-eagle", model, quantize="fp8")
    monkeypatch.setenv("PARDEC_KERNELS", "reference")
    assert not library.allowed()
    with pytest.raises(ModelError, match="AVX512-VNNI or AVX2"):
        load.load_draft_module("tiny-llama-eagle", model, quantize="int8")
