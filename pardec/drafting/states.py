"""What the target says about texts: layers' outputs, final-normed states, its likeliest tokens; computed once, on disk.

A folder has four files that only grow. `index.jsonl` has the length of the prompt and of the whole text, one text a
line; in the others texts follow one another without gaps: `ids.bin` int32 [N], `best.bin` int32 [N] (the likeliest
token behind each position), `states.bin` bfloat16 [N, n + 1, E] (n layers' outputs, the state behind the final norm).
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pardec.models.errors import ModelError
from pardec.models.model import LanguageModel
from pardec.models.plan import Plan, Visible

_TOKENS = 4096  # of one forward
Row = tuple[Sequence[int], Sequence[int]]  # prompt and answer
_HEAD_ROWS = 512  # positions whose logits are made at once


def _by_length(rows: Iterable[Row]) -> list[Row]:
    """The order in which texts are written, from the last on."""
    return sorted(rows, key=lambda row: len(row[0]) + len(row[1]))


@dataclass(frozen=True)
class Batch:
    """Texts side by side, padded to the longest."""

    ids: Tensor  # [B, W] int64
    taps: Tensor  # [B, W, n, E] bfloat16 outputs of the layers
    normed: Tensor  # [B, W, E] bfloat16 states behind the final norm
    best: Tensor  # [B, W] int64 the likeliest token behind each position
    begins: Tensor  # [B] where the answers begin
    lengths: Tensor  # [B]

    @property
    def width(self) -> int:
        return self.ids.shape[1]


@dataclass(frozen=True)
class Text:
    """Where one text lies in the files."""

    start: int
    prompt: int  # tokens of its prompt
    length: int  # tokens in all


class States:
    """The files of one folder; `write` adds texts, `batch` reads some."""

    def __init__(self, folder: Path, layers: Sequence[int], width: int) -> None:
        self.folder, self.layers, self.width = folder, tuple(layers), width
        folder.mkdir(parents=True, exist_ok=True)
        about = folder / "about.json"
        if about.exists() and json.loads(about.read_text()) != {"layers": list(layers), "width": width}:
            raise ModelError(
                f"{folder} holds states of {about.read_text().strip()}, and those of layers {list(layers)} are needed",
                "name another folder, or remove this one",
            )
        about.write_text(json.dumps({"layers": list(layers), "width": width}) + "\n")
        self.texts: list[Text] = []
        self._open()

    def _open(self) -> None:
        """Map what is whole; what a run that was cut off left behind is cut away."""
        self.texts = []
        index = self.folder / "index.jsonl"
        lines = index.read_text().splitlines(keepends=True) if index.exists() else []
        start = 0
        for line in lines:
            if line.endswith("\n"):
                prompt, length = json.loads(line)
                self.texts.append(Text(start, prompt, length))
                start += length
        sizes = {"ids": 4, "best": 4, "states": 2 * (len(self.layers) + 1) * self.width}
        for name, size in sizes.items():
            path = self.folder / f"{name}.bin"
            path.touch()
            if path.stat().st_size < start * size:
                raise ModelError(f"{path} is shorter than {index} says", "remove the folder: it will be written anew")
            os.truncate(path, start * size)
        self.tokens = start
        if start:
            self._ids = np.memmap(self.folder / "ids.bin", np.int32, "r")
            self._best = np.memmap(self.folder / "best.bin", np.int32, "r")
            shape = (start, len(self.layers) + 1, self.width)
            self._states = np.memmap(self.folder / "states.bin", np.int16, "r", shape=shape)

    def write(self, target: LanguageModel, rows: Iterable[Row]) -> int:
        """Add texts, as (prompt, answer), behind those that are there; returns the tokens that were added."""
        texts = _by_length(rows)
        added = 0
        names = ("ids", "best", "states")
        files = {name: (self.folder / f"{name}.bin").open("ab") for name in names}
        with files["ids"], files["best"], files["states"], (self.folder / "index.jsonl").open("a") as index:
            while texts:
                width = len(texts[-1][0]) + len(texts[-1][1])
                count = max(1, _TOKENS // width)
                part, texts = texts[-count:], texts[:-count]
                ids, states, best = self._forward(target, part)
                for row, (prompt, answer) in enumerate(part):
                    length = len(prompt) + len(answer)
                    files["states"].write(states[row, :length].contiguous().view(torch.int16).numpy().tobytes())
                    files["ids"].write(ids[row, :length].int().numpy().tobytes())
                    files["best"].write(best[row, :length].int().numpy().tobytes())
                    added += length
                for name in names:
                    files[name].flush()
                index.write("".join(f"[{len(prompt)}, {len(prompt) + len(answer)}]\n" for prompt, answer in part))
                index.flush()
        self._open()
        return added

    def update(self, target: LanguageModel, files: Mapping[str, Sequence[Row]], longest: int) -> int:
        """Add what these files have more than at the last call; prompts are cut at their beginning to fit `longest`.

        Where the same call was cut off it goes on; what another one left unfinished is dropped.
        """
        path, begun = self.folder / "files.json", self.folder / "begun.json"
        counts = json.loads(path.read_text()) if path.exists() else {}
        new = [row for name, rows in files.items() for row in rows[counts.get(name, 0) :] if len(row[1]) > 1]
        new = [(list(prompt)[-max(1, longest - len(answer)) :], list(answer)[:longest]) for prompt, answer in new]
        call: dict[str, Any] = {"files": {name: len(rows) for name, rows in files.items()}, "longest": longest}
        earlier = json.loads(begun.read_text()) if begun.exists() else {}
        first = earlier.pop("texts", len(self.texts))
        if earlier != call:
            self._cut(first)
        begun.write_text(json.dumps(call | {"texts": first}) + "\n")
        there = len(self.texts) - first
        added = self.write(target, _by_length(new)[: len(new) - there]) if len(new) > there else 0
        path.write_text(json.dumps(counts | call["files"]) + "\n")
        begun.unlink()
        return added

    def _cut(self, count: int) -> None:
        """Keeps the first `count` texts."""
        index = self.folder / "index.jsonl"
        if len(self.texts) > count:
            index.write_text("".join(index.read_text().splitlines(keepends=True)[:count]))
            self._open()

    def _forward(self, target: LanguageModel, rows: Sequence[Row]) -> tuple[Tensor, Tensor, Tensor]:
        """Ids [B, W], states [B, W, n + 1, E] and likeliest tokens [B, W] of texts, on the host."""
        longest = max(len(prompt) + len(answer) for prompt, answer in rows)
        ids = torch.zeros(len(rows), longest, dtype=torch.int64)
        for row, (prompt, answer) in enumerate(rows):
            ids[row, : len(prompt) + len(answer)] = torch.tensor([*prompt, *answer])
        with torch.inference_mode():
            plan = replace(Plan.full(ids.to(target.device), Visible.causal()), hidden=self.layers)
            hidden = target.forward(plan)
            normed = hidden.normed()
            flat = hidden.states.flatten(0, 1)
            best = torch.cat([hidden.head(part).argmax(-1) for part in torch.split(flat, _HEAD_ROWS)])
            states = torch.stack([*(hidden.taps[layer] for layer in self.layers), normed], 2)
        return ids, states.to("cpu", torch.bfloat16), best.view(ids.shape).cpu()

    def counts(self, vocabulary: int) -> Tensor:
        """How often each id stands in the answers [V]."""
        counts = np.zeros(vocabulary, np.int64)
        for text in self.texts:
            np.add.at(counts, self._ids[text.start + text.prompt : text.start + text.length], 1)
        return torch.from_numpy(counts)

    def prompt(self, text: Text) -> bytes:
        """The ids of its prompt, as they are stored."""
        return self._ids[text.start : text.start + text.prompt].tobytes()

    def greedy(self, text: Text) -> bool:
        """Whether the answer is what the target finds likeliest, token for token (but for rounding)."""
        answer = self._ids[text.start + text.prompt : text.start + text.length]
        return bool((answer == self._best[text.start + text.prompt - 1 : text.start + text.length - 1]).mean() > 0.97)

    def batch(self, texts: Sequence[Text]) -> Batch:
        """These texts, read from the files."""
        width, size = max(text.length for text in texts), len(self.layers)
        ids = torch.zeros(len(texts), width, dtype=torch.int64)
        best = torch.zeros(len(texts), width, dtype=torch.int64)
        states = torch.zeros(len(texts), width, size + 1, self.width, dtype=torch.bfloat16)
        for row, text in enumerate(texts):
            part = slice(text.start, text.start + text.length)
            ids[row, : text.length] = torch.from_numpy(self._ids[part].astype(np.int64))
            best[row, : text.length] = torch.from_numpy(self._best[part].astype(np.int64))
            states[row, : text.length] = torch.from_numpy(self._states[part].copy()).view(torch.bfloat16)
        begins = torch.tensor([text.prompt for text in texts])
        lengths = torch.tensor([text.length for text in texts])
        return Batch(ids, states[:, :, :size], states[:, :, size], best, begins, lengths)
