"""Small random checkpoints of Emu3, in transformers' layout and in the authors'."""

from __future__ import annotations

import json
from base64 import b64encode
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from transformers import Emu3Config, Emu3ForConditionalGeneration, Emu3Processor

from pardec.models.images.emu3 import RANKS, TOKENS, VISION, from_ranks

CODES = 6
WORDS = (b"th", b"re", b"the", b" a", b"ed")
VISION_TOKENS = [
    "<|image token|>",
    "<|image start|>",
    "<|image end|>",
    *(f"<|visual token {n:06d}|>" for n in range(CODES)),
]
VOCABULARY = 256 + len(WORDS) + 3 + 205 + len(VISION_TOKENS)
VQ = {
    "codebook_size": CODES, "embed_dim": 4, "latent_channels": 4, "base_channels": 32,
    "channel_multiplier": [1, 1, 1, 1], "num_res_blocks": 1, "attn_resolutions": [3], "hidden_size": 32,
}  # fmt: skip
TEXT = {
    "vocab_size": VOCABULARY, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 600, "pad_token_id": 261,
    "bos_token_id": 261 + 3 + 203, "eos_token_id": 261 + 3 + 204,
}  # fmt: skip


def write_ranks(folder: Path) -> None:
    """Writes the authors' tokenizer files: all bytes, a few words, and the vision tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    tokens = [*(bytes([byte]) for byte in range(256)), *WORDS]
    (folder / RANKS).write_bytes(b"\n".join(b64encode(token) + b" %d" % rank for rank, token in enumerate(tokens)))
    (folder / VISION).write_text("\n".join(VISION_TOKENS) + "\n")


def library_model(seed: int = 0, *, sharp: float = 3.0, **text: Any) -> Any:
    """transformers' own model, in float32 with weights large enough that codes differ."""
    tokenizer_map = {f"<|extra_{n}|>": 256 + len(WORDS) + 3 + n for n in range(205)}
    first = 256 + len(WORDS) + 208
    vocabulary = {"depth": 7, **tokenizer_map, **{token: first + n for n, token in enumerate(VISION_TOKENS)}}
    vocabulary["<image>"] = vocabulary.pop("<|extra_0|>")
    config = Emu3Config(
        text_config={**TEXT, **text}, vq_config=VQ, vocabulary_map=vocabulary, bos_token_id=None, eos_token_id=None
    )
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = Emu3ForConditionalGeneration(config)
        for name, weight in model.model.text_model.named_parameters():
            if weight.dim() > 1 or name.endswith("bias"):
                torch.nn.init.normal_(weight, std=0.3 if "embed" not in name else 1.0)
        torch.nn.init.normal_(model.lm_head.weight, std=sharp * 0.2)
    return model.eval().requires_grad_(False)


def write_library(folder: Path, seed: int = 0, *, sharp: float = 3.0, area: int = 16 * 24, **text: Any) -> Any:
    """Writes a folder as transformers saves it, with a processor; returns the model."""
    model = library_model(seed, sharp=sharp, **text)
    model.save_pretrained(folder)
    write_ranks(folder / "ranks")
    tokenizer = from_ranks(folder / "ranks")
    names = ("image_token", "boi_token", "eoi_token", "image_wrapper_token", "eof_token")
    marks = ("<image>", "<|image start|>", "<|image end|>", "<|image token|>", "<|extra_201|>")
    text = tokenizer.backend_tokenizer.to_str().replace('"<|extra_0|>"', '"<image>"')
    (folder / "tokenizer.json").write_text(text)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": TOKENS[0], "eos_token": TOKENS[1]}
    settings |= {"pad_token": "<|endoftext|>", "extra_special_tokens": dict(zip(names, marks, strict=True))}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    (folder / "processor_config.json").write_text(json.dumps({"processor_class": "Emu3Processor", "image_area": area}))
    image = {"image_processor_type": "Emu3ImageProcessor", "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(image))
    for file in (folder / "ranks").iterdir():
        file.unlink()
    (folder / "ranks").rmdir()
    return model


def processor(folder: Path) -> Any:
    """transformers' own processor, from a folder of `write_library`."""
    from transformers import AutoTokenizer, Emu3ImageProcessor

    return Emu3Processor(Emu3ImageProcessor.from_pretrained(folder), AutoTokenizer.from_pretrained(folder))


def write_authors(folder: Path, vision: Path, seed: int = 0) -> Any:
    """Writes the authors' two folders with the weights of `library_model`; returns that model."""
    model = library_model(seed)
    write_ranks(folder)
    ids = {"img": 469, "boi": 470, "eoi": 471}
    config = {**TEXT, "model_type": "Emu3", "architectures": ["Emu3ForCausalLM"], "rope_theta": 1e6, "image_area": 384}
    config |= {f"{name}_token_id": value for name, value in ids.items()}
    (folder / "config.json").write_text(json.dumps(config))
    text = {f"model.{name}": weight.clone() for name, weight in model.model.text_model.state_dict().items()}
    save_file({**text, "lm_head.weight": model.lm_head.weight.clone()}, folder / "model.safetensors")
    vision.mkdir()
    names = {"latent_channels": "z_channels", "base_channels": "ch", "channel_multiplier": "ch_mult"}
    published = {names.get(key, key): value for key, value in VQ.items() if key != "hidden_size"}
    (vision / "config.json").write_text(json.dumps({**published, "model_type": "Emu3VisionVQ", "double_z": False}))
    save_file(dict(_authors_vq(model.model.vqmodel.state_dict())), vision / "model.safetensors")
    return model


def _authors_vq(state: dict[str, torch.Tensor]) -> Any:
    """The image tokenizer's tensors as the authors name and shape them."""
    for name, tensor in state.items():
        linear = "_proj.weight" in name
        for new, old in (
            ("down_block.down.", "down."), ("up_block.up.", "up."), ("middle_block.", "mid."),
            (".attn_norm.", ".attn_1.norm."), (".out_proj", ".proj_out"),
            ("q_proj", "q"), ("k_proj", "k"), ("v_proj", "v"),
        ):  # fmt: skip
            name = name.replace(new, old)
        if ".attn_norms." in name:
            head, _, tail = name.partition(".attn_norms.")
            number, _, rest = tail.partition(".")
            name = f"{head}.attn.{number}.norm.{rest}"
        yield name, (tensor[:, :, None, None] if linear else tensor).clone().contiguous()
