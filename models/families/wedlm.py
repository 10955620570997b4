"""WeDLM: Qwen2.5's or Qwen3's stack and names, causal over known tokens first and masks after (arXiv:2512.22737).

Both flags of the config are read: `attention_bias` (7B) and `qk_norm` (8B). Predictions are at their own position.
Biases and the size of a head that a config leaves out are those of the authors' class, not Qwen3's.
"""

from __future__ import annotations

from dataclasses import replace

from ..decoder_config import DecoderConfig
from .base import Config, FamilySpec, register
from .experts import whole
from .llama_like import HARMLESS, NAMES, QWEN3_KEYS, both_ways, shape


def _decoder(config: Config) -> DecoderConfig:
    head_dim = config.get("head_dim") or whole(config, "hidden_size") // whole(config, "num_attention_heads")
    biased, normed = bool(config["attention_bias"]), bool(config.get("qk_norm"))
    return shape({**config, "head_dim": head_dim}, "qwen3", qkv_bias=biased, qk_norm=normed)


WEDLM = register(
    FamilySpec(
        name="wedlm",
        summary="WeDLM",
        matches=lambda config: config.get("model_type") == "wedlm",
        decoder=_decoder,
        names=NAMES,
        attention="windowed-causal",
        shift=0,
        keys=replace(
            both_ways(QWEN3_KEYS).also("qk_norm", use_sliding_window=(False, None)), defaults={"attention_bias": True}
        ),
        mask=(151665, "<|mask|>"),
        turn_ends={151645: "<|im_end|>"},
        harmless=HARMLESS,
    )
)
