"""Writes a GGUF file with random weights: a model of any shape and tensor type, to measure memory and speed with.

    python scripts/random_gguf.py FILE.gguf --shape llada-8b [--type Q4_K_M] [--layers N] [--seed 0]

`--shape` names sizes, and `--family`, `--layers` and the like replace single ones. Blocks of quantized tensors are
random bytes, with scales for which the weights have a standard deviation of about 0.02: nothing is quantized, and one
tensor is in memory at a time, so that 8 billion weights take seconds and less than 1 GB. Q4_K_M mixes Q4_K and Q6_K
as llama.cpp does. Text is encoded byte by byte, and pardec and llama.cpp both read the file. Needs the extra `gguf`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray
from tokenizers.pre_tokenizers import ByteLevel

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from pardec.models.files.gguf.architectures import ARCHITECTURES

DEVIATION = 0.02  # standard deviation of the weights
END, MASK = "<|endoftext|>", "<|mask|>"  # ids 0 and 1; causal models have no mask
MERGE = ("z", "z")  # readers want at least one
# Byte offsets of a block's float16 scales -> their multiple of the first one, so that the weights average 0.
SCALES = {
    "Q8_0": {0: 1.0}, "Q4_0": {0: 1.0}, "Q5_0": {0: 1.0}, "IQ4_NL": {0: 1.0}, "Q6_K": {208: 1.0},
    "Q4_1": {0: 1.0, 2: -7.5}, "Q5_1": {0: 1.0, 2: -15.5}, "Q4_K": {0: 1.0, 2: 7.5}, "Q5_K": {0: 1.0, 2: 15.5},
}  # fmt: skip
TYPES = (*SCALES, "MXFP4", "F32", "F16", "BF16", "Q4_K_M")


@dataclass(frozen=True)
class Shape:
    """The sizes of a model."""

    family: str  # as `general.architecture` has it
    vocab: int
    width: int
    mlp: int
    layers: int
    heads: int
    kv_heads: int
    tied: bool = False  # whether the embedding is the head, too
    experts: int = 8  # in each layer, of families that have them; `mlp` is the inner width of one
    used: int = 2  # experts that a token takes

    @property
    def head(self) -> int:
        return self.width // self.heads


SHAPES = {
    "tiny": Shape("llada", vocab=512, width=256, mlp=512, layers=2, heads=4, kv_heads=4),
    "llada-100m": Shape("llada", vocab=10240, width=768, mlp=2048, layers=12, heads=12, kv_heads=12),
    "llada-8b": Shape("llada", vocab=126464, width=4096, mlp=12288, layers=32, heads=32, kv_heads=32),
    "dream-7b": Shape("dream", vocab=152064, width=3584, mlp=18944, layers=28, heads=28, kv_heads=4),
    "llama-1b": Shape("llama", vocab=32768, width=2048, mlp=8192, layers=16, heads=32, kv_heads=8, tied=True),
    "smollm2-135m": Shape("llama", vocab=49152, width=576, mlp=1536, layers=30, heads=9, kv_heads=3, tied=True),
}


def tensors(shape: Shape, kind: str) -> Iterator[tuple[str, tuple[int, ...], str]]:
    """Name, shape and type of each tensor, in the order of the file."""
    family, head = ARCHITECTURES[shape.family], shape.head
    queries, keys = shape.heads * head, shape.kv_heads * head
    matrices: dict[str, tuple[int, ...]] = {
        "attn_q": (queries, shape.width), "attn_k": (keys, shape.width), "attn_v": (keys, shape.width),
        "attn_output": (shape.width, queries),
    }  # fmt: skip
    stack, ending = ((shape.experts,), "_exps") if family.expert_width else ((), "")
    matrices |= {f"ffn_{part}{ending}": (*stack, shape.mlp, shape.width) for part in ("gate", "up")}
    matrices[f"ffn_down{ending}"] = (*stack, shape.width, shape.mlp)
    vectors = {"attn_norm": shape.width, "ffn_norm": shape.width}
    vectors |= {"attn_q_norm": head, "attn_k_norm": head} if family.query_norms else {}
    mixed = kind == "Q4_K_M"
    body, finer = ("Q4_K", "Q6_K") if mixed else (kind, kind)
    yield "token_embd.weight", (shape.vocab, shape.width), finer if mixed and shape.tied else body
    for layer in range(shape.layers):
        eighth = shape.layers // 8
        more = layer < eighth or layer >= 7 * eighth or (layer - eighth) % 3 == 2  # llama.cpp's choice of layers
        for name, size in vectors.items():
            yield f"blk.{layer}.{name}.weight", (size,), "F32"
        if family.expert_width:
            yield f"blk.{layer}.ffn_gate_inp.weight", (shape.experts, shape.width), "F32"
        for name, sizes in matrices.items():
            yield (
                f"blk.{layer}.{name}.weight",
                sizes,
                finer if more and name in ("attn_v", f"ffn_down{ending}") else body,
            )
            if family.qkv_bias and name in ("attn_q", "attn_k", "attn_v"):
                yield f"blk.{layer}.{name}.bias", sizes[:1], "F32"
    yield "output_norm.weight", (shape.width,), "F32"
    if not shape.tied:
        yield "output.weight", (shape.vocab, shape.width), finer


def random_blocks(rng: np.random.Generator, kind: str, count: int) -> NDArray[np.uint8]:
    """Random blocks of a quantized type, [count, bytes of a block], whose scales vary, in sign too."""
    size = gguf.GGML_QUANT_SIZES[Type[kind]][1]
    blocks = rng.integers(2**64, size=-(-count * size // 8), dtype=np.uint64).view(np.uint8)[: count * size]
    blocks = blocks.reshape(count, size)
    if kind == "MXFP4":
        blocks[:, 0] = rng.integers(119, 121, size=count)  # powers of two
        return blocks
    scales = rng.uniform(0.5, 1.5, size=count) * rng.choice([-1.0, 1.0], size=count) * scale_of(kind)
    for offset, multiple in SCALES[kind].items():
        blocks[:, offset : offset + 2] = (scales * multiple).astype("<f2").view(np.uint8).reshape(count, 2)
    return blocks


def scale_of(kind: str) -> float:
    """The mean scale of a block, for which the weights have the wanted deviation."""
    if kind not in _scales:
        _scales[kind] = 2.0**-10  # a first guess, which float16 holds for all types
        blocks = random_blocks(np.random.default_rng(0), kind, 4096)
        _scales[kind] *= DEVIATION / float(gguf.quants.dequantize(blocks, Type[kind]).std())
    return _scales[kind]


_scales: dict[str, float] = {}


def random_tensor(rng: np.random.Generator, name: str, shape: tuple[int, ...], kind: str) -> NDArray[Any]:
    """The content of one tensor; of a quantized one, its bytes by row."""
    if kind in SCALES or kind == "MXFP4":
        block = gguf.GGML_QUANT_SIZES[Type[kind]][0]
        return random_blocks(rng, kind, int(np.prod(shape)) // block).reshape(shape[0], -1)
    values = rng.standard_normal(shape, dtype=np.float32) * np.float32(0.1 if "norm" in name else DEVIATION)
    if "norm" in name:
        return values + np.float32(1)
    return values if kind == "F32" else gguf.quants.quantize(values, Type[kind])


def metadata(shape: Shape, name: str) -> dict[str, Any]:
    """The fields of the header, the tokenizer's included."""
    family = ARCHITECTURES[shape.family]
    sizes = {
        "block_count": shape.layers, "context_length": 4096, "embedding_length": shape.width,
        "feed_forward_length": shape.mlp, "attention.head_count": shape.heads,
        "attention.head_count_kv": shape.kv_heads, "attention.key_length": shape.head,
        "attention.value_length": shape.head, "rope.dimension_count": shape.head, "vocab_size": shape.vocab,
        "attention.layer_norm_rms_epsilon": 1e-5, "rope.freq_base": 500000.0,
    }  # fmt: skip
    if family.expert_width:
        sizes |= {"expert_count": shape.experts, "expert_used_count": shape.used}
        sizes["expert_feed_forward_length"] = shape.mlp
    values: dict[str, Any] = {f"{shape.family}.{key}": value for key, value in sizes.items()}
    if not family.causal:
        values |= {f"{shape.family}.attention.causal": False, "diffusion.shift_logits": bool(family.shift)}
        values["tokenizer.ggml.mask_token_id"] = 1
    special = [END] if family.causal else [END, MASK]
    known = [*special, *sorted(ByteLevel.alphabet()), "".join(MERGE)]
    tokens = [*known, *(f"<{i}>" for i in range(len(known), shape.vocab))]
    return {"general.name": name} | values | {
        "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "gpt-2", "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * len(special) + [1] * (len(tokens) - len(special)),
        "tokenizer.ggml.merges": [" ".join(MERGE)], "tokenizer.ggml.bos_token_id": 0,
        "tokenizer.ggml.eos_token_id": 0, "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": "{% for message in messages %}{{ message['content'] }}{% endfor %}",
    }  # fmt: skip


