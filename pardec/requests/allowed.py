"""Reads every form of `allowed=`, the tokens that each position may take, into sets over the vocabulary.

A constraint belongs to a position, so it holds in any order of committing. Index 0 is the first position after the
prompt; the fixed tokens of a template have indices too, and do not change. A row's constraint is one of

    a function (row, index) -> choices      called once for each position to fill
    a list of choices, one per position       may be shorter than what is generated; the rest is free
    a dict {index: choices}                 the others are free
    None                                    all of them are free

and choices are token ids, or texts that the tokenizer encodes as one token each; None allows any. A text is encoded by
itself, so that "yes" and " yes" may be two tokens. End tokens are no exception: where none is allowed, no row ends.
The mask token is never committed, allowed or not.

One constraint holds for every row. A list is one constraint a row if an item of it is a function, a dict, or a list
that itself holds None or lists: in [[5, 6], None] the items are choices, in [[[5, 6], None], None] they are the
constraints of two rows.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from pardec.models.errors import SpecError
from pardec.samplers.request import Allowed

from .argument import is_whole
from .prompts import open_id

if TYPE_CHECKING:
    from pardec.models.model import LanguageModel

    from .prompts import Row

_CHOICES = 'choices are token ids or texts of one token, such as [5, 9] or ["yes", "no"]; None allows anything'


def read(model: LanguageModel, argument: Any, rows: Sequence[Row]) -> Allowed | None:
    """The sets that `argument` allows at the positions of `rows`; None if all tokens are allowed everywhere.

    Raises:
        SpecError: naming the row, the position and the value that cannot work.
    """
    if argument is None:
        return None
    forms = _for_rows(argument, len(rows))
    sets = _Sets(model)
    at = tuple(_set_indices(sets, form, row, i) for i, (form, row) in enumerate(zip(forms, rows, strict=True)))
    return Allowed(sets.table(), at) if len(sets) > 1 else None


def digest(allowed: Allowed | None, prompts: Sequence[int]) -> list[str | None]:
    """A short hash of each row's constraint; equal hashes mean equal constraints. None is no constraint."""
    if allowed is None:
        return [None] * len(prompts)
    names = [_hash(np.packbits(row).tobytes()) for row in allowed.sets.cpu().numpy()]
    rows = [at[start:].tolist() for at, start in zip(allowed.at, prompts, strict=True)]
    return [_hash(",".join(names[i] for i in row).encode()) if any(row) else None for row in rows]


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:16]


def _for_rows(argument: Any, count: int) -> list[Any]:
    """The constraint of each row."""
    if not isinstance(argument, list | tuple) or not any(_is_row(item) for item in argument):
        return [argument] * count
    if len(argument) != count:
        raise SpecError(
            f"allowed has constraints for {len(argument)} rows, and there are {count}",
            hint="give one constraint for all rows, or one per row",
        )
    return list(argument)


def _is_row(item: Any) -> bool:
    """Whether an item of a list can only be the constraint of a whole row."""
    if callable(item) or isinstance(item, Mapping):
        return True
    return isinstance(item, list | tuple) and any(i is None or _is_choices(i) for i in item)


def _is_choices(item: Any) -> bool:
    """Whether `item` is a collection that may hold choices; its members are checked when they are read."""
    return isinstance(item, Collection | Tensor | np.ndarray) and not isinstance(item, str | bytes | Mapping)


def _set_indices(sets: _Sets, form: Any, row: Row, number: int) -> Tensor:
    """The index of the set of each position of one row, [L_i]."""
    start, count = len(row.prompt), len(row.rest)
    masked = row.rest.eq(sets.mask)
    indices = torch.zeros(start + count, dtype=torch.int64)
    if callable(form):
        _check_signature(form)
        for index in masked.nonzero()[:, 0].tolist():
            indices[start + index] = sets.add(form(number, index), f"allowed({number}, {index}) returned")
        return indices
    for index, choices in _by_index(form, count, f"allowed of row {number}").items():
        set_index = sets.add(choices, f"allowed of row {number} has at index {index}")
        if masked[index]:
            indices[start + index] = set_index
    return indices


