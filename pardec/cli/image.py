"""`pardec image`: renders captions or classes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pardec.models.errors import SpecError

from ..io import output_paths
from ..requests import preflight
from ..requests.settings import ignored_arguments
from . import inputs
from . import options as o
from .common import Json, dump, say
from .wording import as_options

if TYPE_CHECKING:
    from ..api import Model
    from ..requests.call import Call

# arguments of `load` that an image file records
_RECORDED = ("decoder", "text_encoder", "revision", "quantize", "adapter")


@o.command
def image(
    model: o.ModelName,
    *,
    prompt: o.Captions = None,
    prompts: o.CaptionFile = None,
    class_: o.Classes = None,
    num_images: o.NumImages = None,
    output: o.OutputImage = None,
    each: o.Each = None,
    save: o.SavePath = None,
    gif: o.GifPath = None,
    grid: o.Grid = None,
    scale: o.Scale = 1,
    size: o.Size = None,
    json_: Json = False,
    watch: o.Watch = False,
    quiet: o.Quiet = False,
    sampler: o.Sampler = None,
    sampling: o.ImageSampling,
    seed: o.ImageSeed = None,
    seeds: o.ImageSeeds = None,
    batch_size: o.ImageBatch = 8,
    loading: o.ImageLoading,
) -> None:
    """Draw images of captions or classes into files, which record the model and settings.

    pardec image MODEL -p "a small red circle left of a large blue square on grey" --grid 2x2 -o out.png

    pardec image c2i_B_256.pt --decoder vq_ds16_c2i.pt --class 207 --num-images 4 --cfg 4 -s sjd -o dogs.png

    pardec image MODEL -p "a large blue square in the middle on white" --scale 8 -o large.png

    pardec image MODEL --prompts captions.jsonl --each pictures --json

    pardec image MODEL -p "a small green triangle at the top on white" --watch

    pardec image MODEL -p "a small green triangle at the top on white" -o out.webp --gif forming.gif
    """
    preflight.check_kind(model, draws=True)
    if watch:
        _check_watch(quiet)
    elif output is None and each is None and save is None and gif is None:
        raise SpecError(
            "no output is named",
            hint="pass -o out.png for one sheet of all images, --each DIR for a file each, --gif FILE.gif, or --watch",
        )
    if output is not None and output.suffix.lower() not in output_paths.IMAGES:
        raise SpecError(
            f"images must be PNG, JPEG or WebP files, got -o {output}",
            hint="name a file that ends in .png, .jpg or .webp",
        )
    if gif is not None and gif.suffix.lower() != ".gif":
        raise SpecError(f"an animation must be a GIF file, got --gif {gif}", hint="name a file that ends in .gif")
    output_paths.check_file(output)
    output_paths.check_file(gif)
    output_paths.check_folder(each)
    output_paths.check_result(save)
    labels = _read_labels(prompt, prompts, class_)
    load_arguments, negative_prompt = o.to_arguments(loading), sampling.get("negative_prompt")
    settings = {**sampling, "seed": _read_seeds(seed, seeds)}
    if size is not None:
        settings["size"] = inputs.read_size(size)
    kind = preflight.check(model, [sampler], settings, load_arguments, draws=True)
    if kind is not None:
        preflight.check_conditions(kind, class_)
        if loading.text_encoder is None:
            preflight.check_captions(
                kind, [*([] if class_ else labels), *([negative_prompt] if negative_prompt else [])]
            )
        if negative_prompt is not None and kind.draws == "class":
            raise SpecError(
                f"{kind.name} draws classes and takes no negative prompt", hint="leave --negative-prompt out"
            )

    from ..images import pngs  # imported here since --help and a misspelt name do not need it

    layout = None if grid is None else pngs.read_grid(grid)
    count = num_images or (1 if layout is None else max(layout[0] * layout[1] // len(labels), 1))
    total = count * len(labels)
    layout = layout or pngs.squarest(total)
    pngs.check_grid(layout, total)
    for option, path in (("--save", save), ("--gif", gif)):
        if path is not None and total > batch_size:
            raise SpecError(
                f"{total} images do not fit in {path}, which holds one batch of {batch_size}",
                hint=f"raise --batch-size, or leave {option} out",
            )
    if seeds is not None and len(settings["seed"]) != total:
        raise SpecError(f"{len(settings['seed'])} seeds for {total} images", hint="pass one seed per image")
    arguments = {**settings, "num_images": count, **({} if sampler is None else {"sampler": sampler})}

    preflight.check_parts(kind, arguments, {"temperature": 1.0})  # images are sampled by default

    from .drawing import Drawing, write

    loaded = _load(model, load_arguments, quiet=quiet)
    call = _prepare(loaded, labels, class_ is not None, arguments)
    if (ignored := ignored_arguments(arguments, call.settings)) is not None:
        say(f"warning: {as_options(ignored, o.OPTIONS)}", quiet=quiet)
    recorded = {"name": model, **{k: v for k, v in load_arguments.items() if k in _RECORDED and v}}
    run = Drawing(loaded, call, each, recorded, scale)
    try:
        run.draw(batch_size, quiet=quiet, watch=watch)
    except KeyboardInterrupt:
        folder = "" if each is None else f", in {each}"
        say(f"interrupted: {len(run.images)} of {total} images are finished{folder}")
        raise typer.Exit(130) from None
    if output is not None:
        record = run.record(run.records, layout)
        write(output, pngs.encoded(pngs.sheet(run.images, layout), record, output.suffix.lower()))
        say(f"wrote {output}", quiet=quiet)
    if save is not None and run.result is not None:
        run.result.save(save)
        say(f"wrote {save}", quiet=quiet)
    if gif is not None and run.result is not None:
        from ..views import image_view

        write(gif, image_view.gif(run.result))
        say(f"wrote {gif}", quiet=quiet)
    if json_:
        files = {"grid": output, "each": run.files or None, "result": save, "animation": gif}
        dump(run.document(layout, {name: value for name, value in files.items() if value is not None}))
    say(run.summary(), quiet=quiet)


def _check_watch(quiet: bool) -> None:
    """Raises SpecError if the preview would show no image."""
    from ..views.preview import check_watchable

    check_watchable(sys.stderr)
    if quiet:
        raise SpecError("--watch and --quiet cannot be combined", hint="leave one of them out")


def _read_labels(prompt: list[str] | None, prompts: Path | None, classes: list[int] | None) -> list[Any]:
    """The captions or classes of the command, in order."""
    if classes and (prompt or prompts is not None):
        raise SpecError("captions and classes cannot be combined", hint="pass -p or --prompts, or --class")
    if classes:
        return list(classes)
    if not prompt and prompts is None:
        raise SpecError("no caption or class is passed", hint='pass -p "a caption", --prompts FILE, or --class N')
    items = inputs.read(prompt or [], prompts)
    for item in items:
        if not isinstance(item.prompt, str):
            raise SpecError(f"prompt {item.id} is a chat, not a caption", hint='{"prompt": "..."} is a caption')
        if not item.prompt.strip():
            raise SpecError(f"caption {item.id} is empty", hint="describe the image")
    return [item.prompt for item in items]


def _read_seeds(seed: int | None, seeds: str | None) -> int | list[int]:
    if seeds is None:
        return seed or 0
    if seed is not None:
        raise SpecError(
            "--seed and --seeds cannot be combined",
            hint="--seed 0 derives every image's seed, and --seeds 5,12 lists them",
        )
    return inputs.integers(seeds, f"--seeds takes whole numbers, got {seeds!r}", "--seeds 5,12 for two images")


def _load(name: str, load_arguments: dict[str, Any], *, quiet: bool) -> Model:
    """Loads the model, which must be an image model with a decoder."""
    from ..api import load

    model = load(name, **load_arguments)
    say(model.network.describe(), quiet=quiet)
    if model.imaging is None:
        raise SpecError(f"{model.name} is a text model and draws no images", hint=f'try "pardec generate {name}"')
    model.driver.check_drawable(hint="pass --decoder FILE, or put the {decoder} next to the weights")
    return model


def _prepare(model: Model, labels: list[Any], of_classes: bool, arguments: dict[str, Any]) -> Call:
    from ..requests.images import with_defaults

    imaging = model.imaging
    assert imaging is not None, "text models were refused"
    if of_classes != (imaging.kind == "class"):
        if of_classes:
            raise SpecError(f"{model.name} draws captions and has no classes", hint='pass -p "..." in place of --class')
        raise SpecError(
            f"{model.name} draws classes and cannot read captions",
            hint=f"pass --class N, one of 0..{imaging.classes - 1}, in place of captions",
        )
    complete: Any = with_defaults(imaging, arguments)
    return model.prepare(None, label=labels, **complete) if of_classes else model.prepare(labels, **complete)
