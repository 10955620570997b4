"""Train the embedded text models, seeded and resumable, on a CPU core or a GPU.

    python scripts/train_text.py --model tiny-llama --minutes 30
    python scripts/train_text.py --model tiny-llama-draft --teacher models/embedded/tiny-llama --minutes 20
    python scripts/train_text.py --model tiny-llama-bytes --tokenizer models/embedded/tiny-llama-bytes --minutes 16 \\
        --lr 6e-3 --mix arithmetic=0.6,lists=0.15,records=0.25 --problems 30
    python scripts/train_text.py --model tiny-dream --init models/embedded/tiny-llama --minutes 75
    python scripts/train_text.py --model tiny-llada --init models/embedded/tiny-dream \\
        --teacher models/embedded/tiny-dream --minutes 60
    python scripts/train_text.py --model tiny-llama-draft --exits 1-2-3 --shape num_hidden_layers=3 --minutes 20 \\
        --out nested

The state is stored in runs/<model>/, and a run continues from a stored one; --fresh starts over. The exported weights
are a moving average over steps, rounded to 16 bit; the card's accuracies are measured with them.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]
os.environ.setdefault("OMP_NUM_THREADS", "1")

from text_training import networks  # noqa: E402
from text_training.loop import Run  # noqa: E402
from text_training.options import Options, task_shares  # noqa: E402
from until_done import until_done  # noqa: E402


def pairs(text: str) -> list[list[str]]:
    return [pair.split("=") for pair in text.split(",") if pair]


def options(argv: list[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", required=True, choices=tuple(networks.OWN))
    parser.add_argument("--init", type=Path, help="exported folder to start from")
    parser.add_argument("--teacher", type=Path, help="exported model whose distributions are learned from too")
    parser.add_argument("--minutes", type=float, help="wall-clock length of the whole run, resumed parts included")
    parser.add_argument("--steps", type=int, help="length in steps, in place of --minutes")
    parser.add_argument("--until", type=float, help="stop once this share of the first task is answered exactly")
    parser.add_argument("--batch", type=int, default=4096, help="tokens per step")
    parser.add_argument("--lr", type=float, default=4e-3, help="peak learning rate")
    parser.add_argument("--optimizer", choices=("muon", "adamw"), default="muon")
    parser.add_argument(
        "--focus",
        type=float,
        default=0.5,
        help="weight exponent: a token with k masks before it weighs (1 + k) ** -focus",
    )
    parser.add_argument("--stale", type=float, default=0.5, help="share of the steps that read the prompt from a cache")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--every", type=float, default=10.0, help="minutes between evaluations and exports")
    parser.add_argument("--problems", type=int, default=100, help="held-out problems per task in an evaluation")
    parser.add_argument("--device", default="auto", help="cpu, cuda, or auto")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--compile", action="store_true", help="compile the layers: a tenth faster, slow to start")
    parser.add_argument(
        "--mix", type=task_shares, default="arithmetic=0.55,lists=0.25,records=0.2", help="share of each task"
    )
    parser.add_argument("--tokenizer", type=Path, default=ROOT / "models" / "embedded" / "tokenizer")
    parser.add_argument("--out", type=Path, help="export folder (default models/embedded/<model>)")
    parser.add_argument("--state", type=Path, help="folder of state and log (default runs/<model>)")
    parser.add_argument("--fresh", action="store_true", help="ignore a stored state")
    parser.add_argument("--shape", default="", help="sizes to change, e.g. hidden_size=64,num_hidden_layers=2")
    parser.add_argument(
        "--exits", default="", help="layers whose outputs the head learns too, such as 1-2-4, for `sorted`"
    )
    given = parser.parse_args(argv)
    if (given.minutes is None) == (given.steps is None):
        parser.error("give one of --minutes and --steps")
    given.out = given.out or ROOT / "models" / "embedded" / given.model
    given.state = given.state or ROOT / "runs" / given.model
    given.shape = {key: int(value) for key, value in pairs(given.shape)}
    given.exits = tuple(int(layer) for layer in given.exits.split("-") if layer)
    return Options(**vars(given))


def main(argv: list[str] | None = None) -> None:
    given = options(argv)
    until_done(lambda: Run(given))


if __name__ == "__main__":
    main()
