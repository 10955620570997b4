"""Train the embedded image models, seeded and resumable, on a CPU core or a GPU.

    python scripts/train_image.py --model tiny-vq --steps 4000
    python scripts/train_image.py --model tiny-llamagen --minutes 180 --batch 32 --lr 3e-3
    python scripts/train_image.py --model tiny-llamagen-draft --minutes 15 --teacher models/embedded/tiny-llamagen
    python scripts/train_image.py --model tiny-kl --minutes 32 --batch 8
    python scripts/train_image.py --model tiny-mar --minutes 180 --batch 64
    python scripts/train_image.py --model tiny-mar-draft --minutes 15 --batch 64
    python scripts/train_image.py --model tiny-var-vq --minutes 19 --batch 12 --lr 1e-3
    python scripts/train_image.py --model tiny-var --minutes 50 --batch 32 --lr 3e-3 --chunks 20 --compile
    python scripts/train_image.py --model tiny-var-draft --minutes 75 --batch 32 --lr 3e-3 --chunks 20 --compile

The state is stored in runs/<model>/, and a run continues from a stored one; --fresh starts over. The exported weights
are a moving average over steps, rounded to 16 bit; the card's figures are measured with them.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]
os.environ.setdefault("OMP_NUM_THREADS", "1")

from image_training import export_drawer, export_mar, export_var  # noqa: E402
from image_training.autoencoder import AutoencoderRun  # noqa: E402
from image_training.drawer import DrawerRun  # noqa: E402
from image_training.drawn import drawn_right  # noqa: E402
from image_training.export import SUMMARY, with_figures  # noqa: E402
from image_training.mar import MARRun  # noqa: E402
from image_training.multiscale_run import MultiScaleRun  # noqa: E402
from image_training.options import Options  # noqa: E402
from image_training.painted import painted_right  # noqa: E402
from image_training.run import Training  # noqa: E402
from image_training.scale_draft import ScaleDraftRun  # noqa: E402
from image_training.tokenizer import TokenizerRun  # noqa: E402
from image_training.var import VARRun, measured  # noqa: E402
from text_training.export import write_pages  # noqa: E402
from text_training.loop import read_card  # noqa: E402
from text_training.options import refuse_options_of_others  # noqa: E402
from until_done import until_done  # noqa: E402

RUNS: dict[str, type[Training]] = {
    "tiny-vq": TokenizerRun,
    "tiny-kl": AutoencoderRun,
    "tiny-var-vq": MultiScaleRun,
    "tiny-var": VARRun,
    "tiny-var-draft": ScaleDraftRun,
    "tiny-mar": MARRun,
    "tiny-mar-draft": MARRun,
    "tiny-llamagen": DrawerRun,
    "tiny-llamagen-draft": DrawerRun,
}

_OF_CLASSES = ("tiny-var", "tiny-var-draft")
_OF_CAPTIONS = ("tiny-llamagen", "tiny-llamagen-draft")
_OF_VECTORS = ("tiny-mar", "tiny-mar-draft")
OF_MODELS = {  # options that only some models have
    "autoencoder": ("tiny-var-vq", *_OF_VECTORS),
    "tokenizer": _OF_CLASSES,
    "teacher": ("tiny-var-draft", *_OF_VECTORS, *_OF_CAPTIONS),
    "refiner": ("tiny-var-draft",),
    "init": (*_OF_CLASSES, *_OF_VECTORS, *_OF_CAPTIONS),
    "corpus": (*_OF_CLASSES, *_OF_VECTORS, *_OF_CAPTIONS),
    "compile": (*_OF_CLASSES, *_OF_CAPTIONS),
}


def sizes(text: str) -> dict[str, object]:
    """`ch=32,ch_mult=1-1-2` as arguments of the network."""
    pairs = [pair.split("=") for pair in text.split(",") if pair]
    return {key: tuple(map(int, value.split("-"))) if "-" in value else int(value) for key, value in pairs}


def options(argv: list[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True, choices=tuple(SUMMARY))
    parser.add_argument("--minutes", type=float, help="wall-clock length of the whole run, resumed parts included")
    parser.add_argument("--steps", type=int, help="length in steps, in place of --minutes")
    parser.add_argument("--batch", type=int, default=16, help="images per step")
    parser.add_argument("--lr", type=float, default=2e-3, help="peak learning rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=float, default=10.0, help="minutes between evaluations and exports")
    parser.add_argument("--pictures", type=int, default=1000, help="fresh images in the last evaluation")
    parser.add_argument("--device", default="auto", help="cpu, cuda, or auto")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", type=Path, help="export folder (default models/embedded/<model>)")
    parser.add_argument("--state", type=Path, help="folder of state and log (default runs/<model>)")
    parser.add_argument("--compile", action="store_true", help="compile the step: a third faster on a CPU")
    parser.add_argument("--measure", action="store_true", help="train nothing: draw, score, rewrite the card")
    parser.add_argument("--fresh", action="store_true", help="ignore a stored state")
    parser.add_argument("--chunks", type=int, default=40, help="chunks of 2048 images to train on")
    parser.add_argument("--corpus", type=Path, help="folder with the chunks of another run")
    parser.add_argument("--autoencoder", type=Path, help="folder of tiny-kl, if it is not embedded yet")
    parser.add_argument("--tokenizer", type=Path, help="folder of tiny-var-vq with its encoder (default: of its run)")
    parser.add_argument("--init", type=Path, help="exported image model to start from")
    parser.add_argument("--teacher", type=Path, help="exported image model whose distributions are learned too")
    parser.add_argument("--refiner", type=Path, help="exported draft model of token maps; its codes are trained on too")
    parser.add_argument("--shape", default="", help="sizes to change, e.g. codebook_size=512,ch_mult=1-2-2")
    given = parser.parse_args(argv)
    if not given.measure and (given.minutes is None) == (given.steps is None):
        parser.error("give one of --minutes and --steps")
    refuse_options_of_others(parser, given, "model", OF_MODELS)
    given.out = given.out or ROOT / "models" / "embedded" / given.model
    given.state = given.state or ROOT / "runs" / given.model
    given.shape = sizes(given.shape)
    return Options(**vars(given))


def main(argv: list[str] | None = None) -> None:
    given = options(argv)
    if given.measure:
        run, of, sampler = RUNS[given.model], "classes", "sequential"
        if issubclass(run, VARRun):
            found, page = measured(given.model, given.out, given.pictures, decoder=given.tokenizer), export_var.page
        elif run is MARRun:
            found, page = painted_right(given.out, given.pictures, decoder=given.autoencoder), export_mar.page
            sampler = "mar"
        else:
            found, page, of = drawn_right(given.out, given.pictures), export_drawer.page, "captions"
        card = with_figures(read_card(given.out), found, of=of, sampler=sampler)
        write_pages(given.out, card, page(card))
        return
    until_done(lambda: RUNS[given.model](given))


if __name__ == "__main__":
    main()
