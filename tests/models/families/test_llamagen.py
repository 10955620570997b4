"""LlamaGen's files: values read from the tensors, values that need a JSON file, and refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pardec.models.decoder import DecoderConfig
from pardec.models.errors import ModelError
from pardec.models.families.llamagen import HEADS, LLAMAGEN, read_config, side, to_halves
from pardec.models.files.weights import Published
from pardec.models.images.contracts import Condition
from pardec.models.kernels.ops import apply_rotary
from pardec.models.layers.rope import GridRope, default_frequencies
from pardec.models.load import load
from pardec.models.plan import Plan, Visible
from tests.models.llamagen_files import ARGUMENTS, CELLS, VOCAB, WIDTH, tensors, write

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "llamagen" / "checkpoint"


def published(held: dict[str, Tensor]) -> dict[str, Published]:
    """Names and shapes only, as `inspect` reads them from a file."""
    return {name: Published(Path(), tuple(tensor.shape), torch.float32) for name, tensor in held.items()}


# --- what a file says ---


def test_shapes_are_read_off_the_tensors_and_the_rest_beside_them(tmp_path: Path) -> None:
    for kind in ("c2i", "t2i"):
        found = read_config(write(tmp_path, tensors(kind), ARGUMENTS), published(tensors(kind)))
        assert found["model_type"] == "llamagen"
        assert (found["dim"], found["n_layer"], found["vocab_size"], found["ffn_hidden"]) == (WIDTH, 2, VOCAB, 24)
        assert (found["gpt_type"], found["cls_token_num"]) == (kind, 1 if kind == "c2i" else 6)
        assert (found["n_head"], found["block_size"]) == (2, CELLS)


@pytest.mark.parametrize(("name", "cells"), [("c2i_B_256.pt", 256), ("t2i-XL-384.pt", 576), ("x_512_stage2.pt", 1024)])
def test_cells_follow_from_the_pixels_in_a_published_name(tmp_path: Path, name: str, cells: int) -> None:
    assert read_config(tmp_path / name, published(tensors(width=768)))["block_size"] == cells


@pytest.mark.parametrize(("width", "heads"), HEADS.items())
def test_heads_follow_from_the_published_widths(tmp_path: Path, width: int, heads: int) -> None:
    held = {name: torch.empty(shape, device="meta") for name, shape in _wide(width).items()}
    assert read_config(tmp_path / "c2i_256.pt", published(held))["n_head"] == heads


def _wide(width: int) -> dict[str, tuple[int, ...]]:
    gate = "layers.0.feed_forward.w1.weight"
    return {"tok_embeddings.weight": (8, width), "output.weight": (8, width), gate: (4, width)}


def test_cells_follow_from_rotary_rows_where_the_file_holds_them(tmp_path: Path) -> None:
    held = tensors("t2i", width=768) | {"freqs_cis": torch.zeros(6 + 64, 4, 2)}
    assert read_config(tmp_path / "any.pt", published(held))["block_size"] == 64


@pytest.mark.parametrize("missing", ["n_head", "block_size"])
def test_what_no_file_says_is_asked_for(tmp_path: Path, missing: str) -> None:
    said = {key: value for key, value in ARGUMENTS.items() if key != missing}
    with pytest.raises(ModelError, match="does not say how many") as boosted:
        load(write(tmp_path, tensors(), said), device="cpu")
    assert missing in str(boosted.value.hint)
    assert "toy.args.json" in str(boosted.value.hint)


def test_damaged_arguments_and_other_models_are_refused(tmp_path: Path) -> None:
    file = write(tmp_path, tensors(), None)
    (tmp_path / "toy.args.json").write_text("{")
    with pytest.raises(ModelError, match="is not valid JSON"):
        load(file, device="cpu")
    (tmp_path / "toy.args.json").write_text("[1]")
    with pytest.raises(ModelError, match="does not hold a JSON object"):
        load(file, device="cpu")
    with pytest.raises(ModelError, match="does not hold a LlamaGen transformer"):
        load(write(tmp_path, {"weight": torch.ones(2)}, ARGUMENTS, "other.pt"), device="cpu")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"block_size": 10}, "block_size is 10, which is no square number of tokens"),
        ({"n_head": 3}, "3 heads over a width of 16"),
        ({"n_head": 8}, "multiple of 4"),
    ],
)
def test_impossible_shapes_are_refused(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    with pytest.raises(ModelError, match=said):
        load(write(tmp_path, tensors(), ARGUMENTS | change), device="cpu")


def test_a_tensor_that_is_missing_or_unknown_is_named(tmp_path: Path) -> None:
    held = tensors()
    del held["layers.1.attention.wo.weight"]
    with pytest.raises(ModelError, match=r"layers\.1\.attention\.wo\.weight"):
        load(write(tmp_path, held, ARGUMENTS), device="cpu")
    with pytest.raises(ModelError, match="extra"):
        load(write(tmp_path, tensors() | {"extra.weight": torch.ones(3)}, ARGUMENTS), device="cpu")


def test_the_hidden_width_of_a_folder_without_weights_is_the_published_formula() -> None:
    config = {"dim": 768, "n_head": 12, "n_layer": 12, "vocab_size": 16384, "block_size": 256, "multiple_of": 256}
    assert LLAMAGEN.decoder(config).mlp_width == 2048  # 2/3 of 4 x 768, up to a multiple of 256
    assert LLAMAGEN.decoder(config | {"ffn_dim_multiplier": 1.3}).mlp_width == 2816
    assert side({"block_size": 256}) == 16


def test_pairs_side_by_side_become_halves() -> None:
    config = DecoderConfig(
        vocab=4, width=8, layers=1, heads=1, kv_heads=1, head_dim=8, mlp_width=4, norm_eps=1e-5, frequencies=(1.0, 0.5),
        grid=2,
    )  # fmt: skip
    weight = torch.arange(24.0)[:, None].expand(24, 8).contiguous()
    turned = to_halves("layers.0.qkv_weight", weight, config)
    assert turned[:8, 0].tolist() == [0, 2, 4, 6, 1, 3, 5, 7]
    assert turned[16:, 0].tolist() == list(range(16, 24))  # values are not turned
    assert torch.equal(to_halves("layers.0.out_weight", weight, config), weight)


# --- positions ---


def test_cells_turn_by_row_and_column_and_what_is_before_them_becomes_zero() -> None:
    frequencies = default_frequencies(10000.0, 4)  # of a head of 8
    rope = GridRope(frequencies, 3)
    positions = torch.arange(11).expand(2, -1)
    plan = Plan(
        positions, positions, positions, Visible.causal(), torch.tensor([11, 11]), positions,
        origin=torch.tensor([2, 1]),
    )  # fmt: skip
    x = torch.randn(2, 11, 1, 8, generator=torch.Generator().manual_seed(0))
    found = apply_rotary(x, *rope.rows(plan, limit=None, device=torch.device("cpu")))[:, :, 0]
    for row, start in enumerate((2, 1)):
        assert not found[row, :start].any()  # queries and keys of the condition are zero, not merely unturned
        for cell in range(9):
            angle = torch.cat(((cell // 3) * frequencies, (cell % 3) * frequencies))
            low, high = x[row, start + cell, 0].chunk(2)
            expected = torch.cat((low * angle.cos() - high * angle.sin(), high * angle.cos() + low * angle.sin()))
            torch.testing.assert_close(found[row, start + cell], expected)


# --- the picture side ---


def test_conditions_of_classes(tmp_path: Path) -> None:
    held = tensors()
    model = load(write(tmp_path, held, ARGUMENTS), device="cpu")
    imaging = model.imaging
    assert (imaging.kind, imaging.layout.grid, imaging.classes, imaging.can_decode) == ("class", (3, 3), 4, False)
    made, table = imaging.prefix([Condition(label=2), Condition(label=0)]), held["cls_embedding.embedding_table.weight"]
    assert torch.equal(torch.cat(made.cond), table[[2, 0]])
    assert torch.equal(torch.cat(made.uncond), table[[4, 4]])
    for label, said in ((4, "class 4 of row 0 is not one of the 4"), (-1, "class -1"), (None, "row 0 has no class")):
        with pytest.raises(ModelError, match=said):
            imaging.prefix([Condition(label=label)])
    with pytest.raises(ModelError, match="no image tokenizer"):
        imaging.decode(torch.zeros(1, 3, 3, dtype=torch.int64))
    assert model.codebook is None


def test_conditions_of_captions(tmp_path: Path) -> None:
    held = tensors("t2i")
    imaging = load(write(tmp_path, held, ARGUMENTS), device="cpu").imaging
    assert (imaging.kind, imaging.classes) == ("text", 0)
    x = torch.randn(2, 7, generator=torch.Generator().manual_seed(1))
    first, second = (held[f"cls_embedding.cap_proj.fc{i}.weight"] for i in (1, 2))

    def projected(rows: Tensor) -> Tensor:
        return torch.nn.functional.gelu(rows @ first.T, approximate="tanh") @ second.T

    nothing = held["cls_embedding.uncond_embedding"]
    made = imaging.prefix([Condition(features=x), Condition(features=x, positions=torch.tensor([0, 3]))])
    torch.testing.assert_close(made.cond[0], projected(x))
    torch.testing.assert_close(made.uncond[0], projected(nothing[4:]))  # captions fill the places from the right
    torch.testing.assert_close(made.uncond[1], projected(nothing[[0, 3]]))
    for shape in ((0, 7), (7, 7), (2, 6)):
        with pytest.raises(ModelError, match="features of row 0"):
            imaging.prefix([Condition(features=torch.zeros(shape))])
    with pytest.raises(ModelError, match="no text encoder"):
        imaging.prefix([Condition(text="a red square")])
    with pytest.raises(ModelError, match="row 0 has no caption"):
        imaging.prefix([Condition(label=1)])


def test_a_condition_of_another_shape_is_refused(tmp_path: Path) -> None:
    held = tensors("t2i")
    del held["cls_embedding.cap_proj.fc2.weight"]
    with pytest.raises(ModelError, match="neither a table of classes nor a projection"):
        load(write(tmp_path, held, ARGUMENTS), device="cpu")


@pytest.mark.parametrize("kind", ["c2i", "t2i"])
def test_a_condition_of_another_width_is_refused(kind: str, tmp_path: Path) -> None:
    held = tensors(kind)
    wide = {name: value for name, value in tensors(kind, width=24).items() if name.startswith("cls_embedding.")}
    with pytest.raises(ModelError, match="dim is 16 in the config, and 24 in the tensors"):
        load(write(tmp_path, held | wide, ARGUMENTS), device="cpu")


def test_a_tokenizer_of_another_codebook_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="12"):  # ids; the tokenizer of the recorded outputs has 128
        load(write(tmp_path, tensors(), ARGUMENTS), device="cpu", decoder=str(GOLDEN / "vq_tiny.pt"))


def test_a_loaded_checkpoint_is_a_causal_model_of_one_shift(tmp_path: Path) -> None:
    model = load(write(tmp_path, tensors("t2i"), ARGUMENTS), device="cpu")
    config = model.decoding_config
    assert (config.attention, config.shift, config.eos_ids, config.masked) == ("causal", 1, (), False)
    assert (model.vocab_size, model.max_positions) == (VOCAB, 6 + CELLS)
    assert replace(model.decoder.config, vocab=VOCAB).grid == 3  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("c2i", {"norm_epsilon": 0.3}, r"unknown key norm_epsilon=0.3 \(did you mean 'norm_eps'"),
        ("c2i", {"num_classes": 5}, "num_classes is 5 in the config, and 4 in the tensors"),
        ("c2i", {"class_num": 5}, "class_num is 5 in the config, and 4 in the tensors"),
        ("c2i", {"class_dropout_prob": 0.0}, "class_dropout_prob is 0"),
        ("c2i", {"cls_token_num": 2}, "cls_token_num is 2 in the config, and 1 in the tensors"),
        ("t2i", {"cls_token_num": 5}, "cls_token_num is 5 in the config, and 6 in the tensors"),
        ("c2i", {"model_type": "t2i"}, "gpt_type is 't2i' in the config, and 'c2i' in the tensors"),
        ("t2i", {"model_type": "c2i"}, "gpt_type is 'c2i' in the config, and 't2i' in the tensors"),
        ("t2i", {"clean_captions": "false"}, "clean_captions is 'false', and true or false"),
        ("t2i", {"caption_dim": 8}, "caption_dim is 8 in the config, and 7 in the tensors"),
    ],
)
def test_arguments_that_are_unknown_or_contradict_the_tensors_are_refused(
    kind: str, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    file = write(tmp_path, tensors(kind), {**ARGUMENTS, **changes})
    with pytest.raises(ModelError, match=message):
        load(file, device="cpu")


def test_sampling_defaults_that_are_unknown_are_refused(tmp_path: Path) -> None:
    file = write(tmp_path, tensors(), ARGUMENTS)
    (tmp_path / "generation_config.json").write_text('{"cfg_scale": 2.0}')
    with pytest.raises(ModelError, match=r"generation_config.json: unknown key cfg_scale=2.0"):
        load(file, device="cpu")
