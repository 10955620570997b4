from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor

from pardec.models.errors import ModelError
from pardec.models.layers import quantize
from pardec.models.load import load
from pardec.models.plan import Plan, Visible
from tests.models.toys import SMALL, llama_folder, llama_tensors, write_checkpoint
from tests.models.toys import llama_config as config_of

needs_torchao = pytest.mark.skipif(importlib.util.find_spec("torchao") is None, reason="needs the extra quant")
WIDE = {"hidden_size": 64, "intermediate_size": 96, "num_attention_heads": 4, "num_key_value_heads": 2}
IDS = torch.randint(0, 40, (3, 9), generator=torch.Generator().manual_seed(1))


def int8(weight: Tensor) -> Tensor:
    """What a matrix is in int8: 256 values per row, evenly about 0."""
    scale = weight.abs().amax(1, keepdim=True) / 127.5
    return (weight * (1 / scale)).round().clamp(-128, 127) * scale  # as torchao: the least value is just between two


def int4(weight: Tensor) -> Tensor:
    """What it is in int4: 16 values from the smallest to the largest of each group."""
    columns = weight.shape[1]
    parts = weight.unflatten(1, (-1, 64 if columns % 64 == 0 else 32))
    low, high = parts.amin(2, keepdim=True), parts.amax(2, keepdim=True)
    scale = (high - low) / 15
    return (low + ((parts - low) / scale).round().clamp(0, 15) * scale).flatten(1)


def logits(folder: Path, ids: Tensor = IDS, **more: object) -> Tensor:
    model = load(folder, device="cpu", **more)
    return model.forward(Plan.full(ids, model.visible())).logits()


@needs_torchao
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
@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_a_row_is_the_same_alone_and_in_a_batch(tmp_path, kind):
    folder = llama_folder(tmp_path, **WIDE, vocab_size=48)
    together = logits(folder, quantize=kind, dtype="float32")
    for row in range(len(IDS)):
        torch.testing.assert_close(logits(folder, IDS[row : row + 1], quantize=kind, dtype="float32")[0], together[row])


@needs_torchao
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
def test_int4_is_computed_in_bfloat16_unless_another_dtype_is_named(tmp_path):
    folder = llama_folder(tmp_path, **WIDE, vocab_size=48)
    assert load(folder, device="cpu", quantize="int4").dtype == torch.bfloat16
    assert load(folder, device="cpu", quantize="int4", dtype="float32").dtype == torch.float32
    assert load(folder, device="cpu", quantize="int8").dtype == torch.float32


@needs_torchao
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


@needs_torchao
def test_models_that_transformers_runs_are_quantised_too(tmp_path):
    settings = SMALL | {"pad_token_id": 0, "hidden_act": "relu", "tie_word_embeddings": True}
    torch.manual_seed(0)
    made = transformers.AutoModelForCausalLM.from_config(transformers.LlamaConfig(**settings)).eval()
    made.save_pretrained(tmp_path)
    found = load(tmp_path, device="cpu", quantize="int8")
    assert "int8 in 14 of 15 matrices" in found.describe()
    with torch.no_grad():
        for name, weight in made.named_parameters():
            if weight.ndim == 2 and "embed" not in name:
                weight.copy_(int8(weight))
        expected = made(IDS).logits
    torch.testing.assert_close(found.forward(Plan.full(IDS, Visible.causal())).logits(), expected, rtol=1e-4, atol=1e-4)


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


def test_without_torchao_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "torchao", None)
    monkeypatch.setattr(quantize.metadata, "version", _missing)
    with pytest.raises(ModelError, match="needs torchao, which is not installed") as caught:
        load(llama_folder(tmp_path), device="cpu", quantize="int8")
    assert 'pip install -e ".[quant]"' in str(caught.value.hint)


def _missing(name: str) -> str:
    raise quantize.metadata.PackageNotFoundError(name)
