"""Texts of SmolLM2 itself: it writes the user's message and then its own answer (Magpie, arXiv:2406.08464).

A text is one row of ids: the chat template, the message, the answer and its end token. Files hold 16-bit ids and the
lengths of prompts and texts, compressed; each is at most 16 MB. Rows depend on the seed and the number of their batch.
"""

from __future__ import annotations

import itertools
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from gpu_runs.llama import Cached, Weights

FILE_TOKENS = 5_000_000  # tokens of one file
MESSAGE, ANSWER = 96, 256  # tokens at most
WARM = 0.3  # share of the batches whose answers are sampled; the others are greedy


@dataclass
class Texts:
    """Rows stored one after another."""

    ids: np.ndarray  # [N] uint16
    prompts: np.ndarray  # [T] int64: tokens before the answer
    lengths: np.ndarray  # [T] int64: tokens in all

    @staticmethod
    def of(rows: list[tuple[list[int], list[int]]]) -> Texts:
        """Rows of prompt and answer."""
        ids = np.array([token for prompt, answer in rows for token in (*prompt, *answer)], dtype=np.uint16)
        prompts = np.array([len(prompt) for prompt, _ in rows], dtype=np.int64)
        return Texts(ids, prompts, np.array([len(prompt) + len(answer) for prompt, answer in rows], dtype=np.int64))

    def __len__(self) -> int:
        return len(self.lengths)

    def __add__(self, other: Texts) -> Texts:
        pairs = ((self.ids, other.ids), (self.prompts, other.prompts), (self.lengths, other.lengths))
        return Texts(*(np.concatenate(pair) for pair in pairs))

    def starts(self) -> np.ndarray:
        """[T]: where each text begins in `ids`."""
        return np.cumsum(self.lengths) - self.lengths

    def slice(self, first: int, last: int) -> Texts:
        """The texts from `first` to before `last`."""
        begin, end = int(self.lengths[:first].sum()), int(self.lengths[:last].sum())
        return Texts(self.ids[begin:end], self.prompts[first:last], self.lengths[first:last])

    def save(self, folder: Path) -> list[Path]:
        """Writes `texts-1.bin` and so on."""
        folder.mkdir(parents=True, exist_ok=True)
        cuts, first = [0], 0
        while first < len(self):
            total = np.cumsum(self.lengths[first:])
            first += max(int(np.searchsorted(total, FILE_TOKENS, side="right")), 1)
            cuts.append(first)
        files = []
        for number, (begin, end) in enumerate(itertools.pairwise(cuts), 1):
            part = self.slice(begin, end)
            head = np.array([len(part)], dtype=np.int64).tobytes()
            lengths = np.stack([part.prompts, part.lengths]).astype(np.uint16).tobytes()
            files.append(folder / f"texts-{number}.bin")
            files[-1].write_bytes(head + zlib.compress(lengths, 6) + zlib.compress(part.ids.tobytes(), 6))
        return files

    @staticmethod
    def load(folder: Path) -> Texts | None:
        """The texts of a folder, or None if there are none."""
        parts = []
        for file in sorted(folder.glob("texts-*.bin")):
            content = file.read_bytes()
            (count,) = np.frombuffer(content[:8], dtype=np.int64)
            inflate = zlib.decompressobj()
            lengths = np.frombuffer(inflate.decompress(content[8:]), dtype=np.uint16).reshape(2, count)
            ids = np.frombuffer(zlib.decompress(inflate.unused_data), dtype=np.uint16)
            parts.append(Texts(ids, *(each.astype(np.int64) for each in lengths)))
        whole = parts[0] if parts else None
        for part in parts[1:]:
            whole = whole + part
        return whole


