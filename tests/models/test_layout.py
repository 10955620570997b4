"""What lies otherwise in memory holds the same."""

import pytest
import torch

import pardec
from pardec.models.kernels.layout import empty

CPU = torch.device("cpu")


def test_columns_of_a_small_matrix_lie_together():
    made = empty((6, 4), dtype=torch.float32, device=CPU)
    assert (made.shape, made.stride()) == ((6, 4), (1, 6))


@pytest.mark.parametrize(
    ("shape", "dtype"), [((3,), torch.float32), ((3, 2), torch.bfloat16), ((2**12, 2**10 + 1), torch.float32)]
)
def test_rows_of_others_do(shape, dtype):
    assert empty(shape, dtype=dtype, device=CPU).is_contiguous()


def test_a_loaded_model_multiplies_with_such_weights_and_looks_rows_up():
    decoder = pardec.load("tiny-llama", device="cpu", dtype="float32").language_model.decoder
    layer = decoder.layers[0]
    assert all(w.stride(0) == 1 for w in (layer.qkv_weight, layer.out_weight, layer.gate_up_weight, layer.down_weight))
    assert decoder.embed.weight.is_contiguous()
