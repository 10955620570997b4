"""Entry a: the short tests of `tests/test_gpu.py`, with their seconds."""

from __future__ import annotations

import os
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from importlib.util import find_spec
from pathlib import Path

from gpu_runs.report import Report

ROOT = Path(__file__).resolve().parents[2]


def run(report: Report) -> None:
    """Runs pytest in several processes where xdist is there: a GPU's tests mostly wait for compilers."""
    junit = report.file.with_suffix(".xml")
    command = [sys.executable, "-m", "pytest", str(ROOT / "tests/test_gpu.py"), "-m", "short", "-p", "no:cacheprovider"]
    command += [f"--junit-xml={junit}", "-q", "--tb=short", "-W", "ignore"]
    if not report.dry and find_spec("xdist"):
        command += ["-n", "4"]
    environment = dict(os.environ)
    if report.dry:
        environment["PARDEC_TEST_DEVICE"] = "cpu"
    done = subprocess.run(command, cwd=ROOT, env=environment, timeout=max(report.left() - 1, 1))
    counts: dict[str, int] = {"passed": 0, "failed": 0, "skipped": 0}
    for case in ElementTree.parse(junit).getroot().iter("testcase"):
        kinds = {child.tag for child in case}
        outcome = "failed" if kinds & {"failure", "error"} else "skipped" if "skipped" in kinds else "passed"
        counts[outcome] += 1
        why = next((child.get("message", "") for child in case if child.tag != "system-out"), "")
        report.row(test=case.get("name"), outcome=outcome, seconds=float(case.get("time", 0)), **_why(why))
    junit.unlink()
    report.line(", ".join(f"{count} {outcome}" for outcome, count in counts.items()))
    if done.returncode or not counts["passed"]:
        sys.exit(done.returncode or 1)


def _why(message: str) -> dict[str, str]:
    return {"why": message.splitlines()[0][:300]} if message else {}
