"""Breaks the rules of the papers one at a time and says which tests notice: `scripts/mutate`.

A mutant is one line of tests/mutants/*.jsonl: in `file`, `old` (which stands there once) becomes `new`. It breaks the
rule of `paper` in the way that `kind` says. The mutant is applied in a copy of the checkout, build/mutants/tree. There
the test named for the paper runs (`@pytest.mark.seeds`), then, if that passes, the method's own test files, up to the
first failure. These are `tests` of the line, or else test_NAME*.py of the mutated file NAME.py and the file of the
named test; some papers have no named test. Failures and errors of a test count. Running out of time does not, nor a
file that cannot be collected, nor a test that fails without the mutant: the tests that noticed a mutant run once more
without any.

Results are kept in build/mutants/results.json, each until its line, its source file or one of its test files changes.
The page keeps the verdicts of mutants that have no such result.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import hashlib
import importlib
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import quick_tests

ROOT = Path(__file__).resolve().parents[1]
LISTS = ROOT / "tests" / "mutants"
WORK = ROOT / "build" / "mutants"
PAGE = ROOT / "benchmarks" / "mutants.md"
BATCHES = LISTS / "batches.json"  # counts of mutants that were written without the tests: see `fresh_batches`
KINDS = (
    "wrong sign",
    "threshold off",
    "term dropped",
    "position off by one",
    "residual replaced",
    "tie rule",
    "order",
    "wrong layer or slot",
    "bound dropped or swapped",
    "reset forgotten",
    "rows of a batch",
    "default changed",
)
NAMED_SHARE = 0.8  # share of a paper's mutants that its named test must notice
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")


@dataclass(frozen=True)
class Mutant:
    """One rule broken. `paper` is an arXiv number; `tests` replaces the method's own test files."""

    name: str
    paper: str
    kind: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...] = ()

    def applied(self, root: Path) -> str:
        """The file's text with the rule broken. Raises ValueError where `old` does not stand there once."""
        text = (root / self.file).read_text(encoding="utf-8") if (root / self.file).is_file() else ""
        if (found := text.count(self.old)) != 1:
            raise ValueError(f"{self.name}: `old` stands {found} times in {self.file}, and must stand there once")
        return text.replace(self.old, self.new)


@dataclass
class Outcome:
    """The verdicts on a mutant, `named` and `own`: "killed", "survived", "timeout", "broken", or "" without a test."""

    named: str = ""
    own: str = ""
    by: str = ""  # the first test that noticed
    seconds: float = 0.0


def read(paths: Iterable[Path]) -> list[Mutant]:
    """The mutants of files of lines. Raises ValueError for a line that is wrong, or a name that stands twice."""
    found: dict[str, Mutant] = {}
    for path in paths:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                fields = json.loads(line)
                mutant = Mutant(**{**fields, "tests": tuple(fields.get("tests", ()))})
            except (TypeError, ValueError) as error:
                raise ValueError(f"{path.name}:{number}: {error}") from None
            if mutant.kind not in KINDS or mutant.name in found or mutant.old == mutant.new:
                raise ValueError(f"{path.name}:{number}: a mutant needs a new name, one kind of {KINDS}, and a change")
            found[mutant.name] = mutant
    return list(found.values())


def own_tests(mutant: Mutant, named: str) -> list[str]:
    """The method's own test files, from the root."""
    files = [str(file.relative_to(ROOT)) for file in quick_tests.files(Path(mutant.file).stem)[1]]
    return list(mutant.tests or dict.fromkeys(filter(None, [*files, named.partition("::")[0]])))


# ---- running


def copy_tree() -> Path:
    """The checkout without what git ignores, with its kernels. Equal files stay, with their bytecode."""
    tree = WORK / "tree"
    listing = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(listing, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split("\0")
    kernels = [str(file.relative_to(ROOT)) for file in (ROOT / "build" / "kernels").glob("*.so")]
    for name in filter(None, [*names, *kernels]):
        source, target = ROOT / name, tree / name
        if not source.is_file():
            target.unlink(missing_ok=True)
            continue
        if target.is_file() and source.stat()[6:9:2] == target.stat()[6:9:2]:  # size and time of change
            continue
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target, follow_symlinks=False)
    site = tree / "build" / "site"
    site.mkdir(parents=True, exist_ok=True)
    (site / "sitecustomize.py").write_text(_SITE.format(tree=str(tree)), encoding="utf-8")
    return tree


# The editable install of this checkout serves the copy instead, here and in processes that a test starts.
_SITE = """import sys
for name, module in list(sys.modules.items()):
    if name.startswith("__editable___pardec"):
        for package, path in module.MAPPING.items():
            module.MAPPING[package] = {tree!r} + "/" + path.rpartition("/")[2]
"""


