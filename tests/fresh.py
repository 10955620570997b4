"""Pieces of code, each run as in a fresh interpreter, for the price of one start.

This script imports what is slow and not ours (torch, transformers, diffusers) and then forks for each piece: in the
child pardec is not imported yet, no name is bound, and what it does to its process ends with it. Pieces share the
working folder.

    python fresh.py < pieces.json > results.json

A piece is {"language": "python" or "bash", "code": ...}; each line of bash is a `pardec` command, in a child of its
own. A result is {"code": exit status, "told": what the piece wrote on stdout and stderr}.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import traceback
from importlib import import_module
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SLOW = (
    "torch",
    "torch.nn.attention.flex_attention",
    "transformers.generation",
    "transformers.modeling_rope_utils",
    "transformers.modeling_utils",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "diffusers.schedulers",
    "accelerate",
    "einops",
    "PIL.Image",
    "rich.console",
    "tokenizers",
    "typer",
)


def results(pieces: list[dict[str, str]], folder: Path) -> list[dict[str, Any]]:
    """What becomes of pieces in `folder`, by way of a new process."""
    done = subprocess.run(
        [sys.executable, __file__],
        input=json.dumps(pieces),
        capture_output=True,
        text=True,
        check=True,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TRANSFORMERS_VERBOSITY": "error"},
    )
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


def _python(code: str) -> None:
    exec(compile(code, "<piece>", "exec"), {"__name__": "__main__"})


def _command(line: str) -> None:
    from pardec.cli import run

    command, *arguments = shlex.split(line, comments=True)
    assert command == "pardec", line
    assert run(arguments) == 0, line


def _forked(work: Any, text: str) -> dict[str, Any]:
    with tempfile.TemporaryFile() as told:
        child = os.fork()
        if child == 0:
            status = 1
            try:
                os.dup2(told.fileno(), 1)
                os.dup2(told.fileno(), 2)
                work(text)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        _, status = os.waitpid(child, 0)
        told.seek(0)
        return {"code": os.waitstatus_to_exitcode(status), "told": told.read().decode("utf-8", "replace")}


def main() -> None:
    for name in SLOW:
        import_module(name)
    import torch

    assert not any(name.partition(".")[0] == "pardec" for name in sys.modules)
    torch.set_num_threads(1)
    found = []
    with tempfile.TemporaryDirectory() as compiled:  # by the first child, for all
        sys.pycache_prefix, sys.dont_write_bytecode = compiled, False
        for piece in json.load(sys.stdin):
            if piece["language"] == "python":
                found.append(_forked(_python, piece["code"]))
                continue
            lines = [_forked(_command, line) for line in piece["code"].splitlines() if line.strip()]
            found.append({"code": max(line["code"] for line in lines), "told": "".join(line["told"] for line in lines)})
    json.dump(found, sys.stdout)


if __name__ == "__main__":
    main()
