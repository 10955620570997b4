"""The interface of image models in addition to the decoder: embeds conditions, and turns tokens into pixels."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, Self, TypeVar

import torch
from torch import Tensor, nn

from ..cuda_graphs.capture import Capturer
from ..cuda_graphs.functions import Capturable, FunctionGraphs
from ..errors import ArgumentError, ModelError
from ..files.sources import Source
from ..files.weights import Published
from .conditioned import Prefix
from .weight_files import only_file


@dataclass(frozen=True, eq=False)
class Condition:
    """The condition of one image: a caption, the features of one, or a class."""

    text: str | None = None
    label: int | None = None
    negative: str | None = None  # with a caption: the negative prompt of guidance; None: no condition
    features: Tensor | None = None  # [n, D] the text encoder's output for the caption, without padding
    positions: Tensor | None = None  # [n] int64: where `features` were in the padded output; None: at its end

    def own_caption(self, model: str, row: int) -> str:
        """The caption, for a model that reads text with its own embedding. Raises ModelError for anything else."""
        if self.label is not None:
            raise ModelError(f"row {row} has a label, and {model} takes captions", "pass a prompt instead")
        if self.features is not None:
            raise ModelError(
                f"{model} embeds captions with its own text embedding, and row {row} has prompt_embeds",
                "pass a prompt in place of prompt_embeds",
            )
        if self.text is None or not self.text.strip():
            raise ModelError(f"row {row} has no caption, and {model} takes captions", "pass a prompt")
        return self.text


@dataclass(frozen=True, eq=False)
class ImageLayout:
    """The token grid of an image: its codes row by row, and the tokens that a family writes between and after them."""

    rows: int
    columns: int
    row_end: int | None = None  # the token after every row
    closing: tuple[int, ...] = ()  # the tokens after the last row
    ids: Tensor | None = None  # [codes] int64: the token of each code; None: tokens are the codes

    @property
    def grid(self) -> tuple[int, int]:
        """Rows and columns of the token grid."""
        return self.rows, self.columns

    @property
    def stride(self) -> int:
        """Tokens from one row to the next."""
        return self.columns + (self.row_end is not None)

    @property
    def tokens(self) -> int:
        """Tokens of an image."""
        return self.rows * self.stride + len(self.closing)

    @property
    def code_shape(self) -> tuple[int, ...]:
        """The shape of an image's codes, as `Imaging.decode` takes them after the batch."""
        return self.grid

    @property
    def plain(self) -> bool:
        """Whether an image's tokens are its codes, and every token may be any code."""
        return self.row_end is None and not self.closing and self.ids is None

    def forced(self) -> Tensor:
        """[tokens] int64: the only possible token at each position, -1 at positions of codes."""
        only = torch.full((self.tokens,), -1)
        if self.row_end is not None:
            only[self.columns : self.rows * self.stride : self.stride] = self.row_end
        if self.closing:
            only[-len(self.closing) :] = torch.tensor(self.closing)
        return only

    def codes(self, tokens: Tensor) -> Tensor:
        """The codes [..., rows, columns] of tokens [..., tokens]; -1 where a token is unknown (-1) or no code."""
        body = tokens[..., : self.rows * self.stride]
        grid = body.reshape(*tokens.shape[:-1], self.rows, self.stride)[..., : self.columns]
        if self.ids is None:
            return grid
        ids = self.ids.to(tokens.device)
        code_of = torch.full((int(ids.max()) + 2,), -1, device=tokens.device)  # last entry: other tokens
        code_of[ids] = torch.arange(len(ids), device=tokens.device)
        return code_of[torch.where((grid < 0) | (grid > ids.max()), len(code_of) - 1, grid)]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The files of an image model, and how the caller wants them loaded."""

    source: Source
    config: dict[str, Any]
    published: dict[str, Published]
    device: torch.device
    dtype: torch.dtype
    decoder: str | None  # the image tokenizer that the caller names
    text_encoder: str | None  # the text encoder that the caller names
    offline: bool

    def named_decoder(self, patterns: Sequence[str]) -> str | None:
        """The image tokenizer or autoencoder that the caller or the config names, or the one beside the weights.

        `vae_path` in the config names a file there; without it, a file that alone has one of the patterns is taken.
        """
        if named := self.decoder or self.config.get("image_tokenizer"):
            return str(named)
        folder, stated = self.source.folder, self.config.get("vae_path")
        beside = folder / Path(stated).name if stated else only_file(folder, patterns)
        return None if beside is None or not beside.is_file() else str(beside)

    def model(self, kind: Callable[..., AnyImageModel], *modules: nn.Module, **own: Any) -> AnyImageModel:
        """A model of this kind from loaded modules, which hold all of its weights, and its `own` arguments."""
        source, parameters = self.source, sum(each.numel() for part in modules for each in part.parameters())
        common = {"config": self.config, "device": self.device, "dtype": self.dtype, "parameters": parameters}
        return kind(name=source.name, path=source.folder, **common, **own)


@dataclass(frozen=True, slots=True)
class ImagingParts(Checkpoint):
    """The inputs from which the image interface of a checkpoint is built."""

    vocab: int
    embedding: Callable[[], Tensor] | None = None  # gives the input embeddings [V, E], for models that read captions


class Imaging(Protocol):
    """The image interface of a checkpoint, whether its tokens are codes or vectors."""

    @property
    def kind(self) -> Literal["class", "text"]:
        """The kind of condition that images have."""
        ...

    @property
    def layout(self) -> ImageLayout:
        """The grid of codes, or vectors, among the tokens of an image."""
        ...

    @property
    def sizes(self) -> str | None:
        """The possible heights and widths, in words, for errors; None for a model of one size."""
        ...

    def resized(self, height: int, width: int) -> Self:
        """This interface for images of another size in pixels: only the layout differs.

        Raises ArgumentError for a size that it does not have, ModelError where its only one is unknown without a
        decoder.
        """
        ...

    @property
    def classes(self) -> int:
        """The number of classes; 0 for captions."""
        ...

    @property
    def defaults(self) -> Mapping[str, Any]:
        """Arguments of `generate` that the checkpoint's authors use: temperature, top_k, cfg, ..."""
        ...

    @property
    def can_decode(self) -> bool:
        """Whether there is a decoder that turns tokens into pixels."""
        ...

    @property
    def downsample(self) -> int:
        """Pixels per token along one side. Raises ModelError without a decoder."""
        ...

    def decode(self, tokens: Tensor) -> Tensor:
        """Pixels [B, 3, H, W] in [-1, 1], float32, of codes [B, h, w], or of vectors [B, h, w, d].

        Raises ModelError without a decoder.
        """
        ...


