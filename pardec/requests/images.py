"""What a model of images is asked for: captions, classes or a text encoder's output, as rows with conditions."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import torch
from PIL.Image import Image, Resampling, fromarray
from torch import Tensor

from pardec.models.continuous.contracts import ContinuousModel
from pardec.models.errors import ModelError, SpecError
from pardec.models.images.contracts import Condition
from pardec.models.images.vq import to_images
from pardec.samplers.presets import preset

from .prompts import Row
from .settings import MAX_NEW_TOKENS, Settings, several

if TYPE_CHECKING:
    from pardec.models.images.conditioned import Prefix
    from pardec.models.images.contracts import CodeImaging, Imaging
    from pardec.models.model import LanguageModel

_OWN = ("label", "prompt_embeds", "negative_prompt", "cfg_interval")
_SHAPING = ("temperature", "top_k", "top_p", "cfg", "cfg_interval")
FOREIGN = (
    *("input_ids", "template", "logits_processor", "stop", "stop_ids", "block_length"),
    *("min_new_tokens", "repetition_penalty"),
)


@dataclass(frozen=True)
class Conditions:
    """One row an image."""

    conditions: tuple[Condition, ...]
    prefix: Prefix
    rows: list[Row]  # -1 where the condition stands, and where a code is to come


def render(imaging: Imaging, images: Iterable[Tensor]) -> list[Image] | None:
    """The images of codes [h, w] or vectors [h, w, d]; None without a decoder.

    One by one: an image is the same in any batch.
    """
    if not imaging.can_decode:
        return None
    return [fromarray(to_images(imaging.decode(image[None]))[0]) for image in images]


def enlarged(image: Image, scale: int) -> Image:
    """Each pixel as a square of `scale` by `scale`: larger, and the same image."""
    if scale == 1:
        return image
    return image.resize((image.width * scale, image.height * scale), Resampling.NEAREST)


def scale_of(name: str, imaging: Imaging, height: int | None, width: int | None) -> int:
    """How many times larger than the model draws an image of this height and width is.

    Raises:
        SpecError: no whole number of times, or not the same for both: a model has one size.
    """
    if height is None and width is None:
        return 1
    rows, columns = (cells * imaging.downsample for cells in imaging.layout.grid)
    for what, asked, own in (("height", height, rows), ("width", width, columns)):
        whole = isinstance(asked, int) and not isinstance(asked, bool)
        if asked is not None and (not whole or asked < own or asked % own):
            raise SpecError(
                f"{what}={asked}, and {name} draws images of {rows} by {columns} pixels",
                hint=f"leave {what} out, or ask for a multiple: {own}, {2 * own}, {4 * own} (its pixels, repeated)",
            )
    scales = {asked // own for asked, own in ((height, rows), (width, columns)) if asked is not None}
    if len(scales) > 1:
        raise SpecError(
            f"{height} by {width} pixels have another form than the {rows} by {columns} that {name} draws",
            hint=f"leave one out, or ask for {2 * rows} by {2 * columns}",
        )
    return scales.pop()


def with_defaults(imaging: Imaging, given: Mapping[str, Any]) -> dict[str, Any]:
    """Arguments of `generate` with what the checkpoint's authors draw with where `given` says nothing.

    Where they say nothing either, the temperature is 1 and nothing is guided. A preset's own arguments hold as well.
    """
    made: dict[str, Any] = {"temperature": 1.0}
    named = ("sampler", *_SHAPING)
    made |= {name: imaging.defaults[name] for name in named if imaging.defaults.get(name) is not None}
    if not made.get("top_k"):  # 0 is a way to say all of them
        made.pop("top_k", None)
    sampler = given.get("sampler")
    if isinstance(sampler, str) and sampler.startswith("preset:"):
        made = {name: value for name, value in made.items() if name not in preset(sampler).arguments}
    return {**made, **given}


def check_drawable(model: LanguageModel | ContinuousModel, *, hint: str) -> None:
    """Raises ModelError where codes, or vectors, cannot be decoded; `hint` says of what is missing, {decoder}."""
    assert model.imaging is not None, "asked of models of images"
    if not model.imaging.can_decode:
        of_vectors = isinstance(model, ContinuousModel)
        missing, lost = ("autoencoder", "vectors") if of_vectors else ("image tokenizer", "codes")
        raise ModelError(
            f"{model.name} has no {missing}, so its {lost} cannot be drawn", hint.replace("{decoder}", missing)
        )


def refuse_images(model: LanguageModel, settings: Settings) -> None:
    """Refuses what only a model of images can make something of."""
    given = [name for name in _OWN if getattr(settings, name) is not None]
    given += ["num_images"] if settings.num_images != 1 else []
    if given:
        way_out = "num_return_sequences= asks for several answers" if given[0] == "num_images" else "leave it out"
        raise SpecError(f"{given[0]} is for image models and {model.name} is a text model", hint=way_out)


def conditions(model: LanguageModel, imaging: CodeImaging, prompt: Any, settings: Settings) -> Conditions:
    """Reads what the images are to show. Raises SpecError for what the model cannot draw."""
    for name in FOREIGN:
        if getattr(settings, name) is not None:
            raise SpecError(f"{name} is for text and {model.name} draws images", hint=f"leave {name} out")
    refuse_sequences(model.name, settings)
    count = imaging.layout.tokens
    if settings.max_new_tokens not in (MAX_NEW_TOKENS, count):
        raise SpecError(
            f"an image of {model.name} has {count} tokens, max_new_tokens={settings.max_new_tokens} were asked for",
            hint="leave max_new_tokens out",
        )
    if imaging.kind == "class":
        refuse_negative(model.name, settings)
        once = [Condition(label=label) for label in labels(model.name, imaging.classes, prompt, settings)]
    else:
        once = _away(_captions(model, prompt, settings), settings)
    prefix = imaging.prefix(once)
    each = several(range(len(once)), settings.num_images)
    rows = [Row(torch.full((length,), -1), torch.full((count,), -1)) for length in prefix.lengths]
    return Conditions(tuple(once[row] for row in each), prefix.take(each), [rows[row] for row in each])


def refuse_sequences(name: str, settings: Settings) -> None:
    """Refuses the argument of text where that of images is meant."""
    if settings.num_return_sequences != 1:
        raise SpecError(
            f"num_return_sequences is for text and {name} draws images",
            hint=f"num_images={settings.num_return_sequences} draws so many of each",
        )


def refuse_negative(name: str, settings: Settings) -> None:
    """Refuses a negative prompt for a model of classes."""
    if settings.negative_prompt is not None:
        raise SpecError(
            f"negative_prompt is a caption, and {name} draws classes: its guidance leads away from no class",
            hint="leave negative_prompt out",
        )


def _away(conditions: list[Condition], settings: Settings) -> list[Condition]:
    """The conditions, each with what its guidance leads away from."""
    given = settings.negative_prompt
    if given is None:
        return conditions
    texts = [given] * len(conditions) if isinstance(given, str) else given
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        kind = type(given).__name__
        raise SpecError(f"negative_prompt is a caption, or one a prompt, got {kind}", hint="pass text, or leave it out")
    if len(texts) != len(conditions):
        raise SpecError(
            f"{len(texts)} negative prompts for {len(conditions)} prompts", hint="give one, or one for each prompt"
        )
    if settings.cfg in (None, 1):
        raise SpecError(
            "negative_prompt is what guidance leads away from, and nothing is guided", hint="ask for guidance, as cfg=4"
        )
    # Nothing said is what an empty one means, as in diffusers.
    return [replace(one, negative=text if text.strip() else None) for one, text in zip(conditions, texts, strict=True)]


def labels(name: str, classes: int, prompt: Any, settings: Settings, *, least: int = 0) -> list[int]:
    """The classes that the model called `name` is asked for; `least` is -1 where it draws without one as well.

    Raises:
        SpecError: there is none, or one that the model does not have.
    """
    if prompt is not None or settings.prompt_embeds is not None:
        what = "a prompt" if prompt is not None else "prompt_embeds"
        raise SpecError(f"{name} draws classes and cannot read {what}", hint="pass label=, a whole number")
    given = settings.label
    if given is None:
        raise SpecError("no class is given", hint=f"pass label=, one of 0..{classes - 1}, or a list of them")
    if isinstance(given, Tensor):
        given = given.tolist()
    asked = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else [given]
    if not asked:
        raise SpecError("the list of classes is empty", hint="give at least one label")
    for label in asked:
        if not isinstance(label, int) or isinstance(label, bool) or not least <= label < classes:
            none = ", and -1 is none" if least < 0 else ""
            raise SpecError(f"label {label!r} is no class of {name}", hint=f"classes are 0..{classes - 1}{none}")
    return asked


def _captions(model: LanguageModel, prompt: Any, settings: Settings) -> list[Condition]:
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
        raise SpecError(f"a prompt of {model.name} is a caption or a list of captions, got {kind}", hint="pass text")
    for row, text in enumerate(texts):
        if not text.strip():
            raise SpecError(f"caption {row} is empty", hint="say what the image is to show")
    return [Condition(text=text) for text in texts]


def _features(given: Any) -> list[Condition]:
    rows = list(given) if isinstance(given, Tensor) and given.ndim == 3 else given
    if not isinstance(rows, Sequence) or not rows or not all(isinstance(row, Tensor) and row.ndim == 2 for row in rows):
        got = list(given.shape) if isinstance(given, Tensor) else type(given).__name__
        raise SpecError(
            f"prompt_embeds is [B, n, D] or a list of [n, D] without padding, got {got}",
            hint="one caption's features are features[None]",
        )
    return [Condition(features=row) for row in rows]
