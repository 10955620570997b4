"""`pardec image`: captions or classes in, images out."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from pardec.models.errors import SpecError

from ..io import output_paths
from ..requests import early
from . import inputs
from . import options as o
from .common import Json, dump, say

if TYPE_CHECKING:
    from ..api import Model
    from ..requests.continuous import VectorCall
    from ..requests.text import Call

_RECORDED = (
    "decoder",
    "text_encoder",
    "revision",
    "quantize",
)  # of how the model was loaded, what an image's file tells


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
    save: o.SavedResult = None,
    grid: o.Grid = None,
    scale: o.Scale = 1,
    json_: Json = False,
    quiet: o.Quiet = False,
    sampler: o.Sampler = None,
    sampling: o.ImageSampling,
    seed: o.ImageSeed = None,
    seeds: o.ImageSeeds = None,
    batch_size: o.ImageBatch = 8,
    place: o.ImagePlacing,
) -> None:
    """Draw images of captions or classes; files take them, and say how each was made.

    pardec image MODEL -p "a small red circle left of a large blue square on grey" --grid 2x2 -o out.png

    pardec image c2i_B_256.pt --decoder vq_ds16_c2i.pt --class 207 --num-images 4 --cfg 4 -s sjd -o dogs.png

    pardec image MODEL -p "a large blue square in the middle on white" --scale 8 -o large.png

    pardec image MODEL --prompts captions.jsonl --each pictures --json
    """
    if output is None and each is None and save is None:
        raise SpecError("nowhere is named to put the images", hint="-o out.png takes them all, --each DIR one by one")
    if output is not None and output.suffix.lower() != ".png":
        raise SpecError(f"images are PNG files, got -o {output}", hint="name a file that ends in .png")
    output_paths.check_file(output)
    output_paths.check_folder(each)
    output_paths.check_result(save)
    shown = _asked(prompt, prompts, class_)
    placing, negative_prompt = o.given(place), sampling.negative_prompt
    shaping = {**o.given(sampling), "seed": _seeds(seed, seeds)}
    kind = early.check(model, [sampler], shaping, placing, draws=True)
    if kind is not None:
        early.check_shown(kind, class_)
        if place.text_encoder is None:
            early.check_captions(kind, [*([] if class_ else shown), *([negative_prompt] if negative_prompt else [])])
        if negative_prompt is not None and kind.draws == "class":
            raise SpecError(
                f"{kind.name} draws classes, and a negative prompt is a caption", hint="leave --negative-prompt out"
            )

    from ..images import pngs  # here and not above, like all that --help and a misspelt name do not need

    field = None if grid is None else pngs.read_grid(grid)
    count = num_images or (1 if field is None else max(field[0] * field[1] // len(shown), 1))
    total = count * len(shown)
    field = field or pngs.squarest(total)
    pngs.check_grid(field, total)
    if save is not None and total > batch_size:
        raise SpecError(
            f"{total} images are more than the batch of {batch_size} that {save} can hold",
            hint="raise --batch-size, or leave --save out",
        )
    if seeds is not None and len(shaping["seed"]) != total:
        raise SpecError(f"{len(shaping['seed'])} seeds for {total} rows", hint="--seeds takes one a row")
    given = {**shaping, "num_images": count, **({} if sampler is None else {"sampler": sampler})}

    early.check_parts(kind, given, {"temperature": 1.0})  # an image is sampled unless the temperature says otherwise

    from .drawing import Drawing, write

    loaded = _loaded(model, placing, quiet=quiet)
    call = _prepared(loaded, shown, class_ is not None, given)
    run = Drawing(
        loaded, call, each, {"name": model, **{k: v for k, v in placing.items() if k in _RECORDED and v}}, scale
    )
    try:
        run.draw(batch_size, quiet=quiet)
    except KeyboardInterrupt:
        kept = "" if each is None else f", in {each}"
        say(f"interrupted: {len(run.images)} of {total} images are finished{kept}")
        raise typer.Exit(130) from None
    if output is not None:
        write(output, pngs.png(pngs.sheet(run.images, field), run.record(run.made, field)))
        say(f"wrote {output}", quiet=quiet)
    if save is not None and run.result is not None:
        run.result.save(save)
        say(f"wrote {save}", quiet=quiet)
    if json_:
        files = {"grid": output, "each": run.files or None, "result": save}
        dump(run.document(field, {name: value for name, value in files.items() if value is not None}))
    say(run.summary(), quiet=quiet)


def _asked(prompt: list[str] | None, prompts: Path | None, classes: list[int] | None) -> list[Any]:
    """The captions or classes of the command, in order."""
    if classes and (prompt or prompts is not None):
        raise SpecError("both captions and classes are given", hint="keep -p and --prompts, or --class")
    if classes:
        return list(classes)
    if not prompt and prompts is None:
        raise SpecError("nothing to draw is given", hint='pass -p "a caption", --prompts FILE, or --class N')
    items = inputs.read(prompt or [], prompts)
    for item in items:
        if not isinstance(item.prompt, str):
            raise SpecError(
                f"prompt {item.id} is a chat, not a caption", hint='{"prompt": "..."} is a line of captions'
            )
        if not item.prompt.strip():
            raise SpecError(f"caption {item.id} is empty", hint="describe the image")
    return [item.prompt for item in items]


def _seeds(seed: int | None, seeds: str | None) -> int | list[int]:
    if seeds is None:
        return seed or 0
    if seed is not None:
        raise SpecError("both --seed and --seeds are given", hint="--seed 0 gives each image one of its own")
    return inputs.whole_numbers(seeds, f"seeds are whole numbers, got {seeds!r}", "--seeds 5,12 for two images")


def _loaded(name: str, placing: dict[str, Any], *, quiet: bool) -> Model:
    """The model, of images and with a decoder, or an error that says what it is."""
    from ..api import load
    from ..requests.images import check_drawable

    model = load(name, **placing)
    say(model.network.describe(), quiet=quiet)
    if model.imaging is None:
        raise SpecError(f"{model.name} is a text model and draws no images", hint=f'try "pardec generate {name}"')
    check_drawable(model.network, hint="pass --decoder FILE, or put the {decoder} beside the weights")
    return model


def _prepared(model: Model, shown: list[Any], of_classes: bool, given: dict[str, Any]) -> Call | VectorCall:
    from ..requests.images import with_defaults

    imaging = model.imaging
    assert imaging is not None, "a text model was refused"
    if of_classes != (imaging.kind == "class"):
        if of_classes:
            raise SpecError(f"{model.name} draws captions and has no classes", hint='pass -p "..." in place of --class')
        raise SpecError(
            f"{model.name} draws classes and cannot read captions",
            hint=f"pass --class N, one of 0..{imaging.classes - 1}, in place of captions",
        )
    arguments: Any = with_defaults(imaging, given)
    return model.prepare(None, label=shown, **arguments) if of_classes else model.prepare(shown, **arguments)
