"""The documentation builds offline without warnings, its pages are reachable, and its examples run."""

from __future__ import annotations

import os
import posixpath
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import pardec
from pardec.cli.app import command_line
from pardec.samplers import registry
from tests import fresh

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
WRITTEN = ("benchmarks/pages", "reference/cli", "reference/generated", "reference/methods")
PAGES = [
    page
    for page in sorted(DOCS.rglob("*.md"))
    if not str(page.relative_to(DOCS)).startswith(WRITTEN)  # by the build
]
CONTRIBUTING = ("add-a-family", "add-a-sampler", "add-an-argument")  # test_contributing.py runs their blocks
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)
# Published checkpoints that the pages name, and the numbers of problems, and what stands in for them here.
IN_PLACE_OF = {"GSAI-ML/LLaDA-8B-Instruct": "tiny-llada", "/models/Dream-v0-Instruct-7B": "tiny-dream"}
IN_PLACE_OF |= {"limit=2": "limit=1", "--limit 2": "--limit 1", "n=4, seed=7": "n=1, seed=7"}  # and shorter runs
IN_PLACE_OF |= {"mar:steps=9": "mar:steps=9,head=9", "k=8,steps=18": "k=8,steps=18,head=9"}


def blocks(page: Path, *languages: str) -> list[tuple[str, str]]:
    return [(kind, code) for kind, code in BLOCK.findall(page.read_text()) if kind in languages]


def script(page: Path) -> str:
    """The code blocks of a page in order as one script: names persist, and commands run in place."""
    parts = ["import shlex\nfrom pardec.cli import run as _run\n"]
    for kind, code in blocks(page, "python", "bash"):
        for name, other in IN_PLACE_OF.items():
            code = code.replace(name, other)
        if kind == "bash":
            commands = [shlex.split(line) for line in code.splitlines()]
            assert all(command[0] == "pardec" for command in commands), code
            code = "".join(f"assert _run({command[1:]!r}) == 0, {command!r}\n" for command in commands)
        parts.append(code)
    return "\n".join(parts)


def test_the_examples_of_every_page_run(tmp_path: Path) -> None:
    pages = [page for page in PAGES if page.stem not in CONTRIBUTING and blocks(page, "python", "bash")]
    assert len(pages) >= 12
    found = fresh.results([{"language": "python", "code": script(page)} for page in pages], tmp_path)
    for page, result in zip(pages, found, strict=True):
        assert result["code"] == 0, f"{page}\n{result['told']}"
    told = {page.stem: result["told"] for page, result in zip(pages, found, strict=True)}
    assert "18 - 4 = 14; 14 + 12 = 26; answer 26" in told["getting-started"]
    assert "threshold:tau=0.8@dual" in told["specs"]


def test_no_block_escapes_the_test() -> None:
    """A block is run (python, bash), shows commands for other machines (console), or is not a program."""
    kinds = {kind for page in PAGES for kind in re.findall(r"^```(\S*)$", page.read_text(), re.MULTILINE) if kind}
    assert kinds <= {"python", "bash", "console", "text", "{toctree}", "{include}", "{raw}", "{eval-rst}"}


def _options(words: list[str]) -> set[str]:
    """The options of the command that words begin with."""
    command: Any = command_line()
    for word in words:
        if word not in getattr(command, "commands", {}):
            break
        command = command.commands[word]
    assert not getattr(command, "commands", {}), f"no command: {words[:2]}"
    return {name for one in command.params for name in (*one.opts, *one.secondary_opts)}


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "console")], ids=lambda page: page.stem)
def test_commands_that_are_not_run_have_the_options_they_name(page: Path) -> None:
    for _, code in blocks(page, "console"):
        for line in code.splitlines():
            assert line.startswith("$ "), line
            words = shlex.split(line[2:])
            if "pardec" in words and "pardec.interop.lm_eval" not in words:
                given = words[words.index("pardec") + 1 :]
                assert {word for word in given if re.match(r"--?[a-zA-Z]", word)} <= _options(given), line
            elif words[0].startswith("./"):
                assert (ROOT / words[0]).exists(), line


def test_files_that_the_pages_name_are_there() -> None:
    floors = "scripts|tests|samplers|benchmarks|models|pardec"
    named = [
        (page, path)
        for page in PAGES
        for path in re.findall(rf"`(?:\./|python )?((?:{floors})/[\w/.-]*)[` ]", page.read_text())
    ]
    assert named
    assert [(page.name, path) for page, path in named if not (ROOT / path).exists()] == []


