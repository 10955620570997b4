"""Times `auto` against the best fixed choice, plain or with the drafter: `python benchmarks/auto.py`.

Each setting decodes with `sequential`, with the drafter of `auto` and with `auto`, in rotating order in one process.
The first two decodes of each are not timed; `auto` measures there. Seconds are the process's own, since other work may
share the machine. A figure is the median of the decodes' ratios of tokens per second, with its 95% bootstrap interval.
A row ends once the interval of the last ratio is at most WIDTH wide, or after `--most` decodes. The table is written
into benchmarks/auto.md; `--only NAME` measures one model and keeps the rows of the others.
"""

from __future__ import annotations

import argparse
import re
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

import pardec
from pardec.environment import processor
from pardec.requests import chat_template
from pardec.requests.images import with_defaults

PAGE = Path(__file__).with_suffix(".md")
CAPTION = "a small red circle left of a large blue square on grey"
SMOLLM2 = Path("~/.cache/pardec/smollm2/SmolLM2-135M-Instruct.Q4_1.gguf").expanduser()
EAGLE = "eagle:name=smollm2-eagle,k=3,quantize=int4"
MODELS: dict[str, tuple[str, str, str, dict[str, Any]]] = {  # what is loaded, its drafter, `auto` with it, and options
    "tiny-llama": ("tiny-llama", "lookup", "auto", {}),
    "SmolLM2-135M": (str(SMOLLM2), "lookup", "auto", {}),
    "SmolLM2-135M-int8": (
        str(SMOLLM2), EAGLE, f'auto:model="{EAGLE}",copy="lookup:k=3"', {"activations": "int8"},
    ),
    "tiny-llamagen": ("tiny-llamagen", "lookup", "auto", {}),
    "tiny-mar": ("tiny-mar", "cspd:draft=tiny-mar-draft,mode=exact", "auto:draft=tiny-mar-draft", {}),
}  # fmt: skip
COLUMNS = ("model", "batch", "temperature", "drafter", "drafter / `sequential`", "`auto` / `sequential`")
COLUMNS += ("`auto` / best fixed", "drafted", "decodes")
BAR = 0.97
BATCHES, TEMPERATURES = (1, 8), (0.0, 1.0)
SLOWER = 0.95  # the drafter alone is measured no further once its interval lies below this share of plain decoding
TEXTS = 8  # different prompts, which repeat after this many decodes
WARM, FEW, LEAST = 2, 4, 8  # untimed decodes; least timed decodes of a slow drafter alone, and of every other setting


def bounds(values: list[float]) -> tuple[float, float, float]:
    """The median of `values` and its bootstrap interval."""
    array = np.array(values)
    drawn = np.median(array[np.random.default_rng(0).integers(len(array), size=(2000, len(array)))], axis=1)
    low, high = np.percentile(drawn, (2.5, 97.5))
    return float(np.median(array)), float(low), float(high)


def interval(values: list[float]) -> str:
    """The median of `values` and its bootstrap interval, in words."""
    return "{:.3f} ({:.3f}..{:.3f})".format(*bounds(values))


def settings(model: pardec.Model, batch: int, temperature: float, number: int) -> dict[str, Any]:
    """The arguments of decode `number` of one setting."""
    if model.imaging is None:
        problems = pardec.task("arithmetic").problems(n=batch * TEXTS)[number % TEXTS * batch :][:batch]
        texts: list[Any] = [str(problem.prompt) for problem in problems]
        if chat_template.applies(model, None):
            texts = [chat_template.as_message(text) for text in texts]
        return {"prompt": texts, "max_new_tokens": 64, "temperature": temperature}
    usual = dict(with_defaults(model.imaging, {"temperature": temperature}))
    if not temperature:
        usual = {name: value for name, value in usual.items() if name not in ("top_k", "top_p")}
    if model.imaging.kind == "class":
        return {"label": [number % model.imaging.classes for number in range(batch)], **usual}
    return {"prompt": [CAPTION] * batch, **usual}


