"""Published folders of NextStep-1: loading, refusals, and the autoencoder in both layouts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKL
from torch import Tensor

import pardec
from pardec.models.errors import ArgumentError, ModelError
from pardec.models.families.nextstep import networks, sizes
from pardec.models.load import load_any, load_continuous
from pardec.models.loading.kinds import kind_of
from pardec.models.loading.recognition import describe
from tests.models import nextstep_files as files
from tests.models.toys import rewrite
from tests.reference import naive_nextstep as naive


def test_every_tensor_of_a_published_folder_is_loaded(tmp_path: Path) -> None:
    model = load_continuous(files.write(tmp_path / "model"))
    published = files.tensors()
    stack = model.backbone.decoder  # type: ignore[attr-defined]
    named = dict(stack.named_parameters())
    assert torch.equal(named["embed.weight"], published["embed_tokens.weight"])
    assert torch.equal(named["layers.1.down_weight"], published["layers.1.mlp.down_proj.weight"])
    qkv = torch.cat([published[f"layers.0.self_attn.{part}_proj.bias"] for part in "qkv"])
    assert torch.equal(named["layers.0.qkv_bias"], qkv)
    for name, weight in model.head.named_parameters():  # type: ignore[attr-defined]
        assert torch.equal(weight, published[f"image_head.net.{name}"])
    assert model.family == "nextstep"
    unused = ("lm_head.weight", "gen_pos_embed")  # of text, and of a switch that is off
    assert model.parameters == sum(value.numel() for name, value in published.items() if name not in unused)
    assert model.head.steps == 5
    assert model.backbone.tokens == 9
    assert (model.imaging.kind, model.imaging.classes, model.imaging.layout.grid) == ("text", 0, (3, 3))


def test_what_is_known_before_loading(tmp_path: Path) -> None:
    folder = files.write(tmp_path / "model")
    kind = kind_of(folder)
    assert (kind.family, kind.draws) == ("continuous", "text")
    assert describe(folder)["family"] == "nextstep"


@pytest.mark.parametrize(
    "config",
    [
        {"model_type": "stepx_llama", "attention_bias": None},
        {"latent_size": None, "image_size": 6, "patch_size": 2, "num_channels": 4},
        {"o_attention_bias": None, "attention_bias": None},
    ],
)
def test_other_spellings_of_the_config_load(tmp_path: Path, config: dict[str, Any]) -> None:
    folder = files.write(tmp_path / "model")
    own = files.CONFIG | config
    if "image_size" in config:
        own = {name: value for name, value in own.items() if not name.startswith("latent_")}
    (folder / "config.json").write_text(json.dumps({name: value for name, value in own.items() if value is not None}))
    assert load_continuous(folder).backbone.tokens == 9


def test_output_biases_are_read_where_the_config_has_them(tmp_path: Path) -> None:
    folder = files.write(tmp_path / "model", config={"o_attention_bias": True})
    with pytest.raises(ModelError, match="2 missing: layers.0.self_attn.o_proj.bias"):
        load_continuous(folder)
    biases = {f"layers.{layer}.self_attn.o_proj.bias": torch.randn(32) for layer in range(2)}
    files.change(folder, lambda own: own.update(biases))
    named = dict(load_continuous(folder).backbone.decoder.named_parameters())  # type: ignore[attr-defined]
    assert torch.equal(named["layers.1.out_bias"], biases["layers.1.self_attn.o_proj.bias"])


@pytest.mark.parametrize("biased", ["", "qkv", "qkvo"])
def test_biases_that_the_config_leaves_out_are_those_of_the_tensors(biased: str, tmp_path: Path) -> None:
    folder = files.write(tmp_path / "model")
    own = {key: value for key, value in files.CONFIG.items() if "attention_bias" not in key}
    (folder / "config.json").write_text(json.dumps(own))
    dropped = [f"layers.{layer}.self_attn.{part}_proj.bias" for layer in range(2) for part in "qkv" if not biased]
    added = {f"layers.{layer}.self_attn.o_proj.bias": torch.randn(32) for layer in range(2) if "o" in biased}
    files.change(folder, lambda own: [own.update(added), *map(own.pop, dropped)])
    named = dict(load_continuous(folder).backbone.decoder.named_parameters())  # type: ignore[attr-defined]
    assert ("layers.0.qkv_bias" in named, "layers.0.out_bias" in named) == (bool(biased), "o" in biased)


def _drop(name: str) -> Any:
    return lambda own: own.pop(name, None)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (_drop("layers.1.mlp.up_proj.weight"), "1 missing: layers.1.mlp.up_proj.weight"),
        (_drop("image_out_projector.bias"), "1 of .* tensors are missing: image_out_projector.bias"),
        (
            _drop("image_head.net.res_blocks.0.in_ln.bias"),
            "tensors are missing: image_head.net.res_blocks.0.in_ln.bias",
        ),
        (lambda own: own.setdefault("image_head.net.more", torch.ones(1)), "belong to no part .*image_head.net.more"),
        (lambda own: own.setdefault("more.weight", torch.ones(1)), "1 not known: more.weight"),
    ],
)
def test_tensors_that_do_not_fit_are_named(tmp_path: Path, edit: Any, message: str) -> None:
    folder = files.write(tmp_path / "model")
    files.change(folder, edit)
    with pytest.raises(ModelError, match=message):
        load_continuous(folder)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"num_hidden_layers": 3}, "num_hidden_layers is 3 in config.json, and 2 in the tensors"),
        ({"num_hidden_layers": 1}, "num_hidden_layers is 1 in config.json, and 2 in the tensors"),
        ({"fm_head_layers": 4}, "fm_head_layers is 4 in config.json, and 2 in the tensors"),
        ({"fm_head_dim": 16}, "has shape .* expected"),
        ({"fm_head_mlp_ratio": 2.0}, "fm_head_mlp_ratio=2.0 is not supported"),
        ({"use_gen_pos_embed": True}, "use_gen_pos_embed=True is not supported"),
        ({"attention_use_qk_norm": True}, "attention_use_qk_norm=True is not supported"),
        ({"latent_size": 7}, "7 latents per side cannot be divided into tokens of 2"),
        ({"latent_channels": None}, "latent_channels=None"),
        ({"boi": None}, "names no token that begins an image"),
        ({"boi": files.VOCABULARY}, "names no token that begins an image"),
        ({"boi": True}, "names no token that begins an image"),
        ({"latent_channels": 3}, "has 4 channels, but latents of model have 3"),
    ],
)
def test_configs_that_cannot_be_run_are_refused(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelError, match=message):
        load_continuous(files.write(tmp_path / "model", config=config))


def test_a_folder_without_a_tokenizer_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="has no tokenizer, which captions need"):
        load_continuous(files.write(tmp_path / "model", tokenizer=False))


def test_arguments_without_a_meaning_are_refused(tmp_path: Path) -> None:
    folder = files.write(tmp_path / "model")
    with pytest.raises(ArgumentError, match="mask_id=3 was given, and model is no language model"):
        load_any(folder, mask_id=3)
    model = load_continuous(folder)
    with pytest.raises(ArgumentError, match="8 by 9 pixels, and model draws multiples of 4 pixels"):
        model.imaging.resized(8, 9)


def _tokens() -> Tensor:
    return torch.randn(1, 2, 3, 16, generator=torch.Generator().manual_seed(2))


@pytest.mark.parametrize("plain", [True, False])
@pytest.mark.parametrize("normalise", [False, True])
def test_pixels_are_those_of_diffusers_autoencoder(tmp_path: Path, plain: bool, normalise: bool) -> None:
    folder = files.write(tmp_path / "model", vae=False, settings={"use_norm": normalise})
    library = files.write_vae(tmp_path / "vae", plain=plain)
    model = load_continuous(folder, decoder=tmp_path / "vae")
    assert model.imaging.downsample == 4
    tokens = _tokens()
    pixels = model.imaging.resized(8, 12).decode(tokens)
    flat = tokens[0].flatten(0, 1)
    if normalise:
        flat = torch.nn.functional.layer_norm(flat, (16,), eps=1e-6)
    latents = naive.unpatched(flat, (2, 3), files.PATCH)
    with torch.no_grad():
        expected = library.decode(latents / files.VAE["scaling_factor"] + files.VAE["shift_factor"]).sample
    torch.testing.assert_close(pixels, expected, atol=1e-5, rtol=1e-5)


def test_autoencoders_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    folder = files.write(tmp_path / "model", vae=False)
    with pytest.raises(ModelError, match="has no autoencoder, so its tokens cannot be decoded"):
        load_continuous(folder).imaging.decode(_tokens())
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "config.json").write_text("{}")
    with pytest.raises(ModelError, match="holds no weights of an autoencoder"):
        load_continuous(folder, decoder=tmp_path / "empty")
    files.write_vae(tmp_path / "vae")
    stored = torch.load(tmp_path / "vae" / "checkpoint.pt")
    stored.pop("decoder.conv_out.bias")
    torch.save(stored, tmp_path / "vae" / "checkpoint.pt")
    with pytest.raises(ModelError, match=r"tensors are missing: decoder\.conv_out\.bias"):
        load_continuous(folder, decoder=tmp_path / "vae").imaging.decode(_tokens())
    (tmp_path / "vae" / "config.json").write_text(json.dumps({**files.VAE, "scaling_factor": -1}))
    with pytest.raises(ModelError, match="scaling_factor must be above 0"):
        load_continuous(folder, decoder=tmp_path / "vae")


@pytest.mark.parametrize("plain", [False, True])
def test_scale_and_shift_that_an_autoencoders_config_leaves_out_are_those_of_its_class(
    plain: bool, tmp_path: Path
) -> None:
    folder = files.write(tmp_path / "model", vae=False)
    files.write_vae(tmp_path / "vae", plain=plain)
    file = tmp_path / "vae" / "config.json"
    config = json.loads(file.read_text())
    for key in ("scaling_factor", "shift_factor"):
        del config[key]
    file.write_text(json.dumps(config))
    pixels = load_continuous(folder, decoder=tmp_path / "vae").imaging.decode(_tokens())
    scale, shift = (0.3611, 0.1159) if plain else (AutoencoderKL().config.scaling_factor, 0.0)
    file.write_text(json.dumps({**config, "scaling_factor": scale, "shift_factor": shift}))
    assert torch.equal(pixels, load_continuous(folder, decoder=tmp_path / "vae").imaging.decode(_tokens()))


@pytest.mark.parametrize(
    ("plain", "change", "message"),
    [
        (False, {"act_fn": "gelu"}, "act_fn='gelu' is not supported"),
        (False, {"latents_mean": [0.0] * 4}, "latents_mean=.* is not supported"),
        (False, {"up_block_types": ["UpDecoderBlock2D", "AttnUpDecoderBlock2D"]}, "types='AttnUpDecoderBlock2D'"),
        (True, {"scaling_factor": "0.7"}, "scaling_factor is '0.7'"),
        (True, {"shift_factor": True}, "shift_factor is True"),
        (False, {"mid_block_add_attention": "false"}, "mid_block_add_attention is 'false'"),
        (False, {"use_post_quant_conv": "false"}, "use_post_quant_conv is 'false'"),
    ],
)
def test_autoencoders_that_compute_otherwise_or_have_values_of_another_type_are_refused(
    plain: bool, change: dict[str, Any], message: str, tmp_path: Path
) -> None:
    folder = files.write(tmp_path / "model", vae=False)
    files.write_vae(folder / "vae", plain=plain)
    rewrite(folder / "vae", **change)
    with pytest.raises(ModelError, match=message):
        load_continuous(folder)


def test_the_autoencoder_that_the_config_names_comes_before_the_folder_vae(tmp_path: Path) -> None:
    folder = files.write(tmp_path / "model", config={"vae_name_or_path": "other"})
    assert load_continuous(folder).imaging.vae.folder == folder / "vae"  # type: ignore[attr-defined]
    files.write_vae(folder / "other")
    assert load_continuous(folder).imaging.vae.folder == folder / "other"  # type: ignore[attr-defined]


def test_sizes_that_a_config_leaves_out_are_those_of_its_class() -> None:
    absent = ("latent_size", "latent_patch_size", "latent_channels", "fm_head_dim", "fm_head_layers")
    config = {key: value for key, value in files.CONFIG.items() if key not in absent}
    assert sizes(config) == (16, 2, 32)
    with torch.device("meta"):
        _, head = networks(config)
    assert (head.cond_embed.out_features, len(head.res_blocks)) == (1536, 12)


@pytest.mark.parametrize(
    "settings",
    [{"use_norm": "false"}, {"num_sampling_steps": 5.7}, {"num_sampling_steps": "5"}, {"timesteps_shift": "2"}],
)
def test_settings_of_another_type_are_refused(settings: dict[str, Any], tmp_path: Path) -> None:
    (key,) = settings
    with pytest.raises(ModelError, match=f"generation_config.json: {key} is {settings[key]!r}"):
        load_continuous(files.write(tmp_path / "model", settings=settings))


def test_settings_that_are_not_known_are_refused(tmp_path: Path) -> None:
    folder = files.write(tmp_path / "model", settings={"cfg_img": 2.0})
    with pytest.raises(ModelError, match=r"generation_config.json: unknown key cfg_img=2.0"):
        load_continuous(folder)


def test_weights_are_not_replaced_in_place(tmp_path: Path) -> None:
    folder = files.write(tmp_path / "model")
    model = pardec.load(str(folder))
    with pytest.raises(ModelError, match="the weights of model cannot be replaced in place"):
        model.load_weights(folder)