def _check_signature(form: Callable[..., Any]) -> None:
    try:
        inspect.signature(form).bind(0, 0)
    except TypeError:
        raise SpecError(
            "allowed is a function that cannot be called with a row and an index",
            hint="write it as allowed(row, index), index counting generated positions from 0",
        ) from None
    except ValueError:  # some built-in functions have no signature
        pass


def _by_index(form: Any, count: int, name: str) -> dict[int, Any]:
    """The choices of a row by the index of the position."""
    if form is None:
        return {}
    if isinstance(form, Mapping):
        for index in form:
            if not is_whole(index) or not 0 <= index < count:
                raise SpecError(
                    f"{name} names index {index!r}, and {count} positions are generated",
                    hint=f"indices run from 0, the first position after the prompt, to {count - 1}",
                )
        return dict(form)
    if not isinstance(form, list | tuple):
        raise SpecError(
            f"{name} is {type(form).__name__}",
            hint="it takes a function (row, index), a list with choices for each position, or a dict {index: choices}",
        )
    if len(form) > count:
        raise SpecError(
            f"{name} has {len(form)} items, and {count} positions are generated",
            hint="give at most one item per position; positions after the last item are free",
        )
    return dict(enumerate(form))


class _Sets:
    """The distinct sets of one request, each stored once; set 0 allows everything."""

    def __init__(self, model: LanguageModel) -> None:
        self.model, self.size = model, model.vocab_size
        self.mask = open_id(model)
        self.indices: dict[bytes, int] = {b"": 0}
        self.ids: list[np.ndarray] = [np.arange(self.size)]
        self.tokens: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self.ids)

    def add(self, choices: Any, opening: str) -> int:
        """The index of the set of `choices`; error messages begin with `opening`."""
        if choices is None:
            return 0
        if isinstance(choices, Tensor | np.ndarray):
            choices = choices.tolist()
        if not _is_choices(choices):
            raise SpecError(f"{opening} {choices!r}, which is not a list of choices", hint=_CHOICES)
        ids = np.unique(np.array([self._id(choice, opening) for choice in choices], dtype=np.int64))
        if not len(ids):
            raise SpecError(f"{opening} an empty set", hint="allow at least one token, or None for any")
        ids = ids[ids != self.mask]
        if not len(ids):
            raise SpecError(
                f"{opening} the mask token alone (id {self.mask}), which is never committed", hint="allow another token"
            )
        key = ids.tobytes()
        if key not in self.indices:
            self.indices[key] = len(self.ids)
            self.ids.append(ids)
        return self.indices[key]

    def table(self) -> Tensor:
        """[S, V] bool, on the model's device."""
        table = torch.zeros(len(self.ids), self.size, dtype=torch.bool)
        for row, ids in zip(table, self.ids, strict=True):
            row[torch.from_numpy(ids)] = True
        return table.to(self.model.device)

    def _id(self, choice: Any, opening: str) -> int:
        if isinstance(choice, str):
            return self._word(choice, opening)
        if not is_whole(choice):
            raise SpecError(f"{opening} {choice!r}, which is neither a token id nor text", hint=_CHOICES)
        if not 0 <= choice < self.size:
            raise SpecError(
                f"{opening} id {choice}, outside the vocabulary of {self.size}", hint=f"ids lie in 0..{self.size - 1}"
            )
        return int(choice)

    def _word(self, text: str, opening: str) -> int:
        """The one token that `text` is encoded as."""
        if text in self.tokens:
            return self.tokens[text]
        tokenizer = self.model.tokenizer
        if tokenizer is None:
            raise SpecError(
                f"{opening} the text {text!r}, and {self.model.name} comes without a tokenizer", hint="allow token ids"
            )
        ids: list[int] = tokenizer(text, add_special_tokens=False)["input_ids"]
        if len(ids) != 1:
            tokens = " ".join(map(repr, tokenizer.convert_ids_to_tokens(ids))) or "nothing"
            raise SpecError(
                f"{opening} {text!r}, which is not a single token: it splits into {tokens}",
                hint="allow texts of one token, or give each token of a longer one its own position",
            )
        if ids[0] == tokenizer.unk_token_id and text != tokenizer.unk_token:
            raise SpecError(f"{opening} {text!r}, which the tokenizer does not know", hint="choose another text")
        self.tokens[text] = ids[0]
        return ids[0]
