"""One page per method, from its card and the text of its file, and an index."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pardec
from pages import measured
from pages.benchmarks import Table
from pages.text import escaped, paper, prose, table
from pardec.cards import list_drafters
from pardec.samplers.measured import verdict

FAMILIES = {
    "masked": "masked diffusion models",
    "ar": "autoregressive models",
    "continuous": "models whose tokens are vectors",
    "scales": "models that predict token maps",
}
STAGES = {
    "cache": "which positions a forward computes",
    "block": "which open positions may be committed, where blocks do not follow a fixed grid",
    "branch": "which copies of a row with drafted tokens share its forward, and which one is kept",
    "query": "which positions of a row the model sees; a forward leaves the others out",
    "inputs": "what is added to the input embeddings of open positions",
    "logits": "how the logits change",
    "propose": "a candidate token and a score for each position",
    "select": "which candidates are committed",
    "widen": "which further candidates are committed",
    "revise": "what is taken back or overwritten",
    "finish": "when a row is done or ends sooner, or all the rest is committed at once",
    "draft": "where drafted tokens come from",
    "shape": "how a draft model's proposals form a tree",
    "length": "how many tokens are drafted each round",
    "accept": "which drafted tokens are accepted, and which token follows",
    "texts": "how several texts of a prompt come from one pass over it",
    "vectors": "how the vectors of an image are drawn",
    "maps": "how the token maps of an image are drawn",
}
_OTHER_WORDS = {("ar", "cache"): "how keys and values are stored, and which of them are read"}
_OTHER_PLACES = {("ar", stage): f"{stage}-autoregressive" for stage in ("logits", "cache")}  # in stages.md
EXACT = {
    "greedy": "greedy: the tokens are those of `sequential` at temperature 0",
    "distribution": "distribution: tokens are drawn from the same distribution as `sequential` draws from",
    "relaxed": "relaxed: the output may differ from that of `sequential`",
}
CHECKS = {
    "golden": "recorded outputs of the authors' own code come out again",
    "reference": "a plain version, written from the paper and apart from the package, gives the same",
    "joint": "what is drawn follows the enumerated joint distribution of a small model",
    "hand": "cases worked out by hand, identities and limits",
}
# A spec in which a method of each stage works; {} is replaced by the method.
_EXAMPLE = {
    "block": "{}+threshold:tau=0.9",
    "branch": "{}+sequential",
    "query": "{}+threshold:tau=0.9",
    "cache": "threshold:tau=0.9@{}",
    "inputs": "{}+threshold:tau=0.9",
    "logits": "{}+threshold:tau=0.9",
    "propose": "{}+fixed:steps=16",
    "widen": "threshold:tau=0.9+{}",
    "revise": "threshold:tau=0.9+{}",
    "finish": "threshold:tau=0.9+{}",
    "shape": "model:name=tiny-llama-draft,k=5+{}",
    "length": "model:name=tiny-llama-draft,k=5+{}",
    "accept": "model:name=tiny-llama-draft,k=5+{}",
}
_OTHER_EXAMPLES = {("ar", "cache"): "sequential@{}", ("ar", "logits"): "sequential+{}"}
# Methods that need another example than their stage's.
_OWN = {
    "model": "model:name=tiny-llama-draft,k=5",
    "pearl": "pearl:name=tiny-llama-draft,k=5",
    "cspd": "cspd:draft=tiny-mar-draft",
    "code": "code:refiner=tiny-var-draft,steps=3",
    "dkv_greedy": "random+fixed@dkv_greedy",
    **{card.kind: f"{card.kind}:name={card.name}" for card in list_drafters() if card.name.startswith("tiny-llama")},
    "auto": 'auto:model="eagle:name=tiny-llama-eagle"',
    "sorted": "sorted:name=tiny-llama-draft",
    "linearspec": "linearspec:k=15",
    "rasd": 'rasd:model="model:name=tiny-llama-draft"',
    "falcon": "falcon:name=FOLDER",
    "longspec": "longspec:name=FOLDER",
    "transfer": "transfer:name=FOLDER",
    "diffusion": "diffusion:name=tiny-dream",
    "triforce": "triforce:name=tiny-llama-draft",
    "judge": "earlyexit:layers=2,k=10+judge:head=tiny-llama",
    "levenshtein": "threshold:tau=0.5+levenshtein@block",
    "selfcondition": "selfcondition+renoise",
    "denoise": "denoise+renoise",
    "renoise": "renoise",
    "ancestral": "ancestral",
    "adaptive": "adaptive:steps=256",
    "defer": "ancestral",
}
_OWN_OF = {("auto", "continuous"): "auto:draft=tiny-mar-draft"}  # of names that two families have


def pages(tables: Sequence[Table]) -> dict[str, str]:
    """The page of every method that ships with the package, and their index."""
    cards = pardec.list_samplers()
    count = Counter(card.name for card in cards)
    files = {(c.name, c.family): c.name if count[c.name] == 1 else f"{c.name}-{c.family}" for c in cards}
    found = {
        f"reference/methods/{files[card.name, card.family]}.md": _page(
            card, [one for one in tables if one.family == card.family]
        )
        for card in cards
    }
    found["reference/methods/index.md"] = _index(cards, files)
    return found


def example(card: Any) -> str:
    """A spec in which the method works on the embedded model of its family."""
    of_stage = _OTHER_EXAMPLES.get((card.family, card.stage)) or _EXAMPLE.get(card.stage, "{}")
    return _OWN_OF.get((card.name, card.family)) or _OWN.get(card.name) or of_stage.format(card.name)


def _stage(card: Any) -> tuple[str, str]:
    """The decision of the card's stage, and a link to the concept page about it."""
    key = card.family, card.stage
    return _OTHER_WORDS.get(key, STAGES[card.stage]), _OTHER_PLACES.get(key, card.stage)


