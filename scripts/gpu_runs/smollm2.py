"""Transfers SmolLM2's weights to a GPU: the raw blocks of its GGUF file, read there without the package gguf.

`smollm2.bin` is eight bytes with the length of a JSON header, the header, and the blocks of all tensors. The header has
the shape, the name and place of each tensor, and the ids of the chat template. Dequantizing follows GGUF's definitions:
Q8_0 has 32 integers and their scale, Q4_1 32 numbers of four bits with a scale and an offset.
"""

from __future__ import annotations

import json
import struct
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

if TYPE_CHECKING:
    import pardec

MASK = "<empty_output>"  # a token that SmolLM2 has and never writes
_BLOCKS = {"Q8_0": 34, "Q4_1": 20}  # bytes of 32 weights


@dataclass(frozen=True)
class Shape:
    """The sizes of a Llama without biases and with tied embeddings."""

    vocab: int
    width: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    mlp_width: int
    theta: float = 100_000.0
    eps: float = 1e-5

    def names(self) -> dict[str, tuple[int, ...]]:
        """The tensors by name with their shapes, in the order in memory.

        Query, key and value lie one after another, and so do gate and up: each group is one matrix.
        """
        q, kv = self.heads * self.head_dim, self.kv_heads * self.head_dim
        found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (self.vocab, self.width)}
        for index in range(self.layers):
            at = f"model.layers.{index}."
            found[at + "input_layernorm.weight"] = (self.width,)
            found[at + "self_attn.q_proj.weight"] = (q, self.width)
            found[at + "self_attn.k_proj.weight"] = (kv, self.width)
            found[at + "self_attn.v_proj.weight"] = (kv, self.width)
            found[at + "self_attn.o_proj.weight"] = (self.width, q)
            found[at + "post_attention_layernorm.weight"] = (self.width,)
            found[at + "mlp.gate_proj.weight"] = (self.mlp_width, self.width)
            found[at + "mlp.up_proj.weight"] = (self.mlp_width, self.width)
            found[at + "mlp.down_proj.weight"] = (self.width, self.mlp_width)
        found["model.norm.weight"] = (self.width,)
        return found

    def config(self, end: int) -> dict[str, Any]:
        """The keys of a config.json that state these sizes, with `end` as the end token."""
        return {
            "hidden_act": "silu",
            "vocab_size": self.vocab,
            "hidden_size": self.width,
            "num_hidden_layers": self.layers,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.mlp_width,
            "rope_theta": self.theta,
            "rms_norm_eps": self.eps,
            "tie_word_embeddings": True,
            "max_position_embeddings": 8192,
            "eos_token_id": end,
        }


_PUBLISHED = {  # GGUF's name of each tensor of a layer
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def _gguf_name(name: str) -> str:
    if name == "model.embed_tokens.weight":
        return "token_embd.weight"
    if name == "model.norm.weight":
        return "output_norm.weight"
    _, _, index, inner = name.removesuffix(".weight").split(".", 3)
    return f"blk.{index}.{_PUBLISHED[inner]}.weight"


def carried(gguf: Path, loaded: pardec.Model | None = None) -> bytes:
    """The parts of SmolLM2's GGUF file to carry; needs the package gguf. `loaded`: the model of that file, if known."""
    import gguf as package

    import pardec
    from pardec.training.texts import OPENINGS

    loaded = loaded or pardec.load(gguf, device="cpu", dtype="float32")
    config, tokenizer = loaded.language_model.config, loaded.tokenizer
    shape = Shape(
        config["vocab_size"],
        config["hidden_size"],
        config["num_hidden_layers"],
        config["num_attention_heads"],
        config["num_key_value_heads"],
        config["head_dim"],
        config["intermediate_size"],
        config["rope_parameters"]["rope_theta"],
        config["rms_norm_eps"],
    )
    whole = tokenizer.apply_chat_template(
        [{"role": "user", "content": "\0"}], add_generation_prompt=True, tokenize=False
    )
    before, after = whole.split("\0")

    def ids(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    template = {"before": ids(before), "after": ids(after), "end": int(tokenizer.eos_token_id)}
    template |= {"mask": int(tokenizer.get_vocab()[MASK])}
    template |= {"openings": [[ids(text.rstrip()), share] for text, share in OPENINGS]}
    tensors = {tensor.name: tensor for tensor in package.GGUFReader(gguf).tensors}
    entries, blocks, at = [], [], 0
    for name in shape.names():
        tensor = tensors[_gguf_name(name)]
        content = tensor.data.tobytes()
        entries.append([name, tensor.tensor_type.name, at, len(content)])
        blocks.append(content)
        at += len(content)
    header = json.dumps({"shape": asdict(shape), "template": template, "tensors": entries}).encode()
    return struct.pack("<Q", len(header)) + header + b"".join(blocks)


def read(carried: bytes) -> tuple[Shape, dict[str, Any], dict[str, Tensor]]:
    """The shape, the chat template's ids, and the weights in float32 on the CPU, from the bytes of `smollm2.bin`."""
    content = bytearray(carried)
    (length,) = struct.unpack_from("<Q", content)
    header = json.loads(content[8 : 8 + length])
    shape = Shape(**header["shape"])
    sizes, weights = shape.names(), dict[str, Tensor]()
    for name, kind, at, count in header["tensors"]:
        block = torch.frombuffer(content, dtype=torch.uint8, count=count, offset=8 + length + at)
        weights[name] = dequantized(block, kind).view(sizes[name])
    for index in range(shape.layers):
        for part, heads in (("q_proj", shape.heads), ("k_proj", shape.kv_heads)):
            name = f"model.layers.{index}.self_attn.{part}.weight"
            weights[name] = _halves(weights[name], heads)
    return shape, header["template"], weights


def dequantized(block: Tensor, kind: str) -> Tensor:
    """The float32 values of GGUF blocks, uint8 [n]."""
    if kind == "F32":
        return block.clone().view(torch.float32)
    rows = block.view(-1, _BLOCKS[kind])
    scale = rows[:, :2].clone().view(torch.float16).float()
    if kind == "Q8_0":
        return (rows[:, 2:].clone().view(torch.int8).float() * scale).flatten()
    offset = rows[:, 2:4].clone().view(torch.float16).float()
    packed = rows[:, 4:]
    return (torch.cat([packed & 15, packed >> 4], 1).float() * scale + offset).flatten()


def _halves(weight: Tensor, heads: int) -> Tensor:
    """Reorders rows of queries and keys, which in a Llama's GGUF alternate between the two halves of a head."""
    return weight.view(heads, -1, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