def write(file: Path, shape: Shape, kind: str, seed: int = 0) -> None:
    """Writes the file, tensor by tensor.

    Raises:
        ValueError: the sizes do not fit each other or the type.
    """
    least = 2 + len(ByteLevel.alphabet()) + 1
    if shape.vocab < least:
        raise ValueError(f"a vocabulary of {shape.vocab} is too small: bytes and special tokens take {least}")
    if shape.width % shape.heads or shape.heads % shape.kv_heads or shape.head % 2:
        raise ValueError(f"width {shape.width}, {shape.heads} heads and {shape.kv_heads} KV heads do not fit")
    placed = list(tensors(shape, kind))
    for name, sizes, own in placed:
        block = gguf.GGML_QUANT_SIZES[Type[own]][0]
        if sizes[-1] % block:
            raise ValueError(f"{own} stores {block} values at a time, and rows of {name} have {sizes[-1]}")
    writer = gguf.GGUFWriter(file, shape.family)
    for key, value in metadata(shape, file.stem).items():
        add = {str: writer.add_string, bool: writer.add_bool, int: writer.add_uint32, float: writer.add_float32}
        add.get(type(value), writer.add_array)(key, value)
    for name, sizes, own in placed:
        block, size = gguf.GGML_QUANT_SIZES[Type[own]]
        writer.add_tensor_info(name, sizes, np.dtype(np.float32), int(np.prod(sizes)) // block * size, Type[own])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for index, (name, sizes, own) in enumerate(placed):
        rng = np.random.Generator(np.random.SFC64([seed, index]))
        writer.write_tensor_data(random_tensor(rng, name, sizes, own))
    writer.close()


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("file", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="llada-100m")
    parser.add_argument("--type", choices=TYPES, default="Q4_K_M", help="type of all matrices")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--family", choices=ARCHITECTURES)
    for field in fields(Shape):
        if field.type == "int":
            parser.add_argument("--" + field.name.replace("_", "-"), type=int)
    parser.add_argument("--tied", action=argparse.BooleanOptionalAction, help="one tensor is embedding and head")
    options = parser.parse_args()
    given = {field.name: getattr(options, field.name) for field in fields(Shape)}
    shape = replace(SHAPES[options.shape], **{name: value for name, value in given.items() if value is not None})
    try:
        write(options.file, shape, options.type, options.seed)
    except ValueError as error:
        parser.error(str(error))
    print(f"{options.file}: {options.file.stat().st_size / 1e6:,.1f} MB", file=sys.stderr)


if __name__ == "__main__":
    main()
