"""Small random checkpoints of NextStep-1, as published: sharded weights, a tokenizer, and an autoencoder in `vae`."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
from diffusers import AutoencoderKL
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

from pardec.models.continuous.diffusion_head import MARHead
from pardec.models.images.autoencoders import latent_diffusion, published_tensors

SPECIAL = ("<|image_area|>", "<|begin_of_image|>", "<|end_of_image|>", "<|image_placeholder|>")
VOCABULARY = 256 + len(SPECIAL)
CHANNELS, PATCH, SIDE = 4, 2, 6  # latents: 3 x 3 tokens of 16 values
TEXT: dict[str, Any] = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 120, "rope_theta": 10_000.0,
    "rms_norm_eps": 1e-6,
}  # fmt: skip
CONFIG: dict[str, Any] = {
    **TEXT, "model_type": "nextstep", "architectures": ["NextStep"], "attention_bias": True, "o_attention_bias": False,
    "mlp_bias": False, "hidden_act": "silu", "tie_word_embeddings": False, "latent_size": SIDE,
    "latent_patch_size": PATCH, "latent_channels": CHANNELS, "boi": 257, "eoi": 258, "image_placeholder_id": 259,
    "fm_head_dim": 24, "fm_head_layers": 2, "use_gen_pos_embed": False, "vae_name_or_path": "vae/",
}  # fmt: skip
SETTINGS: dict[str, Any] = {"num_sampling_steps": 5}
VAE = {
    "ch": 32,
    "ch_mult": [1, 1],
    "num_res_blocks": 1,
    "z_channels": CHANNELS,
    "scaling_factor": 0.7,
    "shift_factor": 0.1,
}


def library_model(seed: int = 0, *, near: float = 0.0) -> Any:
    """transformers' own decoder with random biases and norms; `near` mixes other weights in."""
    model = Qwen2ForCausalLM(Qwen2Config(**TEXT, tie_word_embeddings=False)).eval()
    generator, other = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(99)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            mean = 1.0 if "norm" in name else 0.0
            weight.copy_(mean + 0.2 * torch.randn(weight.shape, generator=generator))
            weight.add_(near * torch.randn(weight.shape, generator=other))
    return model


def tensors(seed: int = 0, *, near: float = 0.0) -> dict[str, torch.Tensor]:
    """Every tensor by its published name."""
    return dict(_tensors(seed, near))


@cache
def _tensors(seed: int, near: float) -> dict[str, torch.Tensor]:
    named = {name.removeprefix("model."): value for name, value in library_model(seed, near=near).state_dict().items()}
    generator, other = torch.Generator().manual_seed(seed + 1), torch.Generator().manual_seed(98)
    size, width = CHANNELS * PATCH**2, TEXT["hidden_size"]
    head = MARHead(size=size, condition=width, width=CONFIG["fm_head_dim"], depth=2, outputs=size)
    shapes = {f"image_head.net.{name}": value.shape for name, value in head.state_dict().items()}
    shapes |= {"image_in_projector.weight": (width, size), "image_in_projector.bias": (width,)}
    shapes |= {"image_out_projector.weight": (width, width), "image_out_projector.bias": (width,)}
    for name, shape in shapes.items():
        named[name] = 0.2 * torch.randn(shape, generator=generator) + near * torch.randn(shape, generator=other)
    return {**named, "gen_pos_embed": torch.zeros(1, 4, width)}


def write_tokenizer(folder: Path, **more: Any) -> None:
    """Writes a tokenizer of all bytes and the special tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(list(SPECIAL))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **more).save_pretrained(folder)


@cache
def autoencoder(seed: int = 0) -> Any:
    torch.manual_seed(seed)
    return AutoencoderKL(
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        block_out_channels=(32, 32),
        layers_per_block=1,
        latent_channels=CHANNELS,
        scaling_factor=VAE["scaling_factor"],
        shift_factor=VAE["shift_factor"],
        use_quant_conv=False,
        use_post_quant_conv=False,
    ).eval()


def write_vae(folder: Path, *, plain: bool = True) -> Any:
    """Writes the autoencoder as NextStep-1's authors publish it, or as diffusers does."""
    model = autoencoder()
    if not plain:
        model.save_pretrained(folder)
        return model
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(VAE))
    tensors = published_tensors(model, latent_diffusion(2))
    torch.save({name: value.clone() for name, value in tensors.items()}, folder / "checkpoint.pt")
    return model


def write(
    folder: Path,
    *,
    seed: int = 0,
    near: float = 0.0,
    config: dict[str, Any] | None = None,
    settings: dict[str, Any] | None = None,
    vae: bool = True,
    tokenizer: bool = True,
) -> Path:
    """Writes a checkpoint in two shards."""
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps({**CONFIG, **(config or {})}))
    (folder / "generation_config.json").write_text(json.dumps({**SETTINGS, **(settings or {})}))
    named = tensors(seed, near=near)
    index = {}
    for number, names in enumerate((sorted(named)[::2], sorted(named)[1::2]), 1):
        file = f"model-{number:05d}-of-00002.safetensors"
        save_file({name: named[name].contiguous() for name in names}, folder / file)
        index |= dict.fromkeys(names, file)
    (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    if tokenizer:
        write_tokenizer(folder)
    if vae:
        write_vae(folder / "vae")
    return folder


def change(folder: Path, edit: Any) -> None:
    """Passes all tensors to `edit`, which changes the dictionary in place, and writes them as one shard."""
    named: dict[str, torch.Tensor] = {}
    for file in sorted(folder.glob("model-*.safetensors")):
        named |= load_file(file)
        file.unlink()
    edit(named)
    (folder / "model.safetensors.index.json").unlink()
    save_file(named, folder / "model.safetensors")
