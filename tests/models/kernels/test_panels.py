"""Weights in panels: products equal the matrix's, a row is the same in any batch, other operations still work."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import pardec
from pardec.bench.shapes import shaped
from pardec.models.decoder import Decoder, DecoderConfig
from pardec.models.kernels import layout, matmul
from pardec.models.kernels.cpu import library, panels
from pardec.models.loading import assemble

CPU = torch.device("cpu")


@pytest.fixture
def everywhere(in_c, monkeypatch):
    """Makes panels available for matrices of any size."""
    monkeypatch.setattr(panels, "LEAST", 0)
    monkeypatch.setattr(panels, "LEAST_BFLOAT16", 0)


def randn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def parameter(rows, columns):
    made = layout.empty((rows, columns), dtype=torch.float32, device=CPU)
    assert type(made) is panels.Panels
    for start, part in zip(
        (0, rows // 3), randn(rows, columns, seed=1).split((rows // 3, rows - rows // 3)), strict=True
    ):
        layout.fill(made, part, start)
    return nn.Parameter(made, requires_grad=False)


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize(("rows", "columns"), [(96, 64), (100, 1), (47, 193), (48, 5), (1, 400), (336, 577)])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 7, 8, 9, 17, 33, 95, 96, 97, 200])
def test_products_are_those_of_the_matrix(rows, columns, count):
    weight, x, h, bias = parameter(rows, columns), randn(count, columns), randn(count, rows), randn(rows)
    whole = x.double() @ randn(rows, columns, seed=1).double().t()
    kept = h.clone()
    for found, expected in (
        (matmul.matmul(x, weight), whole),
        (matmul.matmul(x, weight, bias), whole + bias),
        (matmul.add_matmul(h, x, weight), whole + h),
        (matmul.add_matmul(h, x, weight, bias), whole + h + bias),
    ):
        torch.testing.assert_close(found, expected.float(), rtol=1e-4, atol=1e-4)
    assert torch.equal(h, kept)


@pytest.mark.usefixtures("everywhere")
def test_a_row_alone_is_the_row_in_any_batch_to_the_last_bit():
    weight, x, h = parameter(500, 389), randn(130, 389), randn(130, 500)
    whole = matmul.add_matmul(h, x, weight)
    for count in (1, 2, 3, 5, 8, 16, 33, 96, 97):
        assert torch.equal(matmul.add_matmul(h[:count], x[:count], weight), whole[:count])
    assert torch.equal(matmul.add_matmul(h[60:61], x[60:61], weight), whole[60:61])


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize(("rows", "columns"), [(96, 64), (100, 1), (47, 193), (336, 577)])
@pytest.mark.parametrize("count", [0, 1, 2, 3, 4, 8, 9, 97])
def test_weights_may_be_bfloat16(rows, columns, count):
    """Products equal those of the same numbers in float32, bit for bit; for bfloat16 x the results are rounded."""
    numbers, x, h, bias = (
        randn(rows, columns, seed=1).bfloat16(),
        randn(count, columns),
        randn(count, rows),
        randn(rows),
    )
    half, whole = panels.empty(rows, columns, torch.bfloat16), panels.empty(rows, columns)
    half.fill(numbers)
    whole.fill(numbers.float())
    assert torch.equal(half.dense, numbers)
    for base in (None, h, bias):
        assert torch.equal(half.matmul(x, base), whole.matmul(x, base))
        short, base_ = x.bfloat16(), None if base is None else base.bfloat16()
        exact = whole.matmul(short.float(), None if base_ is None else base_.float())
        # Pairs are summed in another order; what is rounded may then differ by one in the last place.
        torch.testing.assert_close(half.matmul(short, base_), exact.bfloat16(), rtol=2**-7, atol=1e-5)
        if columns % 2 or not panels.multiplies_pairs():
            assert torch.equal(half.matmul(short, base_), exact.bfloat16())


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("columns", [388, 389])
def test_a_bfloat16_row_alone_is_the_row_in_any_batch(in_two_threads, columns):
    weight, x, h = panels.empty(500, columns, torch.bfloat16), randn(130, 2 * columns).bfloat16(), randn(130, 500)
    weight.fill(randn(500, columns, seed=1).bfloat16())
    x, h = x[:, 1 : columns + 1], h.bfloat16()  # rows that begin anywhere
    whole = weight.matmul(x, h)
    exact = x.double() @ weight.dense.double().t() + h.double()
    torch.testing.assert_close(whole.double(), exact, rtol=2**-7, atol=1e-3)
    for count in (1, 2, 3, 5, 8, 16, 33, 96, 97):
        assert torch.equal(weight.matmul(x[:count], h[:count]), whole[:count])
    assert torch.equal(weight.matmul(x[60:61], h[60:61]), whole[60:61])
    assert torch.equal(in_two_threads(lambda: weight.matmul(x, h)), whole)


@pytest.mark.usefixtures("everywhere")
def test_bfloat16_weights_are_read_where_there_is_no_kernel(monkeypatch):
    numbers, x = randn(96, 64, seed=1).bfloat16(), randn(5, 64)
    weight = panels.empty(96, 64, torch.bfloat16)
    weight.fill(numbers)
    expected = weight.matmul(x)
    monkeypatch.setattr(panels, "kernel", lambda: None)
    torch.testing.assert_close(weight.matmul(x), expected, rtol=1e-5, atol=1e-5)
    assert weight.matmul(x.bfloat16()).dtype == torch.bfloat16


@pytest.mark.usefixtures("everywhere")
def test_matrices_lie_in_panels_of_bfloat16_where_the_processor_has_no_tiles(monkeypatch):
    for able, kind in ((True, torch.Tensor), (False, panels.Panels)):
        monkeypatch.setattr(library, "has_tiles", lambda able=able: able)
        assert type(layout.empty((96, 64), dtype=torch.bfloat16, device=CPU)) is kind
    assert type(layout.empty((96, 64), dtype=torch.float16, device=CPU)) is torch.Tensor


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("count", [1, 3, 33, 100])
def test_threads_change_nothing(in_two_threads, count):
    weight, x = parameter(500, 389), randn(count, 389)
    assert torch.equal(in_two_threads(lambda: matmul.matmul(x, weight)), matmul.matmul(x, weight))


@pytest.mark.usefixtures("everywhere")
def test_x_may_lie_as_it_likes():
    weight, x = parameter(60, 32), randn(40, 3, 64)
    for some in (x[..., :32], x[..., ::2], x[:, 1, :32], x.transpose(0, 1)[..., 32:], x[0, 0, :32]):
        expected = F.linear(some, weight.dense)
        torch.testing.assert_close(matmul.matmul(some, weight), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.usefixtures("everywhere")
def test_what_lies_around_a_product_is_left_alone():
    """The last panel is wider than the rest of the matrix; memory after the output stays unchanged."""
    weight, x, whole = parameter(50, 8), randn(9, 8), torch.full((9, 200), 7.0)
    out = whole[:, :50].contiguous()
    found = matmul.add_matmul(out, x, weight)
    torch.testing.assert_close(found, out + F.linear(x, weight.dense), rtol=1e-4, atol=1e-4)
    assert (whole == 7).all()


@pytest.mark.usefixtures("everywhere")
@pytest.mark.parametrize("asks", [torch.float32, torch.bfloat16, torch.float64])
def test_what_they_are_not_made_for_sees_the_matrix(asks):
    matrix, weight = randn(50, 6, seed=1), parameter(50, 6)
    assert torch.equal(weight[3:9], matrix[3:9])
    assert torch.equal(weight.t().contiguous(), matrix.t())
    assert torch.equal(weight.to(asks), matrix.to(asks))
    assert torch.equal(F.linear(randn(2, 6), weight), F.linear(randn(2, 6), matrix))
    assert (weight.shape, weight.nbytes, weight.dtype) == ((50, 6), matrix.nbytes, torch.float32)
    assert type(weight.detach()) is panels.Panels
    for again in (copy.deepcopy(weight), pickle.loads(pickle.dumps(weight))):
        assert type(again) is panels.Panels
        assert isinstance(again, nn.Parameter)
        assert torch.equal(again, matrix)
    assert torch.equal(torch.zeros(50, 6).copy_(weight), matrix)
    with pytest.raises(NotImplementedError, match="read-only"):
        weight.fill_(0)


@pytest.mark.usefixtures("everywhere")
def test_a_gradient_goes_through_to_x():
    weight, x = parameter(50, 6), randn(2, 6).requires_grad_()
    matmul.matmul(x, weight).sum().backward()
    torch.testing.assert_close(x.grad, weight.dense.sum(0).expand(2, 6))


@pytest.mark.usefixtures("everywhere")
def test_a_model_says_the_same_with_them(monkeypatch):
    prompt = "Tom has 12 apples. He buys 7 more."

    def said(name, sampler):
        model = pardec.load(name, device="cpu", dtype="float32")
        weight = model.language_model.decoder.layers[0].qkv_weight
        return type(weight) is panels.Panels, model.generate(prompt, sampler=sampler, max_new_tokens=16).text

    for name, sampler in (("tiny-dream", "sequential@dual"), ("tiny-llama", "lookup:k=7")):
        packed, text = said(name, sampler)
        monkeypatch.setenv("PARDEC_KERNELS", "reference")
        plain, expected = said(name, sampler)
        monkeypatch.delenv("PARDEC_KERNELS")
        assert (packed, plain) == (True, False)
        assert text == expected


@pytest.mark.usefixtures("everywhere")
def test_embeddings_are_looked_up_and_stay_as_they_are():
    decoder = pardec.load("tiny-llama", device="cpu", dtype="float32").language_model.decoder
    assert decoder.embed.weight.is_contiguous()
    assert type(decoder.embed.weight) is nn.Parameter
    assert {
        type(weight) for name, weight in decoder.named_parameters() if weight.dim() == 2 and "embed" not in name
    } == {panels.Panels}


def test_small_matrices_other_dtypes_and_forced_definitions_lie_otherwise(monkeypatch):
    monkeypatch.setattr(library, "kernel", lambda *which: print)
    large = (1024, panels.LEAST // 1024)

    def lies(shape=large, dtype=torch.float32, device="cpu"):
        return type(layout.empty(shape, dtype=dtype, device=torch.device(device))) is panels.Panels

    assert lies()
    assert not lies(shape=(1023, large[1]))
    assert not lies(shape=(*large, 1))
    assert not lies(dtype=torch.float16)
    assert not lies(device="meta")
    monkeypatch.setenv("PARDEC_KERNELS", "reference")
    assert not lies()


def test_without_the_kernel_pytorch_multiplies(monkeypatch):
    monkeypatch.setattr(library, "kernel", lambda *which: None)
    weight, x = panels.empty(50, 6), randn(2, 6)
    weight.fill(randn(50, 6))
    assert torch.equal(matmul.matmul(x, weight), F.linear(x, weight.dense))


@pytest.mark.usefixtures("everywhere")
def test_random_weights_lie_so_too():
    model = shaped("random-2m", device="cpu", dtype="float32")
    assert type(model.language_model.decoder.layers[0].down_weight) is panels.Panels


@pytest.mark.usefixtures("everywhere")
def test_pictures_of_vectors_are_drawn_with_them(monkeypatch):
    def drawn():
        model = pardec.load("tiny-mar", device="cpu", dtype="float32")
        packed = {type(weight) for weight in model.network.backbone.parameters() if weight.dim() == 2}
        return packed, model.generate(label=3, sampler="mar:steps=4", seed=1).latents

    packed, found = drawn()
    monkeypatch.setenv("PARDEC_KERNELS", "reference")
    _, expected = drawn()
    assert panels.Panels in packed
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-3)


@pytest.mark.usefixtures("everywhere")
def test_a_head_that_is_the_embedding_is_held_again_only_where_it_is_faster(monkeypatch):
    sizes = {"vocab": 60, "width": 16, "layers": 1, "heads": 2, "kv_heads": 2, "head_dim": 8, "mlp_width": 16}
    tied = Decoder(DecoderConfig(**sizes, norm_eps=1e-6, frequencies=(1.0,), tied=True)).requires_grad_(False)
    states = randn(3, 16)
    expected = tied.head(states)
    assemble.copy_tied_head(tied)
    assert type(tied.head.again) is panels.Panels
    assert tied.head.weight is tied.embed.weight
    torch.testing.assert_close(tied.head(states), expected, rtol=1e-5, atol=1e-5)
    half = Decoder(tied.config).requires_grad_(False).half()
    monkeypatch.setattr(torch, "empty", None)  # no memory is asked for
    assemble.copy_tied_head(half)
    assert half.head.again is None
