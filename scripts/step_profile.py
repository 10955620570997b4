"""Counts the project's files and Python calls that one decoding step runs: `python scripts/step_profile.py`.

Streams a text of an embedded model under `sys.setprofile` and takes the step with the median count: the first step,
which feeds the prompt, and the last one, which ends the row, are left out. `--functions` lists the functions by file.
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import pardec

ROOT = str(Path(pardec.__file__).resolve().parents[1])
CASES = {"step of threshold": ("tiny-dream", "threshold"), "round of lookup": ("tiny-llama", "lookup")}
PROMPT = "add 3 4"


def profile(model: Any, spec: str) -> Counter[tuple[str, str]]:
    """Calls of the median step, by file and function."""
    events = iter(model.stream(PROMPT, sampler=spec, max_new_tokens=64))
    steps: list[Counter[tuple[str, str]]] = []

    def on_call(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call" and (file := frame.f_code.co_filename).startswith(ROOT) and ".venv" not in file:
            steps[-1][file.removeprefix(ROOT + "/"), frame.f_code.co_qualname] += 1

    while True:
        steps.append(Counter())
        sys.setprofile(on_call)
        event = next(events, None)
        sys.setprofile(None)
        if type(event).__name__ == "RowFinished":
            break
    middle = sorted(steps[2:-2], key=lambda calls: sum(calls.values()))
    return middle[len(middle) // 2]


def main() -> None:
    parser = argparse.ArgumentParser(description=str(__doc__).split("\n")[0])
    parser.add_argument("--functions", action="store_true", help="list the functions by file, with their calls")
    arguments = parser.parse_args()
    for name, (checkpoint, spec) in CASES.items():
        calls = profile(pardec.load(checkpoint), spec)
        print(f"{name}: {len({file for file, _ in calls})} files, {sum(calls.values())} calls")
        if arguments.functions:
            for (file, function), count in sorted(calls.items()):
                print(f"  {count:4}  {file}  {function}")


if __name__ == "__main__":
    main()
