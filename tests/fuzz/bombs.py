"""Small inputs that request huge sizes: each has to be refused before anything of that size is allocated."""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from transformers import JanusForConditionalGeneration

import pardec
from pardec.images import pngs
from pardec.io.prompt_files import read_file
from tests.fuzz.mutate import DEEP, text_of
from tests.fuzz.surfaces import IDS, checkpoints
from tests.models.images.test_janus import config as janus
from tests.models.images.test_janus import processor
from tests.models.toys import llama_folder

HUGE = 10**9
SIZES = {
    "llama": ("hidden_size", "num_hidden_layers", "num_attention_heads", "head_dim", "vocab_size", "intermediate_size"),
    "llada": ("d_model", "n_layers", "n_heads", "vocab_size", "mlp_hidden_size"),
    "llamagen": ("dim", "n_layer", "n_head", "vocab_size", "ffn_hidden", "block_size", "cls_token_num"),
    "gpt2": ("n_embd", "n_layer", "n_head", "vocab_size", "n_inner"),
    "mar": ("encoder_depth", "decoder_embed_dim", "num_sampling_steps", "img_size"),
    **dict.fromkeys(
        ("dream", "sdar", "qwen2", "qwen3"),
        ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size"),
    ),
}
INNER = {  # of the parts of Janus
    "text_config": ("hidden_size", "num_hidden_layers", "vocab_size"),
    "vision_config": ("hidden_size", "num_hidden_layers", "depth"),
    "vq_config": ("num_res_blocks", "num_embeddings", "embed_dim", "base_channels"),
}


def relatives(folder: Path) -> dict[str, Path]:
    """Checkpoints of more families, checked up to the reading of tensors."""
    kinds = {"sdar": {"mask_token_id": 4, "block_size": 4}, "qwen2": {}, "qwen3": {}}
    made = {kind: llama_folder(folder / kind, model_type=kind, **more) for kind, more in kinds.items()}
    made["janus"] = folder / "janus"
    JanusForConditionalGeneration(janus()).save_pretrained(made["janus"])
    processor().save_pretrained(made["janus"])
    return made


class Bombs:
    """The inputs of this module, written to a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.made = folder, checkpoints(folder) | relatives(folder)
        self.masked, self.ar = (pardec.load(self.made[name], device="cpu") for name in ("dream", "llama"))
        self.picture = pardec.load(self.made["llamagen"], device="cpu")

    def cases(self) -> Iterator[tuple[str, Callable[[], object]]]:
        """The cases by name."""
        for kind, keys in SIZES.items():
            for key in keys:
                yield f"{kind} {key}", partial(self.config, kind, {key: HUGE})
                if kind in ("sdar", "qwen3", "dream"):
                    yield f"{kind} {key} below zero", partial(self.config, kind, {key: -1})
        for part, keys in INNER.items():
            for key in keys:
                yield f"janus {part} {key}", partial(self.inside, part, key)
        nested: dict[str, Any] = {"hidden_size": HUGE, "num_attention_heads": 1, "head_dim": HUGE}
        yield "a head as wide as the model", partial(self.config, "llama", nested)
        yield "a deep config", partial(self.config, "llama", {"rope_scaling": DEEP})
        for given in (
            {"max_new_tokens": HUGE},
            {"max_new_tokens": 2**23},
            {"seed": range(HUGE)},
            {"stop_ids": range(HUGE)},
        ):
            yield f"{given}", partial(self.masked.generate, input_ids=IDS, **given)
        yield "many new tokens", partial(self.ar.generate, "a", max_new_tokens=HUGE)
        yield "many rows of ids", partial(self.masked.generate, input_ids=range(HUGE))
        yield "many prompts", partial(self.masked.generate, range(HUGE))
        yield "many pictures", partial(self.picture.generate, label=1, num_images=HUGE, temperature=1)
        for spec in ("localleap:radius", "confident:steps", "klass:history", "origin:steps"):
            yield spec, partial(self.masked.generate, input_ids=IDS, sampler=f"{spec}={HUGE}")
        for spec in ("lookahead:window", "recycling:k", "jacobi:window", "beam:nodes", "lookup:max_ngram"):
            yield spec, partial(self.ar.generate, input_ids=IDS, sampler=f"{spec}={HUGE}")
        yield "a tree", partial(self.ar.generate, input_ids=IDS, sampler="lookahead:window=60000,ngram=60000")
        for name, read in (("deep.jsonl", read_file), ("deep.json", pardec.Result.load)):
            (self.folder / name).write_text(text_of({"prompt": DEEP}))
            yield name, partial(read, self.folder / name)
        yield "a great picture", partial(pngs.read, self.picture_of(30_000))
        yield "a picture beyond all bounds", partial(pngs.read, self.picture_of(2**31 - 1))
        yield "text of a picture", partial(pngs.read, self.picture_of(8, text=b"\0" * 2**28))

    def inside(self, part: str, key: str) -> object:
        """Loads Janus with a huge size in one of its parts."""
        whole = json.loads((self.made["janus"] / "config.json").read_text(encoding="utf-8"))
        return self.config("janus", {part: whole[part] | {key: HUGE}})

    def config(self, kind: str, changes: dict[str, Any]) -> object:
        """Loads a checkpoint with another config."""
        file = self.made[kind] / "config.json"
        whole = file.read_text(encoding="utf-8")
        file.write_text(text_of(json.loads(whole) | changes), encoding="utf-8")
        try:
            return pardec.load(self.made[kind], device="cpu")
        finally:
            file.write_text(whole, encoding="utf-8")

    def picture_of(self, side: int, text: bytes = b"{}") -> Path:
        """A PNG file of a few bytes whose header claims side x side pixels, with some text."""

        def chunk(kind: bytes, data: bytes) -> bytes:
            return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

        file = self.folder / f"{side}-{len(text)}.png"
        held = chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0))
        held += chunk(b"zTXt", pngs.KEY.encode() + b"\0\0" + zlib.compress(text))
        held += chunk(b"IDAT", zlib.compress(bytes(100)))
        file.write_bytes(b"\x89PNG\r\n\x1a\n" + held + chunk(b"IEND", b""))
        return file
