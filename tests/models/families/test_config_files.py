"""Each key of the JSON files next to MAR's and VAR's weights is followed, ignored like the authors do, or refused by
name.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from pardec.models.errors import ModelError
from pardec.models.families import mar, var
from pardec.models.files.catalog import EMBEDDED
from pardec.models.load import load_any
from pardec.samplers import registry
from tests.models.toys import rewrite

KEYS = {"tiny-mar-draft": mar.KEYS, "tiny-var-draft": var.KEYS}
# A value of each followed key that contradicts the rest of the files, and what is said of it where that is another key.
WRONG: dict[str, dict[str, Any]] = {
    "tiny-mar-draft": {
        **dict.fromkeys(("encoder_embed_dim", "encoder_depth", "decoder_embed_dim", "decoder_depth"), 7),
        **dict.fromkeys(("class_num", "buffer_size", "diffloss_d", "diffloss_w", "tokens", "token_size"), 7),
        "img_size": 64,
        "vae_stride": 16,
        "vae_embed_dim": 8,
        "mlp_ratio": 2.0,
        "model": "mar_huge",
        "encoder_num_heads": 7,
        "decoder_num_heads": 7,
        "num_sampling_steps": "ddim50",
        "patch_size": 2,
    },
    "tiny-var-draft": {
        **dict.fromkeys(("depth", "embed_dim", "num_classes", "vocab_size", "z_channels", "num_heads"), 7),
        "mlp_ratio": 2.0,
        "shared_aln": True,
        "attn_l2_norm": False,
        "saln": True,
        "anorm": False,
        "patch_nums": [1, 2, 3],
        "pn": "1_2_3_4_6_5",
        "norm_eps": "x",
    },
}
# Followed without a contradiction: names of files, and how images are sampled.
FOLLOWED = {
    "tiny-mar-draft": {"image_tokenizer", "vae_path", "cfg", "temperature", "num_iter", "cfg_schedule"},
    "tiny-var-draft": {"image_tokenizer"},
}


@pytest.fixture
def copied(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    name: str = request.param
    return Path(shutil.copytree(EMBEDDED / name, tmp_path / name))


@pytest.mark.parametrize("copied", KEYS, indirect=True)
def test_stated_keys_that_contradict_the_weights_are_refused_by_name(copied: Path) -> None:
    wrong, keys, whole = WRONG[copied.name], KEYS[copied.name], (copied / "config.json").read_text()
    assert set(wrong) == (keys.followed | set(keys.refused)) - FOLLOWED[copied.name]
    for key, value in wrong.items():
        with pytest.raises(ModelError) as error:
            load_any(rewrite(copied, **{key: value}), device="cpu")
        said = str(error.value)
        assert key.removesuffix("_num_heads") in said, said
        assert "\n" not in said
        (copied / "config.json").write_text(whole)


@pytest.mark.parametrize("copied", KEYS, indirect=True)
def test_stated_keys_that_are_unknown_are_refused_by_name(copied: Path) -> None:
    for file in ("config.json", "args.json", "generation_config.json"):
        whole = (copied / file).read_text() if (copied / file).is_file() else "{}"
        for key in ("qkv_bias", "guidance_scale", "layer_norm_eps"):
            with pytest.raises(ModelError, match=f"{file}: unknown key {key}=0.5"):
                load_any(rewrite(copied, file, **{key: 0.5}), device="cpu")
            (copied / file).write_text(whole)
    with pytest.raises(ModelError, match="did you mean '(num_heads|encoder_num_heads)'"):
        load_any(rewrite(copied, num_head=2, encoder_num_head=2), device="cpu")


@pytest.mark.parametrize("copied", KEYS, indirect=True)
def test_stated_keys_of_training_change_nothing(copied: Path) -> None:
    plain = load_any(copied, device="cpu")
    ignored = KEYS[copied.name].ignored or frozenset()
    more: dict[str, Any] = dict.fromkeys(sorted(ignored - {"model_type"}), 0.3)
    model = load_any(rewrite(copied, "config.json", **more), device="cpu")
    assert model.config == plain.config
    assert model.imaging.defaults == plain.imaging.defaults


@pytest.mark.parametrize("copied", KEYS, indirect=True)
def test_stated_keys_of_two_files_that_contradict_are_refused(copied: Path) -> None:
    key = "decoder_num_heads" if "mar" in copied.name else "num_heads"
    with pytest.raises(ModelError, match=f"args.json: {key} is 1, and . in another file"):
        load_any(rewrite(copied, "args.json", **{key: 1}), device="cpu")


@pytest.mark.parametrize("copied", ["tiny-mar-draft"], indirect=True)
def test_stated_arguments_of_sampling_are_defaults_of_mar(copied: Path) -> None:
    (copied / "generation_config.json").unlink()
    rewrite(copied, "args.json", cfg=2.5, temperature=0.5, num_iter=3, cfg_schedule="constant")
    asked = {"cfg": 2.5, "temperature": 0.5, "sampler": "mar:steps=3,guidance=constant"}
    for file, expected in ({}, asked), ({"cfg": 4.0}, {**asked, "cfg": 4.0}):
        imaging = load_any(rewrite(copied, "generation_config.json", **file), device="cpu").imaging
        assert imaging.defaults == expected
    method = registry.resolve(str(asked["sampler"]), "continuous").method
    assert (getattr(method, "steps", 0), getattr(method, "guidance", "")) == (3, "constant")


@pytest.mark.parametrize("copied", ["tiny-mar-draft"], indirect=True)
def test_stated_autoencoder_of_mar_is_the_one_that_decodes(copied: Path) -> None:
    rewrite(copied, image_tokenizer=None, vae_path="pretrained/vae/kl_a.safetensors")
    for name in ("kl_a", "kl_b"):
        for suffix in (".safetensors", ".args.json"):
            shutil.copy(EMBEDDED / "tiny-kl" / f"kl{suffix}", copied / f"{name}{suffix}")
    model = load_any(copied, device="cpu")
    assert model.imaging.can_decode
    assert model.imaging.downsample == 8
    (copied / "kl_a.safetensors").unlink()
    other = load_any(copied, device="cpu").imaging
    assert not other.can_decode
