"""LlamaGen's image interface: class embeddings or projected captions before the tokens, and its VQ tokenizer.

Autoregressive Model Beats Diffusion: Llama for Scalable Image Generation, https://arxiv.org/abs/2406.06525

    class:    one state, row `label` of a table;             unconditional: the table's last row
    caption:  fc2(gelu(fc1(x))), x a text encoder's output;  unconditional: learned x at the same positions

A published caption fills 120 positions from the right, and nothing attends to the padding before it. As the rotary
tables are zero there, positions do not matter either: here the padding is left out.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .. import finite
from ..errors import ModelError
from ..families.config_files import agree, sampling
from ..families.llamagen import CONDITION, side
from ..files.sources import Source
from ..files.weights import read
from .captions import FLAN_T5_XL, TextEncoder, encoder_name
from .conditioned import Prefix
from .contracts import Condition, ImageLayout, ImagingParts, OneSize
from .vq import PATTERNS, VQ, find_vq, load_vq
from .weight_files import only_file


class Classes(nn.Module):
    """The embedding table of classes; its last row is the unconditional one."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.count, self.embedding_table = count, nn.Embedding(count + 1, width)

    def forward(self, labels: Tensor) -> Tensor:
        """Labels [...] to states [..., E]."""
        states: Tensor = self.embedding_table(labels)
        return states


class Captions(nn.Module):
    """The projection of a text encoder's output, and its learned unconditional input."""

    def __init__(self, length: int, features: int, width: int) -> None:
        super().__init__()
        self.width = width
        self.cap_proj = nn.ModuleDict(
            {"fc1": nn.Linear(features, width, bias=False), "fc2": nn.Linear(width, width, bias=False)}
        )
        self.uncond_embedding = nn.Parameter(torch.empty(length, features).normal_(std=features**-0.5))

    def forward(self, features: Tensor) -> Tensor:
        """Features [..., D] to states [..., E]."""
        states: Tensor = self.cap_proj["fc2"](F.gelu(self.cap_proj["fc1"](features), approximate="tanh"))
        return states


class LlamaGenImaging(OneSize):
    """The image interface of one LlamaGen checkpoint."""

    def __init__(
        self,
        embedder: Classes | Captions,
        side: int,
        *,
        encode: Callable[[Sequence[str]], list[Tensor]] | None = None,
        vq_file: Path | None = None,
        defaults: Mapping[str, Any] | None = None,
        name: str = "this model",
    ) -> None:
        """`encode` turns captions into features [n, D] each; `vq_file` holds the tokenizer, loaded on first use."""
        self.embedder, self.side, self.encode, self.vq_file = embedder, side, encode, vq_file
        self.defaults = dict(defaults or {})
        self.name = name
        self._vq: VQ | None = None

    @property
    def kind(self) -> Literal["class", "text"]:
        return "class" if isinstance(self.embedder, Classes) else "text"

    @property
    def layout(self) -> ImageLayout:
        return ImageLayout(self.side, self.side)

    @property
    def classes(self) -> int:
        return self.embedder.embedding_table.num_embeddings - 1 if isinstance(self.embedder, Classes) else 0

    @property
    def can_decode(self) -> bool:
        return self.vq_file is not None

    @property
    def codebook(self) -> Tensor | None:
        return None if self.vq_file is None else self.vq.rows()

    @property
    def weights(self) -> Mapping[str, Tensor]:
        return {CONDITION + name: weight for name, weight in self.embedder.named_parameters()}

    @property
    def vq(self) -> VQ:
        """The tokenizer, on the device of the model. Raises ModelError where there is none."""
        if self._vq is None:
            if self.vq_file is None:
                raise ModelError(
                    f"{self.name} has no image tokenizer, so its codes cannot be decoded",
                    'load it with decoder="vq_ds16_c2i.pt" (or vq_ds16_t2i.pt), or put that file beside the weights',
                )
            self._vq = load_vq(self.vq_file).to(next(self.embedder.parameters()).device)
        return self._vq

    @property
    def downsample(self) -> int:
        return self.vq.shape.downsample

    @torch.inference_mode()
    def prefix(self, conditions: Sequence[Condition]) -> Prefix:
        if isinstance(self.embedder, Classes):
            prefix = self._of_classes(self.embedder, conditions)
        else:
            prefix = self._of_captions(self.embedder, conditions)
        finite.conditioning(self.name, (*prefix.cond, *(prefix.uncond or ())), self.embedder)
        return prefix

    @torch.inference_mode()
    def decode(self, codes: Tensor) -> Tensor:
        vq = self.vq
        return finite.pixels(self.name, vq.decode(codes.to(next(vq.parameters()).device)), vq)

    def _of_classes(self, table: Classes, conditions: Sequence[Condition]) -> Prefix:
        labels = []
        for row, condition in enumerate(conditions):
            if condition.label is None:
                raise ModelError(f"row {row} has no class, and {self.name} takes classes", "pass label=")
            if not 0 <= condition.label < self.classes:
                raise ModelError(
                    f"class {condition.label} of row {row} is not one of the {self.classes} classes",
                    "classes are counted from 0",
                )
            labels.append(condition.label)
        device = table.embedding_table.weight.device
        states = table(torch.tensor([labels, [self.classes] * len(labels)], device=device))
        return Prefix(tuple(states[0][:, None]), tuple(states[1][:, None]))

    def _of_captions(self, captions: Captions, conditions: Sequence[Condition]) -> Prefix:
        weight = captions.uncond_embedding
        texts = {row: each.text for row, each in enumerate(conditions) if each.features is None}
        for row, text in texts.items():
            if text is None:
                raise ModelError(f"row {row} has no caption, and {self.name} takes captions", "pass a prompt")
        negatives = {row: each.negative for row, each in enumerate(conditions) if each.negative is not None}
        if texts and self.encode is None:
            raise ModelError(
                f"{self.name} has no text encoder, so it cannot encode captions",
                'load it with text_encoder="google/flan-t5-xl", or pass its output: prompt_embeds=',
            )
        if negatives and self.encode is None:
            raise ModelError(f"{self.name} has no text encoder, so it cannot encode a negative prompt", "leave it out")
        encoded, negative = (
            dict(zip(rows, self.encode([str(text) for text in rows.values()]), strict=True)) if self.encode else {}
            for rows in (texts, negatives)
        )
        cond, uncond = [], []
        for row, condition in enumerate(conditions):
            features = condition.features if condition.features is not None else encoded[row]
            if features.ndim != 2 or features.shape[1] != weight.shape[1] or not 1 <= len(features) <= len(weight):
                raise ModelError(
                    f"features of row {row} have the shape {list(features.shape)}",
                    f"{self.name} needs [n, {weight.shape[1]}] with n from 1 to {len(weight)}",
                )
            positions = condition.positions
            if positions is None:
                positions = torch.arange(len(weight) - len(features), len(weight))
            cond.append(captions(features.to(weight)))
            nothing = weight[positions.to(weight.device)]
            uncond.append(captions(negative[row].to(weight) if row in negative else nothing))
        return Prefix(tuple(cond), tuple(uncond))


