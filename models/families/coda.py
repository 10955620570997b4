"""CoDA: Qwen3's stack and names, bidirectional, predictions shifted by one.

Its config.json leaves out what equals the defaults of the authors' class, which are not those of Qwen3. Their attention
is bidirectional in the kernel named flash_attention alone.
"""

from __future__ import annotations

from dataclasses import replace

from .base import FamilySpec, register
from .llama_like import HARMLESS, NAMES, QWEN3_KEYS, both_ways, shape

_DEFAULTS = {
    "vocab_size": 151936, "head_dim": 128, "hidden_size": 2048, "intermediate_size": 6144, "num_attention_heads": 16,
    "num_hidden_layers": 28, "num_key_value_heads": 8, "max_position_embeddings": 40960, "tie_word_embeddings": True,
    "rope_theta": 1000000,
}  # fmt: skip


CODA = register(
    FamilySpec(
        name="coda",
        summary="CoDA",
        matches=lambda config: config.get("model_type") == "CoDA",
        decoder=lambda config: shape(config, "qwen3", qk_norm=True),
        names=NAMES,
        attention="bidirectional",
        shift=1,
        keys=replace(
            both_ways(QWEN3_KEYS).also(
                attention_kernel=("flash_attention", None), rope_scaling=(None,), use_sliding_window=(False, None)
            ),
            defaults=_DEFAULTS,
        ),
        mask=(151669, "<|mask|>"),
        turn_ends={151645: "<|im_end|>"},
        harmless=HARMLESS,
    )
)
