"""Small random models that draw and write, in the folders that Lumina-DiMOO and MMaDA publish."""

from __future__ import annotations

import json
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from pardec.models.files.catalog import TOKENIZER
from pardec.models.images.autoencoders import published_tensors
from pardec.models.images.magvit import MAGVIT, MAGVITShape, published
from tests.models.toys import family_tensors

SIDE, CODES, FIRST = 3, 16, 126356
_SHAPE = {
    "d_model": 16, "n_heads": 2, "n_layers": 2, "mlp_hidden_size": 24, "mask_token_id": 126336, "eos_token_id": 3,
    "pad_token_id": 0, "num_vq_tokens": SIDE**2, "codebook_size": CODES, "max_sequence_length": 512,
}  # fmt: skip
CONFIGS: dict[str, dict[str, Any]] = {
    "lumina_dimoo": {
        **_SHAPE,
        "model_type": "llada",
        "architectures": ["LLaDAForMultiModalGeneration"],
        "rope": True,
        "layer_norm_type": "rms",
        "weight_tying": False,
        "vocab_size": FIRST + CODES,
        "embedding_size": FIRST + CODES,
    },
    "mmada": {
        **_SHAPE,
        "model_type": "mmada",
        "architectures": ["MMadaModelLM"],
        "vocab_size": 126464,
        "llm_vocab_size": 126464,
        "new_vocab_size": 126464 + CODES,
    },
}


def tensors(family: str) -> dict[str, Tensor]:
    """The tensors of a checkpoint under their published names."""
    return dict(_tensors(family))


_tensors = cache(lambda family: family_tensors(CONFIGS[family], spread=0.4, seed=7))


def folder(root: Path, family: str, *, decoder: bool = True, sharded: bool = False) -> Path:
    """Writes a checkpoint and its image tokenizer."""
    root.mkdir(parents=True)
    (root / "config.json").write_text(json.dumps(CONFIGS[family]))
    for file in TOKENIZER.iterdir():
        shutil.copy(file, root)
    own = tensors(family)
    if sharded:
        names = sorted(own)
        parts = {"model-00001-of-00002.safetensors": names[::2], "model-00002-of-00002.safetensors": names[1::2]}
        for part, some in parts.items():
            save_file({name: own[name] for name in some}, root / part)
        index = {"weight_map": {name: part for part, some in parts.items() for name in some}}
        (root / "model.safetensors.index.json").write_text(json.dumps(index))
    else:
        save_file(own, root / "model.safetensors")
    if decoder and family == "lumina_dimoo":
        vq().save_pretrained(root / "vqvae")
    elif decoder:
        torch.save(magvit_tensors(), root / "magvitv2.bin")
    return root


@cache
def vq() -> Any:
    """The VQ model of diffusers, two levels deep."""
    from diffusers import VQModel

    with torch.random.fork_rng():
        torch.manual_seed(3)
        return VQModel(
            block_out_channels=(32, 32),
            down_block_types=("DownEncoderBlock2D",) * 2,
            up_block_types=("UpDecoderBlock2D",) * 2,
            latent_channels=8,
            num_vq_embeddings=CODES,
            lookup_from_codebook=True,
        )


def magvit_tensors(widths: tuple[int, ...] = (32, 64), blocks: tuple[int, ...] = (2, 1)) -> dict[str, Tensor]:
    """The published tensors of a whole MAGVIT-v2 tokenizer: the decoder's, and some others."""
    with torch.random.fork_rng():
        torch.manual_seed(4)
        shape = MAGVITShape(4, widths, blocks)
        own = published_tensors(MAGVIT(shape), published(shape))
    return {**own, "encoder.conv_in.weight": torch.zeros(32, 3, 3, 3), "quantize.power_vals": torch.zeros(4)}