def _page(card: Any, tables: Sequence[Table]) -> str:
    kinds = dict.fromkeys(word.partition("/")[0] for word in card.checked)
    words, place = _stage(card)
    facts = [
        ("Stage", f"[{card.stage}](../../concepts/stages.md#{place}): {words}"),
        ("For", f"{FAMILIES[card.family]} ([all methods](index.md))"),
        ("Output", f"{EXACT[card.exact]} ([what these words promise](../../concepts/exactness.md))"),
        *([("Paper", paper(card.paper))] if card.paper else []),
        ("Checked", "; ".join(f"{kind} ({CHECKS[kind]})" for kind in kinds) or "by the tests that every method passes"),
        ("Example spec", f"`{example(card)}`"),
    ]
    rule, differs, keeps = _parts(card.explanation)
    # Not in the menu, which every page repeats: the index links here.
    lines = [
        "---\norphan: true\n---",
        f"# `{card.name}`",
        escaped(card.summary),
        table(("", ""), facts),
        "## Rule",
        prose(rule),
    ]
    if differs:
        lines += ["## Where it differs from the published method", prose(differs)]
    if keeps:
        lines += ["## Exactness", prose(keeps)]
    lines += ["## Parameters", _parameters(card), "## Measured", measured.section(card, tables)]
    return "\n\n".join(lines) + "\n"


def _parts(text: str) -> tuple[str, str, str]:
    """A docstring without its summary: the rule, its deviations, and what it keeps."""
    parts: list[list[str]] = [[], [], []]
    now = 0
    for line in text.split("\n")[1:]:
        if line.startswith(("Deviates", "Exact:")):
            now = 1 if line.startswith("Deviates") else 2
        elif not line.strip() and now == 2:
            now = 0
        parts[now].append(line)
    rule, differs, keeps = ("\n".join(part).strip("\n") for part in parts)
    return rule, differs, keeps


def _parameters(card: Any) -> str:
    if not card.parameters:
        return "None."
    hints = get_type_hints(card.make)
    rows = [
        (f"`{p['name']}`", _kind(hints[p["name"]]), f"`{p['default']}`" if p["default"] else "", escaped(p["doc"]))
        for p in card.parameters
    ]
    return table(("name", "value", "default", "what it is"), rows)


def _kind(hint: Any) -> str:
    """The possible values of a parameter, in words."""
    if get_origin(hint) is Literal:
        return " or ".join(f"`{value}`" for value in get_args(hint))
    if get_args(hint) and type(None) in get_args(hint):
        return " or ".join([*(_kind(one) for one in get_args(hint) if one is not type(None)), "`none`"])
    names = {int: "integer", float: "number", str: "text", bool: "`true` or `false`"}
    return names.get(hint, f"`{getattr(hint, '__name__', hint)}`")


def _index(cards: Sequence[Any], files: dict[tuple[str, str], str]) -> str:
    lines = [
        "# Methods",
        "Every method of the package, by stage. A spec string joins them ([how specs are written]"
        "(../../concepts/specs.md)). `pardec show NAME` prints the rule and the parameters that a method's page has.",
    ]
    for family, words in FAMILIES.items():
        lines.append(f"## For {words}")
        for stage in dict.fromkeys(card.stage for card in cards if card.family == family):
            chosen = [card for card in cards if (card.family, card.stage) == (family, stage)]
            lines += [
                f"### {stage}: {_stage(chosen[0])[0]}",
                table(
                    ("method", "exact", "verdict", "checked", "paper", "what it does"),
                    [_row(card, files) for card in chosen],
                ),
            ]
    return "\n\n".join(lines) + "\n"


def _row(card: Any, files: dict[tuple[str, str], str]) -> tuple[str, ...]:
    kinds = ", ".join(dict.fromkeys(word.partition("/")[0] for word in card.checked))
    link = f"[`{card.name}`]({files[card.name, card.family]}.md)"
    found = verdict(card.name, card.family)
    return link, card.exact, found, kinds, paper(card.paper), escaped(re.sub(r"\s+", " ", card.summary))
