"""Checks of a request that need no weights, made before torch is imported.

The commands check here first, so that a misspelt name is reported at once, and not after a model has been loaded.
`prepare` makes the same checks, since models that are loaded already do not pass through this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pardec.models.errors import SpecError
from pardec.models.files import arguments as loading
from pardec.models.images import words
from pardec.models.loading.kinds import Kind, kind_of
from pardec.samplers import spec_values
from pardec.samplers.cards import cards_named
from pardec.samplers.spec import parse

from ..io import output_paths
from .argument import Takes
from .settings import Settings

if TYPE_CHECKING:
    from ..tasks import Task


def check(
    model: str,
    samplers: Iterable[str | None],
    arguments: Mapping[str, Any],
    placing: Mapping[str, Any],
    *,
    draws: bool | None = None,
) -> Kind | None:
    """Refuses requests that cannot work; returns the model's kind, None if only the hub or its weights show it.

    Args:
        model: as `pardec.load` takes it.
        samplers: specs; None is the family's default.
        arguments: of `generate`, without the sampler.
        placing: of `load`.
        draws: True for images, False for text, None for either.

    Raises:
        SpecError: an argument that cannot work (UnknownModelError where there is no such model).
        ModelError: the checkpoint's config.json cannot be read.
    """
    check_placing(placing)
    requests = [Settings.of({**arguments, "sampler": sampler}) for sampler in [*samplers] or [None]]
    specs = [parse(settings.sampler) for settings in requests if isinstance(settings.sampler, str)]
    kind = kind_of(model)
    attention = placing.get("attention")
    if kind is not None and attention is not None and kind.family == "ar" and attention != "causal":
        kind = replace(kind, family="masked", block=placing.get("block"))  # published as an autoregressive model
    if kind is not None:
        check_mask(kind, placing.get("mask_id"))
    if kind is not None and attention == "causal":
        kind = replace(kind, family="ar", block=None)  # the same files as an autoregressive model
    for spec in specs:
        spec_values.check(spec, kind.family if kind else None)
    if kind is None:
        return None
    if kind.writes and draws is False:
        kind = replace(kind, draws=None)
    if draws is not None:
        check_answers(kind, model, draws)
    for settings in requests:
        if kind.draws is None:
            check_family(kind.name, kind.family == "masked", settings)
            if "max_new_tokens" in arguments or settings.bounds_length:
                check_room(kind, settings)
    return kind


def check_kind(model: str, *, draws: bool) -> None:
    """Refuses images from a text model, and text from an image model, as far as its config.json tells."""
    kind = kind_of(model)
    if kind is not None and (draws or not kind.writes):
        check_answers(kind, model, draws)


def check_placing(placing: Mapping[str, Any]) -> None:
    """Refuses arguments of `load` that cannot work on any machine."""
    if placing.get("revision") == "":
        raise SpecError("the revision is empty", hint="name a branch, tag or commit, or leave it out")
    loading.check(
        placing.get("device", "auto"),
        placing.get("dtype", "auto"),
        placing.get("quantize"),
        placing.get("device_map"),
        tp=placing.get("tp", False),
        mask_id=placing.get("mask_id"),
        activations=placing.get("activations"),
    )


def check_folder(out: str | Path | None, resume: bool) -> None:
    """Refuses to resume a run without a folder, and a folder that cannot be written to."""
    if resume and out is None:
        raise SpecError("resume needs the folder of a run", hint="name it with out=FOLDER")
    output_paths.check_folder(None if out is None else Path(out))


def check_run(
    model: str,
    tasks: Iterable[str],
    samplers: Iterable[str | None],
    arguments: Mapping[str, Any],
    placing: Mapping[str, Any],
    *,
    out: Path | None,
    resume: bool,
    prompts: Path | None,
    scorer: str | None,
    split: str = "heldout",
) -> None:
    """`check` for a run over tasks: also checks its folder, its tasks, and whether the model can answer them."""
    from ..tasks import FileTask, expand, task  # imports numpy, which --help does not need
    from ..tasks.base import check_split

    check_folder(out, resume)
    check_split(split)
    problems = [task(each) for name in tasks for each in expand(name)]
    if prompts is not None:
        problems.append(FileTask(prompts, scorer=scorer or "exact"))
    if arguments.get("block_length") is not None and problems:  # it may be as long as the answers of the tasks
        arguments = {"max_new_tokens": max(each.tokens for each in problems), **arguments}
    kind = check(model, samplers, arguments, placing)
    if kind is not None:
        check_answered(kind, model, problems)


def check_answered(kind: Kind, name: str, tasks: Iterable[Task]) -> None:
    """Refuses tasks that the model cannot answer: images for a text model, text for an image model, and so on."""
    for task in tasks:
        if (task.answers == "picture") != (kind.draws is not None):
            what, other = ("text", "images") if kind.draws is None else ("images", "text")
            raise SpecError(
                f"{name} answers in {what} and the task {task.name!r} asks for {other}",
                hint="captions and classes are for image models, the other tasks are for text",
            )
        if kind.draws in ("class", "text") and kind.draws != task.asks:
            theirs, others = ("classes", "captions") if kind.draws == "class" else ("captions", "classes")
            raise SpecError(
                f"{name} draws {theirs} and the task {task.name!r} gives it {others}", hint=f"try the task {theirs}"
            )


def check_parts(kind: Kind | None, arguments: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> Settings:
    """Refuses incompatible parts of a sampler; imports the samplers, and with them torch."""
    from pardec.samplers.registry import resolve

    settings = Settings.of(arguments, defaults)
    resolve(settings.sampler, kind.family if kind else None, sampling=settings.temperature > 0)
    return settings


def check_mask(kind: Kind, mask_id: int | None) -> None:
    """Refuses a mask token for a model without one, and a mask token outside the vocabulary."""
    if mask_id is None:
        return
    if kind.family != "masked":
        raise SpecError(f"mask_id={mask_id} was given, but {kind.name} is not a masked model", hint="leave mask_id out")
    if mask_id < 0 or mask_id >= (kind.vocabulary or mask_id + 1):
        raise SpecError(
            f"mask id {mask_id} lies outside the vocabulary of {kind.vocabulary or kind.name}",
            hint=f"mask_id must be below {kind.vocabulary or 'its size'}, and not negative",
        )


def check_answers(kind: Kind, name: str, draws: bool) -> None:
    """Refuses images from a text model, and text from an image model."""
    if draws and kind.draws is None:
        raise SpecError(f"{kind.name} is a text model and draws no images", hint=f'try "pardec generate {name}"')
    if not draws and kind.draws is not None:
        raise SpecError(f"{kind.name} is an image model", hint=f'try "pardec image {name} -o out.png"')


def check_conditions(kind: Kind, classes: list[int] | None) -> None:
    """Refuses captions for a model that draws classes, classes for one that draws captions, and unknown ones."""
    if kind.draws == "text" and classes:
        raise SpecError(f"{kind.name} draws captions and has no classes", hint='pass -p "..." in place of --class')
    if kind.draws == "class":
        least = -1 if kind.family in ("continuous", "scales") else 0
        some = f"one of 0..{kind.classes - 1}" if kind.classes else "a whole number"
        if not classes:
            raise SpecError(
                f"{kind.name} draws classes and cannot read captions", hint=f"pass --class N, {some}, in place of them"
            )
        bad = [label for label in classes if label < least or label >= (kind.classes or label + 1)]
        if bad:
            none = ", and -1 is none" if least < 0 else ""
            known = f"classes are 0..{kind.classes - 1}{none}" if kind.classes else "classes count from 0"
            raise SpecError(f"label {bad[0]!r} is not a class of {kind.name}", hint=known)


def check_captions(kind: Kind, texts: Iterable[str]) -> None:
    """Refuses words outside the vocabulary of the text encoder in the model's folder."""
    if kind.reader is not None and kind.draws == "text":
        words.check(texts, kind.reader)


