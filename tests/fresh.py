"""Runs pieces of code as if each had a fresh interpreter; each test process starts one interpreter and forks it.

This script imports slow libraries (torch, transformers, diffusers) and then forks for each piece: in the child pardec
is not imported yet, no name is bound, and changes to the process end with it. Pieces of one call share the working
folder.

Each line on stdin is {"folder": ..., "pieces": [...]}. A piece is {"language": "python" or "bash", "code": ...}; each
line of bash is a `pardec` command, in a child of its own. The answer is a line of results, {"code": exit status,
"told": what the piece wrote on stdout and stderr} for each piece.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import tempfile
import traceback
from functools import cache
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


@cache
def _starter() -> subprocess.Popen[str]:
    """The process that forks; it ends when its stdin closes, at the latest with this process."""
    return subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "TRANSFORMERS_VERBOSITY": "error"},
    )


def results(pieces: list[dict[str, str]], folder: Path) -> list[dict[str, Any]]:
    """The results of pieces that run in `folder`."""
    starter = _starter()
    assert starter.stdin is not None
    assert starter.stdout is not None
    print(json.dumps({"folder": str(folder), "pieces": pieces}), file=starter.stdin, flush=True)
    made: list[dict[str, Any]] = json.loads(starter.stdout.readline())
    return made


def _python(code: str) -> None:
    try:
        exec(compile(code, "<piece>", "exec"), {"__name__": "__main__"})
    except SystemExit as end:  # as a script ends well
        if end.code:
            raise


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
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
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
    for line in sys.stdin:
        request = json.loads(line)
        os.chdir(request["folder"])
        made = []
        for piece in request["pieces"]:
            if piece["language"] == "python":
                made.append(_forked(_python, piece["code"]))
                continue
            commands = [_forked(_command, command) for command in piece["code"].splitlines() if command.strip()]
            told = "".join(command["told"] for command in commands)
            made.append({"code": max(command["code"] for command in commands), "told": told})
        print(json.dumps(made), flush=True)


if __name__ == "__main__":
    main()
