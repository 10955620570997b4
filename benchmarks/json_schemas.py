"""Tests libraries for structured output: one JSON schema per feature, with valid and invalid texts.

    python benchmarks/json_schemas.py [--libraries NAME ...] [--venv FOLDER] [--json FILE] [--markdown]

The schemas and texts are `schema_cases.py`. A library gets each schema with its default options; its grammar then reads
each text byte by byte, and admits it if every byte is allowed and the text may end after the last. The verdicts:

- held: all valid texts are admitted, and no other;
- ignored: a text is admitted that is not valid, so that a model may write it;
- too strict: a valid text is not admitted, so that no model can write it;
- refused: there is no grammar, and an error says why;
- failed: the library ended, or had no answer after a minute.

Libraries are installed by pip into FOLDER, one environment each (a temporary folder without `--venv`). pardec runs in
this process: what an autoregressive model may write within a large budget, and what a masked model's template can hold.
Results are kept in the JSON file by library; `--markdown` writes the page from it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any

from cpu_engines import HERE, Left, Peers, Row
from schema_cases import CASES, Case

from pardec.models.errors import SpecError
from pardec.requests.structured.forms import form_of
from pardec.requests.structured.json_grammar import JsonGrammar, compiled
from pardec.requests.structured.schema import read
from pardec.requests.structured.template import Template, template
from pardec.requests.structured.vocabulary import Vocabulary
from pardec.version import __version__

LIBRARIES = ("llguidance", "xgrammar", "outlines-core", "llama.cpp")
PAD, END, MASK = range(3)
# Reasons why pardec's answers are narrower than a schema, by the beginning of the feature's name.
CANONICAL = "an answer is written in one way: no whitespace, keys in the schema's order, one spelling of each character"
DECLARED = "an answer has the properties that the schema declares, and no others"
NUMERAL = "a number is written in one way: no exponent, no sign for zero, at most 15 digits, no fraction in an integer"
TYPED = "keywords of one type imply that type"
CLASS = "a negated class has no quote and no backslash"
BETWEEN = "numbers between bounds with a fraction may be fewer than all"
NARROWER = {
    "written: ": CANONICAL, "length: \\u": CANONICAL, "maxLength: a surrogate pair": CANONICAL,
    "additionalProperties": DECLARED, "no type": TYPED,
    "exponent": NUMERAL, "integer written": NUMERAL, "minus zero": NUMERAL, "integer of 20 digits": NUMERAL,
    "enum: 1.0": NUMERAL, "const: 1 ": NUMERAL, "range of fractions": BETWEEN, "pattern: a negated": CLASS,
}  # fmt: skip
IN_ANY_ORDER = "a template has a fixed form: all properties are there, and an array has `minItems` items, at least one"
PLAIN = "a free string in a template has no escapes"


# pardec


@cache
def vocabulary() -> Vocabulary:
    """A byte-level tokenizer that also has each character of the texts as one token, and three special tokens."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    split = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokens = {name: at for at, name in enumerate(("<pad>", "<end>", "<mask>"))}
    tokens |= {letter: len(tokens) + at for at, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    merges: dict[tuple[str, str], None] = {}
    texts = (text for case in CASES for text in (*case.valid, *case.invalid, written(case.schema)))
    for char in sorted(set("".join(texts))):
        [(letters, _)] = split.pre_tokenize_str(char)
        for end in range(1, len(letters)):
            merges[letters[:end], letters[end]] = None
            tokens.setdefault(letters[: end + 1], len(tokens))
    backend = Tokenizer(models.BPE(vocab=tokens, merges=list(merges)))
    backend.pre_tokenizer, backend.decoder = split, decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(name, special=True) for name in ("<pad>", "<end>", "<mask>")])
    return Vocabulary.of(PreTrainedTokenizerFast(tokenizer_object=backend), len(tokens))


def written(schema: Row) -> str:
    return json.dumps(schema, ensure_ascii=False)


def autoregressive(schema: Row, texts: Sequence[str]) -> list[bool]:
    """Whether an autoregressive model may write each text."""
    grammar = compiled(json.dumps(form_of(schema), ensure_ascii=False), vocabulary())

    def admits(text: str) -> bool:
        row, ids = JsonGrammar(grammar, 10**6, [END]), vocabulary().encode(text)
        return all(row.mask(ids[:at])[token] for at, token in enumerate([*ids, END]))

    return [admits(text) for text in texts]