def write(
    weights: Weights,
    template: dict[str, Any],
    *,
    tokens: int,
    seconds: float,
    rows: int,
    seed: int = 0,
    message: int = MESSAGE,
    answer: int = ANSWER,
) -> Texts:
    """Writes `rows` texts at once until there are `tokens` of them or `seconds` have passed."""
    started, found, number, longest = time.monotonic(), list[tuple[list[int], list[int]]](), 0, 0.0
    longest_text = len(template["before"]) + len(template["after"]) + message + answer + 8
    decode = _Decoder(weights, rows, -(-longest_text // 8) * 8)  # masks of other widths are padded at every step
    count = 0
    while count < tokens and time.monotonic() - started + longest < seconds:
        begun = time.monotonic()
        batch = _batch(decode, template, np.random.default_rng((seed, number)), message, answer)
        found += batch
        count += sum(len(prompt) + len(reply) for prompt, reply in batch)
        number, longest = number + 1, max(longest, time.monotonic() - begun)
    return Texts.of(found)


def _batch(decode: _Decoder, template: dict[str, Any], rng: np.random.Generator, message: int, answer: int) -> Any:
    """Prompts and answers of one batch, without rows whose message never ended."""
    shares = np.array([share for _, share in template["openings"]])
    chosen = rng.choice(len(shares), size=decode.rows, p=shares / shares.sum())
    starts = [template["before"] + template["openings"][index][0] for index in chosen]
    seed = int(rng.integers(2**31))
    messages = decode(starts, template["end"], len(template["before"]) + message, 1.0, seed)
    kept = [row[:-1] for row in messages if row[-1] == template["end"] and len(row) > len(template["before"]) + 3]
    kept = kept[: decode.rows]
    if not kept:
        return []
    prompts = [row + template["after"] for row in kept]
    padded = prompts + [prompts[0]] * (decode.rows - len(prompts))
    warmth = 0.8 if rng.random() < WARM else 0.0
    longest = max(map(len, prompts)) + answer
    texts = decode(padded, template["end"], longest, warmth, seed + 1, most=answer)
    return [(prompt, text[len(prompt) :]) for prompt, text in zip(prompts, texts, strict=False)]


class _Decoder:
    """Decodes a fixed number of rows in lock step; on a GPU, a step is captured once and replayed."""

    def __init__(self, weights: Weights, rows: int, capacity: int) -> None:
        self.rows, device = rows, weights.device
        self.cache = Cached(weights, rows, capacity)
        self.ids, self.at = (torch.zeros(rows, dtype=torch.int64, device=device) for _ in range(2))
        self.forced = torch.zeros(rows, dtype=torch.int64, device=device)  # the token that comes next, or -1
        self.noise = torch.zeros((), device=device)  # the temperature
        self.step: Callable[[], None] = self._step
        if device.type == "cuda":
            self.step = captured(self._step)

    def _step(self) -> None:
        logits = self.cache.logits(self.ids, self.at).float()
        exponential = torch.empty_like(logits).exponential_().clamp_(min=1e-20)
        drawn = (logits - self.noise * exponential.log()).argmax(-1)  # Gumbel's trick
        self.ids.copy_(torch.where(self.forced >= 0, self.forced, drawn))
        self.at.add_(1)

    def __call__(
        self, starts: list[list[int]], end: int, longest: int, temperature: float, seed: int, most: int | None = None
    ) -> list[list[int]]:
        """Rows that begin with `starts`, up to their end token, `longest` tokens, or `most` new tokens."""
        device = self.ids.device
        torch.manual_seed(seed)
        lengths = torch.tensor([len(row) for row in starts])
        known = torch.full((self.rows, longest + 1), -1)
        for row, ids in enumerate(starts):
            known[row, : len(ids)] = torch.tensor(ids)
        known = known.to(device)
        written = torch.zeros((self.rows, longest), dtype=torch.int64, device=device)
        self.ids.copy_(known[:, 0])
        self.at.zero_()
        self.noise.fill_(temperature)
        done = torch.zeros(self.rows, dtype=torch.bool, device=device)
        fresh = lengths.to(device)
        for slot in range(longest):
            written[:, slot] = self.ids
            done |= (self.ids == end) & (fresh <= slot)
            if slot % 16 == 15 and slot >= int(lengths.max()) and bool(done.all()):
                break
            self.forced.copy_(known[:, slot + 1])
            if slot + 1 < longest:
                self.step()
        rows = written.tolist()
        ends = [min(longest, len(row) + most) if most else longest for row in starts]
        return [_cut(row[:stop], len(start), end) for row, start, stop in zip(rows, starts, ends, strict=True)]


def _cut(row: list[int], prompt: int, end: int) -> list[int]:
    """The row up to its first end token after the prompt."""
    for index in range(prompt, len(row)):
        if row[index] == end:
            return row[: index + 1]
    return row


def captured(step: Callable[[], None]) -> Callable[[], None]:
    """A CUDA graph of `step`, which runs three times before it is captured."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        step()
    return graph.replay


def packed(texts: Texts, length: int, block: int, end: int, order: np.ndarray) -> dict[str, np.ndarray]:
    """Rows of `length` ids, each with as many texts as fit, in the `order` of the texts.

    A text is filled up with end tokens to whole blocks, which are trained as well where it has its end token: decoding
    fills whole blocks. Texts longer than a row are cut.

    Returns: ids, doc (the number of the text in the row, -1 for padding), pos (position in the text) and answer
    (whether the token is predicted), each [R, length].
    """
    starts = texts.starts()
    rows: list[dict[str, np.ndarray]] = []
    room = 0
    for text in order:
        count = min(int(texts.lengths[text]), length)
        whole = -(-count // block) * block
        if whole > room:
            rows.append(
                {
                    "ids": np.full(length, end, dtype=np.int64),
                    "doc": np.full(length, -1, dtype=np.int64),
                    "pos": np.arange(length, dtype=np.int64),
                    "answer": np.zeros(length, dtype=bool),
                }
            )
            room, doc = length, 0
        at, row = length - room, rows[-1]
        content = texts.ids[starts[text] : starts[text] + count]
        row["ids"][at : at + count] = content
        row["doc"][at : at + whole] = doc
        row["pos"][at : at + whole] = np.arange(whole)
        last = whole if content[-1] == end else count
        row["answer"][at + min(int(texts.prompts[text]), count) : at + last] = True
        room, doc = room - whole, doc + 1
    return {name: np.stack([row[name] for row in rows]) for name in rows[0]}


def views(tensors: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """The mask of the tokens of a view, and of the clean tokens, bool [B, L, 2 L] and [B, L, L].

    In a view a token sees its own block of that view, and the clean tokens of earlier blocks; a clean token sees the
    clean tokens up to its own block; all within one text.
    """
    doc, block = tensors["doc"], tensors["block"]
    same = doc[:, :, None] == doc[:, None, :]
    own = same & (block[:, :, None] == block[:, None, :])
    earlier = same & (block[:, None, :] < block[:, :, None])
    return torch.cat([own, earlier], 2), own | earlier