def embedder(tensors: Mapping[str, Tensor]) -> Classes | Captions:
    """The module of the published `cls_embedding.*` tensors. Raises ModelError for others."""
    own = {name.removeprefix(CONDITION): value for name, value in tensors.items() if name.startswith(CONDITION)}
    module: Classes | Captions
    try:
        if "embedding_table.weight" in own:
            rows, width = own["embedding_table.weight"].shape
            module = Classes(rows - 1, width)
        else:
            width, features = own["cap_proj.fc1.weight"].shape
            module = Captions(own["uncond_embedding"].shape[0], features, width)
        module.load_state_dict(own)
    except (KeyError, ValueError, RuntimeError) as error:
        raise ModelError(f"{CONDITION}* is neither a table of classes nor a projection of captions: {error}") from error
    return module.eval().requires_grad_(False)


def build(parts: ImagingParts) -> LlamaGenImaging:
    """The image interface of a LlamaGen checkpoint."""
    own: dict[str, Tensor] = {}
    read({name: entry for name, entry in parts.published.items() if name.startswith(CONDITION)}, own.__setitem__)
    module = embedder({name: tensor.clone() for name, tensor in own.items()}).to(parts.device, parts.dtype)
    agree(parts.source.folder, parts.config, _read_off(module))
    name = parts.source.name
    if isinstance(module, Classes) and parts.config.get("class_dropout_prob") == 0:
        raise ModelError(f"class_dropout_prob is 0 in the config of {name}: its table has no unconditional row")
    vq_file = tokenizer_file(parts)
    imaging = LlamaGenImaging(
        module,
        side(parts.config),
        encode=_encoder(parts, module) if isinstance(module, Captions) else None,
        vq_file=vq_file,
        defaults=defaults(parts.source, parts.config),
        name=name,
    )
    if vq_file is not None:
        imaging.vq.check_vocabulary(parts.vocab, name)
    return imaging


def defaults(source: Source, config: Mapping[str, Any]) -> dict[str, Any]:
    """The sampling defaults in generation_config.json; the authors state none for all checkpoints."""
    return sampling(source.folder)


def _read_off(module: Classes | Captions) -> dict[str, Any]:
    """The arguments of a configuration that the tensors of the condition state."""
    if isinstance(module, Classes):
        count, width = module.count, module.embedding_table.weight.shape[1]
        kind = {"gpt_type": "c2i", "dim": width, "cls_token_num": 1}
        return kind | dict.fromkeys(("num_classes", "class_num"), count)
    length, features = module.uncond_embedding.shape
    return {"gpt_type": "t2i", "dim": module.width, "cls_token_num": length, "caption_dim": features}


def _encoder(parts: ImagingParts, captions: Captions) -> TextEncoder | None:
    """The text encoder. Captions are cleaned if the config's `clean_captions` says so, else for published encoders."""
    length, features = captions.uncond_embedding.shape
    name = encoder_name(parts.source.folder, parts.text_encoder or parts.config.get("text_encoder"), features)
    if name is None:
        return None
    clean = parts.config.get("clean_captions")
    if clean is None:
        clean = features == FLAN_T5_XL[1]
    return TextEncoder(name, most=length, device=parts.device, dtype=parts.dtype, offline=parts.offline, clean=clean)


def tokenizer_file(parts: ImagingParts) -> Path | None:
    """The image tokenizer's file: the one that the caller or the config names, or the one with the weights."""
    named = parts.decoder or parts.config.get("image_tokenizer")
    if named is not None:
        return find_vq(named)
    return only_file(parts.source.folder, PATTERNS)
