"""Times decoding on a CPU with this code against an earlier commit, in turns.

    python benchmarks/against_commit.py COMMIT [--pairs 40] [--only tiny-dream] [--case MODEL SPEC NEW ROWS]

The commit is checked out beside the repository's other files (`git worktree`) for the time of the run. One process of
each tree loads the models, and only one of them decodes at any time: a pair is one decode of each, first that of the
commit and then that of this tree, or the other way round. Both must give the same tokens and forwards. A ratio is
the process time of this tree divided by that of the commit; the table has the median over the pairs and its 95%
interval, by a bootstrap over pairs. An interval that contains 1 shows no difference.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
# Model, sampler, new tokens, rows.
CASES: list[tuple[str, str, int, int]] = [
    ("tiny-dream", "threshold@none", 32, 1),
    ("tiny-dream", "threshold@none", 32, 4),
    ("tiny-dream", "threshold@dual", 32, 1),
    ("tiny-llama", "sequential", 48, 1),
    ("tiny-llama", "lookup", 48, 1),
    ("tiny-llama", "lookup", 48, 4),
    ("tiny-llama", "eagle:name=tiny-llama-eagle,k=4+beam:beams=4,nodes=12", 48, 1),
    ("tiny-llama", "eagle:name=tiny-llama-eagle,k=4+dyspec:nodes=12,children=4", 48, 1),
    ("random-100m", "threshold@dual", 32, 1),
    ("random-100m-ar", "sequential", 16, 1),
]
PROMPT = "Tom has 12 apples. He buys 7 more. How many apples does Tom have now?"
_RESAMPLES = 2000


def serve() -> None:
    """The worker: reads a case per line, decodes it, and writes its tokens, forwards and seconds."""
    import torch

    import pardec
    from pardec.bench.shapes import SHAPES, shaped

    torch.set_num_threads(1)
    models: dict[str, pardec.Model] = {}
    for line in sys.stdin:
        name, sampler, new, rows = json.loads(line)
        if name not in models:
            models[name] = (shaped if name in SHAPES else pardec.load)(name, device="cpu", dtype="float32")
        arguments: dict[str, Any] = {"sampler": sampler, "max_new_tokens": new, "stop_ids": []}
        arguments |= {"input_ids": [list(range(5, 25))] * rows} if name in SHAPES else {"prompt": [PROMPT] * rows}
        started = time.process_time()
        result = models[name].generate(**arguments)
        seconds = time.process_time() - started
        answer = [result.sequences.tolist(), [int(count) for count in result.nfe], seconds]
        print(json.dumps([pardec.__file__, *answer]), flush=True)


class Worker:
    """A process that decodes with the code of one tree."""

    def __init__(self, tree: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
        command = [sys.executable, __file__, "--serve"]
        pipe = subprocess.PIPE
        self.tree = tree
        self.process = subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True, env=environment, cwd=tree)

    def decode(self, case: Sequence[Any]) -> tuple[list[Any], float]:
        """The tokens and forwards of a case, and the seconds it took."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        print(json.dumps(case), file=self.process.stdin, flush=True)
        if not (line := self.process.stdout.readline()):
            raise SystemExit(f"{self.tree} cannot decode {case[1]} with {case[0]}: its error is above")
        file, *result, seconds = json.loads(line)
        assert Path(file).is_relative_to(self.tree), f"{file} is not of {self.tree}"
        return result, seconds

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def interval(ratios: Sequence[float]) -> tuple[float, float, float]:
    """The median of the ratios, and its 95% interval."""
    drawn = np.random.default_rng(0).choice(ratios, (_RESAMPLES, len(ratios)))
    low, high = np.quantile(np.median(drawn, axis=1), (0.025, 0.975))
    return float(np.median(ratios)), float(low), float(high)


def compare(before: Worker, now: Worker, case: Sequence[Any], pairs: int) -> str:
    """The row of the table for one case."""
    same = all(before.decode(case)[0] == now.decode(case)[0] for _ in range(2))  # kernels are compiled here
    seconds: list[tuple[float, float]] = []
    for pair in range(pairs):
        order = (before, now) if pair % 2 else (now, before)
        times = {worker: worker.decode(case)[1] for worker in order}
        seconds.append((times[before], times[now]))
    median, low, high = interval([new / old for old, new in seconds])
    took = 1e3 * float(np.median([old for old, _ in seconds]))
    name, sampler, new_tokens, rows = case
    tokens = "the same" if same else "**different**"
    ratio = f"{median:.3f} ({low:.3f}..{high:.3f})"
    return f"| {name} | `{sampler}` | {rows} x {new_tokens} | {took:.1f} | {ratio} | {tokens} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("commit")
    parser.add_argument("--pairs", type=int, default=40)
    parser.add_argument("--only", help="cases of this model alone")
    parser.add_argument("--case", nargs=4, action="append", metavar=("MODEL", "SPEC", "NEW", "ROWS"))
    args = parser.parse_args()
    own = [(name, sampler, int(new), int(rows)) for name, sampler, new, rows in args.case or ()]
    cases = own or [case for case in CASES if args.only in (None, case[0])]
    git = ["git", "-C", str(ROOT), "worktree"]
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder).resolve() / "before"
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), args.commit], check=True)
        workers = [Worker(tree), Worker(ROOT)]
        try:
            print("| model | sampler | rows x tokens | ms before | time now / before (95%) | tokens, forwards |")
            print("|---|---|---|---|---|---|", flush=True)
            for case in cases:
                print(compare(*workers, case, args.pairs), flush=True)
        finally:
            for worker in workers:
                worker.close()
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


if __name__ == "__main__":
    serve() if sys.argv[1:] == ["--serve"] else main()
