"""Random models written as GGUF files by the gguf library, and the same weights as published."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from tokenizers.pre_tokenizers import ByteLevel
from torch import Tensor

from pardec.models.files.gguf.architectures import ARCHITECTURES
from tests.models.toys import write_checkpoint

TEMPLATE = "{% for message in messages %}<|im_start|>{{ message['content'] }}<|im_end|>{% endfor %}<|im_start|>"
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
MERGES = ["t h", "th e", "Ġ t", "Ġ the", "i n", "1 2", "Ġ Ġ", "12 3"]
TOKENS = [*SPECIAL, *sorted(ByteLevel.alphabet()), *(merge.replace(" ", "") for merge in MERGES), "<think>"]
CONFIG: dict[str, Any] = {
    "vocab_size": len(TOKENS), "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32, "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5, "rope_theta": 50000.0,
}  # fmt: skip
OUTER = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
NAMES = {f"{name}.weight": f"{own}.weight" for name, own in OUTER.items()}
PARTS = {"input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm"}
PARTS |= {f"self_attn.{name}_proj": f"attn_{name}" for name in "qkv"}
PARTS |= {"self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm"}
PARTS |= {f"mlp.{name}_proj": f"ffn_{name}" for name in ("gate", "up", "down")}
HEADS = (("n_heads", "num_attention_heads"), ("n_kv_heads", "num_key_value_heads"))
LLADA_NAMES = {f"model.transformer.{own}.weight": f"{name}.weight" for own, name in {
    "wte": "token_embd", "ln_f": "output_norm", "ff_out": "output"}.items()}  # fmt: skip
LLADA_PARTS = {f"{name}_proj": f"attn_{name}" for name in "qkv"} | {"attn_norm": "attn_norm", "ff_norm": "ffn_norm"}
LLADA_PARTS |= {"attn_out": "attn_output", "ff_proj": "ffn_gate", "up_proj": "ffn_up", "ff_out": "ffn_down"}


def random_model(kind: str = "llama", *, tied: bool = True, **changes: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """A config and random tensors as transformers publishes them."""
    from transformers import CONFIG_MAPPING, AutoModelForCausalLM

    config = {"model_type": kind, **CONFIG, "tie_word_embeddings": tied} | changes
    network = AutoModelForCausalLM.from_config(CONFIG_MAPPING[kind].from_dict(config))
    generator = torch.Generator().manual_seed(3)
    tensors = {}
    for name, weight in network.state_dict().items():
        if not (tied and name.startswith("lm_head")):
            tensors[name] = torch.randn(weight.shape, generator=generator) * 0.3 + (1.0 if "norm" in name else 0.0)
    return {"architectures": [ARCHITECTURES[kind].class_name], **config}, tensors


def interleaved(weight: np.ndarray, heads: int) -> np.ndarray:
    """Rows of q or k in the order of Llama's files: the first row of each half of a head, then the second, ..."""
    rows = []
    for head in np.split(weight, heads):
        half = len(head) // 2
        for i in range(half):
            rows += [head[i], head[half + i]]
    return np.stack(rows)


def write_gguf(file: Path, kind: str = "F32", family: str = "llama", **more: Any) -> Path:
    """Writes a GGUF file with matrices of this type, and the same weights as safetensors in a folder of the same name.

    `metadata` sets fields, or leaves them out for None; `tensors` does so with tensors; `changes` change the config.
    """
    config, tensors = random_model(family, tied=more.get("tied", True), **more.get("changes", {}))
    writer = gguf.GGUFWriter(file, family)
    fields: dict[str, Any] = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config["head_dim"],
        "attention.value_length": config["head_dim"],
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "rope.freq_base": float(config["rope_theta"]),
        "rope.dimension_count": config["head_dim"],
        "vocab_size": config["vocab_size"],
    }
    fields = {f"{family}.{name}": value for name, value in fields.items()} | tokenizer_fields()
    add_fields(writer, fields | more.get("metadata", {}))
    stored = {}
    quantization = gguf.GGMLQuantizationType[kind]
    for name, tensor in tensors.items():
        own = NAMES.get(name) or ".".join(["blk", name.split(".")[2], PARTS[name.split(".", 3)[3].rpartition(".")[0]]])
        own += "" if name in NAMES else "." + name.rpartition(".")[2]
        heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
        values = tensor.numpy()
        if family == "llama" and own.split(".")[-2] in heads:
            values = interleaved(values, heads[own.split(".")[-2]])
        if values.ndim == 1:
            stored[own] = values, gguf.GGMLQuantizationType.F32
            continue
        data = gguf.quants.quantize(values, quantization)
        stored[own] = data, quantization
        exact = torch.from_numpy(np.array(gguf.quants.dequantize(data, quantization)))
        if family == "llama" and own.split(".")[-2] in heads:
            order = interleaved(np.arange(len(exact))[:, None], heads[own.split(".")[-2]])[:, 0]
            exact = exact[np.argsort(order)]
        tensors[name] = exact.reshape(tensor.shape)
    for own, (data, quantization) in (stored | more.get("tensors", {})).items():
        if data is not None:
            writer.add_tensor(own, data, raw_dtype=quantization)
    finish(writer)
    ends = {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2}
    write_checkpoint(file.with_suffix(""), json.loads(json.dumps(config)) | ends, tensors)
    return file


