"""Requests to image models: captions, classes or a text encoder's output, as rows with conditions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar

import torch
from PIL.Image import Image, Resampling, fromarray
from torch import Tensor

from pardec.models.errors import SpecError
from pardec.models.images.contracts import Condition, ImageLayout
from pardec.models.images.vq import to_images
from pardec.samplers.presets import preset
from pardec.samplers.request import Allowed

from .argument import Takes, is_whole
from .prompts import Row, open_id
from .settings import MAX_NEW_TOKENS, SHAPING, Settings, repeat_each

if TYPE_CHECKING:
    from pardec.models.images.conditioned import Prefix
    from pardec.models.images.contracts import CodeImaging, ImageModel, Imaging
    from pardec.models.model import LanguageModel

_I = TypeVar("_I", bound="Imaging")


@dataclass(frozen=True)
class ImageInputs:
    """The conditions of a request, one row per image."""

    conditions: tuple[Condition, ...]
    prefix: Prefix
    rows: list[Row]  # -1 at the condition's positions; those to fill with codes as in any row


def render(imaging: Imaging, images: Iterable[Tensor]) -> list[Image] | None:
    """Decodes codes [h, w] or continuous tokens [h, w, d] to images; None without a decoder.

    One by one, so that an image is the same in any batch.
    """
    if not imaging.can_decode:
        return None
    return [fromarray(to_images(imaging.decode(image[None]))[0]) for image in images]


def enlarged(image: Image, scale: int) -> Image:
    """The image with each pixel repeated as a square of `scale` by `scale`."""
    if scale == 1:
        return image
    return image.resize((image.width * scale, image.height * scale), Resampling.NEAREST)


def scale_of(name: str, imaging: Imaging, height: int | None, width: int | None) -> int:
    """The factor that enlarges the model's images to this height and width.

    Raises:
        SpecError: not by a whole number, or not by the same for both.
    """
    if height is None and width is None:
        return 1
    rows, columns = (codes * imaging.downsample for codes in imaging.layout.grid)
    for what, size, own in (("height", height, rows), ("width", width, columns)):
        whole = isinstance(size, int) and not isinstance(size, bool)
        if size is not None and (not whole or size < own or size % own):
            raise SpecError(
                f"{what}={size}, and {name} draws images of {rows} by {columns} pixels",
                hint=f"leave {what} out, or ask for a multiple: {own}, {2 * own}, {4 * own} (its pixels, repeated)",
            )
    scales = {size // own for size, own in ((height, rows), (width, columns)) if size is not None}
    if len(scales) > 1:
        raise SpecError(
            f"{height} by {width} pixels have another aspect ratio than the {rows} by {columns} that {name} draws",
            hint=f"leave one out, or ask for {2 * rows} by {2 * columns}",
        )
    return scales.pop()


def size_and_scale(
    name: str, imaging: Imaging, height: int | None, width: int | None
) -> tuple[tuple[int, int] | None, int]:
    """The `size` to draw at, if the model has several sizes; else the factor by which to enlarge its images.

    A height or width that is left out is that of the model's own images.

    Raises:
        SpecError: the model has no such size, and can be enlarged to none.
    """
    if imaging.sizes is None:
        return None, scale_of(name, imaging, height, width)
    if height is None and width is None:
        return None, 1
    rows, columns = (codes * imaging.downsample for codes in imaging.layout.grid)
    return (rows if height is None else height, columns if width is None else width), 1


def imaging_for(imaging: _I, settings: Settings) -> _I:
    """The interface for images of the requested size. Raises ArgumentError for a size that the model does not have."""
    return imaging if settings.size is None else imaging.resized(*map(int, settings.size))


def size_of(settings: Settings) -> tuple[int, int] | None:
    """The requested height and width."""
    return None if settings.size is None else (int(settings.size[0]), int(settings.size[1]))


def default_arguments(defaults: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of `generate` among a checkpoint's defaults.

    Where it has none, the temperature is 1 and there is no guidance.
    """
    names = ("sampler", *SHAPING, "min_p")
    own = {"temperature": 1.0, **{name: defaults[name] for name in names if defaults.get(name) is not None}}
    if not own.get("top_k"):  # 0 stands for all tokens
        own.pop("top_k", None)
    return own


