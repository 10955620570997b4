"""SDLM: Qwen2's stack and names, a window of masks after causal text, predictions shifted by one (arXiv:2509.24007).

It is published as `qwen2`: `text_mask_token_id` in its config tells it apart.
"""

from __future__ import annotations

from ..decoder_config import DecoderConfig
from ..errors import ModelError
from .base import Config, FamilySpec, register
from .llama_like import HARMLESS, NAMES, QWEN2_KEYS, both_ways, shape


def _decoder(config: Config) -> DecoderConfig:
    if config.pop("causal_attn", None):
        raise ModelError(
            "causal_attn=true in config.json: windows whose masks see only what is before them are not supported",
            "to decode it token by token, remove text_mask_token_id in a copy of the checkpoint",
        )
    return shape(config, "qwen2", qkv_bias=True)


SDLM = register(
    FamilySpec(
        name="sdlm",
        summary="SDLM",
        matches=lambda config: config.get("model_type") == "qwen2" and config.get("text_mask_token_id") is not None,
        decoder=_decoder,
        names=NAMES,
        attention="causal-prefix",
        shift=1,
        keys=both_ways(QWEN2_KEYS).also("causal_attn", use_sliding_window=(False, None)),
        mask=(151665, "<text_mask>"),
        turn_ends={151645: "<|im_end|>"},
        block=4,
        block_in_name=r"-D(\d+)(?![\d.])",
        harmless=HARMLESS,
    )
)
