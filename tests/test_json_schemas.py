"""benchmarks/json_schemas.py: the labels of its texts, pardec's verdicts of today, and the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import json_schemas
import jsonschema
import pytest
from schema_cases import CASES, Case

ROOT = Path(__file__).resolve().parents[1]
DOCUMENT = json.loads((ROOT / "benchmarks" / "json_schemas.json").read_text())


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.feature)
def test_labels_are_those_of_jsonschema(case: Case) -> None:
    kind = jsonschema.validators.validator_for(case.schema, default=jsonschema.Draft202012Validator)
    kind.check_schema(case.schema)
    reference = kind(case.schema, format_checker=kind.FORMAT_CHECKER)

    def valid(text: str) -> bool:
        try:
            return bool(reference.is_valid(json.loads(text)))
        except json.JSONDecodeError:
            return False

    assert [text for text in case.valid if not valid(text)] == []
    assert [text for text in case.invalid if valid(text)] == []


@pytest.mark.parametrize("name", json_schemas.OWN)
def test_pardec_admits_nothing_invalid_and_the_table_is_of_today(name: str) -> None:
    found = json_schemas.own_verdicts(name)
    assert [feature for feature, row in found.items() if "ignored" in row["verdict"]] == []
    assert found == DOCUMENT["verdicts"][name], "run python benchmarks/json_schemas.py --libraries --markdown"
    unexplained = [
        feature
        for feature, row in found.items()
        if row["verdict"] != "held" and not json_schemas.reason(name, feature, row)
    ]
    assert unexplained == []


def test_the_page_is_made_from_the_results() -> None:
    assert json_schemas.page(DOCUMENT) == (ROOT / "benchmarks" / "json_schemas.md").read_text()


@pytest.mark.parametrize(
    ("admitted", "verdict"),
    [
        ([True, True, False, False], {"verdict": "held"}),
        ([True, False, False, False], {"verdict": "too strict", "rejects": ["2"]}),
        ([True, True, False, True], {"verdict": "ignored", "admits": ["b"]}),
        ([False, True, True, False], {"verdict": "ignored, too strict", "admits": ["a"], "rejects": ["1"]}),
    ],
)
def test_a_verdict_says_which_texts_are_on_the_wrong_side(admitted: list[bool], verdict: dict[str, Any]) -> None:
    case = Case("x", {}, ("1", "2"), ("a", "b"))
    assert json_schemas.verdict(case, admitted) == verdict
