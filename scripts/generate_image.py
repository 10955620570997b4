"""Draw one caption or class with several samplers and show what each costs: a page of Python to start your own from.

python scripts/generate_image.py --out pictures
python scripts/generate_image.py --model c2i_B_256.pt --decoder vq_ds16_c2i.pt --class 207 --cfg 4 --sampler sjd
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pardec
from pardec import pngs
from pardec.samplers.spec import parse

SAMPLERS = ("sequential", "sjd:window=8", "sjd:window=32", "lookup")
CAPTION = "a small red circle left of a large blue square on grey"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="tiny-llamagen", help="embedded model, folder, file or hub id")
    parser.add_argument("--decoder", help="its image tokenizer, if that does not lie beside the weights")
    parser.add_argument("--prompt", default=CAPTION)
    parser.add_argument("--class", dest="label", type=int, help="in place of the prompt, for a model of classes")
    parser.add_argument("--images", type=int, default=4, help="pictures a sampler")
    parser.add_argument("--cfg", type=float, default=3.0, help="guidance")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sampler", action="append", help="a spec; may be repeated")
    parser.add_argument("--out", type=Path, help="folder that takes a sheet of pictures a sampler")
    given = parser.parse_args()
    try:
        model = pardec.load(given.model, decoder=given.decoder)
        what = {"label": given.label} if given.label is not None else {"prompt": given.prompt}
        shaping = {"temperature": 1.0, "cfg": given.cfg, "seed": given.seed}
        for sampler in given.sampler or SAMPLERS:
            result = model.generate(**what, sampler=sampler, num_images=given.images, **shaping)
            rate = f"{sum(result.nfe):4d} forwards  {result.tokens_per_forward:5.2f} tokens a forward"
            print(f"{sampler:24s} {rate}  {result.timing.total_s:6.2f} s  {result.exact}")
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