def in_fork(work: Callable[[], Any], limit: float) -> Any:
    """The result of `work` in a child process, or None where it ran out of `limit` seconds or died."""
    here, there = multiprocessing.Pipe(duplex=False)
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setpgid(0, 0)
            with open(os.devnull, "w") as null:
                os.dup2(null.fileno(), 1)
                os.dup2(null.fileno(), 2)
            there.send(work())
            code = 0
        finally:
            os._exit(code)
    there.close()
    try:
        return here.recv() if here.poll(limit) else None
    except EOFError:
        return None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child, signal.SIGKILL)
        os.waitpid(child, 0)


def run_tests(tree: Path, tests: Sequence[str], limit: float, *, stop: bool = True) -> tuple[str, list[str]]:
    """The verdict of `tests` in `tree`, and the tests that failed."""

    def work() -> tuple[int, list[str]]:
        import pytest

        failed: list[str] = []

        class Reports:
            def pytest_runtest_logreport(self, report: Any) -> None:
                if report.failed and not re.search(r"Timeout >|TimeoutExpired", str(report.longrepr)):
                    failed.append(report.nodeid)

        _enter(tree)
        code = pytest.main([*tests, "-q", "-p", "no:cacheprovider", *(["-x"] if stop else [])], plugins=[Reports()])
        return int(code), failed

    result = in_fork(work, limit)
    if result is None:
        return "timeout", []
    code, failed = result
    if code == 1:
        return ("killed", failed) if failed else ("timeout", [])
    return ("survived" if code == 0 else "broken"), failed


def _enter(tree: Path) -> None:
    """Makes a forked child a fresh process of `tree`."""
    os.chdir(tree)
    os.environ["PYTHONPATH"] = str(tree / "build" / "site")
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    exec((tree / "build" / "site" / "sitecustomize.py").read_text(encoding="utf-8"), {})


def preload(tree: Path) -> None:
    """Imports the other packages that pardec and its tests import, so that no child has to."""

    def work() -> list[str]:
        _enter(tree)
        import pytest  # noqa: F401

        import pardec

        model = pardec.load("tiny-dream", device="cpu")
        model.generate("add 3 4", max_new_tokens=2)
        return [name for name in sys.modules if name.partition(".")[0] not in ("pardec", "__main__", "quick_tests")]

    for name in in_fork(work, 600) or ():
        if not name.startswith("__editable__"):
            with contextlib.suppress(Exception):
                importlib.import_module(name)
    gc.collect()
    gc.freeze()


def named_tests(tree: Path) -> dict[str, str]:
    """The test named for each paper."""

    def work() -> dict[str, str]:
        _enter(tree)
        sys.path.insert(0, str(tree / "docs"))
        from pages.papers import seeds

        return seeds(tree / "tests")

    found: dict[str, str] | None = in_fork(work, 600)
    if found is None:
        raise ValueError("the tests named for papers cannot be read: run scripts/generate.py")
    return found


@contextlib.contextmanager
def mutated(tree: Path, mutant: Mutant) -> Any:
    """The tree with the mutant in it. Its bytecode is deleted: two edits may have one timestamp."""
    path = tree / mutant.file
    before, broken = path.read_bytes(), mutant.applied(tree)
    stale = path.parent / "__pycache__"
    try:
        path.write_text(broken, encoding="utf-8")
        for file in stale.glob(f"{path.stem}.*"):
            file.unlink()
        yield
    finally:
        path.write_bytes(before)
        changed = (ROOT / mutant.file).stat().st_mtime_ns
        os.utime(path, ns=(changed, changed))
        for file in stale.glob(f"{path.stem}.*"):
            file.unlink()


def meet(tree: Path, mutant: Mutant, named: str, limit: float) -> Outcome:
    """Runs the tests of one mutant; a named test in the method's own files runs once, for both verdicts."""
    outcome, started = Outcome(), time.monotonic()
    own = own_tests(mutant, named)
    with mutated(tree, mutant):
        if named:
            outcome.named, failed = run_tests(tree, [named, "-m", "seeds"], limit)
            outcome.by = failed[0] if failed else ""
        if outcome.named == "killed" and named.partition("::")[0] in own:
            outcome.own = "killed"
        else:
            more = [f"--deselect={named}"] if named else []
            outcome.own, failed = run_tests(tree, [*own, *more], 3 * limit)
            outcome.by = outcome.by or (failed[0] if failed else "")
    outcome.seconds = round(time.monotonic() - started, 1)
    return outcome