def with_defaults(imaging: Imaging, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `generate`, with the checkpoint's own defaults for those that are left out.

    A preset's arguments come before defaults.
    """
    defaults = default_arguments(imaging.defaults)
    sampler = arguments.get("sampler")
    if isinstance(sampler, str) and sampler.startswith("preset:"):
        defaults = {name: value for name, value in defaults.items() if name not in preset(sampler).arguments}
    return {**defaults, **arguments}


def image_inputs(model: LanguageModel, imaging: CodeImaging, prompt: Any, settings: Settings) -> ImageInputs:
    """Reads the classes, captions or features of a request. Raises SpecError for conditions the model cannot draw."""
    settings.check_taken(model.name, Takes.of_tokens(masked=model.decoding_config.masked, images=True))
    count = imaging.layout.tokens
    if settings.max_new_tokens not in (MAX_NEW_TOKENS, count):
        raise SpecError(
            f"an image of {model.name} has {count} tokens, not max_new_tokens={settings.max_new_tokens}",
            hint="leave max_new_tokens out",
        )
    if imaging.kind == "class":
        refuse_negative(model.name, settings)
        prompts = [Condition(label=label) for label in labels(model.name, imaging.classes, prompt, settings)]
    else:
        prompts = captions(model, prompt, settings)
    if not model.decoding_config.masked:
        settings.check_sampled("num_images", "images", 1)
    prefix = imaging.prefix(prompts)
    each = repeat_each(range(len(prompts)), settings.num_images)
    rows = [Row(torch.full((length,), -1), _open_grid(model, imaging)) for length in prefix.lengths]
    return ImageInputs(tuple(prompts[row] for row in each), prefix.take(each), [rows[row] for row in each])


def _open_grid(model: LanguageModel, imaging: CodeImaging) -> Tensor:
    """An image [tokens] before decoding. A masked model is given the tokens between and after its rows."""
    grid = torch.full((imaging.layout.tokens,), open_id(model))
    if not model.decoding_config.masked:
        return grid
    forced = imaging.layout.forced()
    return torch.where(forced < 0, grid, forced)


def refuse_negative(name: str, settings: Settings) -> None:
    """Refuses a negative prompt for a model of classes."""
    if settings.negative_prompt is not None:
        raise SpecError(
            f"negative_prompt is a caption, and {name} draws classes: its guidance is against the empty class",
            hint="leave negative_prompt out",
        )


def _with_negative(conditions: list[Condition], settings: Settings) -> list[Condition]:
    """Pairs each condition with its negative prompt."""
    negative = settings.negative_prompt
    if negative is None:
        return conditions
    texts = [negative] * len(conditions) if isinstance(negative, str) else negative
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        kind = type(negative).__name__
        raise SpecError(
            f"negative_prompt must be a caption, or one per prompt, got {kind}", hint="pass text, or leave it out"
        )
    if len(texts) != len(conditions):
        raise SpecError(
            f"{len(texts)} negative prompts for {len(conditions)} prompts", hint="give one, or one for each prompt"
        )
    if settings.cfg in (None, 1):
        raise SpecError(
            "negative_prompt needs guidance, and there is none", hint="turn guidance on, for example with cfg=4"
        )
    # An empty one is the unconditional prompt, as in diffusers.
    pairs = zip(conditions, texts, strict=True)
    return [replace(condition, negative=text if text.strip() else None) for condition, text in pairs]


def labels(name: str, classes: int, prompt: Any, settings: Settings, *, least: int = 0) -> list[int]:
    """The requested classes for the model called `name`; `least` is -1 if it reads -1 as no class.

    Raises:
        SpecError: there is none, or one that the model does not have.
    """
    if prompt is not None or settings.prompt_embeds is not None:
        what = "a prompt" if prompt is not None else "prompt_embeds"
        raise SpecError(f"{name} draws classes and cannot read {what}", hint="pass label=, a whole number")
    value = settings.label
    if value is None:
        raise SpecError("no class is given", hint=f"pass label=, one of 0..{classes - 1}, or a list of them")
    if isinstance(value, Tensor):
        value = value.tolist()
    labels = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    if not labels:
        raise SpecError("the list of classes is empty", hint="give at least one label")
    for label in labels:
        if not is_whole(label) or not least <= label < classes:
            none = ", and -1 is none" if least < 0 else ""
            raise SpecError(f"label {label!r} is not a class of {name}", hint=f"classes are 0..{classes - 1}{none}")
    return labels


def captions(model: LanguageModel | ImageModel, prompt: Any, settings: Settings) -> list[Condition]:
    """The requested captions, or their features, each with its negative prompt.

    Raises:
        SpecError: no caption, a value that is not a caption, or a negative prompt without guidance.
    """
    return _with_negative(_captions(model, prompt, settings), settings)


def _captions(model: LanguageModel | ImageModel, prompt: Any, settings: Settings) -> list[Condition]:
    if settings.label is not None:
        raise SpecError(f"{model.name} draws captions and has no classes", hint="pass a prompt in place of label")
    if prompt is not None and settings.prompt_embeds is not None:
        raise SpecError("both a prompt and prompt_embeds are given", hint="pass one of them")
    if settings.prompt_embeds is not None:
        return _features(settings.prompt_embeds)
    if prompt is None:
        raise SpecError("no prompt is given", hint="pass a caption, or a list of captions")
    texts = [prompt] if isinstance(prompt, str) else prompt
    if not isinstance(texts, Sequence) or not texts or not all(isinstance(text, str) for text in texts):
        kind = type(prompt).__name__
        raise SpecError(
            f"a prompt of {model.name} must be a caption or a list of captions, got {kind}", hint="pass text"
        )
    for row, text in enumerate(texts):
        if not text.strip():
            raise SpecError(f"caption {row} is empty", hint="describe the image")
    return [Condition(text=text) for text in texts]


def _features(value: Any) -> list[Condition]:
    rows = list(value) if isinstance(value, Tensor) and value.ndim == 3 else value
    if not isinstance(rows, Sequence) or not rows or not all(isinstance(row, Tensor) and row.ndim == 2 for row in rows):
        form = list(value.shape) if isinstance(value, Tensor) else type(value).__name__
        raise SpecError(
            f"prompt_embeds must be [B, n, D] or a list of [n, D] without padding, got {form}",
            hint="one caption's features are features[None]",
        )
    return [Condition(features=row) for row in rows]


def intersect(layout: ImageLayout, allowed: Allowed | None, rows: Sequence[Row], vocabulary: int) -> Allowed | None:
    """The intersection of `allowed` with the layout's constraints; `allowed` itself if the layout has none.

    Raises SpecError where it is empty.
    """
    if layout.plain:
        return allowed
    forced = layout.forced()
    codes = torch.ones(vocabulary, dtype=torch.bool)
    if layout.ids is not None:
        codes = torch.zeros_like(codes).index_fill_(0, layout.ids.cpu(), True)
    outer = torch.ones(1, vocabulary, dtype=torch.bool) if allowed is None else allowed.sets.cpu()
    sets, indices = [torch.ones_like(codes)], dict[tuple[int, int], int]()
    at = []
    for number, row in enumerate(rows):
        start = len(row.prompt)
        before = torch.zeros(start + len(forced), dtype=torch.int64) if allowed is None else allowed.at[number].cpu()
        after = torch.zeros_like(before)
        for index, token in enumerate(forced.tolist()):
            key = int(before[start + index]), token
            if key not in indices:
                own = codes if token < 0 else torch.zeros_like(codes).index_fill_(0, torch.tensor([token]), True)
                both = own & outer[key[0]]
                if not both.any():
                    what = "a code" if token < 0 else f"token {token}"
                    raise SpecError(
                        f"allowed leaves nothing at index {index} of row {number}, where {what} has to be",
                        hint=f"a row of an image has {layout.columns} codes in {layout.stride} tokens",
                    )
                indices[key] = len(sets)
                sets.append(both)
            after[start + index] = indices[key]
        at.append(after)
    return Allowed(torch.stack(sets).to(allowed.sets.device if allowed is not None else "cpu"), tuple(at))
