"""A worker of benchmarks/cpu_engines.py: reads requests as lines of JSON, answers each with a line, measures itself.

Workers run in the environments of the engines, so nothing here or in them imports pardec, except its own worker.
"""

from __future__ import annotations

import json
import os
import sys
import time
from typing import Any, Protocol

Values = dict[str, Any]


class Engine(Protocol):
    """The interface of an engine that a worker serves. `load` returns versions; `decode` returns new tokens."""

    def load(self, **options: Any) -> Values: ...

    def decode(self, mode: str, ids: list[int], new: int) -> list[int]: ...


def memory(name: str) -> int:
    """Bytes of "VmRSS" (resident) or "VmHWM" (its peak); 0 where the system does not say."""
    try:
        with open("/proc/self/status") as lines:
            return next(1024 * int(line.split()[1]) for line in lines if line.startswith(name + ":"))
    except OSError:
        return 0


def forget_peak() -> None:
    """Resets the recorded peak to the memory that is resident now."""
    try:
        with open("/proc/self/clear_refs", "w") as file:
            file.write("5")
    except OSError:
        pass


def timed(function: Any, *arguments: Any, **named: Any) -> Values:
    """The result of a call, with its seconds on the clock and of all threads."""
    clock, process = time.perf_counter(), time.process_time()
    result = function(*arguments, **named)
    return {"result": result, "seconds": time.perf_counter() - clock, "cpu_seconds": time.process_time() - process}


def answer(engine: Any, request: Values) -> Values:
    """Runs the method that a request names, and measures it."""
    imported = memory("VmRSS")
    measured = timed(getattr(engine, request.pop("do")), **request)
    return {**measured, "resident_before": imported, "resident": memory("VmRSS"), "peak": memory("VmHWM")}


def serve(engine: Any) -> None:
    """Answers requests until the input ends. What libraries print goes to stderr."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        if request["do"] == "decode":
            forget_peak()
        try:
            reply = answer(engine, request)
        except (Exception, SystemExit) as error:  # an engine that fails leaves the others running
            text = str(error).strip().splitlines() or [""]
            reply = {"error": f"{type(error).__name__}: {text[0][:300]}"}
        out.write(json.dumps(reply) + "\n")
        out.flush()