def masked(schema: Row, texts: Sequence[str]) -> list[bool]:
    """Whether a masked model's template can hold each text."""
    words = vocabulary()
    values = read(form_of(schema), ascii=not words.writes(written(schema)))
    ids = [words.encode(text) for text in texts]
    made = template(values, words, 2 * max(map(len, ids)) + 64, mask_id=MASK, pads=[END, PAD])
    return [holds(made, each) for each in ids]


def holds(made: Template, ids: Sequence[int]) -> bool:
    """Whether the gaps of a template can be filled so that it has these tokens, apart from padding."""
    import numpy as np

    spans = {span.start: span.automaton for span in made.constrained_spans}
    reached, at = {0}, 0  # the numbers of tokens that the positions before may have written
    while at < len(made.rest):
        following: set[int] = set()
        automaton = spans.get(at)
        for count in reached:
            if automaton is not None:
                for end in range(count, min(count + automaton.length, len(ids)) + 1):
                    padded = [*ids[count:end], *[PAD] * (automaton.length - end + count)]
                    following |= {end} if automaton.allows(np.array(padded)) else set()
            elif made.at[at]:
                following.add(count)
                if count < len(ids) and made.sets[1, ids[count]]:
                    following.add(count + 1)
            elif count < len(ids) and ids[count] == made.rest[at]:
                following.add(count + 1)
        reached, at = following, at + (1 if automaton is None else automaton.length)
    return len(ids) in reached


OWN: dict[str, Callable[[Row, Sequence[str]], list[bool]]] = {"pardec AR": autoregressive, "pardec masked": masked}


def own_verdicts(name: str) -> dict[str, Row]:
    """The verdict of each case for one of `OWN`."""

    def one(case: Case) -> Row:
        try:
            return verdict(case, OWN[name](case.schema, (*case.valid, *case.invalid)))
        except SpecError as error:
            return {"verdict": "refused", "reason": error.message}

    return {case.feature: one(case) for case in CASES}


# Libraries


def verdicts(library: str, peers: Peers) -> tuple[dict[str, Row], dict[str, str]]:
    """The verdict of each case for a library, and its version. Raises Left if it cannot be installed or loaded."""
    texts = [text for case in CASES for text in (*case.valid, *case.invalid)]
    worker = None
    found: dict[str, Row] = {}
    try:
        for case in CASES:
            if worker is None:
                worker = peers.worker(f"json-{library}", "json_schemas", library)
                versions = worker.ask("load", library=library, texts=texts)["result"]
            schema, own = written(case.schema), [*case.valid, *case.invalid]
            try:
                found[case.feature] = verdict(case, worker.ask("check", schema=schema, texts=own)["result"])
            except Left as reason:
                ended = worker.process.poll() is not None or str(reason).startswith("no answer")
                told = re.sub(r"\[\d\d(:\d\d){2}\] ", "", str(reason))  # xgrammar says the time
                found[case.feature] = {"verdict": "failed" if ended else "refused", "reason": told}
                if ended:
                    worker.stop()
                    worker = None
    finally:
        if worker is not None:
            worker.stop()
    return found, versions


def verdict(case: Case, admitted: Sequence[bool]) -> Row:
    """The verdict on a case, with the invalid texts that are admitted and the valid ones that are rejected."""
    strict = [text for text, ok in zip(case.valid, admitted, strict=False) if not ok]
    ignored = [text for text, ok in zip(case.invalid, admitted[len(case.valid) :], strict=True) if ok]
    names = ["ignored"] * bool(ignored) + ["too strict"] * bool(strict)
    return {"verdict": ", ".join(names) or "held"} | (
        ({"admits": ignored} if ignored else {}) | ({"rejects": strict} if strict else {})
    )


# The page


