"""Seconds of `auto` against those of the best fixed choice: `python benchmarks/auto.py --pairs 20`.

Each setting decodes with `sequential`, with the drafter of `auto` and with `auto`, in turn in one process. The first
decode of each is not timed; `auto` measures there. A figure is the median of the pairs' ratios of tokens per second,
with its 95% bootstrap interval. The table is written into benchmarks/auto.md; `--only NAME` measures one model and
keeps the rows of the others.
"""

from __future__ import annotations

import argparse
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch

import pardec
from pardec.requests import chat_template
from pardec.requests.images import with_defaults

PAGE = Path(__file__).with_suffix(".md")
CAPTION = "a small red circle left of a large blue square on grey"
SMOLLM2 = Path("~/.cache/pardec/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf").expanduser()
MODELS = {"tiny-llama": "tiny-llama", "SmolLM2-135M": str(SMOLLM2), "tiny-llamagen": "tiny-llamagen"}
HEAD = (
    "| model | batch | temperature | `lookup` / `sequential` | `auto` / `sequential` | `auto` / best fixed | drafted |"
)


def interval(values: list[float]) -> str:
    """The median of `values` and its bootstrap interval."""
    array = np.array(values)
    drawn = np.median(array[np.random.default_rng(0).integers(len(array), size=(2000, len(array)))], axis=1)
    low, high = np.percentile(drawn, (2.5, 97.5))
    return f"{np.median(array):.3f} ({low:.3f}..{high:.3f})"


def settings(model: pardec.Model, batch: int, temperature: float) -> dict[str, Any]:
    """The arguments of one setting."""
    if model.imaging is None:
        texts: list[Any] = [str(problem.prompt) for problem in pardec.task("arithmetic").problems(n=batch)]
        if chat_template.applies(model, None):
            texts = [chat_template.as_message(text) for text in texts]
        return {"prompt": texts, "max_new_tokens": 64, "temperature": temperature}
    usual = dict(with_defaults(model.imaging, {"temperature": temperature}))
    if not temperature:
        usual = {name: value for name, value in usual.items() if name not in ("top_k", "top_p")}
    return {"prompt": [CAPTION] * batch, **usual}


def measured(model: pardec.Model, batch: int, temperature: float, pairs: int) -> list[str]:
    """The cells of one row."""
    arguments, specs = settings(model, batch, temperature), ("sequential", "lookup", "auto")
    speeds: dict[str, list[float]] = {spec: [] for spec in specs}
    rounds = drafted = 0
    for pair in range(pairs + 1):
        for spec in specs if pair % 2 else specs[::-1]:
            result = model.generate(**arguments, sampler=spec, seed=pair)
            if pair:
                speeds[spec].append(result.timing.tokens_per_second)
            if pair and spec == "auto":
                rounds += sum(map(len, result.trace.drafted))
                drafted += sum(depth > 0 for row in result.trace.drafted for depth in row)
    plain, lookup, auto = (speeds[spec] for spec in specs)
    best = lookup if np.median(lookup) > np.median(plain) else plain
    ratios = ((lookup, plain), (auto, plain), (auto, best))
    cells = [interval([own / other for own, other in zip(*pair, strict=True)]) for pair in ratios]
    return [str(batch), f"{temperature:g}", *cells, f"{drafted / rounds:.0%}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--only", choices=MODELS, nargs="+", default=list(MODELS))
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 8])
    options = parser.parse_args()
    torch.set_num_threads(1)
    old = PAGE.read_text(encoding="utf-8") if PAGE.is_file() else ""
    rows = {name: re.findall(rf"^\| {re.escape(name)} \|.*$", old, re.MULTILINE) for name in MODELS}
    for name in options.only:
        model, rows[name] = pardec.load(MODELS[name], device="cpu"), []
        for batch in options.batch:
            for temperature in (0.0, 1.0):
                cells = measured(model, batch, temperature, options.pairs)
                rows[name].append(f"| {name} | {' | '.join(cells)} |")
                print(rows[name][-1], flush=True)
                write(rows)


def write(rows: dict[str, list[str]]) -> None:
    """Writes the page."""
    lines = [
        "# Seconds of `auto`",
        "",
        "`python benchmarks/auto.py`",
        "",
        "Tokens per second, one thread of a CPU, float32. The samplers decode in turn in one process;",
        "each figure is the median of the pairs' ratios, with its 95% interval. The best fixed choice is the faster of",
        "`sequential` and `lookup`. *Drafted* is the share of the rounds of `auto` that drafted. Text: 64 tokens of",
        "word problems. Images: one caption. An interval that holds 0.97 neither shows nor rules out a loss of 3%;",
        "they are wide where other programs run on the machine, as they did for these rows.",
        "Not measured yet: SmolLM2-135M, and tiny-llamagen in batches of 8.",
        "",
        HEAD,
        "|" + "---|" * HEAD.count(" | ") + "---|",
        *(row for name in MODELS for row in rows[name]),
    ]
    PAGE.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