def check_family(name: str, masked: bool, settings: Settings) -> None:
    """Refuses arguments without a meaning for a text model of this family."""
    settings.check_taken(name, Takes.of_tokens(masked=masked, images=False))
    if settings.num_return_sequences > 1 and not _writes_texts(settings.sampler):
        settings.check_sampled("num_return_sequences", "answers", 0.7)


def _writes_texts(sampler: Any) -> bool:
    """Whether the sampler writes several texts per prompt without sampling."""
    spec = parse(getattr(sampler, "spec", sampler) or "sequential")
    return any(card.stage == "texts" for part in spec.every for card in cards_named(part.name))


def check_block(name: str, block_length: int | None, longest: int, fixed: int | None) -> None:
    """Refuses a block length longer than the tokens to decode, or different from the model's."""
    if block_length is None:
        return
    if fixed is not None and block_length != fixed:
        raise SpecError(
            f"block_length={block_length}, but {name} decodes in blocks of {fixed}",
            hint=f"leave block_length out, or load the model with block={block_length}",
        )
    if fixed is None and block_length > longest:
        raise SpecError(
            f"block_length={block_length} is longer than the {longest} tokens to decode",
            hint=f"choose at most {longest}, or leave it out",
        )


def check_room(kind: Kind, settings: Settings) -> None:
    """Refuses more new tokens than the model has positions after the shortest prompt, and blocks that do not fit."""
    if settings.template is None:
        if kind.positions is not None and settings.max_new_tokens >= kind.positions:
            raise SpecError(
                f"max_new_tokens={settings.max_new_tokens}, but {kind.name} has {kind.positions} positions",
                hint="generate fewer new tokens: they share the positions with the prompt",
            )
        check_block(kind.name, settings.block_length, settings.max_new_tokens, kind.block)
        settings.check_shortest(settings.max_new_tokens)


def check_texts(prompts: Iterable[Any]) -> None:
    """Refuses blank prompts."""
    for number, prompt in enumerate(prompts):
        if isinstance(prompt, str) and not prompt.strip():
            raise SpecError(f"prompt {number} is empty", hint="give at least one word")
