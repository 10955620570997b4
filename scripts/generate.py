"""Writes every generated table of the tree in place; a test fails while one is out of date.

    python scripts/generate.py

- `README.md`: the checkpoints that load, from `docs/checkpoints.md`, the methods by stage, and rows from the committed
  benchmarks;
- `docs/guides/add-a-sampler.md`: the stages, with the signatures of their contracts;
- `docs/concepts/compatibility.md`: which stages can be combined, from the traits that methods declare;
- `docs/papers.md`: the papers, from `docs/papers.toml`, the methods' files and the tests that are marked with one;
- `benchmarks/gpu.md`, from the results of `scripts/gpu_queue` in `benchmarks/gpu/`;
- `docs/images/frontier.svg`, from `benchmarks/samplers.json`;
- the pages of `docs/` on methods, commands, families and benchmarks, which are not committed: every build of the
  documentation writes them.
"""

from __future__ import annotations

import importlib
import inspect
import json
import re
import sys
from collections.abc import Iterable, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import readme_figures
from gpu_runs import page as gpu_page

import pardec
from pardec.samplers.cards import STAGES_OF, Family

ROOT = Path(__file__).resolve().parent.parent
FAMILIES = {
    "masked": "masked diffusion models",
    "ar": "autoregressive models",
    "continuous": "models whose tokens are vectors",
    "scales": "models that predict token maps",
}
SHOWN_MASKED = (
    "sequential",
    "threshold:tau=0.98",
    "threshold:tau=0.9",
    "hierarchy:high=0.95",
    "threshold:tau=0.9@dual",
)
SHOWN_DRAFTING = ("sequential", "lookup", "recycling", "model:name=tiny-llama-draft,k=5")
# Of each stage: what it decides, the methods that a loop calls, and what they return.
CONTRACTS = {
    "block": (
        "which open positions may be committed, where blocks do not follow a fixed grid",
        ("span", "narrow"),
        "a `Span`: where the block of each row begins and ends; one within it, or None",
    ),
    "branch": (
        "which copies of a row with drafted tokens share its forward, and which one is kept",
        ("draft", "survivors"),
        "what a hypothesis adds, [N, W] bool; indices [n]",
    ),
    "query": (
        "which positions of a row the model sees; a forward leaves the others out",
        ("visible",),
        "[B, L] bool on the host",
    ),
    "inputs": (
        "what is added to the embeddings of open positions",
        ("soft", "observe"),
        "vectors [B, W, E], or None; nothing",
    ),
    "logits": ("how the distributions change", ("logits",), "a `Distribution` over [B, W, V]"),
    "propose": ("a candidate and a score for each position", ("propose",), "a `Proposal`: tokens and scores [B, W]"),
    "select": ("which candidates are committed", ("select",), "[B, W] bool, or a `Choice` with tokens of its own"),
    "widen": ("which further candidates are committed, or fewer", ("widen",), "[B, W] bool"),
    "revise": ("which committed tokens are masked again or overwritten", ("revise",), "a `Revision`"),
    "finish": (
        "which rows are done, committed at once (`fill`), or end sooner (`cut`)",
        ("done",),
        "[B] bool on the host",
    ),
    "cache": ("which positions a forward computes", ("query",), "a `QuerySpec`: a span of each row, or a mask"),
    "draft": (
        "where drafted tokens come from",
        ("width", "propose", "observe"),
        "the most nodes; a `Draft`; nothing",
    ),
    "shape": ("how a draft model's proposals form a chain or a tree", ("width", "grow"), "the most nodes; a `Draft`"),
    "length": (
        "how many tokens a round drafts",
        ("budget", "stop", "observe"),
        "[B] tokens; [B] bool, or None; nothing",
    ),
    ("ar", "logits"): ("how the target's logits change", ("scores",), "logits [N, V] after N texts"),
    ("ar", "cache"): (
        "how the target's K/V are stored, and which of them a forward reads",
        ("new_cache", "max_depth", "settle"),
        "a `KVCache`; [B] depths; nothing",
    ),
    "texts": (
        "how several texts of a prompt come from one pass over it",
        ("begin", "candidates", "scores", "mixture"),
        "a state per prompt; tokens and log-probabilities [B, T]; scores [n, T]; weights [n]",
    ),
    "accept": ("which drafted tokens are accepted, and which token follows", ("accept",), "a `Verdict`"),
    "vectors": ("how the vectors of an image are sampled", ("start", "round"), "its state; a `RoundResult`"),
    "maps": ("how the token maps of an image are sampled", ("start", "round"), "its state; a `RoundResult`"),
}


