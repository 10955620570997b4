"""Tensor parallelism: all processes decode the same prompts, and one of them prints."""

from __future__ import annotations

import os
from pathlib import Path

from pardec.models.errors import SpecError

from ..executors.local import Local


class TensorParallel(Local):
    """The executor of a process with a share of the model."""

    def __init__(self) -> None:
        super().__init__()
        self.leads = os.environ.get("RANK", "0") == "0"


def check(executor: str, output: Path | None, prompts: Path | None, *, given: bool) -> None:
    """Refuses another executor, prompts that only one process can read, and a .jsonl file."""
    if executor != "local":
        raise SpecError(
            f"--tp splits one model over the processes, and the {executor} executor gives each a copy",
            hint="leave --tp or --executor out",
        )
    if output is not None and output.suffix == ".jsonl":
        raise SpecError(
            f"--tp decodes all prompts in one run, and {output} would resume an earlier one",
            hint="name a folder, or use --json > rows.json",
        )
    if not given and (prompts is None or str(prompts) == "-"):
        raise SpecError("only one process of torchrun can read standard input", hint="name a file with --prompts")
