"""A folder that diffusers' save_pretrained wrote: model/, scheduler/, tokenizer/ and model_index.json."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from diffusers import BlockRefinementScheduler, EntropyBoundScheduler

from pardec.models.errors import ModelError
from pardec.models.loading.sources import read_json

from .scheduler import PardecScheduler

_SCHEDULERS = {kind.__name__: kind for kind in (PardecScheduler, BlockRefinementScheduler, EntropyBoundScheduler)}


def parts(name: str | os.PathLike[str]) -> tuple[str | Path, dict[str, Any]]:
    """What `pardec.load` is given, and the scheduler and tokenizer that lie beside it.

    A name without a model_index.json is what it is, with nothing beside it.
    """
    folder = Path(name)
    index = folder / "model_index.json"
    if not index.is_file():
        return (folder if isinstance(name, os.PathLike) else name), {}
    if not (folder / "model").is_dir():
        raise ModelError(f"{folder} is a diffusers pipeline without a language model", "name the folder of the model")
    beside: dict[str, Any] = {}
    match read_json(index).get("scheduler"):
        case [_, str(called)]:
            kind = _SCHEDULERS.get(called)
        case _:
            kind = None
    if kind is not None:
        beside["scheduler"] = kind.from_pretrained(folder / "scheduler")
    if (folder / "tokenizer").is_dir():
        from transformers import AutoTokenizer

        beside["tokenizer"] = AutoTokenizer.from_pretrained(folder / "tokenizer", local_files_only=True)
    return folder / "model", beside