def write_embedded_gguf(file: Path, folder: Path, family: str, kind: str = "F32") -> Path:
    """A GGUF file of a masked model, without a tokenizer, from its folder in Dream's or LLaDA's format.

    Its matrices are of the type `kind`.
    """
    from safetensors.torch import load_file

    config = json.loads((folder / "config.json").read_text())
    blocks = {"llada": "model.transformer.blocks.", "dream": "model.layers."}[family]
    heads, shared = (config.get(a) or config.get(b) for a, b in HEADS)
    fields = {
        "block_count": config.get("n_layers") or config["num_hidden_layers"],
        "context_length": config.get("max_sequence_length") or config["max_position_embeddings"],
        "embedding_length": config.get("d_model") or config["hidden_size"],
        "feed_forward_length": config.get("mlp_hidden_size") or config["intermediate_size"],
        "attention.head_count": heads,
        "attention.head_count_kv": shared or heads,
    }
    writer = gguf.GGUFWriter(file, family)
    for name, value in fields.items():
        writer.add_uint32(f"{family}.{name}", value)
    writer.add_float32(f"{family}.attention.layer_norm_rms_epsilon", config["rms_norm_eps"])
    writer.add_float32(f"{family}.rope.freq_base", float(config["rope_theta"]))
    writer.add_bool(f"{family}.attention.causal", False)
    writer.add_uint32("tokenizer.ggml.mask_token_id", config["mask_token_id"])
    for name, tensor in load_file(folder / "model.safetensors").items():
        values = tensor.float().numpy()
        if name.startswith(blocks):
            layer, own = name.removeprefix(blocks).split(".", 1)
            part, ending = own.rsplit(".", 1)
            stored = f"blk.{layer}.{(LLADA_PARTS if family == 'llada' else PARTS)[part]}.{ending}"
            if family == "llada" and part in ("q_proj", "k_proj"):
                values = interleaved(values, heads if part == "q_proj" else shared or heads)
        else:
            stored = {**NAMES, **LLADA_NAMES}[name]
        values = np.ascontiguousarray(values)
        if kind == "F32" or values.ndim == 1:
            writer.add_tensor(stored, values)
        else:
            quantization = gguf.GGMLQuantizationType[kind]
            writer.add_tensor(stored, gguf.quants.quantize(values, quantization), raw_dtype=quantization)
    finish(writer)
    return file


def finish(writer: gguf.GGUFWriter) -> None:
    """Writes the file and closes it."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def add_fields(writer: gguf.GGUFWriter, fields: dict[str, Any]) -> None:
    """Adds fields by the types of their values; None is left out."""
    for name, value in fields.items():
        if isinstance(value, str):
            writer.add_string(name, value)
        elif isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, list):
            writer.add_array(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        elif value is not None:
            writer.add_uint32(name, value)


def tokenizer_fields(split: str = "smollm") -> dict[str, Any]:
    types = [3] * len(SPECIAL) + [1] * (len(TOKENS) - len(SPECIAL) - 1) + [4]
    return {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": split, "tokenizer.ggml.tokens": TOKENS,
        "tokenizer.ggml.token_type": types, "tokenizer.ggml.merges": MERGES, "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2, "tokenizer.ggml.padding_token_id": 2, "tokenizer.ggml.unknown_token_id": 0,
        "tokenizer.ggml.add_bos_token": False, "tokenizer.chat_template": TEMPLATE,
    }  # fmt: skip
