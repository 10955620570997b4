"""The queue: its entries, their time limits, and the folder of results.

Each entry runs in a process of its own, which is ended at its time limit, so that a fault in one leaves the others.
Results are at most eight files: `results.json` (all entries), `log.txt`, and the files that the training writes.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
WORK = ROOT / "build" / "gpu"
WHOLE = 540.0  # seconds of the queue
MOST_FILES, MOST_BYTES = 8, 16 * 2**20  # limits of the results

# What a sparse checkout holds: the code, the tests, and the models that the entries load.
SLIM = (
    "/*",
    "!/docs/",
    "!/examples/",
    "!/benchmarks/*",
    "/benchmarks/gpu/",
    "!/benchmarks/gpu/state/",
    "!/tests/golden/*/",
    *(f"/tests/golden/{name}/" for name in ("llamagen", "mar", "var")),
    "!/models/embedded/*/",
    *(
        f"/models/embedded/{name}/"
        for name in ("tiny-llama", "tiny-llada", "tiny-dream", "tiny-llama-draft", "drafters")
    ),
    "!/models/embedded/drafters/*/",
    "/models/embedded/drafters/tiny-llama-eagle/",
)


@dataclass(frozen=True)
class Entry:
    """One part of the queue."""

    letter: str
    module: str  # module of gpu_runs
    summary: str
    seconds: float | None  # its time limit; None: what is left of the queue's
    dry_seconds: float  # its time limit in a dry run

    def command(self, file: Path, seconds: float, *, dry: bool, finish: bool) -> list[str]:
        given = [f"--file={file}", f"--seconds={seconds:.0f}", f"--inputs={WORK / 'inputs'}"]
        given += [flag for flag, wanted in (("--dry", dry), ("--finish", finish)) if wanted]
        return [sys.executable, str(ROOT / "scripts/gpu_runs/entry.py"), self.module, *given]


ENTRIES = (
    Entry("a", "tests", "the short tests on a GPU: tokens, images, bfloat16 logits, captured forwards", 90, 150),
    Entry("b", "repeatability", "two runs of LLaDA-8B's shape compared bit by bit", 40, 90),
    Entry("c", "steps", "seconds of a step at the shapes of LLaDA-8B and Qwen3-8B, beside other loops", 200, 120),
    Entry("d", "step_profile", "launches, gaps and busy time of a step", 60, 90),
    Entry("f", "kernels", "each kernel beside the version before it and its definition, in GPU time", 40, 120),
    Entry("g", "mtp_layer", "the next stretch of an MTP layer with which SmolLM2 drafts for itself", 45, 150),
    Entry("h", "rollouts", "tokens per second of rollouts, 128 rows at once", 45, 60),
    Entry("e", "training", "the next stretch of SmolLM2 as a masked model", None, 90),
)


def main(argv: list[str] | None = None, entries: Sequence[Entry] = ENTRIES) -> int:
    """Returns the exit code: 0 if every chosen entry ended well, 1 if one did not, 2 for a wrong argument."""
    given = _parser().parse_args(argv)
    if given.list:
        for entry in entries:
            print(f"{entry.letter}  {_seconds(entry)}  {entry.summary}")
        return 0
    if given.slim:
        return slim()
    if given.pack:
        from gpu_runs.parcels import pack

        return pack(given.pack, WORK, given.parcel_mb * 10**6)
    if given.export:
        from gpu_runs.export import export
        from gpu_runs.parcels import STATE

        return export(*given.export, state=STATE)
    if given.encode:
        from gpu_runs.feedback import encode
        from gpu_runs.parcels import STATE

        return encode(given.encode, STATE)
    if given.page:
        from gpu_runs.page import write

        write(ROOT)
        return 0
    unknown = set(given.only.split(",")) - {entry.letter for entry in entries} if given.only else set()
    if unknown:
        print(f"error: --only {given.only}: there is no entry {', '.join(sorted(unknown))}", file=sys.stderr)
        print(f"entries: {', '.join(entry.letter for entry in entries)}; --list shows them", file=sys.stderr)
        return 2
    chosen = [entry for entry in entries if not given.only or entry.letter in given.only.split(",")]
    return run(chosen, given.out, given.seconds, dry=given.dry_run, finish=given.finish)


def run(entries: Sequence[Entry], out: Path, whole: float = WHOLE, *, dry: bool = False, finish: bool = False) -> int:
    """Runs the entries in order; returns 1 if one of them did not end well, else 0."""
    from gpu_runs.parcels import collect

    out.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    results: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), "dry": dry, "machine": _machine(), "entries": {}}
    _write(out, results)
    if not dry:
        collect(WORK)
    with (out / "log.txt").open("ab") as log:
        for entry in entries:
            left = whole - (time.monotonic() - started)
            limit = min(entry.dry_seconds if dry else entry.seconds or left, left)
            print(f"{entry.letter}  {entry.summary} (at most {max(limit, 0):.0f} s)", flush=True)
            done = _one(entry, out, limit, log, dry=dry, finish=finish)
            results["entries"][entry.letter] = done
            _write(out, results)
            print(f"{entry.letter}  {done['status']} in {done['seconds']:.0f} s: {done['line']}", flush=True)
    for file in sorted(out.iterdir())[MOST_FILES:]:
        print(f"warning: {file.name} is one file too many to come back", file=sys.stderr)
    for file in out.iterdir():
        if file.stat().st_size > MOST_BYTES:
            print(f"warning: {file.name} has more than {MOST_BYTES} bytes, too many to come back", file=sys.stderr)
    failed = [letter for letter, done in results["entries"].items() if done["status"] not in ("done", "waits")]
    print(
        f"{len(results['entries']) - len(failed)} of {len(results['entries'])} entries ended well; {out}/results.json"
    )
    return 1 if failed else 0


def _one(entry: Entry, out: Path, limit: float, log: Any, *, dry: bool, finish: bool) -> dict[str, Any]:
    """Runs an entry and returns its results: its status, seconds, line and whatever its JSON file holds."""
    file = out / f"{entry.module}.json"
    file.unlink(missing_ok=True)
    started, status = time.monotonic(), "done"
    if limit < 1:
        return {"module": entry.module, "limit": 0, "status": "left out", "seconds": 0.0, "line": "no time was left"}
    log.write(f"== {entry.letter} {entry.module}\n".encode())
    log.flush()
    process = subprocess.Popen(
        entry.command(file, limit, dry=dry, finish=finish),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        cwd=ROOT,
        env=_environment(),
        start_new_session=True,  # so that all its processes can be ended
    )
    assert process.stdout is not None
    os.set_blocking(process.stdout.fileno(), False)
    while process.poll() is None:
        if time.monotonic() - started > limit:
            status = "cut off"
            break
        _copy(process.stdout, log)
        time.sleep(0.05)
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    _copy(process.stdout, log)
    process.stdout.close()
    if status == "done" and process.returncode:
        status = f"failed with {process.returncode}"
    found: dict[str, Any] = {}
    with suppress(OSError, ValueError):
        found = json.loads(file.read_text(encoding="utf-8"))
    file.unlink(missing_ok=True)
    file.with_suffix(".part").unlink(missing_ok=True)
    if status == "done":
        status = found.pop("status", "done")
    known = {"module": entry.module, "limit": round(limit), "status": status}
    return {**known, "seconds": round(time.monotonic() - started, 1), "line": "it left no results", **found}


def _copy(source: Any, log: Any) -> None:
    """Copies an entry's output to the log and the terminal."""
    printed = source.read()
    if printed:
        log.write(printed)
        log.flush()
        sys.stdout.write(printed.decode(errors="replace"))
        sys.stdout.flush()


