"""VAR: a forward of several scales at once, rows, published files, refusals, replaced weights."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from pardec.models.errors import ModelError, PardecError
from pardec.models.families.var import network
from pardec.models.load import load, load_any, load_scales
from pardec.models.loading.kinds import kind_of
from pardec.models.loading.recognition import describe
from pardec.models.loading.update import load_weights
from pardec.models.scales.contracts import Scales
from pardec.models.scales.tokenizer import MultiScaleVQ, TokenizerShape, phi_index
from pardec.models.scales.tokenizer_files import load_tokenizer, published_tensors, save_tokenizer
from pardec.models.scales.transformer import VARTransformer

SIDES = (1, 2, 3, 4)
SHAPE = TokenizerShape(vocab_size=24, z_channels=4, ch=32, ch_mult=(1, 1), num_res_blocks=1)
CONFIG: dict[str, Any] = {
    "depth": 2, "embed_dim": 16, "num_heads": 2, "shared_aln": False, "attn_l2_norm": True, "num_classes": 5,
    "patch_nums": list(SIDES), "vocab_size": 24, "z_channels": 4, "mlp_ratio": 4.0,
}  # fmt: skip


def transformer(seed: int = 0, **changes: Any) -> VARTransformer:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = network({**CONFIG, **changes})
        for value in made.parameters():
            value.data.normal_(std=0.4)
    return made.eval().requires_grad_(False)


def tokenizer(seed: int = 0) -> MultiScaleVQ:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = MultiScaleVQ(SHAPE, Scales(SIDES))
    return made.eval().requires_grad_(False)


def files(folder: Path, *, config: bool = False, own: VARTransformer | None = None, **changes: Any) -> Path:
    """A published file with its tokenizer in the same folder; or a folder with a config.json. Returns what to load."""
    own = own or transformer(**changes)
    folder.mkdir(parents=True, exist_ok=True)
    save_tokenizer(tokenizer(), folder / "vae.safetensors")
    stated = {**CONFIG, **changes}
    if config:
        save_file({name: value.clone() for name, value in own.state_dict().items()}, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps({"model_type": "var", **stated}))
        return folder
    tokens = own.scales.tokens
    level = torch.arange(len(own.scales)).repeat_interleave(torch.tensor(own.scales.sizes))
    bias = torch.where(level[:, None] >= level, 0.0, -torch.inf)
    more = {"lvl_1L": level[None], "attn_bias_for_masking": bias.view(1, 1, tokens, tokens)}
    more |= {f"blocks.{i}.attn.zero_k_bias": torch.zeros(16) for i in range(own.layers)}
    torch.save({**own.state_dict(), **more}, folder / "var_d2.pth")
    (folder / "var_d2.args.json").write_text(json.dumps({"patch_nums": stated["patch_nums"]}))
    return folder / "var_d2.pth"


def inputs(rows: int, *, dtype: torch.dtype = torch.float32) -> Tensor:
    own = tokenizer()
    maps, total = [], own.start(rows)
    for scale in range(len(SIDES) - 1):
        codes = torch.randint(24, (rows, SIDES[scale] ** 2), generator=torch.Generator().manual_seed(scale))
        total = own.add(total, codes, scale)
        maps.append(own.map_of(total, scale + 1))
    return torch.cat(maps, 1).to(dtype)


def by_scale(own: VARTransformer, labels: Tensor, maps: Tensor, cuts: list[tuple[int, int]]) -> list[Tensor]:
    """The logits of the last scale of each forward, scale after scale."""
    cache, starts = own.new_cache(len(labels)), own.scales.starts
    return [
        own(labels, maps[:, max(starts[first], 1) - 1 : starts[last + 1] - 1], cache, first=first, last=last)
        for first, last in cuts
    ]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("normalised", [False, True])
def test_one_entry_of_several_scales_is_scale_by_scale(shared: bool, normalised: bool) -> None:
    own = transformer(shared_aln=shared, attn_l2_norm=normalised).double()
    labels, maps = torch.tensor([0, 3, 5]), inputs(3, dtype=torch.float64)
    single = by_scale(own, labels, maps, [(0, 0), (1, 1), (2, 2), (3, 3)])
    for cuts in ([(0, 1), (2, 3)], [(0, 3)], [(0, 2), (3, 3)]):
        for (_, last), found in zip(cuts, by_scale(own, labels, maps, cuts), strict=True):
            assert (found - single[last]).abs().max() < 1e-10


def test_rows_alone_and_chosen_are_the_rows_of_the_batch() -> None:
    own, labels, maps = transformer(), torch.tensor([0, 3, 5]), inputs(3)
    whole = by_scale(own, labels, maps, [(0, 1), (2, 3)])
    for row in range(3):
        alone = by_scale(own, labels[row : row + 1], maps[row : row + 1], [(0, 1), (2, 3)])
        assert torch.allclose(alone[1][0], whole[1][row], atol=1e-5)
    cache, which = own.new_cache(3), torch.tensor([False, True, True])
    own(labels, maps[:, :4], cache, first=0, last=1, logits=which)
    own(labels[1:2], maps[1:2, 4:13], cache, first=2, last=2, rows=torch.tensor([1]))
    some = own(labels[1:2], maps[1:2, 13:], cache, first=3, last=3, rows=torch.tensor([1]))
    assert torch.allclose(some[0], whole[1][1], atol=1e-5)
    with pytest.raises(PardecError, match="scale 3 was fed to rows whose next scale is 2, 4"):
        own(labels, maps[:, 13:], cache, first=3, last=3)
    cache.keep(torch.tensor([2, 0]))
    some = own(labels[[2, 0]], maps[[2, 0], 4:], cache, first=2, last=3)
    assert torch.allclose(some, whole[1][[2, 0]], atol=1e-5)


def test_scales_out_of_order_are_refused() -> None:
    own, labels, maps = transformer(), torch.tensor([0, 3]), inputs(2)
    cache = own.new_cache(2)
    with pytest.raises(PardecError, match="scale 1 was fed to rows whose next scale is 0"):
        own(labels, maps[:, :4], cache, first=1, last=1)
    own(labels, maps[:, :4], cache, first=0, last=1)
    for first, last, fed in ((0, 1, maps[:, :4]), (1, 1, maps[:, :4]), (3, 3, maps[:, 13:])):
        with pytest.raises(PardecError, match=f"scale {first} was fed to rows whose next scale is 2"):
            own(labels, fed, cache, first=first, last=last)


def test_bfloat16_is_close_to_float32() -> None:
    own, labels, maps = transformer(), torch.tensor([1, 2]), inputs(2)
    exact, half = (by_scale(net, labels, maps, [(0, 3)])[0] for net in (own, transformer().bfloat16()))
    assert half.dtype == torch.float32
    assert (exact - half).norm() < 0.05 * exact.norm()


def test_codes_of_absent_scales_add_nothing() -> None:
    own = tokenizer()
    codes = torch.randint(24, (2, 30), generator=torch.Generator().manual_seed(3))
    coarse = codes.clone()
    coarse[1, 5:] = -1
    with torch.inference_mode():
        total = own.add(own.add(own.start(1), codes[1:, :1], 0), codes[1:, 1:5], 1)
        assert torch.allclose(own.decode(coarse)[1], own.pixels(total)[0], atol=1e-5)
        assert torch.allclose(own.decode(coarse)[0], own.decode(codes)[0], atol=1e-5)
    with pytest.raises(ModelError, match="code 24 lies outside"):
        own.decode(torch.full((1, 30), 24))
    with pytest.raises(ModelError, match=r"\[images, 30\]"):
        own.decode(codes[:, :29])


def test_an_image_is_encoded_to_what_decodes_nearest() -> None:
    own = tokenizer()
    pixels = torch.rand(2, 3, 8, 8, generator=torch.Generator().manual_seed(0)) * 2 - 1
    codes = own.encode(pixels)
    assert codes.shape == (2, 30)
    assert torch.equal(own.encode(pixels[1:]), codes[1:])
    with pytest.raises(ModelError, match="8 by 8 pixels"):
        own.encode(torch.zeros(1, 3, 16, 16))


def test_a_tokenizer_is_saved_and_loaded(tmp_path: Path) -> None:
    own = tokenizer()
    for name in ("vae.pt", "vae.safetensors"):
        save_tokenizer(own, tmp_path / name)
        again = load_tokenizer(tmp_path / name)
        assert again.scales.sides == SIDES
        for key, value in own.state_dict().items():
            assert torch.equal(value, again.state_dict()[key]), key
    decoder = {name: value for name, value in published_tensors(own).items() if not name.startswith(("enc", "quant_c"))}
    (tmp_path / "half").mkdir()
    save_file({name: value.contiguous() for name, value in decoder.items()}, tmp_path / "half" / "vae.safetensors")
    half = load_tokenizer(tmp_path / "half", Scales(SIDES))
    codes = torch.zeros(1, 30, dtype=torch.int64)
    assert torch.allclose(half.decode(codes), own.decode(codes))
    with pytest.raises(ModelError, match="no encoder"):
        half.encode(torch.zeros(1, 3, 8, 8))
    with pytest.raises(ModelError, match="without the sides"):
        load_tokenizer(tmp_path / "half")


@pytest.mark.parametrize("changes", [{}, {"shared_aln": True}, {"attn_l2_norm": False}], ids=["d16", "d36", "plain"])
@pytest.mark.parametrize("config", [False, True], ids=["file", "folder"])
@pytest.mark.covers(1)
def test_published_layouts_load(tmp_path: Path, config: bool, changes: dict[str, Any]) -> None:
    own = transformer(**changes)
    target = files(tmp_path / "m", config=config, own=own, **changes)
    model = load_scales(target, device="cpu", dtype="float32")
    assert (model.family, model.scales.sides, model.imaging.classes) == ("var", SIDES, 5)
    assert model.imaging.layout.tokens == 30
    assert model.imaging.downsample == 2
    labels, maps = torch.tensor([1, 5]), inputs(2)
    (found,), (expected,) = (by_scale(net, labels, maps, [(0, 3)]) for net in (model.transformer, own))
    assert torch.allclose(found, expected, atol=1e-5)
    assert describe(target)["family"] == "var"
    if config:
        known = kind_of(target)
        assert (known.family, known.draws, known.classes) == ("scales", "class", 5)


def test_training_checkpoints_load(tmp_path: Path) -> None:
    own = transformer()
    target = files(tmp_path, own=own)
    torch.save({"epoch": 1, "trainer": {"var_wo_ddp": own.state_dict(), "vae_local": {}}}, target)
    assert load_scales(target, device="cpu").parameters == sum(value.numel() for value in own.parameters())


def test_the_published_sides_follow_from_the_number_of_tokens(tmp_path: Path) -> None:
    sides = [1, 2, 3, 4, 5, 6, 8, 10, 13, 16]
    target = files(tmp_path, patch_nums=sides)
    (tmp_path / "var_d2.args.json").unlink()
    assert list(load_scales(target, device="cpu").scales.sides) == sides


def damaged(folder: Path, **changes: Any) -> Path:
    target = files(folder)
    state = torch.load(target, weights_only=True)
    for name, value in changes.items():
        if value is None:
            del state[name.replace("__", ".")]
        else:
            state[name.replace("__", ".")] = value
    torch.save(state, target)
    return target


def test_what_cannot_be_loaded_is_refused_by_name(tmp_path: Path) -> None:
    cases = {
        "1 of .* tensors are missing: head.bias": damaged(tmp_path / "a", head__bias=None),
        "no class_emb.weight": damaged(tmp_path / "b", class_emb__weight=None),
        "belong to no part of the model: extra": damaged(tmp_path / "c", extra=torch.zeros(1)),
        r"head.bias has shape \[3\]": damaged(tmp_path / "d", head__bias=torch.zeros(3)),
    }
    for match, target in cases.items():
        with pytest.raises(ModelError, match=match) as error:
            load_any(target, device="cpu")
        assert error.value.hint
    target = files(tmp_path / "e")
    (tmp_path / "e" / "var_d2.args.json").write_text(json.dumps({"patch_nums": [1, 2, 3, 4], "depth": 3}))
    with pytest.raises(ModelError, match="depth is 3 in the config, and 2 in the tensors"):
        load_any(target, device="cpu")
    (tmp_path / "e" / "var_d2.args.json").write_text(json.dumps({"patch_nums": [1, 2, 5]}))
    with pytest.raises(
        ModelError, match=r"patch_nums=\[1, 2, 5\] gives 3 maps with 30 tokens, and the tensors have 4 maps with 30"
    ):
        load_any(target, device="cpu")
    for wrong in ("large", [1, "2", 3, 4], [0, 1, 2, 5], [1, 2, 3, 4.0], 4, []):
        (tmp_path / "e" / "var_d2.args.json").write_text(json.dumps({"patch_nums": wrong}))
        with pytest.raises(ModelError, match=r"sides of the token maps \(patch_nums\) are"):
            load_any(target, device="cpu")
    (tmp_path / "e" / "var_d2.args.json").write_text(json.dumps({"pn": "1_2_3_4"}))
    assert load_scales(target, device="cpu").scales.sides == SIDES
    (tmp_path / "e" / "var_d2.args.json").write_text(json.dumps({"pn": "1_2_3_4", "num_heads": "many"}))
    with pytest.raises(ModelError, match="num_heads is 'many'"):
        load_any(target, device="cpu")
    (tmp_path / "e" / "var_d2.args.json").unlink()
    with pytest.raises(ModelError, match="4 token maps with 30 tokens in all, and nothing states their sides"):
        load_any(target, device="cpu")


@pytest.mark.parametrize("name", ["lvl_1L", "attn_bias_for_masking", "blocks.1.attn.zero_k_bias"])
def test_a_buffer_that_does_not_follow_from_the_sides_is_refused(tmp_path: Path, name: str) -> None:
    target = files(tmp_path)
    state = torch.load(target, weights_only=True)
    for wrong in (state[name] + 1, state[name][..., :-1]):
        torch.save({**state, name: wrong}, target)
        with pytest.raises(ModelError, match=f"{name} does not agree with token maps"):
            load_any(target, device="cpu")


def test_a_tokenizer_of_another_model_is_refused(tmp_path: Path) -> None:
    target = files(tmp_path / "m")
    other = MultiScaleVQ(replace(SHAPE, vocab_size=25), Scales(SIDES))
    save_tokenizer(other, tmp_path / "vae_other.safetensors")
    model = load_scales(target, device="cpu", decoder=tmp_path / "vae_other.safetensors")
    with pytest.raises(ModelError, match="has 25 codes, but .* has 24"):
        _ = model.quantizer
    for wrong, match in ((target, "VAR's transformer"), (tmp_path / "absent.pth", "no multi-scale image tokenizer")):
        with pytest.raises(ModelError, match=match):
            _ = load_scales(target, device="cpu", decoder=wrong).quantizer
    (tmp_path / "m" / "vae.safetensors").unlink()
    alone = load_scales(target, device="cpu")
    assert not alone.imaging.can_decode
    with pytest.raises(ModelError, match="has no image tokenizer"):
        _ = alone.quantizer


@pytest.mark.parametrize("heads", [3, 0, "two", 2.0])
def test_heads_that_do_not_divide_the_width_are_refused(tmp_path: Path, heads: object) -> None:
    target = files(tmp_path, own=transformer(attn_l2_norm=False))  # no tensor tells how many there are
    (tmp_path / "var_d2.args.json").write_text(json.dumps({"patch_nums": [1, 2, 3, 4], "num_heads": heads}))
    with pytest.raises(ModelError, match="num_heads is .*, which does not divide the width of"):
        load_any(target, device="cpu")


@pytest.mark.parametrize("argument", [{"tp": True}, {"quantize": "int8"}, {"mask_id": 3}, {"block": 4}])
def test_arguments_of_language_models_are_refused(tmp_path: Path, argument: dict[str, Any]) -> None:
    with pytest.raises(PardecError):
        load_any(files(tmp_path), device="cpu", **argument)


def test_it_is_no_language_model(tmp_path: Path) -> None:
    with pytest.raises(PardecError):
        load(files(tmp_path), device="cpu")
    with pytest.raises(PardecError, match="predicts no token maps"):
        load_scales("tiny-llama")


def test_weights_are_replaced_in_place(tmp_path: Path) -> None:
    model, other = load_scales(files(tmp_path / "a"), device="cpu", dtype="float32"), transformer(seed=1)
    labels, maps = torch.tensor([1, 5]), inputs(2)
    before = [value.data_ptr() for value in model.transformer.parameters()]
    load_weights(model, other.state_dict())
    (found,), (expected,) = (by_scale(net, labels, maps, [(0, 3)]) for net in (model.transformer, other))
    assert torch.allclose(found, expected, atol=1e-5)
    assert [value.data_ptr() for value in model.transformer.parameters()] == before
    assert model.weights_version == 1
    load_weights(model, files(tmp_path / "b", config=True))
    with pytest.raises(ModelError, match="missing"):
        load_weights(model, {"head.bias": torch.zeros(24)})
    assert model.weights_version == 2


def test_ticks() -> None:
    assert phi_index(4, 10) == (0, 0, 1, 1, 1, 2, 2, 3, 3, 3)
    assert phi_index(1, 4) == (0, 0, 0, 0)
    assert phi_index(4, 1) == (0,)
