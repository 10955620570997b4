from __future__ import annotations

import importlib.util
import sys
from functools import partial
from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor

from pardec.models.errors import ArgumentError, ModelError
from pardec.models.kernels.cpu import block_rounding, blocks
from pardec.models.kernels.cpu.blocks import BlockWeight
from pardec.models.layers import quantize
from pardec.models.load import load
from pardec.models.plan import Plan, Visible
from tests.models.toys import SMALL, llama_folder, llama_tensors, write_checkpoint
from tests.models.toys import llama_config as config_of

needs_torchao = pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="needs the extra quant")
in_blocks = pytest.mark.skipif(blocks.kernel() is None, reason="no kernel for packed weights here")
WIDE = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
IDS = torch.randint(0, 40, (3, 9), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def by_torchao(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine without a kernel for blocks."""
    monkeypatch.setattr(quantize, "kernel", lambda: None)


def q8_0(weight: Tensor) -> Tensor:
    """A matrix in int8 on a CPU: 255 values for each 32 weights, evenly about 0."""
    parts = weight.float().unflatten(1, (-1, 32))
    scale = parts.abs().amax(2, keepdim=True) / 127
    codes = (parts.abs() / scale + 0.5).floor() * parts.sign()
    return (codes * scale.half().float()).flatten(1)


def q4_1(weight: Tensor) -> Tensor:
    """A matrix in int4 on a CPU: 16 values from the smallest to the largest of each 32 weights."""
    parts = weight.float().unflatten(1, (-1, 32))
    low, high = parts.amin(2, keepdim=True), parts.amax(2, keepdim=True)
    scale = (high - low) / 15
    codes = ((parts - low) / scale + 0.5).floor().clamp(0, 15)
    return (codes * scale.half().float() + low.half().float()).flatten(1)


def int8(weight: Tensor) -> Tensor:
    """A matrix after int8 quantization: 256 values per row, symmetric about 0."""
    scale = weight.abs().amax(1, keepdim=True) / 127.5
    return (weight * (1 / scale)).round().clamp(-128, 127) * scale  # as torchao: the least value is just between two


def int4(weight: Tensor) -> Tensor:
    """A matrix after int4 quantization: 16 values from the smallest to the largest of each group."""
    columns = weight.shape[1]
    parts = weight.unflatten(1, (-1, 64 if columns % 64 == 0 else 32))
    low, high = parts.amin(2, keepdim=True), parts.amax(2, keepdim=True)
    scale = (high - low) / 15
    return (low + ((parts - low) / scale).round().clamp(0, 15) * scale).flatten(1)


def logits(folder: Path, ids: Tensor = IDS, **more: object) -> Tensor:
    model = load(folder, device="cpu", **more)
    return model.forward(Plan.full(ids, model.visible())).logits()


@needs_torchao
@pytest.mark.usefixtures("by_torchao")
@pytest.mark.parametrize(("kind", "naive"), [("int8", int8), ("int4", int4)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_logits_are_those_of_matrices_rounded_by_hand(tmp_path, kind, naive, dtype):
    config = config_of(**WIDE, vocab_size=48)
    tensors = {name: weight.to(dtype).float() for name, weight in llama_tensors(config).items()}
    plain = write_checkpoint(tmp_path / "plain", config, tensors)
    # Fused or not, a row is rounded on its own.
    kept = ("embed", "norm")
    rounded = {n: w if any(part in n for part in kept) else naive(w) for n, w in tensors.items()}
    by_hand = write_checkpoint(tmp_path / "rounded", config, rounded)
    found = logits(plain, quantize=kind, dtype=dtype)
    expected, whole = logits(by_hand, dtype=torch.float32), logits(plain, dtype=torch.float32)
    close = {"rtol": 1e-3, "atol": 1e-3} if dtype == torch.float32 else {"rtol": 0.1, "atol": 0.15}
    torch.testing.assert_close(found, expected, **close)
    assert (expected - whole).abs().max() > 5 * close["atol"] or dtype != torch.float32


@needs_torchao
@pytest.mark.usefixtures("by_torchao")
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_a_row_is_the_same_alone_and_in_a_batch(tmp_path, kind):
    folder = llama_folder(tmp_path, **WIDE, vocab_size=48)
    together = logits(folder, quantize=kind, dtype="float32")
    for row in range(len(IDS)):
        torch.testing.assert_close(logits(folder, IDS[row : row + 1], quantize=kind, dtype="float32")[0], together[row])


@needs_torchao
@pytest.mark.usefixtures("by_torchao")
def test_matrices_take_fewer_bytes_and_count_as_many_numbers(tmp_path):
    folder = llama_folder(tmp_path, **WIDE, vocab_size=48)
    plain = load(folder, device="cpu")
    matrices = sum(w.numel() for name, w in plain.decoder.named_parameters() if w.ndim == 2 and name != "embed.weight")
    rows = sum(w.shape[0] for name, w in plain.decoder.named_parameters() if w.ndim == 2 and name != "embed.weight")
    made = load(folder, device="cpu", quantize="int8")
    assert (plain.quantized, made.quantized) == (None, "int8")
    assert made.parameters == plain.parameters
    assert plain.weight_bytes == 4 * plain.parameters
    assert made.weight_bytes == plain.weight_bytes - 4 * matrices + matrices + 5 * rows  # a scale and a zero point each
    assert load(folder, device="cpu", quantize="int4").weight_bytes < made.weight_bytes


@needs_torchao
@pytest.mark.usefixtures("by_torchao")
def test_int4_is_computed_in_bfloat16_unless_another_dtype_is_named(tmp_path):
    folder = llama_folder(tmp_path, **WIDE, vocab_size=48)
    assert load(folder, device="cpu", quantize="int4").dtype == torch.bfloat16
    assert load(folder, device="cpu", quantize="int4", dtype="float32").dtype == torch.float32
    assert load(folder, device="cpu", quantize="int8").dtype == torch.float32


@needs_torchao
@pytest.mark.usefixtures("by_torchao")
def test_what_stays_as_it_is_is_said(tmp_path):
    odd = llama_folder(tmp_path / "odd", **WIDE | {"intermediate_size": 72}, vocab_size=40)
    said = load(odd, device="cpu", quantize="int4").describe()
    assert "int4 in 6 of 9 matrices" in said
    assert "layers.0.down_weight and 1 more (72 columns are not a multiple of 32)" in said
    assert "head.weight (40 rows are not a multiple of 16)" in said
    tied = llama_folder(tmp_path / "tied", **WIDE, tie_word_embeddings=True)
    model = load(tied, device="cpu", quantize="int8")
    assert "int8 in 8 of 9 matrices" in model.describe()
    assert "head.weight (it is the embedding)" in model.describe()
    assert type(model.decoder.head.weight) is torch.nn.Parameter
    with pytest.raises(ModelError, match="no linear layer of the model can be quantized to int4") as caught:
        load(llama_folder(tmp_path / "small"), device="cpu", quantize="int4")
    assert "int8" in str(caught.value.hint)


def check_linear_layers_of_transformers(folder, kind, by_hand, settings):
    """Compares a model that transformers runs with itself after its matrices were rounded by hand."""
    settings = SMALL | {"pad_token_id": 0, "hidden_act": "relu", "tie_word_embeddings": True} | settings
    torch.manual_seed(0)
    made = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**settings)).eval()
    made.save_pretrained(folder)
    found = load(folder, device="cpu", quantize=kind)
    assert f"{kind} in 14 of 15 matrices" in found.describe()
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if weight.ndim == 2 and "embed" not in name:
                weight.copy_(by_hand(name, weight))
        expected = made(IDS).logits
    torch.testing.assert_close(found.forward(Plan.full(IDS, Visible.causal())).logits(), expected, rtol=1e-4, atol=1e-4)
    return found


@needs_torchao
@pytest.mark.usefixtures("by_torchao")
def test_models_that_transformers_runs_are_quantised_too(tmp_path):
    check_linear_layers_of_transformers(tmp_path, "int8", lambda name, weight: int8(weight), {})


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"quantize": "int5"}, "unknown quantize 'int5' .did you mean 'int"),
        ({"quantize": "int8", "device_map": "auto"}, "quantize=int8 and device_map=auto cannot be combined"),
        ({"quantize": "fp8"}, "fp8 needs a CUDA GPU of compute capability 8.9"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path, arguments, message):
    with pytest.raises(ModelError, match=message) as caught:
        load(llama_folder(tmp_path), device="cpu", **arguments)
    assert caught.value.hint


def test_int4_of_a_gpu_asks_for_bfloat16(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    with pytest.raises(ModelError, match="int4 runs in bfloat16 on a GPU"):
        quantize.quantizer("int4", torch.device("cuda", 0), torch.float16)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    with pytest.raises(ModelError, match="compute capability 8.0"):
        quantize.quantizer("int4", torch.device("cuda", 0), torch.bfloat16)


@pytest.mark.usefixtures("by_torchao")
def test_without_torchao_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao", None)
    monkeypatch.setattr(quantize.metadata, "version", _missing)
    with pytest.raises(ModelError, match="needs torchao, which is not installed") as caught:
        load(llama_folder(tmp_path), device="cpu", quantize="int8")
    assert 'pip install -e ".[quant]"' in str(caught.value.hint)


def _missing(name: str) -> str:
    raise quantize.metadata.PackageNotFoundError(name)


# --- blocks, on CPUs with a kernel for them ---

BLOCKS = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}


def hand_rounded(name: str, weight: Tensor, kind: str) -> Tensor:
    if weight.ndim < 2:
        return weight
    vocabulary = "embed_tokens" in name or "lm_head" in name
    return q4_1(weight) if kind == "int4" and not vocabulary else q8_0(weight)


@in_blocks
@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.covers(2)
def test_blocks_are_the_matrices_rounded_by_hand(tmp_path, kind, tied, dtype):
    config = config_of(**BLOCKS, vocab_size=50, tie_word_embeddings=tied)
    tensors = {name: weight.to(dtype).float() for name, weight in llama_tensors(config).items()}
    if tied:
        del tensors["lm_head.weight"]
    plain = write_checkpoint(tmp_path / "plain", config, tensors)
    by_hand = {name: hand_rounded(name, weight, kind) for name, weight in tensors.items()}
    expected = logits(write_checkpoint(tmp_path / "rounded", config, by_hand), dtype=torch.float32)
    found, whole = logits(plain, quantize=kind, dtype=dtype), logits(plain, dtype=torch.float32)
    close = {"rtol": 1e-4, "atol": 1e-4} if dtype == torch.float32 else {"rtol": 0.1, "atol": 0.15}
    torch.testing.assert_close(found, expected, **close)
    assert (expected - whole).abs().max() > 10 * close["atol"] or dtype != torch.float32
    model = load(plain, device="cpu", quantize=kind, dtype=dtype)
    assert all(isinstance(weight, BlockWeight) for weight in model.decoder.parameters() if weight.ndim == 2)
    assert model.decoder.head.weight is model.decoder.embed.weight or not tied
    assert (model.quantized, model.activations, model.packed) == (kind, "float32", False)


@in_blocks
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1"])
def test_blocks_have_the_bytes_of_the_gguf_package(kind):
    gguf = pytest.importorskip("gguf")
    weight = torch.randn(37, 96, generator=torch.Generator().manual_seed(2))
    weight[3, :32], weight[4, 32:64], weight[5, 0] = 0, 1.5, 127
    stored = torch.from_numpy(gguf.quants.quantize(weight.numpy(), gguf.GGMLQuantizationType[kind]))
    found = block_rounding.rounded(kind, weight, torch.float32, "float32")
    assert torch.equal(found.packed[0], blocks.pack(kind, stored))


@in_blocks
@pytest.mark.parametrize("kind", ["Q8_0", "Q4_1"])
@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_block_with_no_number_is_none(kind, value):
    weight = torch.randn(3, 64)
    weight[1, 40] = value
    dense = block_rounding.rounded(kind, weight, torch.float32, "float32").dense
    assert not dense[1, 32:].isfinite().any()
    assert dense[[0, 2]].isfinite().all()
    assert not block_rounding.overflows(kind, weight)


@in_blocks
def test_what_blocks_do_not_fit_stays_plain_and_is_said(tmp_path):
    config = config_of(**BLOCKS | {"intermediate_size": 72}, vocab_size=40)
    tensors = llama_tensors(config)
    tensors["lm_head.weight"][0, 0] = 1e8
    model = load(write_checkpoint(tmp_path / "odd", config, tensors), device="cpu", quantize="int8")
    assert "int8 in 7 of 10 matrices (blocks of 32, activations float32)" in model.describe()
    assert "layers.0.down_weight and 1 more (72 columns are not a multiple of 32)" in model.describe()
    assert "head.weight (its scales are beyond float16)" in model.describe()
    with pytest.raises(ModelError, match="no linear layer of the model can be quantized to int8"):
        load(llama_folder(tmp_path / "small", hidden_size=24, intermediate_size=24), device="cpu", quantize="int8")


@in_blocks
def test_activations_of_quantized_models(tmp_path, monkeypatch):
    folder = llama_folder(tmp_path, **BLOCKS)
    plain, rounded = (logits(folder, quantize="int4", activations=kind) for kind in ("float32", "int8"))
    assert 1e-4 < (plain - rounded).abs().max() < 1
    assert load(folder, device="cpu", quantize="int4", activations="int8").activations == "int8"
    with pytest.raises(ArgumentError, match="activations=int8 cannot be followed: .* is no GGUF file"):
        load(folder, device="cpu", activations="int8")
    monkeypatch.setattr(quantize, "kernel", lambda: None)
    with pytest.raises(ArgumentError, match="activations=int8 cannot be followed: there is no kernel"):
        load(folder, device="cpu", quantize="int8", activations="int8")


@in_blocks
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_linear_layers_of_transformers_become_blocks(tmp_path, kind):
    found = check_linear_layers_of_transformers(tmp_path, kind, partial(hand_rounded, kind=kind), BLOCKS)
    assert "(it is the embedding)" in found.describe()
    assert found.activations == "float32"


@in_blocks
def test_linear_layers_of_transformers_run_the_kernel(tmp_path, monkeypatch):
    settings = SMALL | BLOCKS | {"pad_token_id": 0, "hidden_act": "relu"}
    transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**settings)).save_pretrained(tmp_path)
    model = load(tmp_path, device="cpu", quantize="int8", activations="int8")
    monkeypatch.setattr(BlockWeight, "dense", None)
    assert model.forward(Plan.full(IDS, Visible.causal())).logits().isfinite().all()
