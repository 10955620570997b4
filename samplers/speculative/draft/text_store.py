"""Files of known texts, and drafts from trees of known tokens, for drafters that copy from more than the row's text."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from pardec.models.errors import SpecError, one_line
from pardec.models.model import LanguageModel

from ...host_transfer import upload
from ..contracts import Draft
from ..sequences import Sequences

_HINT = "one text per line of a .txt file; a text, or a list of token ids, per line of a .jsonl file"


def read_texts(drafter: str, file: str, model: LanguageModel) -> list[np.ndarray]:
    """The token ids [L] of each text in a file: see `_HINT`. A line of a .jsonl file may also be {"text": ...}.

    Raises SpecError for a file that cannot be read, ids that the model has not, and texts without a tokenizer.
    """
    path = Path(file)
    try:
        # Not splitlines: texts may contain other line separators, such as U+2028.
        lines = [line for line in path.read_text(encoding="utf-8").split("\n") if line.strip()]
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


Node = tuple[int, int, int]  # token, index of the parent, depth; node 0 is the text's last token


def tree_draft(text: Sequences, rows: Sequence[Sequence[Node]], **more: Any) -> Draft:
    """A draft of one tree per row; `rows`: the nodes after node 0, parents first; `more`: arguments of `Draft`."""
    counts = np.array([len(nodes) for nodes in rows], dtype=np.int64)
    if not counts.any():
        return Draft.none(text)
    table = np.zeros((3, len(rows), int(counts.max()) + 1), dtype=np.int64)
    table[1, :, 0] = -1
    for at, nodes in enumerate(rows):
        if nodes:
            table[:, at, 1 : len(nodes) + 1] = np.array(nodes).T
    tokens, parents, depths = upload(table, text.device)
    tokens[:, 0] = text.last
    levels = int(table[2].max())
    return Draft(tokens, counts + 1, text.length - 1, parents, depths, levels, **more)


def best(nodes: Sequence[tuple[float, Node]], most: int) -> list[Node]:
    """The `most` nodes of the highest value, in descending order; no node may have a higher value than its parent.

    Parents are indices from 1 on into `nodes`, 0 for node 0, in which each stands after its parent.

    >>> best([(0.5, (7, 0, 1)), (0.2, (8, 1, 2)), (0.4, (9, 0, 1))], 2)
    [(7, 0, 1), (9, 0, 1)]
    """
    order = sorted(range(len(nodes)), key=lambda at: -nodes[at][0])[:most]  # stable: parents stay before children
    index = {0: 0} | {at + 1: new for new, at in enumerate(order, 1)}
    return [(token, index[parent], depth) for token, parent, depth in (nodes[at][1] for at in order)]
