"""The code on the pages works as printed: marked blocks run, generated tables are current."""

from __future__ import annotations

import re
from pathlib import Path

import generate
from PIL import Image

import pardec
from tests import fresh

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "CONTRIBUTING.md", "docs/guides/add-a-sampler.md")
README = (ROOT / "README.md").read_text()
MARKED = re.compile(r"<!-- run -->\n```(\w+)\n(.*?)```", re.DOTALL)


def test_marked_blocks_run_and_names_are_there_in_fresh_interpreters(tmp_path: Path) -> None:
    blocks = [{"language": language, "code": code} for language, code in MARKED.findall(README)]
    names = {name for page in PAGES for name in re.findall(r"`[^`\n]*?\b(pardec(?:\.\w+)+)", (ROOT / page).read_text())}
    assert len(blocks) >= 3
    assert "pardec.samplers" in names
    lookups = [{"language": "python", "code": f"import pardec\n{name}"} for name in sorted(names)]
    results = fresh.results([*blocks, *lookups], tmp_path)
    for piece, result in zip([*blocks, *lookups], results, strict=True):
        assert result["code"] == 0, f"{piece['code']}\n{result['told']}"
    assert "Ravi works with Olga: 46 + 3 = 49. answer 49 in 6 forwards" in results[0]["told"]
    assert (tmp_path / "runs" / "compare" / "report.html").stat().st_size > 10000


def test_the_generated_tables_are_current() -> None:
    for path, text in generate.files().items():
        assert path.read_text() == text, f"{path.name} is out of date: python scripts/generate.py"


def test_the_figures_of_the_readme_are_small_and_there() -> None:
    figures = [ROOT / path for path in re.findall(r"!\[[^\]]*\]\((docs/images/[^)]+)\)", README)]
    assert {path.name for path in figures} == {"canvas.gif", "frontier.svg"}
    assert all(path.stat().st_size < 300_000 for path in figures)
    with Image.open(ROOT / "docs" / "images" / "canvas.gif") as animation:
        assert animation.n_frames > 30


def masked_examples() -> list[str]:
    """Every spec for masked models that the README and the documentation show as a recommended setting."""
    from pardec.samplers.registry import cards, family_of
    from pardec.samplers.spec import parse

    pages = [README, *(page.read_text() for page in sorted((ROOT / "docs" / "guides").glob("*.md")))]
    pattern = r"""sampler="([^"]+)"|-s ([^\s"'`]+)"""
    written = {one or other for page in pages for one, other in re.findall(pattern, page)}
    names = {card.name for card in cards()}
    specs = {text: parse(text) for text in written if not text.startswith("preset:")}
    known = {text: spec for text, spec in specs.items() if {part.name for part in spec.parts} <= names}
    return sorted(text for text, spec in known.items() if family_of(spec) == "masked")


def test_the_samplers_of_the_examples_keep_the_answers() -> None:
    """On records; specs with `@block` are for an adapted model."""
    examples = [spec for spec in masked_examples() if not spec.endswith("@block")]
    assert len(examples) >= 3
    model, task = pardec.load("tiny-dream", device="cpu"), pardec.task("records")
    problems = task.problems(split="heldout", n=4, seed=7)

    def right(spec: str) -> int:
        made = model.generate([problem.prompt for problem in problems], sampler=spec).text
        return sum(task.score(problem, text) == 1 for problem, text in zip(problems, made or [], strict=True))

    least = 0.9 * right("sequential+eos")
    assert least > 3
    assert {spec: right(spec) for spec in examples if "sequential" not in spec and right(spec) < least} == {}


def test_every_link_to_a_file_leads_to_one() -> None:
    for page in PAGES:
        text = (ROOT / page).read_text()
        links = [(ROOT / page).parent / link for link in re.findall(r"\]\((?!http)([^)#]+)\)", text)]
        floors = "scripts|tests|samplers|benchmarks|models|pardec"
        links += [ROOT / path for path in re.findall(rf"`(?:\./|python )?((?:{floors})/[\w/.-]*)[` ]", text)]
        assert links
        for path in links:
            assert path.exists(), f"{page} names {path}"


def test_the_sampler_of_the_contributing_page_works(tmp_path: Path) -> None:
    (code,) = [code for _, code in MARKED.findall((ROOT / "docs" / "guides" / "add-a-sampler.md").read_text())]
    (tmp_path / "surest.py").write_text(code)
    script = """
import surest, pardec
from pardec.cli import run
model = pardec.load("tiny-dream", device="cpu")
result = model.generate(["Tom has 3 cups.", "Ann"], sampler="surest:k=3", max_new_tokens=8, stop_ids=[], block_length=8)
assert [len(step.positions) for step in result.trace.steps[0]] == [3, 3, 2], result.trace.steps
assert run(["show", "surest"]) == 0
"""
    code = f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(tmp_path)!r}]\n{script}"
    [done] = fresh.results([{"language": "python", "code": code}], tmp_path)
    assert done["code"] == 0, done["told"]
    assert "positions per step" in done["told"]


def test_the_changelog_has_a_dated_section_for_this_version() -> None:
    changelog = (ROOT / "CHANGELOG.md").read_text()
    sections = re.findall(r"^## \[([^\]]+)\](?: - (\d{4}-\d\d-\d\d))?$", changelog, re.MULTILINE)
    assert sections[0] == ("Unreleased", "")
    assert sections[1][0] == pardec.__version__
    assert all(date for _, date in sections[1:])
