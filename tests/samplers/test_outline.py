"""Cards read from files without importing them equal those of imported files, and need no torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pardec.models.errors import SpecError
from pardec.samplers import cards
from pardec.samplers import spec_values as parts
from pardec.samplers.outline import Unreadable, outlines
from pardec.samplers.spec import parse

ROOT = Path(__file__).resolve().parents[2]

SCRIPT = """
import sys
from pardec.samplers import cards
assert [card.family for card in cards.cards_named("seeded_jacobi")] == ["ar", "continuous"]
assert cards.find("threshold").stage == "select"
assert {name for name, _ in cards._methods} == {"seeded_jacobi", "threshold"}, "only their files were read"
read = {(card.name, card.family): card for card in cards.cards()}
assert "torch" not in sys.modules
classes = [card.make for card in read.values()]
assert len(read) > 60
assert "torch" in sys.modules
for key, card in read.items():
    assert cards._methods[key] == card, (key, cards._methods[key], card)
    assert cards._methods[key] is not card  # registered anew, by the decorator
"""


def test_a_name_reads_its_own_files_and_a_card_is_the_one_that_importing_gives() -> None:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(ROOT)!r})\n{SCRIPT}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "text",
    [
        'NAME = "x"\n@register(NAME, stage="select")\nclass A: ...',
        '@register("x", stage="select")\n@dataclass(frozen=True)\nclass A:\n    k: int = 1 << 20',
        '@register("x", stage="select")\nclass A(other.B): ...',
        '@register("x", stage="select")\nclass A(Nowhere): ...',
        "class A(:",
    ],
)
def test_a_file_that_says_it_by_more_than_literals_has_to_be_imported(tmp_path: Path, text: str) -> None:
    file = tmp_path / "method.py"
    file.write_text(text)
    with pytest.raises(Unreadable):
        list(outlines("pardec.samplers.masked.method", str(file)))


@pytest.mark.parametrize(
    ("spec", "family", "said"),
    [
        ("thresold", None, "unknown sampler 'thresold'"),
        ("threshold:tua=1", None, "unknown parameter 'tua'"),
        ("threshold:tau=x", None, "threshold:tau must be a number"),
        ("hierarchy:high=x", None, "hierarchy:high must be a number"),
        ("prophet:region=mine", None, "prophet:region must be one of answer, block, all"),
        ("cspd:k=many", "continuous", "cspd:k must be a whole number"),
        ("model:name=nobodys", None, "unknown model 'nobodys'"),
        ("threshold", "ar", "'threshold' is for masked models"),
    ],
)
def test_a_spec_is_checked_by_the_cards_alone(spec: str, family: cards.Family | None, said: str) -> None:
    with pytest.raises(SpecError) as caught:
        parts.check(parse(spec), family)
    assert said in str(caught.value)
    assert caught.value.hint


def test_what_the_cards_cannot_tell_passes() -> None:
    for spec in ("threshold:tau=7", "hierarchy:high=none", "cspd:last=nonsense,draft=tiny-mar-draft", "model"):
        parts.check(parse(spec))
