"""The target's outputs for texts, computed once and stored: layer outputs, final-normed states, likeliest tokens.

A folder has four files that only grow. `index.jsonl` has the length of the prompt and of the whole text, one text per
line; in the others texts follow one another without gaps: `ids.bin` int32 [N], `best.bin` int32 [N] (the likeliest
token after each position), `states.bin` bfloat16 [N, n + 1, E] (n layers' outputs, the state after the final norm).
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from pardec.models.errors import ModelError
from pardec.models.files.sources import digest_of
from pardec.models.model import LanguageModel
from pardec.models.plan import Plan, Visible

from .resumable import write_json

_TOKENS = 4096  # tokens of one forward
Row = tuple[Sequence[int], Sequence[int]]  # prompt and answer
_HEAD_ROWS = 512  # positions whose logits are made at once


def _by_length(rows: Iterable[Row]) -> list[Row]:
    """The rows sorted by length; texts are written from the last one on."""
    return sorted(rows, key=lambda row: len(row[0]) + len(row[1]))


def _by_first_text(files: Mapping[str, Sequence[Row]]) -> dict[str, Sequence[Row]]:
    """The rows of these files by their first text; rows without a text are left out."""
    names: dict[str, str] = {}
    known: dict[str, Sequence[Row]] = {}
    for name, rows in files.items():
        if not rows:
            continue
        prompt, answer = rows[0]
        key = hashlib.sha256(json.dumps([list(prompt), list(answer)]).encode()).hexdigest()[:16]
        if key in known:
            raise ModelError(f"{names[key]} and {name} begin with the same text", "name each file of texts once")
        names[key], known[key] = name, rows
    return known


@dataclass(frozen=True)
class Batch:
    """A batch of texts, padded to the longest."""

    ids: Tensor  # [B, W] int64
    taps: Tensor  # [B, W, n, E] bfloat16 outputs of the layers
    normed: Tensor  # [B, W, E] bfloat16 states after the final norm
    best: Tensor  # [B, W] int64 the likeliest token after each position
    begins: Tensor  # [B] where the answers begin
    lengths: Tensor  # [B]

    @property
    def width(self) -> int:
        return self.ids.shape[1]


@dataclass(frozen=True)
class Text:
    """The place of one text in the files."""

    start: int
    prompt: int  # tokens of its prompt
    length: int  # tokens in all


class States:
    """The files of one folder; `write` adds texts, `batch` reads some."""

    def __init__(self, folder: Path, layers: Sequence[int], target: LanguageModel) -> None:
        """`folder` need not exist; batches are on the device of `target`."""
        self.folder, self.layers, self.target, self.width = folder, tuple(layers), target, target.width
        folder.mkdir(parents=True, exist_ok=True)
        about, own = folder / "about.json", self._about()
        if about.exists() and own | json.loads(about.read_text()) != own:
            raise ModelError(
                f"{folder} holds states of {about.read_text().strip()}, and the drafter needs those of "
                + json.dumps(own),
                "name another folder, or remove this one",
            )
        write_json(about, own)
        self.texts: list[Text] = []
        self._files: dict[str, np.ndarray[Any, Any]] = {}
        self._open()

    def _about(self) -> dict[str, Any]:
        target = self.target
        files = None if target.path is None else digest_of(target.path)
        return {"layers": list(self.layers), "width": self.width, "target": files or target.name}

    def _shapes(self) -> dict[str, tuple[type[np.generic], tuple[int, ...]]]:
        """The shapes of the values stored per token, by file name."""
        return {"ids": (np.int32, ()), "best": (np.int32, ()), "states": (np.int16, (len(self.layers) + 1, self.width))}

    def _open(self) -> None:
        """Maps the complete part of the files and cuts off the incomplete rest of an interrupted run."""
        self.texts = []
        index = self.folder / "index.jsonl"
        lines = index.read_text().splitlines(keepends=True) if index.exists() else []
        start = 0
        for line in lines:
            if line.endswith("\n"):
                prompt, length = json.loads(line)
                self.texts.append(Text(start, prompt, length))
                start += length
        self.tokens = start
        for name, (dtype, shape) in self._shapes().items():
            path = self.folder / f"{name}.bin"
            path.touch()
            size = start * math.prod(shape) * dtype().itemsize
            if path.stat().st_size < size:
                raise ModelError(f"{path} is shorter than {index} says", "remove the folder; it will be written again")
            os.truncate(path, size)
            if start:
                self._files[name] = np.memmap(path, dtype, "r", shape=(start, *shape))

    def write(self, rows: Iterable[Row]) -> int:
        """Appends texts, given as (prompt, answer); returns the number of added tokens."""
        texts = _by_length(rows)
        added = 0
        with ExitStack() as stack:
            files = {name: stack.enter_context((self.folder / f"{name}.bin").open("ab")) for name in self._shapes()}
            index = stack.enter_context((self.folder / "index.jsonl").open("a"))
            while texts:
                width = len(texts[-1][0]) + len(texts[-1][1])
                count = max(1, _TOKENS // width)
                part, texts = texts[-count:], texts[:-count]
                values = self._values(part)
                for row, (prompt, answer) in enumerate(part):
                    length = len(prompt) + len(answer)
                    for name, value in values.items():
                        files[name].write(value[row, :length].contiguous().numpy().tobytes())
                    added += length
                for file in files.values():
                    file.flush()
                index.write("".join(f"[{len(prompt)}, {len(prompt) + len(answer)}]\n" for prompt, answer in part))
                index.flush()
        self._open()
        return added

    def _values(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        """The stored values of the tokens of some texts, [B, W, ...] on the host."""
        ids, states, best = self._forward(rows)
        return {"ids": ids.int(), "best": best.int().cpu(), "states": states.cpu().view(torch.int16)}

    def update(self, files: Mapping[str, Sequence[Row]], longest: int) -> int:
        """Adds the rows that are new in these files since the last call; prompts lose their beginning to fit `longest`.

        A file is recognized by its first text, whatever its path, and files only grow. An interrupted call continues
        where it stopped; what a different call left unfinished is dropped.

        Raises:
            ModelError: two of the files begin with the same text.
        """
        path, begun = self.folder / "files.json", self.folder / "begun.json"
        counts = json.loads(path.read_text()) if path.exists() else {}
        known = _by_first_text(files)
        new = [row for key, rows in known.items() for row in rows[counts.get(key, 0) :] if len(row[1]) > 1]
        new = [(list(prompt)[-max(1, longest - len(answer)) :], list(answer)[:longest]) for prompt, answer in new]
        call: dict[str, Any] = {"files": {key: len(rows) for key, rows in known.items()}, "longest": longest}
        earlier = json.loads(begun.read_text()) if begun.exists() else {}
        first = earlier.pop("texts", len(self.texts))
        if earlier != call:
            self._cut(first)
        write_json(begun, call | {"texts": first})
        there = len(self.texts) - first
        added = self.write(_by_length(new)[: len(new) - there]) if len(new) > there else 0
        write_json(path, counts | call["files"])
        begun.unlink()
        return added

    def _cut(self, count: int) -> None:
        """Keeps the first `count` texts."""
        index = self.folder / "index.jsonl"
        if len(self.texts) > count:
            index.write_text("".join(index.read_text().splitlines(keepends=True)[:count]))
            self._open()

    def _forward(self, rows: Sequence[Row]) -> tuple[Tensor, Tensor, Tensor]:
        """Ids [B, W] of texts on the host; on the target's device, states [B, W, n + 1, E] and likeliest tokens."""
        ids, target = _padded(rows), self.target
        with torch.inference_mode():
            plan = replace(Plan.full(ids.to(target.device), Visible.causal()), hidden=self.layers)
            hidden = target.forward(plan)
            normed = hidden.normed()
            flat = hidden.states.flatten(0, 1)
            best = torch.cat([hidden.head(part).argmax(-1) for part in torch.split(flat, _HEAD_ROWS)])
            states = torch.stack([*(hidden.taps[layer] for layer in self.layers), normed], 2)
        return ids, states.bfloat16(), best.view(ids.shape)

    def counts(self, vocabulary: int) -> Tensor:
        """How often each id occurs in the answers, [V]."""
        counts = np.zeros(vocabulary, np.int64)
        for text in self.texts:
            np.add.at(counts, self._files["ids"][text.start + text.prompt : text.start + text.length], 1)
        return torch.from_numpy(counts)

    def prompt(self, text: Text) -> bytes:
        """The stored ids of a text's prompt."""
        return self._files["ids"][text.start : text.start + text.prompt].tobytes()

    def greedy(self, text: Text) -> bool:
        """Whether every token of the answer is the target's likeliest (up to rounding)."""
        batch = self.batch([text])
        same = batch.ids[0, text.prompt :] == batch.best[0, text.prompt - 1 : -1]
        return float(same.float().mean()) > 0.97

    def batch(self, texts: Sequence[Text]) -> Batch:
        """A batch of these texts with the target's outputs."""
        rows = [self._row(text) for text in texts]
        states = pad_sequence([self._stored("states", text) for text in texts], batch_first=True).view(torch.bfloat16)
        best = pad_sequence([self._stored("best", text).long() for text in texts], batch_first=True)
        return self._batch(texts, _padded(rows), states, best)

    def _stored(self, name: str, text: Text) -> Tensor:
        return torch.from_numpy(self._files[name][text.start : text.start + text.length].copy())

    def _row(self, text: Text) -> Row:
        ids = self._stored("ids", text).tolist()
        return ids[: text.prompt], ids[text.prompt :]

    def _batch(self, texts: Sequence[Text], ids: Tensor, states: Tensor, best: Tensor) -> Batch:
        begins = torch.tensor([text.prompt for text in texts])
        lengths = torch.tensor([text.length for text in texts])
        ids, states, best, begins, lengths = (x.to(self.target.device) for x in (ids, states, best, begins, lengths))
        return Batch(ids, states[:, :, :-1], states[:, :, -1], best, begins, lengths)


class OnlineStates(States):
    """A folder of texts only (`ids.bin`, `index.jsonl`), over which the target runs whenever they are read.

    A GPU computes states faster than it reads them from a disk.
    """

    def _shapes(self) -> dict[str, tuple[type[np.generic], tuple[int, ...]]]:
        return {"ids": (np.int32, ())}

    def _values(self, rows: Sequence[Row]) -> dict[str, Tensor]:
        return {"ids": _padded(rows).int()}

    def batch(self, texts: Sequence[Text]) -> Batch:
        ids, states, best = self._forward([self._row(text) for text in texts])
        return self._batch(texts, ids, states.clone(), best.clone())  # a network may learn from clones


def open_states(folder: Path, layers: Sequence[int], target: LanguageModel, *, online: bool = False) -> States:
    """Opens the states of one choice of layers in `folder`."""
    name = ("online-" if online else "states-") + "-".join(map(str, layers))
    return (OnlineStates if online else States)(folder / name, layers, target)


def _padded(rows: Sequence[Row]) -> Tensor:
    """The ids of texts, padded to [B, W]."""
    return pad_sequence([torch.tensor([*prompt, *answer]) for prompt, answer in rows], batch_first=True)
