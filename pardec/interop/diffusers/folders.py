"""Folders in the layout of diffusers' save_pretrained: model/, scheduler/, tokenizer/ and model_index.json."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import Any

import diffusers
from diffusers import BlockRefinementScheduler, EntropyBoundScheduler

from pardec.models.errors import ModelError, SpecError
from pardec.models.files.sources import read_json

from .scheduler import PardecScheduler

_SCHEDULERS = {kind.__name__: kind for kind in (PardecScheduler, BlockRefinementScheduler, EntropyBoundScheduler)}


def parts(name: str | os.PathLike[str]) -> tuple[str | Path, dict[str, Any]]:
    """The argument for `pardec.load`, and the scheduler and tokenizer of the same folder.

    A name or folder without a model_index.json is returned as it is, without components.
    """
    folder = Path(name)
    index = folder / "model_index.json"
    if not index.is_file():
        return (folder if isinstance(name, os.PathLike) else name), {}
    if not (folder / "model").is_dir():
        raise ModelError(f"{folder} is a diffusers pipeline without a language model", "name the folder of the model")
    components: dict[str, Any] = {}
    match read_json(index).get("scheduler"):
        case [_, str(class_name)]:
            kind = _SCHEDULERS.get(class_name)
        case _:
            kind = None
    if kind is not None:
        components["scheduler"] = kind.from_pretrained(folder / "scheduler")
    if (folder / "tokenizer").is_dir():
        from transformers import AutoTokenizer

        components["tokenizer"] = AutoTokenizer.from_pretrained(folder / "tokenizer", local_files_only=True)
    return folder / "model", components


def save(pipeline: Any, folder: Path) -> None:
    """Writes what `parts` reads: the files that the pardec model was loaded from, the scheduler and the tokenizer.

    Other arguments of `pardec.load` are not saved and must be passed again. Raises SpecError if the model's files no
    longer exist, or `folder` is inside their folder.
    """
    model, source = pipeline.model, pipeline.model.language_model.path
    if source is None or not source.is_dir():
        raise SpecError(f"the files of {model.name} do not exist and cannot be saved", hint="load it from a folder")
    if (folder / "model").resolve().is_relative_to(source.resolve()):
        raise SpecError(f"{folder} lies in the folder that {model.name} was loaded from", hint="name another folder")
    shutil.copytree(source, folder / "model", dirs_exist_ok=True)
    index: dict[str, Any] = {"_class_name": "PardecPipeline", "_diffusers_version": diffusers.__version__}
    index |= {"model": ["pardec.api", "Model"]}
    for name, part in (("scheduler", pipeline.scheduler), ("tokenizer", pipeline.tokenizer)):
        if part is not None:
            part.save_pretrained(folder / name)
            index[name] = [type(part).__module__, type(part).__name__]
    if model.tokenizer is not None and not (folder / "model" / "tokenizer.json").exists():  # embedded model
        model.tokenizer.save_pretrained(folder / "model")
    (folder / "model_index.json").write_text(json.dumps(index, indent=2) + "\n", encoding="utf-8")