def main() -> None:
    for path, text in files().items():
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            print(f"wrote {path.relative_to(ROOT)}")
    _pages().write(ROOT / "docs")


def files() -> dict[Path, str]:
    """Every committed file with a generated part, with its expected content."""
    readme, guide, papers = (
        ROOT / "README.md",
        ROOT / "docs" / "guides" / "add-a-sampler.md",
        ROOT / "docs" / "papers.md",
    )
    together = ROOT / "docs" / "concepts" / "compatibility.md"
    speed = ROOT / "docs" / "guides" / "speed.md"
    return {
        readme: _filled(readme, checkpoints=checkpoints(), methods=methods(), measured=measured()),
        guide: _filled(guide, stages=stages()),
        papers: _filled(papers, papers=_pages().papers.papers(ROOT)),
        speed: _filled(speed, transfers=transfers()),
        together: _filled(
            together, masked=_pages().compatibility.table("masked"), ar=_pages().compatibility.table("ar")
        ),
        ROOT / "benchmarks" / "gpu.md": gpu_page.page(sorted((ROOT / "benchmarks" / "gpu").glob("*.json"))),
        readme_figures.FOLDER / "frontier.svg": readme_figures.plot(_read("samplers.json")["sections"][0]),
    }


def _pages() -> Any:
    """The functions that write the pages of the documentation."""
    if str(ROOT / "docs") not in sys.path:
        sys.path.append(str(ROOT / "docs"))
    return importlib.import_module("pages")


def _filled(page: Path, **tables: str) -> str:
    """The page with each table between its marks."""
    text = page.read_text()
    for name, table in tables.items():
        text, count = re.subn(rf"(<!-- {name}: [^\n]*-->\n).*?(<!-- /{name} -->)", rf"\1{table}\n\2", text, flags=re.S)
        assert count == 1, f"{page.name} has {count} places for {name}"
    return text


def stages() -> str:
    """The stage methods that the loops call, with the parameters that the contracts give them."""
    lines = [
        "| stage | what it decides | folder in `samplers/` | base class | the loop calls | which returns |",
        "|---|---|---|---|---|---|",
    ]
    wings: dict[Family, str] = {
        "masked": "masked",
        "ar": "speculative",
        "continuous": "continuous",
        "scales": "scales",
    }
    for family, stage in ((family, stage) for family, stages in STAGES_OF.items() for stage in stages):
        wing = wings[family]
        decides, names, returns = CONTRACTS.get((family, stage)) or CONTRACTS[stage]
        folder = f"{wing}/{stage if wing not in ('continuous', 'scales') else 'methods'}"
        assert (ROOT / "samplers" / folder).is_dir(), folder
        base = _base(f"pardec.samplers.{wing}.contracts", names, stage)
        calls = ", ".join(f"`{_call(base, name)}`" for name in names)
        lines.append(f"| {stage} | {decides} | `{folder}` | `{base.__name__}` | {calls} | {returns} |")
    return "\n".join(lines)


def transfers() -> str:
    """Transfers per step of each method, as `tests/samplers/transfer_counts.py` counted them."""
    sys.path.append(str(ROOT))
    from tests.samplers.transfer_reasons import DOWNLOADS, reason

    groups: dict[tuple[str, str, str, str], list[str]] = {}
    for line in (ROOT / "tests" / "samplers" / "transfer_counts.txt").read_text().splitlines():
        name, counts = line.rsplit(": ", 1)
        model, spec = name.split(" ", 1)
        if spec.endswith(" sampling"):
            continue
        downloads, blocking, _ = counts.split()
        why = reason(name) if int(downloads) > DOWNLOADS or blocking != "0" else ""
        groups.setdefault((model, downloads, blocking, why), []).append(f"`{_short(spec)}`")
    lines = ["| model | downloads | blocking uploads | methods | reason |", "|---|---|---|---|---|"]
    order = sorted(groups, key=lambda key: (key[0], int(key[1]), int(key[2])))
    lines += [
        f"| {model} | {downloads} | {blocking} | {', '.join(groups[model, downloads, blocking, why])} | {why} |"
        for model, downloads, blocking, why in order
    ]
    return "\n".join(lines)


