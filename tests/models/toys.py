"""Tiny models and checkpoints for the tests of `models`."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from pardec.models.caches.kv_cache import KVCache
from pardec.models.decoder import Decoder, DecoderConfig
from pardec.models.families import match
from pardec.models.layers.rope import default_frequencies
from pardec.models.loading import assemble
from pardec.models.model import DecodingConfig, LanguageModel
from pardec.models.plan import Plan, Visible

ROOT = Path(__file__).resolve().parents[2]
VOCAB = 50

# Sizes of the random checkpoints, under transformers' names.
SMALL = {
    "vocab_size": 61, "hidden_size": 48, "intermediate_size": 80, "num_hidden_layers": 2, "num_attention_heads": 4,
    "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip


def model(
    attention: str = "causal", *, dtype: torch.dtype = torch.float32, block: int | None = None, **shape: Any
) -> LanguageModel:
    """A random native model with grouped heads; the seed is fixed."""
    settings = {"vocab": VOCAB, "width": 32, "layers": 3, "heads": 4, "kv_heads": 2, "head_dim": 8, "mlp_width": 48}
    settings |= {"norm_eps": 1e-5} | shape
    frequencies = tuple(default_frequencies(10000.0, settings["head_dim"]).tolist())
    decoder = Decoder(DecoderConfig(**settings, frequencies=frequencies))
    generator = torch.Generator().manual_seed(5)
    for name, parameter in decoder.named_parameters():
        parameter.data.normal_(1.0 if "norm" in name else 0.0, 0.2, generator=generator)
    decoder = decoder.to(dtype).eval().requires_grad_(False)
    decoding_config = DecodingConfig(VOCAB - 1, (1,), 0, None, 1 if attention == "causal" else 0, attention, block)  # type: ignore[arg-type]
    return LanguageModel(
        decoder,
        decoding_config,
        {},
        None,
        "toy",
        None,
        "toy",
        torch.device("cpu"),
        dtype,
        VOCAB,
        settings["layers"],
        settings["width"],
    )


def library_model(config: Any, *, spread: float = 0.1, seed: int = 0) -> Any:
    """A model of transformers with random norms, biases and weights."""
    from transformers import AutoModelForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        made = AutoModelForCausalLM.from_config(config).eval()
        with torch.no_grad():
            for parameter in made.parameters():
                parameter.add_(torch.randn_like(parameter) * spread)
    return made


def ids(*shape: int, seed: int = 0) -> Tensor:
    """Random token ids."""
    return torch.randint(0, VOCAB, shape, generator=torch.Generator().manual_seed(seed))


def ask(tokens: Tensor, positions: Tensor, visible: Visible, lengths: Tensor, **more: Any) -> Plan:
    """A plan without values known on the host, with outputs of every query; slots default to the positions."""
    want = torch.arange(tokens.shape[1]).expand_as(tokens)
    slots = more.pop("slots", positions)
    return Plan(tokens, positions, slots, visible, lengths, want, **more)


def poisoned(cache: KVCache) -> KVCache:
    """The cache, with NaN written to every slot."""
    for tensor in (*cache.k, *cache.v):
        tensor.fill_(float("nan"))
    return cache


def write_checkpoint(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    """Writes a folder with config.json and model.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / "model.safetensors")
    return folder


def family_tensors(config: dict[str, Any], *, spread: float = 0.3, seed: int = 4) -> dict[str, Tensor]:
    """Random tensors under every published name that the family of a config has; those of norms are about 1."""
    spec, generator = match(config), torch.Generator().manual_seed(seed)
    wanted = assemble.targets(spec, assemble.empty(spec.decoder(config)))
    return {
        name: torch.randn(target.shape, generator=generator) * spread + ("norm" in name or "ln_f" in name)
        for name, target in wanted.items()
    }


def family_folder(folder: Path, config: dict[str, Any], **more: Any) -> dict[str, Tensor]:
    """Writes a checkpoint with the tensors of `family_tensors`, which it returns."""
    tensors = family_tensors(config, **more)
    write_checkpoint(folder, config, tensors)
    return tensors


def rewrite(folder: Path, file: str = "config.json", **changes: Any) -> Path:
    """Sets keys of a JSON file in a folder, which it returns; a file that is not there is written."""
    held = json.loads((folder / file).read_text()) if (folder / file).is_file() else {}
    (folder / file).write_text(json.dumps(held | changes))
    return folder


def llama_config(**changes: Any) -> dict[str, Any]:
    """A published config of a tiny Llama."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_act": "silu",
        "hidden_size": 16,
        "intermediate_size": 24,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "vocab_size": 40,
        "eos_token_id": 3,
        "bos_token_id": 2,
        "torch_dtype": "float32",
    } | changes


def llama_tensors(config: dict[str, Any], seed: int = 0) -> dict[str, Tensor]:
    """Random tensors under Llama's published names."""
    generator = torch.Generator().manual_seed(seed)
    width, inner = config["hidden_size"], config["intermediate_size"]
    dim = config.get("head_dim") or width // config["num_attention_heads"]
    heads, kv_heads = config["num_attention_heads"] * dim, config["num_key_value_heads"] * dim
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (config["vocab_size"], width),
        "model.norm.weight": (width,),
        "lm_head.weight": (config["vocab_size"], width),
    }
    for layer in range(config["num_hidden_layers"]):
        stem = f"model.layers.{layer}."
        shapes |= {stem + f"{name}_layernorm.weight": (width,) for name in ("input", "post_attention")}
        shapes |= {
            stem + f"self_attn.{name}_proj.weight": (size, width)
            for name, size in zip("qkv", (heads, kv_heads, kv_heads), strict=True)
        }
        shapes |= {stem + "self_attn.o_proj.weight": (width, heads), stem + "mlp.down_proj.weight": (width, inner)}
        shapes |= {stem + f"mlp.{name}_proj.weight": (inner, width) for name in ("gate", "up")}
    return {name: torch.randn(shape, generator=generator) * 0.2 for name, shape in shapes.items()}


def llama_folder(folder: Path, **changes: Any) -> Path:
    """A complete tiny Llama checkpoint."""
    config = llama_config(**changes)
    tensors = llama_tensors(config)
    if config["tie_word_embeddings"]:
        del tensors["lm_head.weight"]
    return write_checkpoint(folder, config, tensors)


def torchrun(*arguments: object) -> subprocess.CompletedProcess[str]:
    """Runs a program in two processes of one thread each."""
    kept = {name: value for name, value in os.environ.items() if name not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    named = kept | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        [*command, *map(str, arguments)], env=named, capture_output=True, text=True, timeout=300, check=False
    )