PAGE = """# JSON schemas

What libraries for structured output make of {count} schemas, a feature each: made by
`python benchmarks/json_schemas.py --markdown`, whose docstring says how the libraries are installed and asked. {date}.
A library gets each schema with its default options. *held*: all valid texts are admitted, and no other. *ignored*: a
text is admitted that is not valid, so that a model may write it. *too strict*: a valid text is not admitted. *refused*:
an error says that there is no grammar. The labels of the texts are those of the package jsonschema. Schemas and texts
are in `benchmarks/schema_cases.py`; the texts on the wrong side and the errors in `benchmarks/json_schemas.json`.

{summary}

{versions}. A case can be both ignored and too strict. llama.cpp is asked through its server,
outlines-core through its index over the bytes, which has no way from an end of the text to a place that is no end
(`findings/outlines_core_forbids_the_point_after_a_digit.sh`): hence its verdicts on fractions.

{table}

## Where pardec is the odd one out

Cases that at least one library holds and pardec does not, with the reason. Autoregressive models first.

{odd}
"""


def kinds(found: dict[str, Row]) -> Counter[str]:
    return Counter(kind for row in found.values() for kind in row["verdict"].split(", "))


def table(head: Sequence[str], rows: Iterator[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)


def code(text: str, most: int = 70) -> str:
    text = text if len(text) <= most else text[: most - 1] + "…"
    return f"``{text}``" if "`" in text else f"`{text}`"


def reason(name: str, feature: str, row: Row) -> str:
    """Why pardec fails a case: its error, or how its answers are narrower than the schema."""
    if "reason" in row:
        return str(row["reason"]).removeprefix("response_format ")
    found = next((why for start, why in NARROWER.items() if feature.startswith(start)), "")
    if not found and name == "pardec masked":
        found = PLAIN if any("\\" in text for text in row.get("rejects", ())) else IN_ANY_ORDER
    return found


def page(document: Row) -> str:
    """The page, from what the JSON file has."""
    found: dict[str, dict[str, Row]] = document["verdicts"]
    order = ("held", "ignored", "too strict", "refused", "failed")
    counts = {name: kinds(rows) for name, rows in found.items()}
    summary = table(["", *order], ([name, *(str(count[kind]) for kind in order)] for name, count in counts.items()))
    rows = (
        [case.feature, code(written(case.schema)), *(each[case.feature]["verdict"] for each in found.values())]
        for case in CASES
    )
    peers = [rows for name, rows in found.items() if name not in OWN]
    odd = (
        [name, feature, row["verdict"], reason(name, feature, row)]
        for name in OWN
        for feature, row in found[name].items()
        if row["verdict"] != "held" and any(each[feature]["verdict"] == "held" for each in peers)
    )
    versions = ", ".join(f"{name} {number}" for name, number in sorted(document["versions"].items()))
    return PAGE.format(
        count=len(CASES), date=document["date"], summary=summary, versions=f"Versions: {versions}",
        table=table(["feature", "schema", *found], rows), odd=table(["", "feature", "verdict", "reason"], odd),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--libraries", nargs="*", choices=LIBRARIES, default=LIBRARIES, help="libraries to run again")
    parser.add_argument("--venv", type=Path, help="folder that keeps the environments")
    parser.add_argument("--json", type=Path, default=HERE / "json_schemas.json")
    parser.add_argument("--markdown", action="store_true", help="write benchmarks/json_schemas.md from the JSON file")
    options = parser.parse_args()
    document: Row = json.loads(options.json.read_text()) if options.json.is_file() else {}
    before, numbers = document.get("verdicts", {}), document.get("versions", {})
    found: dict[str, Any] = {name: own_verdicts(name) for name in OWN}
    numbers["pardec"] = __version__
    with contextlib.ExitStack() as stack:
        folder = options.venv or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="json-schemas-")))
        peers = Peers(folder.resolve(), 1)
        for name in LIBRARIES:
            if name in options.libraries:
                found[name], versions = verdicts(name, peers)
                numbers |= versions
            elif name in before:
                found[name] = before[name]
    date = datetime.now(UTC).date().isoformat()
    options.json.write_text(json.dumps({"date": date, "versions": numbers, "verdicts": found}, indent=1) + "\n")
    for name, rows in found.items():
        print(f"{name}: {', '.join(f'{kind} {count}' for kind, count in sorted(kinds(rows).items()))}")
    if options.markdown:
        (HERE / "json_schemas.md").write_text(page(json.loads(options.json.read_text())))


if __name__ == "__main__":
    main()
