"""LlamaGen's picture side: class embeddings or projected captions before the cells, and its VQ tokenizer behind them.

Autoregressive Model Beats Diffusion: Llama for Scalable Image Generation, https://arxiv.org/abs/2406.06525

    class:    one state, row `label` of a table;             nothing said: the table's last row
    caption:  fc2(gelu(fc1(x))), x a text encoder's output;  nothing said: learned x of the same places

A published caption fills 120 places from the right, and what lies before it is seen by nothing. As the rotary tables
are zero there, places do not matter either: here the padding is left out.
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
from ..families.llamagen import CONDITION, side
from ..loading.catalog import EMBEDDED, embedded_names
from ..loading.sources import read_json
from ..loading.weights import read
from .captions import TextEncoder
from .conditioned import Prefix
from .contracts import Condition, Layout, Picturing
from .vq import VQ
from .vq_files import PATTERNS, find_vq, load_vq

_T5 = ("google/flan-t5-xl", 2048)  # what the published checkpoints read captions with, and how wide it is


class Classes(nn.Module):
    """A table of classes; its last row is for none."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.embedding_table = nn.Embedding(count + 1, width)

    def forward(self, labels: Tensor) -> Tensor:
        """Labels [...] to states [..., E]."""
        made: Tensor = self.embedding_table(labels)
        return made


class Captions(nn.Module):
    """The projection of a text encoder's output, and what it is given where nothing is said."""

    def __init__(self, places: int, features: int, width: int) -> None:
        super().__init__()
        self.cap_proj = nn.ModuleDict(
            {"fc1": nn.Linear(features, width, bias=False), "fc2": nn.Linear(width, width, bias=False)}
        )
        self.uncond_embedding = nn.Parameter(torch.empty(places, features).normal_(std=features**-0.5))

    def forward(self, features: Tensor) -> Tensor:
        """Features [..., D] to states [..., E]."""
        made: Tensor = self.cap_proj["fc2"](F.gelu(self.cap_proj["fc1"](features), approximate="tanh"))
        return made


class LlamaGenImaging:
    """The picture side of one LlamaGen checkpoint."""

    def __init__(
        self,
        embedder: Classes | Captions,
        side: int,
        *,
        read: Callable[[Sequence[str]], list[Tensor]] | None = None,
        vq_file: Path | None = None,
        defaults: Mapping[str, Any] | None = None,
        name: str = "this model",
    ) -> None:
        """`read` turns captions into features [n, D] each; `vq_file` holds the tokenizer, read when it is needed."""
        self.embedder, self.side, self.read, self.vq_file = embedder, side, read, vq_file
        self.defaults = dict(defaults or {})
        self.name = name
        self._vq: VQ | None = None

    @property
    def kind(self) -> Literal["class", "text"]:
        return "class" if isinstance(self.embedder, Classes) else "text"

    @property
    def layout(self) -> Layout:
        return Layout(self.side, self.side)

    @property
    def classes(self) -> int:
        return self.embedder.embedding_table.num_embeddings - 1 if isinstance(self.embedder, Classes) else 0

    @property
    def drawable(self) -> bool:
        return self.vq_file is not None

    @property
    def codebook(self) -> Tensor | None:
        return None if self.vq_file is None else self.vq.rows()

    @property
    def vq(self) -> VQ:
        """The tokenizer, on the device of the model. Raises ModelError where there is none."""
        if self._vq is None:
            if self.vq_file is None:
                raise ModelError(
                    f"{self.name} has no image tokenizer, so its codes cannot be drawn",
                    'load it with decoder="vq_ds16_c2i.pt" (or vq_ds16_t2i.pt), or put that file beside the weights',
                )
            self._vq = load_vq(self.vq_file).to(next(self.embedder.parameters()).device)
        return self._vq

    @property
    def cell(self) -> int:
        return self.vq.shape.downsample

    @torch.inference_mode()
    def prefix(self, conditions: Sequence[Condition]) -> Prefix:
        if isinstance(self.embedder, Classes):
            made = self._of_classes(self.embedder, conditions)
        else:
            made = self._of_captions(self.embedder, conditions)
        finite.conditions(self.name, (*made.states, *(made.without or ())), self.embedder)
        return made

    @torch.inference_mode()
    def decode(self, codes: Tensor) -> Tensor:
        vq = self.vq
        return finite.pixels(self.name, vq.decode(codes.to(next(vq.parameters()).device)), vq)

    def _of_classes(self, table: Classes, conditions: Sequence[Condition]) -> Prefix:
        labels = []
        for row, condition in enumerate(conditions):
            if condition.label is None:
                raise ModelError(f"row {row} has no class, and {self.name} draws classes", "pass label=")
            if not 0 <= condition.label < self.classes:
                raise ModelError(f"class {condition.label} of row {row} is none of {self.classes}", "they count from 0")
            labels.append(condition.label)
        device = table.embedding_table.weight.device
        states = table(torch.tensor([labels, [self.classes] * len(labels)], device=device))
        return Prefix(tuple(states[0][:, None]), tuple(states[1][:, None]))

    def _of_captions(self, captions: Captions, conditions: Sequence[Condition]) -> Prefix:
        weight = captions.uncond_embedding
        unread = [row for row, condition in enumerate(conditions) if condition.features is None]
        texts = [conditions[row].text for row in unread]
        for row, text in zip(unread, texts, strict=True):
            if text is None:
                raise ModelError(f"row {row} has no caption, and {self.name} draws captions", "pass a prompt")
        if texts and self.read is None:
            raise ModelError(
                f"{self.name} has no text encoder, so it cannot read captions",
                'load it with text_encoder="google/flan-t5-xl", or pass what the encoder made: prompt_embeds=',
            )
        made = dict(zip(unread, self.read([text or "" for text in texts]), strict=True)) if texts and self.read else {}
        away = [row for row, condition in enumerate(conditions) if condition.negative is not None]
        if away and self.read is None:
            raise ModelError(f"{self.name} has no text encoder, so it cannot read a negative prompt", "leave it out")
        negatives = [str(conditions[row].negative) for row in away]
        avoided = dict(zip(away, self.read(negatives), strict=True)) if self.read and away else {}
        said, unsaid = [], []
        for row, condition in enumerate(conditions):
            features = condition.features if condition.features is not None else made[row]
            if features.ndim != 2 or features.shape[1] != weight.shape[1] or not 1 <= len(features) <= len(weight):
                raise ModelError(
                    f"features of row {row} are {list(features.shape)}",
                    f"{self.name} takes 1 to {len(weight)} of {weight.shape[1]} numbers",
                )
            places = condition.places
            if places is None:
                places = torch.arange(len(weight) - len(features), len(weight))
            said.append(captions(features.to(weight)))
            nothing = weight[places.to(weight.device)]
            unsaid.append(captions(avoided[row].to(weight) if row in avoided else nothing))
        return Prefix(tuple(said), tuple(unsaid))


