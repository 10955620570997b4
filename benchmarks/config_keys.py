"""Compares how transformers and pardec interpret each key of a config.json, and writes the page config_keys.md.

    python benchmarks/config_keys.py [--families llama qwen2 ...] [--out benchmarks/config_keys.md]

For each family a small random checkpoint is written as transformers saves it. Then its config.json is changed, in one
key or in several that meet, and both libraries compute logits from the folder. The changes are those that
`tests/models/families/test_config_keys.py` tests. Exits with 1 where pardec computes other logits than transformers, or
loads without a reason what transformers does not load.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

import torch
import transformers
from torch import Tensor
from transformers import AutoModelForCausalLM, LogitsProcessorList

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from pardec.environment import versions  # noqa: E402
from pardec.models.errors import PardecError, one_line  # noqa: E402
from pardec.models.load import load  # noqa: E402
from pardec.models.plan import Plan  # noqa: E402
from tests.models.families import test_config_keys as cases  # noqa: E402

PAGE = """# What the keys of a config.json do

transformers {transformers}, pardec {pardec}, torch {torch}, {day}: {count} configurations. Each is the config.json of a
small random checkpoint of the family, as transformers saves it, changed as the row says; both libraries compute logits
from the folder.

| word | meaning |
|---|---|
| followed | the logits change |
| ignored | the logits are those without the change |
| partly | it loads without some of the file's tensors, or with random ones, and a line in the log says so |
| two models | transformers' logits for a text in one forward are not those token by token, with its own KV cache |
| fails | an error |

One word: both libraries do this, and their logits are the same. Two words: transformers, then pardec. With an asterisk,
pardec runs the model through transformers.

`{command}`

{table}

Both libraries ignore, in all of these families: {idle}.

## Where they differ

What each library does, and why: an error in its own words, or the reason for the difference. A model that "supports up
to 6 positions" runs through transformers, and as far as its KV cache drops nothing that the layers attend to.

{differences}

## End tokens

Tokens that end a row of a Llama without a tokenizer, by the `eos_token_id` of its two files. pardec ends a row at any
end token that one of the files names ([load](../docs/guides/load.md)).

{ends}
"""
_SAME = 1e-5  # tolerance, relative to the largest logit: kernels of one implementation differ by less
# Per change: why pardec loads a config that transformers refuses or interprets in two ways.
REASONS: dict[str, str] = {
    "`sliding_window: 1`": "each position sees itself; transformers' cache means to keep 0 positions and keeps all",
    '`rope_parameters: {"sliding_attention"': "each layer rotates as the parameters of its type say, as in Gemma 3",
    "`head_dim: null`": "as where the key is left out: hidden_size / num_attention_heads",
    "`quantization_config: {}`": "an empty object names no quantization",
    "no `pad_token_id`": "logits do not depend on padding; 32000, the class's default, is not in this vocabulary",
    '`attn_logit_softcapping: 2.0`, `attn_implementation: "sdpa"`': "attention is pardec's own",
}
ENDS: list[tuple[Any, Any]] = [  # eos_token_id of config.json and of generation_config.json
    (2, "no file"),
    ([2, 5], "no file"),
    (2, 5),
    (2, [5, 7]),
    (2, "no key"),
    ("no key", 5),
]


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of loading a configuration with one library."""

    verdict: str  # one of the page's words
    why: str = ""
    logits: Tensor | None = None  # [2, 30, V]
    native: bool = True


def of_transformers(family: str, folder: Path, plain: Tensor | None) -> Outcome:
    """The result with transformers; `plain` are its logits without the change."""
    try:
        model = cases.reference(family, folder)
        if model is None:
            return Outcome("partly", "some tensors do not fit the config")
        logits, cached = cases.logits_of(family, model, cases.IDS), cases.cached_logits(model, cases.IDS)
    except Exception as error:  # libraries raise many kinds of errors
        return Outcome("fails", f"{type(error).__name__}: {one_line(error)[:140]}")
    verdict = _verdict(logits, plain)
    if _gap(cached, logits) > cases.ROUNDING:
        return Outcome("two models", f"{verdict} in one forward, and other logits with its KV cache", logits)
    return Outcome(verdict, logits=logits)


def of_pardec(folder: Path, plain: Tensor | None) -> Outcome:
    """The result with pardec; `plain` are its logits without the change."""
    try:
        model = load(folder, device="cpu", dtype="float32")
        logits = model.forward(Plan.full(cases.IDS, model.visible())).logits()
    except PardecError as error:
        said = without_names(one_line(error)).replace(folder.name, "the model")
        return Outcome("fails", re.sub(r"(?<=a )\w+ (?=model of)|\(\w+ForCausalLM\) ", "", said))
    except Exception as error:
        return Outcome("crashes", f"{type(error).__name__}: {one_line(error)}")
    return Outcome(_verdict(logits, plain), logits=logits, native=not model.family.startswith("transformers "))


def without_names(error: str) -> str:
    """An error without the tensors that it lists, which differ by layout."""
    return re.sub(r"(\d+ (?:missing|not known|of the wrong shape)|that \w+ heads do not have): [^;]*", r"\1", error)


def _verdict(logits: Tensor, plain: Tensor | None) -> str:
    return "ignored" if plain is not None and _gap(logits, plain) < _SAME else "followed"


