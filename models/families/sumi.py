"""Sumi: Llama's stack and names, bidirectional, its softmax with a sink; trained on uniform noise, without masks.

Sumi: Open Uniform Diffusion Language Model from Scratch, https://arxiv.org/abs/2606.19005

Tensor names, attention, biases and defaults are those of modeling_sumi.py in tohoku-nlp/sumi-7b, and the keys those of
its config.json (of which a second implementation names the values). Not confirmed: model_type, for which "sumi" is
taken; the architecture, SumiForMaskGeneration, is confirmed, and either one is enough. A key that neither file is known
to have is refused.
"""

from __future__ import annotations

from dataclasses import replace

from ..decoder_config import DecoderConfig
from .base import Config, FamilySpec, architecture, register
from .llama_like import HARMLESS, LLAMA_LIKE, NAMES, both_ways, shape

CANVAS = 2048  # tokens of a published canvas, the prompt among them
_NO_EFFECT = (
    *("model_type", "architectures", "auto_map", "dtype", "torch_dtype", "transformers_version", "_name_or_path"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "use_cache", "initializer_range", "attention_dropout"),
    *("uniform_diffusion_beta_is", "uniform_diffusion_z_loss_strength"),  # parameters of the training loss
    *("is_encoder_decoder", "id2label", "label2id", "problem_type", "chunk_size_feed_forward"),
    *("output_attentions", "output_hidden_states", "return_dict", "quantization_config"),
)


def _decoder(config: Config) -> DecoderConfig:
    """Llama's, whose defaults are Sumi's; `add_qkv_bias` adds biases to queries, keys and values alone."""
    biased = bool(config.pop("add_qkv_bias", False))
    made = shape(config, "llama")
    return replace(made, attention_sink=True, qkv_bias=made.qkv_bias or biased)


SUMI = register(
    FamilySpec(
        name="sumi",
        summary="Sumi",
        matches=lambda config: config.get("model_type") == "sumi" or architecture(config) == "SumiForMaskGeneration",
        decoder=_decoder,
        names=NAMES,
        attention="bidirectional",
        shift=0,
        keys=replace(
            both_ways(LLAMA_LIKE).also("attention_bias", "mlp_bias", "add_qkv_bias"), ignored=frozenset(_NO_EFFECT)
        ),
        uniform=True,
        anchored=True,
        block=CANVAS,
        harmless=HARMLESS,
    )
)