def embedder(tensors: Mapping[str, Tensor]) -> Classes | Captions:
    """The module that the published `cls_embedding.*` tensors are of. Raises ModelError for others."""
    own = {name.removeprefix(CONDITION): value for name, value in tensors.items() if name.startswith(CONDITION)}
    made: Classes | Captions
    try:
        if "embedding_table.weight" in own:
            rows, width = own["embedding_table.weight"].shape
            made = Classes(rows - 1, width)
        else:
            width, features = own["cap_proj.fc1.weight"].shape
            made = Captions(own["uncond_embedding"].shape[0], features, width)
        made.load_state_dict(own)
    except (KeyError, ValueError, RuntimeError) as error:
        raise ModelError(f"{CONDITION}* is neither a table of classes nor a projection of captions: {error}") from error
    return made.eval().requires_grad_(False)


def build(given: Picturing) -> LlamaGenImaging:
    """The picture side of a LlamaGen checkpoint."""
    own: dict[str, Tensor] = {}
    read({name: entry for name, entry in given.published.items() if name.startswith(CONDITION)}, own.__setitem__)
    made = embedder({name: tensor.clone() for name, tensor in own.items()}).to(given.device, given.dtype)
    name = given.source.name
    vq_file = tokenizer_file(given)
    imaging = LlamaGenImaging(
        made,
        side(given.config),
        read=_encoder(given, made) if isinstance(made, Captions) else None,
        vq_file=vq_file,
        defaults=read_json(given.source.folder / "generation_config.json"),
        name=name,
    )
    if vq_file is not None:
        imaging.vq.check_vocabulary(given.vocab, name)
    return imaging


def _encoder(given: Picturing, captions: Captions) -> TextEncoder | None:
    """What reads captions. They are cleaned if `clean_captions` of the config says so; of the published, by default."""
    places, features = captions.uncond_embedding.shape
    beside = given.source.folder / "text_encoder"
    name = given.text_encoder or given.config.get("text_encoder")
    if name is None and beside.is_dir():
        name = str(beside)
    if name is None and features == _T5[1]:
        name = _T5[0]
    if name is None:
        return None
    if name in embedded_names():
        name = str(EMBEDDED / name / "text_encoder")
    clean = given.config.get("clean_captions")
    if clean is None:
        clean = features == _T5[1]
    return TextEncoder(name, most=places, device=given.device, dtype=given.dtype, offline=given.offline, clean=clean)


def tokenizer_file(given: Picturing) -> Path | None:
    """The file of the image tokenizer: the one that the caller or the config names, or the one beside the weights."""
    named = given.decoder or given.config.get("image_tokenizer")
    if named is not None:
        return find_vq(named)
    beside = [file for pattern in PATTERNS for file in sorted(given.source.folder.glob(pattern))]
    return beside[0] if len(beside) == 1 else None
