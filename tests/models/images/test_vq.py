"""LlamaGen's image tokenizer compared with a plain version on the published tensors; accepted and refused files."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from pardec.models.errors import ModelError, UnknownModelError
from pardec.models.images.vq import VQ, VQShape, load_vq, published_tensors, save_vq, to_images, to_pixels
from tests.reference import naive_vq

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "llamagen" / "checkpoint"
SHAPES = [
    VQShape(24, 8, 32, 32, (1, 1, 2), 1),  # a level that widens, as the published one has
    VQShape(40, 4, 16, 32, (1, 2), 2),
    VQShape(16, 8, 32, 64, (1,), 1),  # no halving at all
]


def made(shape: VQShape) -> VQ:
    torch.manual_seed(0)
    model = VQ(shape).eval().requires_grad_(False)
    for value in model.parameters():  # norms and biases too, which start at ones and zeros
        value.add_(0.1 * torch.randn_like(value))
    return model


@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: str(shape.ch_mult))
def test_it_computes_what_its_published_tensors_say(shape: VQShape) -> None:
    model, levels = made(shape), len(shape.ch_mult)
    tensors = published_tensors(model)
    side = 4 * shape.downsample
    pixels = torch.rand(2, 3, side, side + shape.downsample) * 2 - 1
    wanted = naive_vq.features(tensors, pixels, levels)
    torch.testing.assert_close(model.features(pixels), torch.nn.functional.normalize(wanted, dim=1), atol=1e-4, rtol=0)
    codes = model.encode(pixels)
    assert codes.shape == (2, 4, 5)
    assert torch.equal(codes, naive_vq.codes(tensors, pixels, levels))
    torch.testing.assert_close(model.decode(codes), naive_vq.pixels(tensors, codes, levels), atol=1e-4, rtol=1e-4)


def test_a_codebook_without_unit_length_is_compared_as_it_stands() -> None:
    shape = VQShape(6, 2, 32, 32, (1,), 1, codebook_l2_norm=False)
    model = made(shape)
    model.codebook.weight.copy_(torch.tensor([[0.0, 0], [3, 0], [0, 3], [1, 0], [0, 1], [9, 9]]))
    asked = torch.tensor([[1.9, 0.1], [0.2, 2.2], [0.1, 0.3]]).T.reshape(1, 2, 1, 3)
    assert model.nearest(asked).flatten().tolist() == [3, 2, 0]
    normal = made(VQShape(2, 2, 32, 32, (1,), 1))
    normal.codebook.weight.copy_(torch.tensor([[0.6, 0.6], [0, 9]]))
    assert normal.nearest(torch.tensor([0.0, 1]).reshape(1, 2, 1, 1)).item() == 1  # the other is nearer as it stands
    torch.testing.assert_close(normal.vectors(torch.tensor([[[0]]])).flatten(), torch.full((2,), 0.5**0.5))


def test_the_shape_is_read_off_the_published_tensors() -> None:
    for shape in SHAPES:
        assert VQShape.of(published_tensors(made(shape))) == shape


@pytest.mark.parametrize("suffix", [".pt", ".safetensors"])
def test_a_saved_tokenizer_is_the_loaded_one(suffix: str, tmp_path: Path) -> None:
    model = made(SHAPES[0])
    file = tmp_path / f"vq_own{suffix}"
    save_vq(model, file)
    for source in (file, tmp_path):
        again = load_vq(source)
        assert again.shape == model.shape
        assert all(torch.equal(value, again.state_dict()[name]) for name, value in model.state_dict().items())
    if suffix == ".pt":
        held = torch.load(file, weights_only=True)
        assert held.keys() == {"model"}
        assert held["model"]["decoder.mid.1.q.weight"].shape == (64, 64, 1, 1)
    save_vq(model, file, dtype=torch.bfloat16)
    pixels = torch.rand(1, 3, 16, 16) * 2 - 1
    halved = load_vq(file).features(pixels)
    assert 0 < (halved - model.features(pixels)).abs().max() < 0.1
    assert load_vq(file, dtype=torch.bfloat16).decode(torch.zeros(1, 2, 2, dtype=torch.long)).dtype is torch.float32


def test_a_published_file_keeps_its_statistics_of_training_to_itself() -> None:
    tensors = torch.load(GOLDEN / "vq_tiny.pt", weights_only=True)["model"]
    names = published_tensors(load_vq(GOLDEN)).keys()
    assert tensors.keys() - names == {"quantize.codebook_used"}


def test_the_embedded_tokenizer_keeps_a_picture() -> None:
    model = load_vq("tiny-vq")
    assert (model.shape.codebook_embed_dim, model.shape.downsample) == (8, 4)
    assert 256 <= model.shape.codebook_size <= 512
    pixels = torch.full((1, 3, 48, 48), -0.7)
    pixels[:, 0, 14:34, 14:34] = 0.7  # a red square on black
    codes = model.encode(pixels)
    assert codes.shape == (1, 12, 12)
    assert float((model.decode(codes) - pixels).abs().mean()) < 0.15


def save(file: Path, tensors: dict[str, torch.Tensor]) -> Path:
    save_file({name: value.contiguous() for name, value in tensors.items()}, file)
    return file


def test_wrong_files_are_told_in_one_line(tmp_path: Path) -> None:
    tensors = published_tensors(made(SHAPES[0]))
    file = tmp_path / "vq.safetensors"

    def refused(pattern: str, source: object = file, kind: type[ModelError] = ModelError) -> ModelError:
        with pytest.raises(kind, match=pattern) as caught:
            load_vq(str(source))
        assert "\n" not in str(caught.value)
        return caught.value

    assert "embedded" in str(refused("no image tokenizer", tmp_path / "vq_none.pt", UnknownModelError).hint)
    refused("holds no image tokenizer", tmp_path)
    (tmp_path / "notes.txt").write_text("notes")
    refused("is not a weight file", tmp_path / "notes.txt")
    file.write_bytes(b"not a safetensors file")
    refused("damaged or cut short")
    (tmp_path / "vq.pt").write_bytes((GOLDEN / "vq_tiny.pt").read_bytes()[:5000])
    refused("cannot be read as a dictionary of tensors", tmp_path / "vq.pt")
    refused("holds 2 image tokenizers: vq.pt, vq.safetensors", tmp_path)
    torch.save({"model": {"step": 3}}, tmp_path / "vq.pt")
    refused("does not hold a plain dictionary", tmp_path / "vq.pt")

    save(file, {"tok_embeddings.weight": torch.zeros(4, 4)})
    assert "vq_" in str(refused("transformer, not of its tokenizer").hint)
    save(file, {"model.embed_tokens.weight": torch.zeros(4, 4)})
    refused("there is no encoder.conv_in.weight")
    save(file, {**tensors, "discriminator.weight": torch.zeros(2)})
    refused("1 tensors belong to no part of the model: discriminator.weight")
    save(file, {name: value for name, value in tensors.items() if "mid.1.k" not in name})
    refused("4 of .* tensors are missing: .*mid.1.k")
    save(file, {**tensors, "quant_conv.weight": torch.zeros(4, 32, 1, 1)})
    refused("quant_conv.weight has shape \\[4, 32, 1, 1\\], expected \\[8, 32, 1, 1\\]")

    save(file, tensors)
    (tmp_path / "vq.args.json").write_text(json.dumps({"codebook_size": 512}))
    refused("the arguments have codebook_size=512, and the tensors have 24")
    with pytest.raises(ModelError, match="cannot write weights"):
        save_vq(made(SHAPES[0]), tmp_path / "vq.bin")


def test_no_code_of_a_file_is_run(tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self) -> tuple[object, ...]:
            return (Path.touch, (tmp_path / "harm",))

    torch.save({"model": Harm()}, tmp_path / "vq.pt")
    with pytest.raises(ModelError, match="cannot be read"):
        load_vq(tmp_path / "vq.pt")
    assert not (tmp_path / "harm").exists()


def test_what_does_not_fit_is_refused() -> None:
    model = made(SHAPES[0])
    with pytest.raises(ModelError, match="18x16 pixels cannot be encoded"):
        model.encode(torch.zeros(1, 3, 18, 16))
    with pytest.raises(ModelError, match="\\[images, 3, height, width\\]"):
        model.encode(torch.zeros(3, 16, 16))
    for code, message in ((24, "code 24 lies outside the codebook of 24"), (-1, "code -1")):
        with pytest.raises(ModelError, match=message):
            model.decode(torch.full((1, 2, 2), code))
    with pytest.raises(ModelError, match="codes must be"):
        model.decode(torch.zeros(4, dtype=torch.long))
    model.check_vocabulary(24, "a model")
    with pytest.raises(ModelError, match="tiny has 16384 image tokens, and its decoder has a codebook of 24"):
        model.check_vocabulary(16384, "tiny")
    for wrong, message in (
        ({"ch": 48}, "multiple of 32"),
        ({"ch_mult": (2, 2)}, "start with 1"),
        ({"ch_mult": ()}, "start with 1"),
        ({"codebook_size": 0}, "codebook_size"),
    ):
        with pytest.raises(ModelError, match=message):
            VQShape(**wrong)  # type: ignore[arg-type]


def test_pictures_and_pixels_turn_into_each_other() -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (2, 4, 6, 3), np.uint8)
    pixels = to_pixels(pictures)
    assert pixels.shape == (2, 3, 4, 6)
    assert float(pixels.min()) >= -1
    assert float(pixels.max()) <= 1
    assert (to_images(pixels) == pictures).all()
    assert to_images(torch.full((1, 3, 1, 1), 1.7)).max() == 255