class OneSize:
    """The sizes of a model that has one: a base of image interfaces."""

    @property
    def sizes(self) -> str | None:
        return None

    def resized(self: _Imaging, height: int, width: int) -> _Imaging:
        """Returns itself. Raises ArgumentError for another size."""
        own = tuple(codes * self.downsample for codes in self.layout.grid)
        if (height, width) != own:
            raise ArgumentError(
                f"size is {height} by {width} pixels, and {self.name} draws images of {own[0]} by {own[1]}",
                "leave size out; enlarge the finished image with --scale or a pipeline's height and width",
            )
        return self


class AnySize:
    """The sizes of a model that draws every multiple of `step` pixels: a base of image interfaces."""

    name: str
    layout: ImageLayout
    most_pixels: int | None = None  # the greatest height and width

    @property
    def step(self) -> int:
        """Pixels of which height and width are multiples."""
        return self.token_pixels

    @property
    def token_pixels(self) -> int:
        """Pixels per token along one side, with or without a decoder."""
        raise NotImplementedError

    @property
    def sizes(self) -> str | None:
        return f"multiples of {self.step} pixels" + (f", up to {self.most_pixels}" if self.most_pixels else "")

    def resized(self, height: int, width: int) -> Self:
        """The same interface for images of this size. Raises ArgumentError for a size that it does not have."""
        step, most = self.step, self.most_pixels or max(height, width)
        if not all(0 < pixels <= most and pixels % step == 0 for pixels in (height, width)):
            near = tuple(max(round(pixels / step), 1) * step for pixels in (height, width))
            raise ArgumentError(
                f"size is {height} by {width} pixels, and {self.name} draws {self.sizes}", f"for example size={near}"
            )
        other = copy(self)
        other.layout = replace(self.layout, rows=height // self.token_pixels, columns=width // self.token_pixels)
        return other


class _Named(Imaging, Protocol):
    name: str


_Imaging = TypeVar("_Imaging", bound=_Named)


class CodeImaging(Imaging, Protocol):
    """The image interface of a checkpoint whose tokens are codes."""

    @property
    def codebook(self) -> Tensor | None:
        """[codes, C] float32: a vector per code, to be compared by distance; None without a tokenizer."""
        ...

    @property
    def weights(self) -> Mapping[str, Tensor]:
        """The checkpoint's tensors that embed conditions, by their published names; none where the decoder has them."""
        ...

    def prefix(self, conditions: Sequence[Condition]) -> Prefix:
        """The input states with and without each condition. Raises ModelError for one that cannot be used."""
        ...


@dataclass(slots=True, eq=False, kw_only=True)
class ImageModel:
    """A checkpoint that only draws images, ready to run: the common base. Made by `load_any`."""

    imaging: Imaging
    config: dict[str, Any]  # as published, or read off the tensors
    name: str
    path: Path | None
    family: str
    device: torch.device
    dtype: torch.dtype
    parameters: int  # how many the checkpoint has, without its image tokenizer
    choice: str = field(default="", repr=False)  # why this device and dtype
    adapter: str | None = None  # the LoRA adapter that is merged into its weights
    weights_version: int = field(default=0, init=False)  # how often its weights were replaced in place
    graphs: FunctionGraphs | None = field(default=None, init=False, repr=False)  # CUDA graphs of forwards
    # Attributes that only language models use.
    tokenizer: ClassVar[None] = None
    quantized: ClassVar[None] = None
    prefix_cache: ClassVar[None] = None
    max_positions: ClassVar[None] = None
    processes: ClassVar[int] = 1

    def capture(self, make: Callable[[], Capturer]) -> None:
        """From now on, captures forwards of recurring shapes as CUDA graphs, with the capturer that `make` returns."""
        self.graphs = FunctionGraphs(make())
        for name in ("backbone", "head", "transformer"):
            if isinstance(part := getattr(self, name, None), Capturable):
                part.capture(self.graphs, make)

    def describe(self) -> str:
        """Where and how the model runs, and why, in one line."""
        known = f"{self.name}: {self.family}" + (f", {self.choice}" if self.choice else "")
        return f"{known}, weights version {self.weights_version}" if self.weights_version else known


AnyImageModel = TypeVar("AnyImageModel", bound=ImageModel)
