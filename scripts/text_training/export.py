"""Write a trained network in its family's published format, with a card; read such a folder back."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from pardec.comparison.metrics import wilson
from text_training.data import BOS, EOS, MASK
from text_training.networks import ROPE_THETA

PAD = 0
EXAMPLE = "Tom has 18 cups. He loses 4. He finds 12 cups. How many cups does Tom have now?"
SUMMARY = {
    "tiny-llama": "A causal language model that answers pardec's own tasks, in Llama's format.",
    "tiny-llama-draft": "A small causal language model that drafts for tiny-llama, in Llama's format.",
    "tiny-llama-bytes": "A small causal language model of bytes that drafts for tiny-llama, in Llama's format.",
    "tiny-nemotron": "A small language model that writes token by token and drafts for itself, in Nemotron's format.",
    "tiny-dream": "A masked diffusion model that answers pardec's own tasks, in Dream's format (shifted logits).",
    "tiny-llada": "A masked diffusion model that answers pardec's own tasks, in LLaDA's format.",
}
_LLADA = {
    "self_attn.q_proj": "q_proj",
    "self_attn.k_proj": "k_proj",
    "self_attn.v_proj": "v_proj",
    "self_attn.o_proj": "attn_out",
    "mlp.gate_proj": "ff_proj",
    "mlp.up_proj": "up_proj",
    "mlp.down_proj": "ff_out",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ff_norm",
}
_LLADA_TOP = {"model.embed_tokens": "wte", "model.norm": "ln_f", "lm_head": "ff_out"}


def llada_name(key: str) -> str:
    """The published LLaDA name of a Llama tensor.

    >>> llada_name("model.layers.3.mlp.down_proj.weight")
    'model.transformer.blocks.3.ff_out.weight'
    """
    stem, leaf = key.rsplit(".", 1)
    if stem in _LLADA_TOP:
        return f"model.transformer.{_LLADA_TOP[stem]}.{leaf}"
    _, _, index, part = stem.split(".", 3)
    return f"model.transformer.blocks.{index}.{_LLADA[part]}.{leaf}"


def nemotron_name(key: str) -> str:
    """The published Nemotron name of a Llama tensor.

    >>> nemotron_name("model.norm.weight"), nemotron_name("lm_head.weight")
    ('encoder.norm.weight', 'diffusion_head.weight')
    """
    return key.replace("model.", "encoder.", 1).replace("lm_head", "diffusion_head")


def _llama_name(key: str) -> str:
    return key.replace("encoder.", "model.", 1).replace("diffusion_head", "lm_head")


def _llama_like(model: nn.Module) -> dict[str, Any]:
    c = model.config
    return {
        "attention_dropout": 0.0,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "hidden_act": "silu",
        "hidden_size": c.hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": c.intermediate_size,
        "max_position_embeddings": c.max_position_embeddings,
        "num_attention_heads": c.num_attention_heads,
        "num_hidden_layers": c.num_hidden_layers,
        "num_key_value_heads": c.num_key_value_heads,
        "pad_token_id": PAD,
        "rms_norm_eps": c.rms_norm_eps,
        "rope_scaling": None,
        "rope_theta": ROPE_THETA,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": c.vocab_size,
    }


def config_of(name: str, model: nn.Module) -> dict[str, Any]:
    """config.json as the family publishes it."""
    if name.startswith("tiny-llama"):
        extra = {"attention_bias": False, "head_dim": model.config.hidden_size // model.config.num_attention_heads}
        return {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **_llama_like(model), **extra}
    if name == "tiny-nemotron":
        kind = {"architectures": ["NemotronLabsDiffusionModel"], "model_type": "nemotron_labs_diffusion"}
        head_dim = model.config.hidden_size // model.config.num_attention_heads
        return {**kind, **_llama_like(model), "attention_bias": False, "head_dim": head_dim, "mask_token_id": MASK}
    if name == "tiny-dream":
        extra = {"mask_token_id": MASK, "sliding_window": None, "use_sliding_window": False}
        depth = {"max_window_layers": model.config.num_hidden_layers}
        return {"architectures": ["DreamModel"], "model_type": "Dream", **_llama_like(model), **extra, **depth}
    c = model.config
    return {
        "architectures": ["LLaDAModelLM"],
        "model_type": "llada",
        "activation_type": "silu",
        "alibi": False,
        "attention_dropout": 0.0,
        "attention_layer_norm": False,
        "attention_layer_norm_with_affine": True,
        "bias_for_layer_norm": False,
        "block_group_size": 1,
        "block_type": "llama",
        "bos_token_id": BOS,
        "d_model": c.hidden_size,
        "embedding_dropout": 0.0,
        "embedding_size": c.vocab_size,
        "eos_token_id": EOS,
        "include_bias": False,
        "include_qkv_bias": False,
        "input_emb_norm": False,
        "layer_norm_type": "rms",
        "layer_norm_with_affine": True,
        "mask_token_id": MASK,
        "max_sequence_length": c.max_position_embeddings,
        "mlp_hidden_size": c.intermediate_size,
        "mlp_ratio": 4,
        "n_heads": c.num_attention_heads,
        "n_kv_heads": c.num_key_value_heads,
        "n_layers": c.num_hidden_layers,
        "pad_token_id": PAD,
        "residual_dropout": 0.0,
        "rms_norm_eps": c.rms_norm_eps,
        "rope": True,
        "rope_full_precision": True,
        "rope_theta": ROPE_THETA,
        "scale_logits": False,
        "torch_dtype": "bfloat16",
        "use_cache": False,
        "vocab_size": c.vocab_size,
        "weight_tying": False,
    }


def rounded(state: dict[str, Tensor]) -> dict[str, Tensor]:
    """The weights as the export holds them, in bfloat16."""
    return {key: value.detach().to("cpu", torch.bfloat16).contiguous() for key, value in state.items()}


def read_weights(folder: Path) -> dict[str, Tensor]:
    """An exported folder's tensors under Llama's names."""
    state = load_file(folder / "model.safetensors")
    if "lm_head.weight" in state:
        return state
    if "diffusion_head.weight" in state:
        return {_llama_name(key): value for key, value in state.items()}
    depth = sum(key.endswith(".attn_norm.weight") for key in state)
    names = [f"{top}.weight" for top in _LLADA_TOP]
    names += [f"model.layers.{i}.{part}.weight" for i in range(depth) for part in _LLADA]
    return {key: state[llada_name(key)] for key in names}


def export(folder: Path, name: str, model: nn.Module, state: dict[str, Tensor], card: dict[str, Any]) -> None:
    """Writes the folder with its card; each file is replaced atomically."""
    folder.mkdir(parents=True, exist_ok=True)
    published = {"tiny-llada": llada_name, "tiny-nemotron": nemotron_name}.get(name, str)
    tensors = {published(key): value for key, value in rounded(state).items()}
    save_file(tensors, folder / "model.safetensors.part", metadata={"format": "pt"})
    (folder / "model.safetensors.part").chmod(0o644)  # as the other files
    os.replace(folder / "model.safetensors.part", folder / "model.safetensors")
    _write(folder / "config.json", json.dumps(config_of(name, model), indent=1))
    if name != "tiny-llada":
        generation: dict[str, Any] = {"bos_token_id": BOS, "eos_token_id": EOS, "pad_token_id": PAD}
        if name in ("tiny-dream", "tiny-nemotron"):
            generation["mask_token_id"] = MASK
        _write(folder / "generation_config.json", json.dumps(generation, indent=1))
    write_card(folder, card)


def write_card(folder: Path, card: dict[str, Any]) -> None:
    """Write the card, as data and as a page."""
    write_pages(folder, card, _readme(card))


def write_pages(folder: Path, card: dict[str, Any], readme: str) -> None:
    """Writes a card as data and as a page."""
    _write(folder / "card.json", json.dumps(card, indent=1))
    _write(folder / "README.md", readme)


def _write(path: Path, text: str) -> None:
    part = path.with_name(path.name + ".part")
    part.write_text(text + "\n", encoding="utf-8")
    os.replace(part, path)


def _readme(card: dict[str, Any]) -> str:
    name = card["name"]
    drafted = {"tiny-llama-draft": "", "tiny-llama-bytes": ",map=text"}
    draft = f"tiny-llama -s model:name={name}{drafted[name]}" if name in drafted else name
    if name == "tiny-nemotron":
        draft = f"{name} --attention causal -s linearspec:k=15"
    lines = opening(card, f'pardec generate {draft} -p "{EXAMPLE}"')
    lines += ["Exact answers on held-out problems (seed 7) with 95% intervals, measured with these weights.", ""]
    lines += ["| decoding | task | problems | exact | forwards |", "|---|---|---|---|---|"]
    for sampler, found in card["accuracy"].items():
        for kind, count in found["problems"].items():
            low, high = wilson(found[kind], count)
            share = f"{found[kind]:.1%} ({100 * low:.0f}..{100 * high:.0f})"
            lines.append(f"| {sampler} | {kind} | {count} | {share} | {found[f'{kind}_nfe']:.1f} |")
    lines += ["", "## Recipe", "", *items(card["recipe"]), "", "## Curve", ""]
    progress = ("seconds", "step", "loss")
    kinds = [key for point in card["curve"] for key in point if key not in progress and "sequential_" not in key]
    kinds = list(dict.fromkeys(kinds))
    lines += [f"| {' | '.join((*progress, *kinds))} |", "|---" * (len(progress) + len(kinds)) + "|"]
    for point in card["curve"]:
        shares = " | ".join(f"{point[kind]:.0%}" if kind in point else "" for kind in kinds)
        lines.append(f"| {point['seconds']:.0f} | {point['step']} | {point['loss']:.3f} | {shares} |")
    return "\n".join(lines)


def opening(card: dict[str, Any], command: str) -> list[str]:
    """A card's first lines: the model, its size, and a command that runs it."""
    about = f"{card['summary']} {card['parameters']:,} parameters, trained as [below](#recipe); Apache-2.0."
    return [f"# {card['name']}", "", about, "", "```bash", command, "```", "", "## Measured", ""]


def items(recipe: dict[str, Any], indent: str = "") -> list[str]:
    """A recipe as a Markdown list, with the runs that it consists of as nested lists."""
    lines = []
    for key, value in recipe.items():
        nested = isinstance(value, dict)
        lines.append(f"{indent}- {key}:" if nested else f"{indent}- {key}: {value}")
        lines += items(value, indent + "  ") if nested else []
    return lines
