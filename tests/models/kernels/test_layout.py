"""Weights in another memory layout hold the same values."""

import pytest
import torch

import pardec
from pardec.models.kernels.layout import empty, fill

CPU = torch.device("cpu")


@pytest.mark.parametrize(("rows", "apart"), [(6, 6), (256, 272), (300, 300), (1024, 1040)])
def test_columns_lie_together_and_begin_in_different_sets_of_a_cache(rows, apart):
    made = empty((rows, 4), dtype=torch.float32, device=CPU)
    assert (made.shape, made.stride()) == ((rows, 4), (1, apart))


@pytest.mark.parametrize("rows", [1, 64, 150, 256])
@pytest.mark.parametrize("given", [torch.float32, torch.bfloat16])
def test_filling_changes_how_a_matrix_lies_and_not_what_it_holds(rows, given):
    source = torch.randn(rows, 5, generator=torch.Generator().manual_seed(0)).to(given)
    whole = empty((rows + 2, 5), dtype=torch.float32, device=CPU).fill_(7)
    fill(whole, source, 1)
    assert torch.equal(whole[1:-1], source.float())
    assert (whole[0] == 7).all()
    assert (whole[-1] == 7).all()


@pytest.mark.parametrize(("shape", "dtype"), [((3,), torch.float32), ((3, 2), torch.bfloat16)])
def test_rows_of_others_do(shape, dtype):
    assert empty(shape, dtype=dtype, device=CPU).is_contiguous()


def test_a_loaded_model_multiplies_with_such_weights_and_looks_rows_up():
    decoder = pardec.load("tiny-llama", device="cpu", dtype="float32").language_model.decoder
    layer = decoder.layers[0]
    assert all(w.stride(0) == 1 for w in (layer.qkv_weight, layer.out_weight, layer.gate_up_weight, layer.down_weight))
    assert decoder.embed.weight.is_contiguous()