def _gap(logits: Tensor, others: Tensor) -> float:
    """The largest difference, relative to the largest logit."""
    return float((logits - others).abs().max() / others.abs().max())


def reason(name: str) -> str:
    """Why the results of the two libraries may differ after this change; empty if they should agree."""
    return next((why for start, why in REASONS.items() if name.startswith(start)), "")


def fault(name: str, theirs: Outcome, ours: Outcome) -> str:
    """What pardec gets wrong after this change; empty if nothing, or if the difference has a `reason`."""
    if ours.logits is None:
        return ours.why if ours.verdict == "crashes" else ""
    if theirs.logits is None or theirs.verdict == "two models":
        return "" if reason(name) else f"pardec loads, and transformers: {theirs.verdict}: {theirs.why}"
    gap = _gap(ours.logits, theirs.logits)
    return "" if gap < cases.ROUNDING else f"logits differ by {gap:.2g} of the largest"


def compare(family: str) -> dict[str, tuple[Outcome, Outcome]]:
    """For each change of a family's config, by label, the outcomes with transformers and with pardec."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cases.build(family, folder)
        file = folder / "config.json"
        whole = json.loads(file.read_text())
        plain = of_transformers(family, folder, None), of_pardec(folder, None)
        outcomes = {}
        for change in cases.changes(whole):
            file.write_text(json.dumps(cases.changed(whole, change)))
            both = of_transformers(family, folder, plain[0].logits), of_pardec(folder, plain[1].logits)
            outcomes[label(change)] = both
        return outcomes


def label(change: dict[str, Any]) -> str:
    """A change as the page writes it."""
    return ", ".join(
        f"no `{key}`" if value == cases.ABSENT else f"`{key}: {json.dumps(value)}`" for key, value in change.items()
    )


def end_tokens() -> list[list[str]]:
    """The rows of the page's last table, by decoding with each token forced."""
    rows = []
    for config_says, generation_says in ENDS:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            cases.build("llama", folder)
            config, generation = (folder / f"{stem}.json" for stem in ("config", "generation_config"))
            for file, value in ((config, config_says), (generation, generation_says)):
                settings = json.loads(file.read_text()) if file.is_file() else {}
                settings.pop("eos_token_id", None)
                file.write_text(json.dumps(settings | ({} if isinstance(value, str) else {"eos_token_id": value})))
            if generation_says == "no file":
                generation.unlink()
            model = AutoModelForCausalLM.from_pretrained(folder)
            theirs = [token for token in range(2, 61) if _ends(model, token)]
            ours = load(folder, device="cpu").decoding_config.eos_ids  # type: ignore[union-attr]
            rows.append(
                [json.dumps(config_says), json.dumps(generation_says), *(str(sorted(each)) for each in (theirs, ours))]
            )
    return rows


def _ends(model: Any, token: int) -> bool:
    """Whether transformers ends a row at `token`."""

    def forced(ids: Tensor, scores: Tensor) -> Tensor:
        return torch.full_like(scores, -torch.inf).index_fill(1, torch.tensor([token]), 0.0)

    out = model.generate(
        cases.IDS[:1, :4], max_new_tokens=2, do_sample=False, logits_processor=LogitsProcessorList([forced])
    )
    return int(out.shape[1]) == 5


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |" for row in (head, *rows)]
    return "\n".join((lines[0], "|" + "---|" * len(list(head)), *lines[1:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--families", nargs="*", default=list(cases.CLASSES), choices=list(cases.CLASSES))
    parser.add_argument("--out", type=Path, default=Path(__file__).with_suffix(".md"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    cells: defaultdict[str, dict[str, str]] = defaultdict(dict)
    differences: defaultdict[tuple[str, str, str], list[str]] = defaultdict(list)
    faults = []
    for family in options.families:
        for name, (theirs, ours) in compare(family).items():
            own = ours.verdict + ("" if ours.native else "\\*")
            cells[name][family] = own if theirs.verdict == ours.verdict else f"{theirs.verdict} / {own}"
            if theirs.verdict != ours.verdict:
                why = ours.why or reason(name)
                texts = (f"{theirs.verdict}: {theirs.why}".rstrip(": "), f"{ours.verdict}: {why}".rstrip(": "))
                differences[name, *texts].append(family)
            if wrong := fault(name, theirs, ours):
                faults.append(f"{family}: {name}: {wrong}")
        print(family, "done", file=sys.stderr)
    idle = [name for name, row in cells.items() if set(row.values()) == {"ignored"}]
    page = PAGE.format(
        idle=", ".join(idle),
        **{key: versions()[key] for key in ("transformers", "pardec", "torch")},
        day=date.today().isoformat(),
        count=sum(map(len, cells.values())),
        command="python benchmarks/config_keys.py",
        table=table(
            ["config.json", *options.families],
            (
                [name, *(row.get(family, "") for family in options.families)]
                for name, row in cells.items()
                if name not in idle
            ),
        ),
        differences=table(
            ["config.json", "families", "transformers", "pardec"],
            ([name, ", ".join(of), theirs, ours] for (name, theirs, ours), of in differences.items()),
        ),
        ends=table(["config.json", "generation_config.json", "transformers", "pardec"], end_tokens()),
    )
    options.out.write_text(page, encoding="utf-8")
    sys.exit("\n".join(faults) or None)


if __name__ == "__main__":
    main()
