"""The mutants of tests/mutants still fit the code, and `scripts/mutate` counts what it should."""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from functools import cache
from pathlib import Path

import mutants
import pytest
from pages.papers import seeds

ROOT = Path(__file__).resolve().parents[1]
ALL = mutants.read(sorted(mutants.LISTS.glob("*.jsonl")))
named = cache(lambda: seeds(ROOT / "tests"))

PAPERS = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("file", sorted({mutant.file for mutant in ALL}))
def test_the_text_of_every_mutant_stands_once_in_its_file_and_its_tests_exist(file: str) -> None:
    for mutant in (mutant for mutant in ALL if mutant.file == file):
        changed = mutant.applied(ROOT)
        compile(changed, mutant.name, "exec")  # a file that cannot be read is no mutant
        assert mutant.paper in named() or f"[arXiv:{mutant.paper}]" in PAPERS, mutant.name
        files = mutants.own_tests(mutant, named().get(mutant.paper, ""))
        assert files, mutant.name
        assert all((ROOT / file).is_file() for file in files), mutant.name


def test_every_paper_that_is_shown_has_mutants() -> None:
    papers = tomllib.loads((ROOT / "docs" / "papers.toml").read_text(encoding="utf-8"))["paper"]
    count = Counter(mutant.paper for mutant in ALL)
    assert [one["id"] for one in papers if "shown" in one and not count[one["id"]]] == []
    assert len(ALL) >= 150
    assert {mutant.kind for mutant in ALL} == set(mutants.KINDS)


@pytest.mark.parametrize("change", [{"kind": "other"}, {"new": "a"}, {"old": None}, {"more": 1}])
def test_lines_that_are_no_mutants_are_refused(change: dict[str, object], tmp_path: Path) -> None:
    line = {"name": "x", "paper": "1", "kind": "order", "file": "f.py", "old": "a", "new": "b"} | change
    if line["old"] is None:
        del line["old"]
    (tmp_path / "a.jsonl").write_text(json.dumps(line) + "\n")
    with pytest.raises(ValueError, match="a.jsonl:1: "):
        mutants.read([tmp_path / "a.jsonl"])


def test_text_that_stands_twice_or_not_at_all_is_refused(tmp_path: Path) -> None:
    (tmp_path / "f.py").write_text("a = 1\nb = 1\n")
    made = mutants.Mutant("x", "1", "order", "f.py", "a = 1", "a = 2")
    assert made.applied(tmp_path) == "a = 2\nb = 1\n"
    for old, count in (("= 1", 2), ("c", 0)):
        with pytest.raises(ValueError, match=f"stands {count} times"):
            mutants.Mutant("x", "1", "order", "f.py", old, "").applied(tmp_path)


def test_the_bars_are_four_fifths_by_the_named_test_and_all_by_the_own_files() -> None:
    made = [mutants.Mutant(str(at), "7", "order", "f.py", "a", "b") for at in range(5)]
    results = {str(at): mutants.Outcome("killed", "killed") for at in range(5)}
    assert mutants.missed(made, results) == []
    results["0"].named = "timeout"
    assert mutants.missed(made, results) == []
    results["1"].named = "survived"
    assert mutants.missed(made, results) == ["7: the named test notices 3 of 5 mutants"]
    results["2"].own = "timeout"
    assert mutants.missed(made, results)[1:] == ["2: timeout by the method's own files"]
    assert mutants.summary(made, results) == {"7": {"mutants": 5, "named": 3, "own": 4}}
    for each in results.values():  # a paper without a named test
        each.named = ""
    assert mutants.missed(made, results) == ["2: timeout by the method's own files"]
    assert "| 5 | - | 4 |" in mutants.markdown(made, results, {})


def test_a_page_keeps_the_verdicts_of_mutants_that_have_no_newer_ones() -> None:
    made = [mutants.Mutant(name, "7", "order", "f.py", "a", "b") for name in ("kept", "rerun", "never")]
    before = mutants.markdown(made, {name: mutants.Outcome("", "killed") for name in ("kept", "rerun", "gone")}, {})
    page = mutants.markdown(made, {"rerun": mutants.Outcome("killed", "survived")}, {}, before)
    assert mutants.outcomes(page) == {
        "kept": mutants.Outcome("", "killed"),
        "rerun": mutants.Outcome("killed", "survived"),
    }
    assert "2 of 3 mutants have run, of 1 papers, 1 of them since their\nfiles last changed." in page


FAILING = {
    "passes": ("def test_it():\n    pass\n", "survived"),
    "fails": ("def test_it():\n    assert False\n", "killed"),
    "errs": ("def test_it():\n    1 / 0\n", "killed"),
    "hangs": ("import time\ndef test_it():\n    time.sleep(99)\n", "timeout"),
    "cannot be collected": ("1 / 0\n", "broken"),
}


@pytest.mark.parametrize("name", FAILING)
def test_failures_and_errors_count_and_hangs_and_broken_files_do_not(name: str, tmp_path: Path) -> None:
    text, verdict = FAILING[name]
    (tmp_path / "test_it.py").write_text(text)
    site = tmp_path / "build" / "site"
    site.mkdir(parents=True)
    (site / "sitecustomize.py").write_text("")
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    assert mutants.run_tests(tmp_path, ["test_it.py"], 3 if name == "hangs" else 60)[0] == verdict