def fingerprint(mutant: Mutant, named: str) -> str:
    """A digest of the line, the source file, the named test's file and the method's own test files."""
    files = [mutant.file, named.partition("::")[0], *own_tests(mutant, named)]
    parts = [json.dumps(asdict(mutant)), named, *((ROOT / file).read_text(encoding="utf-8") for file in files if file)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


# ---- results


def summary(mutants: Sequence[Mutant], results: Mapping[str, Outcome]) -> dict[str, dict[str, int]]:
    """For each paper, how many mutants there are, and how many the named test and the method's own files notice."""
    papers: dict[str, dict[str, int]] = defaultdict(lambda: {"mutants": 0, "named": 0, "own": 0})
    for mutant in mutants:
        if mutant.name in results:
            row, outcome = papers[mutant.paper], results[mutant.name]
            row["mutants"] += 1
            row["named"] += outcome.named == "killed"
            row["own"] += outcome.own == "killed"
    return dict(sorted(papers.items()))


def with_named_test(mutants: Sequence[Mutant], results: Mapping[str, Outcome]) -> Counter[str]:
    """For each paper, how many mutants met a named test."""
    return Counter(one.paper for one in mutants if one.name in results and results[one.name].named)


def outcomes(page: str) -> dict[str, Outcome]:
    """The verdicts of a page's table of every mutant."""
    rows = re.findall(r"^\| (\S+) \| \S+ \| [^|]+ \| `[^|]+` \| (\S+) \| (\S+) \|$", page, re.MULTILINE)
    return {name: Outcome("" if named == "-" else named, own) for name, named, own in rows}


def markdown(
    mutants: Sequence[Mutant], results: Mapping[str, Outcome], titles: Mapping[str, str], earlier: str = ""
) -> str:
    """The page of benchmarks/mutants.md. A mutant without a result keeps the verdicts of the page before, `earlier`."""
    today = sum(mutant.name in results for mutant in mutants)
    results = outcomes(earlier) | dict(results)
    rows, asked = summary(mutants, results), with_named_test(mutants, results)
    total = Counter[str]()
    for row in rows.values():
        total.update(row)
    kinds = Counter(mutant.kind for mutant in mutants if mutant.name in results)
    lines = [
        "# Mutants",
        "",
        "`scripts/mutate --markdown`",
        "",
        "A mutant breaks one rule of a paper in one place of the code (tests/mutants). A test notices it if it fails.",
        'The named test is that of the column "shown by" in docs/papers.md, "-" for a paper without one; own files are',
        "the method's test files.",
        "Timeouts do not count.",
        "",
        f"{total['mutants']} of {len(mutants)} mutants have run, of {len(rows)} papers, {today} of them since their",
        f"files last changed. The named test notices {total['named']} of {asked.total()}, and the method's own files",
        f"{total['own']} of {total['mutants']}. Kinds:",
        ", ".join(f"{kind} {kinds[kind]}" for kind in KINDS) + ".",
        "",
        "| paper | mutants | named test | own files |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| [{titles.get(paper, paper)}](https://arxiv.org/abs/{paper}) | {row['mutants']} | "
        f"{row['named'] if asked[paper] else '-'} | {row['own']} |"
        for paper, row in rows.items()
    ]
    lines += ["", *fresh_batches(json.loads(BATCHES.read_text(encoding="utf-8"))), "## Every mutant", ""]
    lines += ["| mutant | paper | kind | file | named test | own files |", "|---|---|---|---|---|---|"]
    lines += [
        f"| {one.name} | {one.paper} | {one.kind} | `{one.file}` | {outcome.named or '-'} | {outcome.own} |"
        for one in mutants
        if (outcome := results.get(one.name))
    ]
    return "\n".join(lines) + "\n"


def fresh_batches(batches: Sequence[Mapping[str, Any]]) -> list[str]:
    """The section on batches of mutants that were written without a look at the tests."""
    lines = [
        "## Written without the tests",
        "",
        "The mutants of tests/mutants were found by those who wrote the tests, and tests were mended until they",
        "noticed them. Each of these batches was written from the methods' files alone, and run on tests that nobody",
        "had changed for it: these are the shares to expect of a mutant that nobody has seen. Tests have been mended",
        "since for what was missed, and the telling ones have joined tests/mutants.",
        "",
        "| batch | mutants | papers | named test | own files |",
        "|---|---|---|---|---|",
    ]
    for each in batches:
        count, named = each["mutants"], each["named"]
        own, ran = each["own"], each["own_ran"]  # own files did not run on every mutant
        share = "none" if named is None else f"{named} ({named / count:.0%})"  # papers without a named test
        lines.append(f"| {each['batch']} | {count} | {each['papers']} | {share} | {own} of {ran} ({own / ran:.0%}) |")
    return [*lines, ""]


def missed(mutants: Sequence[Mutant], results: Mapping[str, Outcome]) -> list[str]:
    """One line for each share that is below its minimum."""
    asked = with_named_test(mutants, results)
    lines = [
        f"{paper}: the named test notices {row['named']} of {row['mutants']} mutants"
        for paper, row in summary(mutants, results).items()
        if row["named"] < NAMED_SHARE * asked[paper]
    ]
    return lines + [
        f"{mutant.name}: {results[mutant.name].own} by the method's own files"
        for mutant in mutants
        if mutant.name in results and results[mutant.name].own != "killed"
    ]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="scripts/mutate", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument(
        "--list", type=Path, nargs="+", metavar="FILE", help="mutants, instead of tests/mutants/*.jsonl"
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="apply only these mutants")
    parser.add_argument(
        "--paper", nargs="+", metavar="NUMBER", help="apply only mutants of these papers, by arXiv number"
    )
    parser.add_argument(
        "--limit",
        type=float,
        default=300,
        metavar="SECONDS",
        help="most seconds of a named test; a test file gets three times as many",
    )
    parser.add_argument("--fresh", action="store_true", help="forget results of earlier runs")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the results there")
    parser.add_argument("--markdown", action="store_true", help=f"write {PAGE.relative_to(ROOT)}")
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    options = _parser().parse_args(arguments)
    for name in _THREADS:
        os.environ.setdefault(name, "1")
    try:
        mutants = read(options.list or sorted(LISTS.glob("*.jsonl")))
        unknown = set(options.only or ()) - {mutant.name for mutant in mutants}
        if unknown:
            raise ValueError(f"no mutants of these names: {', '.join(sorted(unknown))}")
        wanted = [one for one in mutants if one.name in (options.only or [one.name])]
        wanted = [one for one in wanted if one.paper in (options.paper or [one.paper])]
        if not wanted:
            raise ValueError("there are no such mutants")
        tree = copy_tree()
        named = named_tests(tree)
        for mutant in wanted:
            mutant.applied(ROOT)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    state = WORK / "results.json"
    known = json.loads(state.read_text()) if state.is_file() and not options.fresh else {}
    prints = {mutant.name: fingerprint(mutant, named.get(mutant.paper, "")) for mutant in mutants}
    to_run = [mutant for mutant in wanted if known.get(mutant.name, {}).get("fingerprint") != prints[mutant.name]]
    if to_run:
        preload(tree)
    for number, mutant in enumerate(to_run, 1):
        outcome = meet(tree, mutant, named.get(mutant.paper, ""), options.limit)
        known[mutant.name] = {"outcome": asdict(outcome), "fingerprint": prints[mutant.name], "checked": False}
        _save(state, known)
        verdicts = f"named test {outcome.named or '-'}, own files {outcome.own}"
        print(f"{number}/{len(to_run)} {mutant.name}: {verdicts}", flush=True)
    valid = {name: known[name] for name in prints if known.get(name, {}).get("fingerprint") == prints[name]}
    _check(tree, [one for one in valid.values() if not one["checked"]])
    _save(state, known)
    results = {name: Outcome(**one["outcome"]) for name, one in valid.items()}
    if options.json:
        options.json.write_text(json.dumps({name: asdict(one) for name, one in results.items()}, indent=1) + "\n")
    if options.markdown:
        PAGE.write_text(markdown(mutants, results, _titles(), PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    lines = missed(wanted, results)
    print("\n".join([*lines, f"{len(wanted)} mutants, {len(lines)} shares below their minimum"]))
    return 1 if lines else 0


def _check(tree: Path, results: Sequence[dict[str, Any]]) -> None:
    """Runs the tests that noticed mutants on the unchanged code: a test that fails there too has noticed nothing."""
    noticed = sorted({one["outcome"]["by"] for one in results} - {""})
    failing = run_tests(tree, noticed, 3600, stop=False)[1] if noticed else []
    for one in results:
        one["checked"] = True
        if one["outcome"]["by"] in failing:
            print(f"void: {one['outcome']['by']} fails without a mutant", flush=True)
            one["outcome"] |= {"named": "broken", "own": "broken"}


def _save(path: Path, known: Mapping[str, Any]) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(known, indent=1))
    part.replace(path)


def _titles() -> dict[str, str]:
    """Titles of papers, from the generated page."""
    text = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
    return {key: title for title, key in re.findall(r"^\| (.+?) \| \[arXiv:([0-9.]+)\]", text, re.MULTILINE)}


if __name__ == "__main__":
    sys.exit(main())
