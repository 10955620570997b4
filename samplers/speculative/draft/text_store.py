"""A file of texts for drafters that learn or copy from more than the row's own text."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from pardec.models.errors import SpecError, one_line
from pardec.models.model import LanguageModel

_HINT = "one text per line of a .txt file; a text, or a list of token ids, per line of a .jsonl file"


def read_texts(drafter: str, file: str, model: LanguageModel) -> list[np.ndarray]:
    """The token ids [L] of each text in a file: see `_HINT`. A line of a .jsonl file may also be {"text": ...}.

    Raises SpecError for a file that cannot be read, ids that the model has not, and texts without a tokenizer.
    """
    path = Path(file)
    try:
        lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        entries = [json.loads(line) for line in lines] if path.suffix == ".jsonl" else lines
    except (OSError, ValueError) as error:
        raise SpecError(f"{drafter}: {file} cannot be read: {one_line(error)}", hint=_HINT) from error
    return [_ids(drafter, file, entry, model) for entry in entries]


def _ids(drafter: str, file: str, entry: Any, model: LanguageModel) -> np.ndarray:
    entry = entry.get("text") if isinstance(entry, dict) else entry
    if isinstance(entry, str):
        if model.tokenizer is None:
            raise SpecError(f"{drafter}: {file} has texts, and {model.name} has no tokenizer", hint="list token ids")
        return np.array(model.tokenizer.encode(entry, add_special_tokens=False), dtype=np.int64)
    if not isinstance(entry, list) or not all(type(token) is int and 0 <= token < model.vocab_size for token in entry):
        raise SpecError(
            f"{drafter}: {file} has an entry that is neither a text nor a list of ids in 0..{model.vocab_size - 1}",
            hint=_HINT,
        )
    return np.array(entry, dtype=np.int64)