def _short(spec: str) -> str:
    """A spec without its parameters, and without the drafter that the tables add for another stage."""
    carried = re.sub(r"^eagle:name=tiny-llama-eagle,k=3(?=[+@])", "eagle", spec)
    return re.sub(r":[^+@]*", "", carried)


def _base(module: str, names: Iterable[str], stage: str | None = None) -> type:
    """The base class of a stage: the contract with these methods and the stage's name, else the last contract."""
    contracts = importlib.import_module(module)
    classes = [cls for cls in vars(contracts).values() if inspect.isclass(cls) and cls.__module__ == module]
    matches = [cls for cls in classes if all(inspect.isfunction(vars(cls).get(name)) for name in names)]
    if stage is not None:  # if two stages have such methods, take the named one
        matches = [cls for cls in matches if cls.__name__ == stage.capitalize()] or matches
    return matches[-1]


def _call(base: type, name: str) -> str:
    return f"{name}({', '.join([*inspect.signature(getattr(base, name)).parameters][1:])})"


def methods() -> str:
    """The names of all methods, one line per kind of model."""
    lines = []
    for family, name in FAMILIES.items():
        cards = [card for card in pardec.list_samplers() if card.family == family]
        stages = groupby(cards, key=lambda card: card.stage)
        listed = "; ".join(f"*{stage}* {', '.join(f'`{card.name}`' for card in group)}" for stage, group in stages)
        lines.append(f"- {len(cards)} for **{name}**: {listed}.")
    return "\n".join(lines)


def checkpoints() -> str:
    """The first column of each table of `docs/checkpoints.md` on models, one line each."""
    lines = []
    for section in (ROOT / "docs" / "checkpoints.md").read_text().split("\n## ")[1:]:
        title, _, text = section.partition("\n")
        table = text.partition("| checkpoints |")[2].partition("\n\n")[0]
        rows = [re.sub(r" \(.*?\)", "", row.split(" | ")[0].removeprefix("| ")) for row in table.splitlines()[2:]]
        if rows:
            lines.append(f"- **{title}**: {'; '.join(rows)}.")
    return "\n".join(lines)


def measured() -> str:
    """A few rows of the committed benchmarks: accuracy, forwards, and time relative to one token per forward."""
    masked, drafting = _read("samplers.json")["sections"][0], _read("speculation.json")
    lines = ["| model | sampler | right | forwards | times as fast |", "|---|---|---|---|---|"]
    rows = {point["sampler"]: point for curve in masked["curves"] for point in curve["points"]}
    for name in SHOWN_MASKED:
        speed = rows["sequential"]["seconds"] / rows[name]["seconds"]
        lines.append(_row(masked["model"], name, rows[name]["accuracy"], rows[name]["nfe"], speed))
    rows = {row["sampler"]: row for row in drafting["tasks"]["arithmetic"]}
    for name in SHOWN_DRAFTING:
        row = rows[name]
        lines.append(_row(drafting["model"], name, row["accuracy"], row["nfe"], row["speed_up"]))
    return "\n".join(lines)


def _row(model: str, sampler: str, share: float, forwards: float, speed: float) -> str:
    digits = 2 if speed < 1 else 1 if speed < 10 else 0
    return f"| {model} | `{sampler}` | {100 * share:.1f}% | {forwards:.1f} | {speed:.{digits}f} |"


def _read(name: str) -> Mapping[str, Any]:
    document: dict[str, Any] = json.loads((ROOT / "benchmarks" / name).read_text())
    return document


if __name__ == "__main__":
    main()
