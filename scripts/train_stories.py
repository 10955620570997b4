"""Train a masked model of few million parameters to write short stories, on a CPU core or a GPU.

    python scripts/story_prompts.py 20000 > prompts.jsonl
    pardec generate "$(./scripts/get_smollm2)" --prompts prompts.jsonl -o stories.jsonl --dtype bfloat16 \\
        --batch-size 96 -n 110 --temperature 0.6
    python scripts/text_rows.py benchmarks/gpu/state "$(./scripts/get_smollm2)" > texts.jsonl
    python scripts/make_tokenizer.py runs/stories/tokenizer --pairs 4096 --rows stories.jsonl texts.jsonl
    python scripts/train_stories.py --rows stories.jsonl --others texts.jsonl --steps 125000 --out OUT

The state is stored every two minutes; the same command goes on after an interruption, and a larger --steps goes on
after the end. The stories may grow during a run: they are read again every 2,048 rows. Every ten minutes the moving
average of the weights is exported, with the loss on held-out rows and two texts.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]
os.environ.setdefault("OMP_NUM_THREADS", "1")

from text_training.story_run import StoryRun  # noqa: E402
from train_text import options as text_options  # noqa: E402
from until_done import until_done  # noqa: E402


def run_of(argv: list[str] | None = None) -> StoryRun:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--rows", type=Path, nargs="+", required=True, help="files of `pardec generate -o`: stories")
    parser.add_argument("--others", type=Path, nargs="+", default=[], help="files of other texts")
    parser.add_argument("--share", type=float, default=0.5, help="share of the stories, with --others")
    parser.add_argument("--steps", type=int, required=True, help="length of the whole run")
    parser.add_argument("--batch", type=int, default=4096, help="tokens per step")
    parser.add_argument("--lr", type=float, default=4e-3, help="peak learning rate")
    parser.add_argument("--every", type=float, default=10.0, help="minutes between exports")
    parser.add_argument("--device", default="auto", help="cpu, cuda, or auto")
    parser.add_argument("--shape", default="num_hidden_layers=6", help="sizes to change, as in train_text.py")
    parser.add_argument("--state", type=Path, default=ROOT / "runs" / "stories", help="folder of tokenizer, state, log")
    parser.add_argument("--out", type=Path, required=True, help="export folder")
    given = parser.parse_args(argv)
    if not (given.state / "tokenizer" / "tokenizer.json").is_file():
        parser.error(f"{given.state / 'tokenizer'} has no tokenizer.json: scripts/make_tokenizer.py --pairs makes it")
    if not 0 <= given.share <= 1:
        parser.error(f"--share is between 0 and 1, got {given.share}")
    of_text = ["--model", "tiny-llada", "--tokenizer", str(given.state / "tokenizer"), "--stale", "0"]
    for name in ("steps", "batch", "lr", "every", "device", "shape", "state", "out"):
        of_text += [f"--{name}", str(getattr(given, name))]
    return StoryRun(text_options(of_text), given.rows, given.others, given.share)


if __name__ == "__main__":
    until_done(run_of())
