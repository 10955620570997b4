"""Random mixtures of experts as GGUF files, and the same weights as published, each expert by itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
from torch import Tensor

from tests.models.loading.gguf_files import OUTER, TOKENS, add_fields, finish, tokenizer_fields
from tests.models.toys import write_checkpoint

WIDTH, HEADS, GROUPS, HEAD, EXPERTS, USED, INNER, LAYERS = 64, 4, 2, 16, 4, 2, 32, 2
PARTS: dict[str, tuple[str, tuple[int, ...]]] = {
    "attn_norm": ("input_layernorm", (WIDTH,)),
    "ffn_norm": ("post_attention_layernorm", (WIDTH,)),
    "attn_q": ("self_attn.q_proj", (HEADS * HEAD, WIDTH)),
    "attn_k": ("self_attn.k_proj", (GROUPS * HEAD, WIDTH)),
    "attn_v": ("self_attn.v_proj", (GROUPS * HEAD, WIDTH)),
    "attn_output": ("self_attn.o_proj", (WIDTH, HEADS * HEAD)),
    "attn_q_norm": ("self_attn.q_norm", (HEAD,)),
    "attn_k_norm": ("self_attn.k_norm", (HEAD,)),
    "ffn_gate_inp": ("mlp.gate", (EXPERTS, WIDTH)),
    "ffn_gate_exps": ("mlp.experts.{e}.gate_proj", (EXPERTS, INNER, WIDTH)),
    "ffn_up_exps": ("mlp.experts.{e}.up_proj", (EXPERTS, INNER, WIDTH)),
    "ffn_down_exps": ("mlp.experts.{e}.down_proj", (EXPERTS, WIDTH, INNER)),
}
CONFIG: dict[str, Any] = {
    "vocab_size": len(TOKENS), "hidden_size": WIDTH, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
    "num_key_value_heads": GROUPS, "head_dim": HEAD, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
    "rope_theta": 50000.0, "hidden_act": "silu", "num_experts": EXPERTS, "num_experts_per_tok": USED,
    "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 2,
}  # fmt: skip
PUBLISHED: dict[str, dict[str, Any]] = {
    "qwen3moe": {
        "model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "moe_intermediate_size": INNER,
        "intermediate_size": 96, "norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": [],
    },
    "llada-moe": {
        "model_type": "llada", "architectures": ["LLaDAMoEModelLM"], "expert_intermediate_size": INNER,
        "qk_layernorm": True, "mask_token_id": 5,
    },
}  # fmt: skip


def write_experts(file: Path, family: str, types: dict[str, str], metadata: dict[str, Any] | None = None) -> Path:
    """Writes a GGUF file, and in a folder of the same name its numbers as published.

    Args:
        types: of matrices, by their part ("ffn_gate_exps") or name; "" is that of all others. Routers are F32.
        metadata: fields to set, or to leave out for None.
    """
    writer = gguf.GGUFWriter(file, family)
    fields: dict[str, Any] = {
        "block_count": LAYERS, "context_length": 128, "embedding_length": WIDTH, "attention.head_count": HEADS,
        "attention.head_count_kv": GROUPS, "attention.key_length": HEAD, "attention.value_length": HEAD,
        "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 50000.0, "expert_count": EXPERTS,
        "expert_used_count": USED, "expert_feed_forward_length": INNER, "feed_forward_length": 96,
    }  # fmt: skip
    fields = {f"{family}.{name}": value for name, value in fields.items()} | tokenizer_fields()
    if family == "llada-moe":
        fields |= {"llada-moe.attention.causal": False, "diffusion.shift_logits": False}
        fields |= {"tokenizer.ggml.mask_token_id": 5}
    add_fields(writer, fields | (metadata or {}))
    draw, tensors = np.random.default_rng(5), dict[str, Tensor]()
    shapes: dict[str, tuple[str, tuple[int, ...]]] = {
        part: (name, (WIDTH,) if "norm" in part else (len(TOKENS), WIDTH)) for name, part in OUTER.items()
    }
    for i in range(LAYERS):
        shapes |= {f"blk.{i}.{part}": (f"model.layers.{i}.{name}", shape) for part, (name, shape) in PARTS.items()}
    for own, (name, shape) in shapes.items():
        values = draw.standard_normal(shape, dtype=np.float32) * 0.3 + np.float32("norm" in own)
        part = own.rpartition(".")[2]
        default = "F32" if "norm" in own or part == "ffn_gate_inp" else types[""]
        kind = gguf.GGMLQuantizationType[types.get(own, types.get(part, default))]
        data = gguf.quants.quantize(values, kind)
        writer.add_tensor(f"{own}.weight", data, raw_dtype=kind)
        exact = torch.from_numpy(np.array(gguf.quants.dequantize(data, kind))).view(shape)
        if "{e}" in name:
            tensors |= {f"{name.replace('{e}', str(e))}.weight": exact[e].clone() for e in range(EXPERTS)}
        else:
            tensors[f"{name}.weight"] = exact
    finish(writer)
    write_checkpoint(file.with_suffix(""), CONFIG | PUBLISHED[family], tensors)
    return file
