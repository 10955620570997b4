"""What is wrong with a request however the weights turn out, told before torch is imported.

The commands ask here first, so that a misspelt name is answered at once, and not after a model has been read. What is
told here is told again where a request is prepared: a model that is loaded already comes past this module.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pardec.models.errors import SpecError
from pardec.models.images import words
from pardec.models.loading import arguments as loading
from pardec.models.loading.kinds import Kind, kind_of
from pardec.samplers import spec_values
from pardec.samplers.spec import parse

from ..io import output_paths
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
    """Refuses what cannot work; what is known of the model, None where only the hub or its weights tell.

    Args:
        model: as `pardec.load` takes it.
        samplers: specs; None is the family's default.
        arguments: of `generate`, without the sampler.
        placing: of `load`.
        draws: whether images are wanted, text if not; None: either.

    Raises:
        SpecError: misuse of any kind (UnknownModelError where there is no such model).
        ModelError: the checkpoint's config.json cannot be read.
    """
    check_placing(placing)
    asked = [Settings.of({**arguments, "sampler": sampler}) for sampler in [*samplers] or [None]]
    specs = [parse(one.sampler) for one in asked if isinstance(one.sampler, str)]
    kind = kind_of(model)
    for spec in specs:
        spec_values.check(spec, kind.family if kind else None)
    if kind is None:
        return None
    if draws is not None:
        check_answers(kind, model, draws)
    check_mask(kind, placing.get("mask_id"))
    for one in asked:
        if kind.draws is None:
            check_family(kind.name, kind.family == "masked", one)
            if "max_new_tokens" in arguments or one.block_length is not None or one.min_new_tokens:
                check_room(kind, one)
    return kind


def check_placing(placing: Mapping[str, Any]) -> None:
    """Refuses arguments of `load` that can be on no machine."""
    if placing.get("revision") == "":
        raise SpecError("the revision is empty", hint="name a branch, tag or commit, or leave it out")
    loading.check(
        placing.get("device", "auto"),
        placing.get("dtype", "auto"),
        placing.get("quantize"),
        placing.get("device_map"),
        tp=placing.get("tp", False),
        mask_id=placing.get("mask_id"),
    )


def check_folder(out: str | Path | None, resume: bool) -> None:
    """Refuses to go on with a run that is nowhere, and a folder that could not be written to."""
    if resume and out is None:
        raise SpecError("resume needs a run's folder", hint="name one with out")
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
    """`check` for a run over tasks: its folder, its tasks, and whether the model's answers are any to them."""
    from ..tasks import FileTask, expand, task  # which bring numpy, as --help does not need
    from ..tasks.base import check_split

    check_folder(out, resume)
    check_split(split)
    asked = [task(each) for name in tasks for each in expand(name)]
    if prompts is not None:
        asked.append(FileTask(prompts, scorer=scorer or "exact"))
    kind = check(model, samplers, arguments, placing)
    if kind is not None:
        check_answered(kind, model, asked)


def check_answered(kind: Kind, name: str, tasks: Iterable[Task]) -> None:
    """Refuses tasks that the model's answers are no answers to."""
    for task in tasks:
        if (task.answers == "picture") != (kind.draws is not None):
            what = "text" if kind.draws is None else "images"
            raise SpecError(
                f"{name} answers in {what} and the task {task.name!r} asks for {task.answers}",
                hint="captions and classes are for models of images, the other tasks are for text",
            )
        if kind.draws in ("class", "text") and kind.draws != task.asks:
            theirs, others = ("classes", "captions") if kind.draws == "class" else ("captions", "classes")
            raise SpecError(
                f"{name} draws {theirs} and the task {task.name!r} gives it {others}", hint=f"try the task {theirs}"
            )


