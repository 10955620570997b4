"""Small random models whose tokens are vectors, in the files that MAR publishes, with an autoencoder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

from pardec.models.families.mar import networks
from pardec.models.files.sources import MAR_FILE
from pardec.models.images.kl import KL, KLShape, save_kl

SIDE, SIZE, CLASSES, WIDTH = 4, 4, 5, 32
SHAPE: dict[str, Any] = {
    "encoder_embed_dim": WIDTH, "encoder_depth": 1, "encoder_num_heads": 2, "decoder_embed_dim": WIDTH,
    "decoder_depth": 1, "decoder_num_heads": 2, "token_size": SIZE, "class_num": CLASSES, "buffer_size": 2,
    "diffloss_d": 1, "diffloss_w": WIDTH, "num_sampling_steps": "10",
}  # fmt: skip
DEFAULTS = {"temperature": 0.9, "cfg": 2.0}


def vector_painter(
    folder: Path,
    *,
    side: int = SIDE,
    classes: int = CLASSES,
    size: int = SIZE,
    channels: int | None = SIZE,
    levels: int = 2,
    seed: int = 5,
    **defaults: Any,
) -> Path:
    """Writes a checkpoint with an autoencoder of that many channels, or without one.

    Images have `side` cells per side; the pixels per side of a cell double with each level of the autoencoder but one.
    """
    folder.mkdir(parents=True)
    config = {**SHAPE, "model_type": "mar", "tokens": side**2, "class_num": classes, "token_size": size}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "generation_config.json").write_text(json.dumps({**DEFAULTS, **defaults}))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        backbone, head = networks(config)
        tensors = {name: torch.randn_like(value) * 0.2 for name, value in backbone.state_dict().items()}
        tensors |= {f"diffloss.net.{name}": torch.randn_like(value) * 0.2 for name, value in head.state_dict().items()}
        torch.save({"model_ema": tensors}, folder / MAR_FILE)
        if channels is not None:
            shape = KLShape(embed_dim=channels, ch=32, ch_mult=(1,) * levels, num_res_blocks=1, attention=())
            save_kl(KL(shape, scale=1.0), folder / "kl.safetensors")
    return folder
