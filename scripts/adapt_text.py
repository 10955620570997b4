"""Adapt a causal checkpoint (Llama's or Qwen2's stack) to block diffusion, by the recipe of Fast-dLLM v2.

    pardec generate MODEL --prompts prompts.jsonl -o rows.jsonl        # text that the model itself writes
    python scripts/adapt_text.py MODEL --rows rows.jsonl --minutes 120 --lora 16 --mask-token "<empty_output>" --out OUT
    pardec generate OUT -p "..." -s threshold:tau=0.9

Tokens keep the model's shift, attention is bidirectional inside blocks and causal between them, and each row is trained
under a random mask and its complement (scripts/text_training/block_diffusion.py). The run is resumable: the same
command continues from `--state`. With `--mix`, rows are problems of pardec's tasks, drawn on the fly.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

from text_training.adaptation import Adaptation, Options  # noqa: E402
from text_training.options import task_shares  # noqa: E402
from until_done import until_done  # noqa: E402


def options(argv: list[str] | None = None) -> Options:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("source", type=Path, help="folder of a causal checkpoint, or the name of an embedded one")
    parser.add_argument("--rows", type=Path, action="append", default=[], help="JSON lines with prompt and text")
    parser.add_argument("--mix", type=task_shares, default={}, help="share of each task, e.g. arithmetic=0.6,lists=0.4")
    parser.add_argument("--block", type=int, default=32, help="tokens per block")
    parser.add_argument("--mask-token", help="unused token to use as the mask (default: the tokenizer's own)")
    parser.add_argument("--lora", type=int, default=0, help="rank of the adapter; 0 trains all weights")
    parser.add_argument("--longest", type=int, default=512, help="most tokens per row")
    parser.add_argument("--batch", type=int, default=16, help="rows per step")
    parser.add_argument("--steps", type=int, help="length in steps, in place of --minutes")
    parser.add_argument("--minutes", type=float, help="wall-clock length of the whole run, resumed parts included")
    parser.add_argument("--lr", type=float, default=1e-3, help="peak learning rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="auto", help="cpu, cuda, or auto")
    parser.add_argument("--state", type=Path, help="folder of state and log (default runs/adapt-<model>)")
    parser.add_argument("--out", type=Path, required=True, help="export folder")
    given = parser.parse_args(argv)
    if (given.minutes is None) == (given.steps is None):
        parser.error("give one of --minutes and --steps")
    if bool(given.rows) == bool(given.mix):
        parser.error("give one of --rows and --mix")
    if not given.source.is_dir():
        given.source = ROOT / "models" / "embedded" / given.source.name
    if not (given.source / "config.json").is_file():
        parser.error(f"{given.source} holds no config.json")
    given.state = given.state or ROOT / "runs" / f"adapt-{given.source.name}"
    return Options(**vars(given))


def main(argv: list[str] | None = None) -> None:
    given = options(argv)
    until_done(lambda: Adaptation(given))


if __name__ == "__main__":
    main()