def check_parts(kind: Kind | None, arguments: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> Settings:
    """Refuses parts of a sampler that do not go together; this takes their own files, which bring torch."""
    from pardec.samplers.registry import resolve

    asked = Settings.of(arguments, defaults)
    resolve(asked.sampler, kind.family if kind else None, sampling=asked.temperature > 0)
    return asked


def check_mask(kind: Kind, mask_id: int | None) -> None:
    """Refuses a mask token for a model that has none, and one outside the vocabulary."""
    if mask_id is None:
        return
    if kind.family != "masked":
        raise SpecError(f"mask_id={mask_id} was given, but {kind.name} is not a masked model", hint="leave mask_id out")
    if mask_id < 0 or mask_id >= (kind.vocabulary or mask_id + 1):
        raise SpecError(
            f"mask id {mask_id} lies outside the vocabulary of {kind.vocabulary or kind.name}",
            hint=f"mask_id must be below {kind.vocabulary or 'its size'}, and not negative",
        )


def check_answers(kind: Kind, given: str, draws: bool) -> None:
    """Refuses images of a model of text, and text of a model of images."""
    if draws and kind.draws is None:
        raise SpecError(f"{kind.name} is a text model and draws no images", hint=f'try "pardec generate {given}"')
    if not draws and kind.draws is not None:
        raise SpecError(f"{kind.name} is a model of images", hint=f'try "pardec image {given} -o out.png"')


def check_shown(kind: Kind, classes: list[int] | None) -> None:
    """Refuses captions for a model that draws classes, classes for one that draws captions, and unknown ones."""
    if kind.draws == "text" and classes:
        raise SpecError(f"{kind.name} draws captions and has no classes", hint='pass -p "..." in place of --class')
    if kind.draws == "class":
        least = -1 if kind.family == "continuous" else 0
        some = f"one of 0..{kind.classes - 1}" if kind.classes else "a whole number"
        if not classes:
            raise SpecError(
                f"{kind.name} draws classes and cannot read captions", hint=f"pass --class N, {some}, in place of them"
            )
        bad = [label for label in classes if label < least or label >= (kind.classes or label + 1)]
        if bad:
            none = ", and -1 is none" if least < 0 else ""
            known = f"classes are 0..{kind.classes - 1}{none}" if kind.classes else "classes count from 0"
            raise SpecError(f"label {bad[0]!r} is no class of {kind.name}", hint=known)


def check_captions(kind: Kind, texts: Iterable[str]) -> None:
    """Refuses words that the text encoder beside the weights cannot read."""
    if kind.reader is not None and kind.draws == "text":
        words.check(texts, kind.reader)


def check_family(name: str, masked: bool, settings: Settings) -> None:
    """Refuses arguments that mean nothing to a model of text of this family."""
    if masked and settings.logits_processor:
        raise SpecError(
            f"logits_processor reads what stands before a token, and {name} fills its canvas in any order",
            hint="leave it out; allowed= says which tokens may stand where",
        )
    if settings.num_return_sequences > 1 and not settings.temperature:
        raise SpecError(
            f"num_return_sequences={settings.num_return_sequences} asks for several answers to a prompt, and "
            "temperature=0 takes the likeliest",
            hint="temperature=0.7 draws them; or leave num_return_sequences out",
        )
    for given, value in (("cfg", settings.cfg), ("block_length", settings.block_length)):
        if not masked and value is not None:
            raise SpecError(f"{given} is for masked models and {name} is not one", hint=f"leave {given} out")


def check_block(name: str, asked: int | None, longest: int, fixed: int | None) -> None:
    """Refuses a block length longer than what is to be decoded, or other than the model's own."""
    if asked is None:
        return
    if fixed is not None and asked != fixed:
        raise SpecError(
            f"block_length={asked}, but {name} decodes in blocks of {fixed}",
            hint=f"leave block_length out, or load the model with block={asked}",
        )
    if fixed is None and asked > longest:
        raise SpecError(
            f"block_length={asked} is longer than the {longest} tokens to decode",
            hint=f"choose at most {longest}, or leave it out",
        )


def check_least(asked: int, longest: int) -> None:
    """Refuses more tokens before an end token than there are to decode."""
    if asked > longest:
        raise SpecError(
            f"min_new_tokens={asked} is more than the {longest} tokens of a row",
            hint="raise max_new_tokens, or ask for fewer",
        )


def check_room(kind: Kind, settings: Settings) -> None:
    """Refuses more new tokens than the model has positions behind the shortest prompt, and blocks that do not fit."""
    if settings.template is None:
        if kind.positions is not None and settings.max_new_tokens >= kind.positions:
            raise SpecError(
                f"{settings.max_new_tokens} new tokens are asked for and {kind.name} has {kind.positions} positions",
                hint="ask for fewer new tokens: the prompt and they share the positions",
            )
        check_block(kind.name, settings.block_length, settings.max_new_tokens, kind.block)
        check_least(settings.min_new_tokens or 0, settings.max_new_tokens)


def check_texts(prompts: Iterable[Any]) -> None:
    """Refuses a prompt without a word."""
    for number, prompt in enumerate(prompts):
        if isinstance(prompt, str) and not prompt.strip():
            raise SpecError(f"prompt {number} is empty", hint="give at least one word")