# Sphinx's own command without the index of the search page, a fifth of the time.
BUILD = "import sys, sphinx.builders.html as html, sphinx.cmd.build as build; "
BUILD += "html.StandaloneHTMLBuilder.search = False; sys.exit(build.main(sys.argv[1:]))"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built pages, without the theme's navigation. Warnings are errors; the proxy leads nowhere."""
    pytest.importorskip("sphinx", reason="the extra docs is not installed")
    folder = tmp_path_factory.mktemp("site")
    nowhere = {"http_proxy": "http://127.0.0.1:9", "https_proxy": "http://127.0.0.1:9", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            BUILD,
            "-W",
            "--keep-going",
            "-q",
            "-D",
            "html_theme=basic",
            "-d",
            str(folder / "trees"),
            str(DOCS),
            str(folder),
        ],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, **nowhere, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return folder


def _article(site: Path, name: str) -> str:
    found = re.search(r'<div class="body" role="main">.*?<div class="clearer">', (site / name).read_text(), re.DOTALL)
    assert found is not None, name
    return found[0]


def clicks(site: Path) -> dict[str, int]:
    """Every page, and the number of links from the front page to it, menus excluded."""
    found, edge = {"index.html": 0}, ["index.html"]
    while edge:
        name = edge.pop(0)
        for link in re.findall(r'href="([^"#:]+\.html)', _article(site, name)):
            to = posixpath.normpath(posixpath.join(posixpath.dirname(name), link))
            if to not in found and (site / to).exists():
                found[to] = found[name] + 1
                edge.append(to)
    return found


def _text(html: str) -> str:
    return " ".join(re.sub(r"<[^>]+>", "", html).replace("&quot;", '"').split())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("page", "said"),
    [
        ("guides/load.html", 'pardec.load("GSAI-ML/LLaDA-8B-Instruct")'),
        ("reference/methods/localleap.html", "|i - a| &lt;= radius and score_i &gt;= relaxed"),
        ("guides/compare.html", "scorer=says_the_answer"),
        ("concepts/exactness.html", "at temperature 0, the tokens are those of sequential"),
    ],
)
def test_what_one_looks_for_is_three_clicks_away(site: Path, page: str, said: str) -> None:
    assert clicks(site)[page] <= 3
    assert said in _text(_article(site, page))


@pytest.mark.slow
def test_every_page_is_reached_from_the_front_page(site: Path) -> None:
    made = {str(page.relative_to(site)) for page in site.rglob("*.html") if "_static" not in page.parts}
    assert made - clicks(site).keys() <= {"genindex.html", "py-modindex.html", "search.html"}


@pytest.mark.slow
def test_every_method_public_name_command_and_benchmark_has_its_place(site: Path) -> None:
    for card in pardec.list_samplers():
        names = [f"reference/methods/{card.name}{ending}.html" for ending in ("", f"-{card.family}")]
        (name,) = (name for name in names if (site / name).exists())
        page = _text(_article(site, name)).replace("’", "'")
        assert all(parameter["name"] in page for parameter in card.parameters), name
        assert "<em>" not in _article(site, name), f"{name}: a sign of the docstring was read as markup"
    api = _article(site, "reference/api.html")
    assert [name for name in pardec.__all__ if name != "__version__" and f'id="pardec.{name}"' not in api] == []
    assert 'id="pardec-bench-decode"' in _article(site, "reference/cli/index.html")
    listed = _article(site, "benchmarks/index.html")
    assert [page.stem for page in (ROOT / "benchmarks").glob("*.md") if f"pages/{page.stem}.html" not in listed] == []


def test_the_example_of_every_method_is_a_valid_spec() -> None:
    sys.path.insert(0, str(DOCS))
    try:
        from pages.methods import example
    finally:
        sys.path.remove(str(DOCS))
    # Of block-causal models, of windows, of random canvases, of edit tokens, and of draft modules; none is embedded.
    elsewhere = {"block", "causal", "subblock", "window", "next_sequence", "selfcondition", "denoise", "renoise"}
    elsewhere |= {"ancestral", "adaptive", "defer", "levenshtein", "falcon", "longspec", "transfer"}
    models = {"masked": "tiny-dream", "ar": "tiny-llama", "continuous": "tiny-mar", "scales": "tiny-var"}
    loaded = {family: pardec.load(name, device="cpu") for family, name in models.items()}
    for card in pardec.list_samplers():
        asked: dict[str, Any] = (
            {"label": [0]} if card.family in ("continuous", "scales") else {"prompt": "Tom has 8 cups."}
        )
        if card.name in elsewhere:
            assert registry.resolve(example(card), card.family).spec
        else:
            assert loaded[card.family].prepare(**asked, sampler=example(card)) is not None
