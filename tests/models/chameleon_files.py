"""Small random checkpoints of Chameleon and Lumina-mGPT, in transformers' layout, with a VQGAN of the authors'."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import ChameleonConfig, ChameleonForConditionalGeneration, PreTrainedTokenizerFast

from pardec.models.images.autoencoders import latent_diffusion, published_tensors
from pardec.models.images.chameleon import BOS, GRID, IMAGE_END, IMAGE_START, MESSAGE_END, ROW_END
from pardec.models.images.vqgan import VQGAN, VQGANShape

CODES = 6
WORDS = ("a", "red", "cat", "the", "dog", "under", "tree", "it", "<unk>")
SHAPE = VQGANShape(codes=CODES, size=4, z_channels=4, ch=32, ch_mult=(1, 1, 1, 1, 1), num_res_blocks=1)


def vocabulary() -> dict[str, int]:
    """The vocabulary, whose codes are not in the order of their ids, as in published checkpoints."""
    order = (3, 0, 5, 1, 4, 2)
    names = {f"IMGIMG{'ABCDEFGHIJ'[code]}Z": 4 + place for place, code in enumerate(order)}
    special = ["<pad>", BOS, "</s>", "<image>"]
    marks = [IMAGE_END, IMAGE_START, MESSAGE_END, ROW_END, *(f"<reserved{GRID + n:05d}>" for n in range(1, 5))]
    every = {token: i for i, token in enumerate(special)} | names
    for token in (*marks, *WORDS):
        every[token] = len(every)
    return every


VOCABULARY = vocabulary()
CODE_IDS = [VOCABULARY[f"IMGIMG{'ABCDEFGHIJ'[code]}Z"] for code in range(CODES)]


def library_model(seed: int = 0, *, behind: bool = False, sharp: float = 0.5) -> Any:
    """transformers' own model, in float32 with weights large enough that codes differ."""
    config = ChameleonConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=600,
        swin_norm=behind,
        vocabulary_map=VOCABULARY,
        pad_token_id=0,
        bos_token_id=1,
        eos_token_id=2,
        vq_config={
            "num_embeddings": CODES,
            "embed_dim": 4,
            "latent_channels": 4,
            "base_channels": 32,
            "channel_multiplier": [1],
            "num_res_blocks": 1,
            "resolution": 16,
            "attn_type": "none",
        },
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = ChameleonForConditionalGeneration(config)
        for name, weight in model.model.layers.named_parameters():
            torch.nn.init.normal_(weight, std=0.3)
            if "norm" in name and name.endswith("weight"):
                weight.data += 1
        torch.nn.init.normal_(model.model.embed_tokens.weight, std=1.0)
        torch.nn.init.normal_(model.lm_head.weight, std=sharp)
    return model.eval().requires_grad_(False)


def logits(model: Any, ids: torch.Tensor, **more: Any) -> torch.Tensor:
    """The head's logits; the library's own forward excludes every code."""
    found: torch.Tensor = model.lm_head(model.model(input_ids=ids, use_cache=False, **more).last_hidden_state)
    return found


def write(folder: Path, seed: int = 0, *, lumina: bool = False, tokens: int = 4, **more: Any) -> Any:
    """A folder as transformers saves it, with a tokenizer and a VQGAN; returns the model."""
    model = library_model(seed, **more)
    model.save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"image_size": 32} if lumina else {"image_seq_length": tokens}
    config["architectures"] = ["ChameleonXLLMXForConditionalGeneration" if lumina else config["architectures"][0]]
    (folder / "config.json").write_text(json.dumps(config))
    tokenizer = Tokenizer(models.WordLevel(VOCABULARY, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    special = [token for token in VOCABULARY if token not in WORDS]
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, bos_token=BOS, eos_token="</s>", unk_token="<unk>")
    fast.add_special_tokens({"additional_special_tokens": special})
    fast.save_pretrained(folder)
    write_vqgan(folder / "vqgan.ckpt")
    return model


def vqgan(seed: int = 0) -> VQGAN:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return VQGAN(SHAPE).eval().requires_grad_(False)


def write_vqgan(file: Path, **changes: torch.Tensor) -> None:
    """A file as the authors publish it: with an encoder and a loss, and convolutions where there are matrices here."""
    state = published_tensors(vqgan(), latent_diffusion(len(SHAPE.widths)))
    state |= {"encoder.conv_in.weight": torch.zeros(3), "loss.logvar": torch.zeros(1), **changes}
    torch.save({"state_dict": state}, file)


def change_tensors(folder: Path, rename: Any) -> None:
    """Rewrites model.safetensors with names changed by `rename`; tensors whose new name is None are left out."""
    file = folder / "model.safetensors"
    tensors = {rename(name): tensor for name, tensor in load_file(file).items()}
    save_file({name: tensor for name, tensor in tensors.items() if name is not None}, file, metadata={"format": "pt"})