def _write(out: Path, results: dict[str, Any]) -> None:
    part = out / "results.part"
    part.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")
    os.replace(part, out / "results.json")


def _environment() -> dict[str, str]:
    """The variables of an entry's process, which finds the carried packages before the installed ones."""
    paths = [str(WORK / "packages"), os.environ.get("PYTHONPATH", "")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)}


def _machine() -> dict[str, str]:
    """Describes the machine from a separate process, since a broken PyTorch must not end the queue."""
    code = "import json; from pardec.environment import machine, versions; print(json.dumps(machine() | versions()))"
    try:
        found = subprocess.run(
            [sys.executable, "-c", code], cwd=ROOT, env=_environment(), capture_output=True, text=True, timeout=60
        )
        return dict(json.loads(found.stdout.splitlines()[-1]))
    except (subprocess.SubprocessError, ValueError, IndexError) as error:
        return {"error": f"{type(error).__name__}: {error}"[:300]}


def slim() -> int:
    """Makes the working tree a sparse one; prints its size."""
    git = ["git", "-C", str(ROOT)]
    done = subprocess.run([*git, "sparse-checkout", "set", "--no-cone", *SLIM])
    if done.returncode:
        return done.returncode
    listed = subprocess.run([*git, "ls-files", "-z"], capture_output=True, text=True, check=True).stdout.split("\0")
    size = sum((ROOT / name).stat().st_size for name in listed if name and (ROOT / name).is_file())
    print(f"the working tree has {size / 1e6:.1f} MB; `git sparse-checkout disable` brings all files back")
    return 0


def _seconds(entry: Entry) -> str:
    return f"{'the rest' if entry.seconds is None else f'{entry.seconds:.0f} s':>8}, dry {entry.dry_seconds:.0f} s"


def _parser() -> argparse.ArgumentParser:
    lines = [f"  {entry.letter}  {_seconds(entry)}  {entry.summary}" for entry in ENTRIES]
    parser = argparse.ArgumentParser(
        prog="scripts/gpu_queue",
        description="Test, time and train on a GPU with one command, in at most nine minutes.",
        epilog="entries, with their time limits:\n" + "\n".join(lines),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--dry-run", action="store_true", help="every entry on a CPU with tiny shapes")
    parser.add_argument("--only", default="", metavar="LETTERS", help="the entries to run, as c,e")
    parser.add_argument(
        "--finish", action="store_true", help="entry e ends the training: its rate falls to the end of this stretch"
    )
    parser.add_argument("--out", type=Path, default=WORK / "results", help="folder of results (build/gpu/results)")
    parser.add_argument("--seconds", type=float, default=WHOLE, help="time limit of the whole queue (540)")
    parser.add_argument("--list", action="store_true", help="print the entries and their time limits")
    parser.add_argument(
        "--slim", action="store_true", help="keep only what the queue needs in the working tree (sparse checkout)"
    )
    parser.add_argument(
        "--pack", type=Path, metavar="FILE", help="pack SmolLM2's GGUF file and the training state into parcels"
    )
    parser.add_argument("--parcel-mb", type=int, default=50, help="largest size of a parcel of --pack, in MB")
    parser.add_argument(
        "--export",
        type=Path,
        nargs=2,
        metavar=("FILE", "FOLDER"),
        help="write the trained model, from SmolLM2's GGUF and the training's state, as a checkpoint folder",
    )
    parser.add_argument(
        "--encode",
        type=Path,
        metavar="FILE",
        help="encode the state of a finished training in fewer bytes; FILE: SmolLM2's GGUF",
    )
    parser.add_argument("--page", action="store_true", help="write benchmarks/gpu.md from the committed results")
    return parser