def measured(
    model: pardec.Model, specs: tuple[str, str, str], batch: int, temperature: float, most: int, width: float
) -> list[str]:
    """The figures of one row. `specs`: plain decoding, the drafter alone, and `auto`."""
    speeds: dict[str, list[float]] = {spec: [] for spec in specs}
    rounds = drafted = 0
    alone = not specs[1].startswith("cspd") or temperature > 0  # whether the drafter alone is still measured
    for number in range(most + WARM):
        arguments = settings(model, batch, temperature, number)
        turns = [spec for spec in specs if alone or spec != specs[1]]
        for at in range(len(turns)):
            spec = turns[(number + at) % len(turns)]
            started = time.process_time()
            result = model.generate(**arguments, sampler=spec, seed=number)
            seconds = time.process_time() - started
            if number < WARM:
                continue
            tokens = sum(map(len, result.tokens)) or len(result.nfe)  # images of vectors are all equally long
            speeds[spec].append(tokens / seconds)
            if spec == specs[-1]:
                rounds += sum(map(len, result.trace.drafted))
                drafted += sum(depth > 0 for row in result.trace.drafted for depth in row)
        if alone and number + 1 >= WARM + FEW:
            drafts, plain = (np.array(speeds[spec]) for spec in (specs[1], specs[0]))
            alone = bounds(list(drafts / plain))[2] > SLOWER
        if number + 1 >= WARM + LEAST:
            plain, drafts, auto = (np.array(speeds[spec]) for spec in specs)
            against = list(drafts / plain[: len(drafts)])
            best = drafts if len(drafts) == len(plain) and np.median(drafts) > np.median(plain) else plain
            ratios = [against, list(auto / plain), list(auto / best)]
            _, low, high = bounds(ratios[-1])
            if high - low <= width:
                break
    cells = [interval(values) if values else "it needs a temperature" for values in ratios]
    return [*cells, f"{drafted / rounds:.0%}", str(len(plain))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--most", type=int, default=100, help="most decodes per row of the table")
    parser.add_argument(
        "--width", type=float, default=0.015, help="stop measuring a row once its interval is this narrow"
    )
    parser.add_argument("--only", choices=MODELS, nargs="+", default=list(MODELS))
    parser.add_argument("--batch", type=int, nargs="+", default=BATCHES)
    parser.add_argument("--temperature", type=float, nargs="+", default=TEMPERATURES)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for name in options.only:
        source, drafter, auto, loading = MODELS[name]
        model = pardec.load(source, device="cpu", **loading)
        for batch in options.batch:
            for temperature in options.temperature:
                key = (f"| {name}", str(batch), f"{temperature:g}")
                figures = measured(
                    model, ("sequential", drafter, auto), batch, temperature, options.most, options.width
                )
                row = " | ".join((*key, f"`{drafter}`", *figures)) + " |"
                print(row, flush=True)
                write(read() | {key: row})


PAGE_TEXT = """# Seconds of `auto`

`python benchmarks/auto.py`

Tokens per second of {processor}, one thread, the process's own seconds. The three samplers decode in rotating order in
one process; each figure is the median of the decodes' ratios, with its 95% interval. The best fixed choice is the
faster of `sequential` and the drafter. *Drafted* is the share of the rounds of `auto` that drafted. Text: at most 64
tokens of word problems, others in each decode. Images: one caption or class. The decodes of each row began after two
that were not timed, in which `auto` measured both ways.

The bar: `auto` is at most 3% slower than the best fixed choice. {verdict}
Not measured yet: {missing}.

{table}
"""


def verdict(rows: list[str]) -> str:
    """The verdict on the page: which rows reach `BAR`, which miss it, and which are undecided."""
    kinds: dict[str, list[str]] = {"hold": [], "open": [], "lose": []}
    for row in rows:
        cells = [cell.strip() for cell in row.strip("|").split("|")]
        low, high = map(float, re.findall(r"\d\.\d+", cells[6])[1:])
        kind = "hold" if low >= BAR else "lose" if high < BAR else "open"
        kinds[kind].append(f"{cells[0]}, batch {cells[1]}, temperature {cells[2]}")
    text = f"{len(kinds['hold'])} of {len(rows)} rows hold it, by their whole interval."
    if kinds["open"]:
        text += f" Open, the interval holds {BAR}: {'; '.join(kinds['open'])}."
    if kinds["lose"]:
        text += f" Slower: {'; '.join(kinds['lose'])}."
    return text


def read() -> dict[tuple[str, ...], str]:
    """The rows of the page by model, batch and temperature."""
    text = PAGE.read_text(encoding="utf-8") if PAGE.is_file() else ""
    return {tuple(row.split(" | ")[:3]): row for row in re.findall(r"^\| [\w-]+ \| \d.*$", text, re.MULTILINE)}


def write(rows: dict[tuple[str, ...], str]) -> None:
    """Writes the page."""
    names = list(MODELS)
    order = sorted(rows, key=lambda key: (names.index(key[0].removeprefix("| ")), int(key[1]), float(key[2])))
    lines = [rows[key] for key in order]
    every = [(f"| {name}", str(batch), f"{heat:g}") for name in names for batch in BATCHES for heat in TEMPERATURES]
    missing = "; ".join(" batch ".join(key[:2])[2:] + f" temperature {key[2]}" for key in every if key not in rows)
    table = "\n".join(["| " + " | ".join(COLUMNS) + " |", "|---" * len(COLUMNS) + "|", *lines])
    text = PAGE_TEXT.format(processor=processor(), verdict=verdict(lines), missing=missing or "none", table=table)
    PAGE.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
