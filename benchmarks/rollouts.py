"""Measures rollouts on a CPU and writes the page: `python benchmarks/rollouts.py`.

Eight sampled answers to each prompt, with log-probabilities and a reward, in one batch of 8 and of 128 rows, as entry h
of `scripts/gpu_queue` measures them on a GPU.
"""

from __future__ import annotations

import datetime
import sys
from pathlib import Path

import torch

import pardec

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "scripts"))

from gpu_runs.rollouts import ANSWERS, CASES, NEW, ROWS, figures  # noqa: E402 - the path is set above

PAGE = """# Rollouts

`python benchmarks/rollouts.py`

`model.rollouts`: {answers} answers to each prompt of the task arithmetic, at most {new} tokens, temperature 1, with
log-probabilities and a reward that costs nothing; all rows in one batch, the best of three. {processor}, one thread,
{date}.

| model | sampler | rows | tokens | seconds | tokens per second |
|---|---|---|---|---|---|
{rows}
"""


def main() -> None:
    torch.set_num_threads(1)
    lines = []
    for name, spec in CASES:
        model = pardec.load(name, device="cpu")
        for rows in ROWS:
            one = figures(model, spec, rows)
            line = f"| {name} | `{spec}` | {rows} | {one['tokens']} | {one['seconds']:.2f} | {one['tokens_s']:.0f} |"
            print(line, flush=True)
            lines.append(line)
    about = getattr(torch.cpu, "get_capabilities", dict)()
    values = {"answers": ANSWERS, "new": NEW, "processor": about.get("cpu_name", "A CPU")}
    date = datetime.datetime.now(datetime.UTC).date()
    text = PAGE.format(**values, date=date, rows="\n".join(lines))
    (HERE / "rollouts.md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
