"""Draw one caption or class with several samplers and show what each costs: a short script to copy and change.

python scripts/generate_image.py --out images
python scripts/generate_image.py --model c2i_B_256.pt --decoder vq_ds16_c2i.pt --class 207 --cfg 4 --sampler sjd
python scripts/generate_image.py --model mar_base/checkpoint-last.pth --decoder kl16.ckpt --class 207 --cfg 2.9
python scripts/generate_image.py --model var_d30.pth --class 207 --sampler sequential --sampler code:refiner=var_d16.pth
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pardec
from pardec.images import pngs
from pardec.requests.images import with_defaults
from pardec.samplers.spec import parse

SAMPLERS = ("sequential", "sjd:window=8", "sjd:window=32", "lookup")
OF_VECTORS = ("sequential", "mar:steps=64", "mar:steps=16", "mar:steps=16,head=25")
OF_MAPS = ("sequential", "fastvar", "fastvar:keep=0.3")
BY_FAMILY = {"continuous": OF_VECTORS, "scales": OF_MAPS}
CAPTION = "a small red circle left of a large blue square on grey"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="tiny-llamagen", help="embedded model, folder, file or hub id")
    parser.add_argument("--decoder", help="its image tokenizer, if it is not in the folder of the weights")
    parser.add_argument("--prompt", default=CAPTION)
    parser.add_argument("--class", dest="label", type=int, default=0, help="class to draw, for models of classes")
    parser.add_argument("--images", type=int, default=4, help="images per sampler")
    parser.add_argument("--cfg", type=float, help="guidance; by default the checkpoint's own")
    parser.add_argument("--temperature", type=float, help="by default the checkpoint's own, or 1")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sampler", action="append", help="a spec; may be repeated")
    parser.add_argument("--out", type=Path, help="folder for one sheet of images per sampler")
    given = parser.parse_args()
    try:
        model = pardec.load(given.model, decoder=given.decoder)
        of_classes = model.imaging is not None and model.imaging.kind == "class"
        what = {"label": given.label} if of_classes else {"prompt": given.prompt}
        samplers = BY_FAMILY.get(model.family, SAMPLERS)
        if model.imaging is None:
            raise pardec.SpecError(f"{model.name} writes text", hint="scripts/generate_text.py decodes it")
        shaping = {name: value for name in ("cfg", "temperature") if (value := getattr(given, name)) is not None}
        for sampler in given.sampler or samplers:
            settings = with_defaults(model.imaging, {**shaping, "sampler": sampler})  # the authors' defaults
            result = model.generate(**what, num_images=given.images, seed=given.seed, **settings)
            rate = f"{sum(result.nfe):4d} forwards  {result.tokens_per_forward:5.2f} tokens per forward"
            parts = "".join(f", {name} {seconds:.2f} s" for name, seconds in result.timing.parts.items())
            print(f"{sampler:24s} {rate}  {result.timing.total_s:6.2f} s{parts}  {result.exact}")
            if given.out is not None and result.images:
                given.out.mkdir(parents=True, exist_ok=True)
                sheet = pngs.sheet(result.images, pngs.squarest(given.images))
                sheet.save(given.out / f"{parse(sampler).slug}.png")
    except pardec.PardecError as error:
        print(f"error: {error}\n{error.hint or ''}".rstrip(), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
