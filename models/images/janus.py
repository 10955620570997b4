"""Janus and Janus-Pro, run through transformers: images of captions, from a language model that also reads text.

Janus-Pro: Unified Multimodal Understanding and Generation with Data and Model Scaling, https://arxiv.org/abs/2501.17811

    code's input    aligner(embedding(code)), a row of a table of its own; its logits come from a head of their own
    caption         the chat-templated prompt up to <begin_of_image>, through the text embedding
    unconditional   the same ids, all but the first-of-text and <begin_of_image> replaced by the padding token

The padding is attended to like any token: an unconditional row's prefix is as long as its caption.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import finite
from ..errors import ModelError, one_line
from ..files.sources import Source
from ..files.tokenizers import require_vocabulary
from ..hf.causal_lm import Parts
from ..hf.hf_logging import silence
from ..loading.decoding_config import first
from .captioned import generation_defaults, sampling_arguments
from .conditioned import Prefix
from .contracts import CodeImaging, Condition, ImageLayout, OneSize
from .pixel_range import pixel_range

_DEFAULTS: Mapping[str, Any] = {"temperature": 1.0, "cfg": 5.0}  # the authors', if the generation config has none


class JanusImaging(OneSize):
    """The image interface of one checkpoint; `model` is transformers' own, `processor` tokenizes captions."""

    kind: Literal["text"] = "text"
    classes = 0
    can_decode = True

    def __init__(self, model: Any, processor: Any, name: str) -> None:
        """Raises ModelError for a checkpoint without a token that ends a caption, or a padding token."""
        self.model, self.processor, self.name = model, processor, name
        settings, tokenizer = model.generation_config, processor.tokenizer
        extra = getattr(settings, "generation_kwargs", None) or {}
        begin = extra.get("boi_token_id")
        if begin is None:
            begin = tokenizer.convert_tokens_to_ids(processor.image_start_token)
        opening = first(settings.bos_token_id, tokenizer.bos_token_id)
        pad = first(settings.pad_token_id, tokenizer.pad_token_id)
        if begin is None or pad is None:
            raise ModelError(
                f"{name} names no {'padding' if pad is None else '<begin_of_image>'} token",
                "generation_config.json needs pad_token_id, and generation_kwargs with boi_token_id",
            )
        if not 0 <= pad < (size := model.get_input_embeddings().num_embeddings):
            raise ModelError(f"pad_token_id of {name} is {pad}, and its vocabulary has {size} ids")
        self.pad, self.special = pad, [token for token in (opening, begin) if token is not None]
        side, tokens = model.model.vqmodel.config.num_patches, model.model.vision_model.config.num_image_tokens
        if side * side != tokens:
            raise ModelError(f"{name} has {tokens} tokens per image, and its image tokenizer decodes {side}x{side}")
        self.layout = ImageLayout(side, side)
        self.range = pixel_range(vars(processor.image_processor), f"the image processor of {name}")

    @property
    def defaults(self) -> Mapping[str, Any]:
        return {**_DEFAULTS, **sampling_arguments(vars(self.model.generation_config))}

    @property
    def codebook(self) -> Tensor:
        return F.normalize(self.model.model.vqmodel.quantize.embedding.weight.float(), dim=-1)

    @property
    def weights(self) -> Mapping[str, Tensor]:
        return {}

    @property
    def downsample(self) -> int:
        return int(2 ** (len(self.model.model.vqmodel.config.channel_multiplier) - 1))

    @torch.inference_mode()
    def prefix(self, conditions: Sequence[Condition]) -> Prefix:
        table = self.model.get_input_embeddings()
        cond, uncond = [], []
        for row, condition in enumerate(conditions):
            ids = self.ids(condition.own_caption(self.name, row)).to(table.weight.device)
            special = torch.isin(ids, torch.tensor(self.special, device=ids.device))
            cond.append(table(ids))
            nothing = ids.where(special, self.pad)
            away = nothing if condition.negative is None else self.ids(condition.negative).to(ids.device)
            uncond.append(table(away))
        finite.conditioning(self.name, (*cond, *uncond), self.model)
        return Prefix(tuple(cond), tuple(uncond))

    def ids(self, caption: str) -> Tensor:
        """[P] int64: the prompt of a caption as the library's processor makes it, up to <begin_of_image>."""
        messages = [{"role": "user", "content": [{"type": "text", "text": caption}]}]
        try:
            prompt = self.processor.apply_chat_template(messages, add_generation_prompt=True)
        except Exception as error:  # a template is a program
            raise ModelError(
                f"the chat template of {self.name} cannot be used: {one_line(error)}", "fetch chat_template.jinja again"
            ) from error
        opening = self.processor.tokenizer.bos_token
        once = {"add_special_tokens": False} if opening and prompt.startswith(opening) else {}
        inputs = self.processor(text=prompt, generation_mode="image", return_tensors="pt", **once)
        ids: Tensor = inputs["input_ids"][0]
        return ids

    @torch.inference_mode()
    def decode(self, codes: Tensor) -> Tensor:
        vq = self.model.model.vqmodel
        pixels: Tensor = vq.decode(codes.flatten(1).to(vq.quantize.embedding.weight.device)).float()
        mean, deviation = (each.to(pixels.device)[:, None, None] for each in self.range)
        return finite.pixels(self.name, pixels * (2 * deviation) + (2 * mean - 1), vq)


def prepare(source: Source) -> Callable[[Any], tuple[Parts, CodeImaging]]:
    """A function that makes the parts and the image interface of transformers' model, once it is loaded.

    Raises ModelError, before weights are read, for a folder without a processor.
    """
    processor = _processor(source.folder, source.name)
    return lambda model: (parts(model), JanusImaging(model, processor, source.name))


def defaults(source: Source, config: Mapping[str, Any]) -> dict[str, Any]:
    """Sampling defaults in generation_config.json; for the others, the authors' values."""
    return {**_DEFAULTS, **generation_defaults(source.folder)}


def parts(model: Any) -> Parts:
    """The modules of a JanusForConditionalGeneration that image codes run through."""
    inner = model.model
    body, count = inner.language_model, inner.generation_embeddings.num_embeddings

    @torch.no_grad()
    def table() -> Tensor:
        every = torch.arange(count, device=inner.generation_embeddings.weight.device)
        states: Tensor = model.prepare_embeddings_for_image_generation(every)
        return states

    first = table()
    embed = nn.Embedding(count, first.shape[1], device="meta")
    embed.weight = nn.Parameter(first, requires_grad=False)

    def own(ids: Tensor) -> Tensor:
        states = model.prepare_embeddings_for_image_generation(ids)
        logits: Tensor = inner.generation_head(body(inputs_embeds=states, use_cache=False).last_hidden_state)
        return logits

    return Parts(body, embed, inner.generation_head, count, own, lambda: embed.weight.copy_(table()))


def _processor(folder: Path, name: str) -> Any:
    from transformers import JanusProcessor

    try:
        with silence():
            processor = JanusProcessor.from_pretrained(folder, local_files_only=True)
        require_vocabulary(folder, processor.tokenizer)
    except Exception as error:  # tokenizers and configs each fail in their own way
        raise ModelError(
            f"{name} has no usable processor: {one_line(error)}",
            "its folder needs processor_config.json or preprocessor_config.json, and the files of its tokenizer",
        ) from error
    if not getattr(processor, "chat_template", None):
        raise ModelError(f"the processor of {name} has no chat template", "add chat_template.jinja to its folder")
    return processor
