"""One model in several processes: all decode the same prompts, and one of them speaks."""

from __future__ import annotations

import os
from pathlib import Path

from pardec.models.errors import SpecError

from ..executors.local import Local


class TensorParallel(Local):
    """The executor of a process that has a share of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.leads = os.environ.get("RANK", "0") == "0"


def check(executor: str, output: Path | None, prompts: Path | None, *, given: bool) -> None:
    """Refuses another executor, prompts that only one process can read, and a file that is added to row by row."""
    if executor != "local":
        raise SpecError(
            f"--tp makes the processes one model, and the {executor} executor gives each its own",
            hint="leave --tp or --executor out",
        )
    if output is not None and output.suffix == ".jsonl":
        raise SpecError(
            f"--tp decodes all prompts in one go, and {output} takes over rows made before",
            hint="name a folder, or use --json > rows.json",
        )
    if not given and (prompts is None or str(prompts) == "-"):
        raise SpecError("standard input reaches one process of torchrun only", hint="name a file with --prompts")
