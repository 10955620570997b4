"""Training batches, a pure function of (seed, chunk, index): a resumed run sees what an unbroken one would."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from tokenizers import Tokenizer
from torch import Tensor

from text_training.drills import task_or_drill

MIX = {"arithmetic": 0.55, "lists": 0.25, "records": 0.20}
BOS, EOS, MASK = 2, 3, 4
BLOCK = 32  # tokens that are open at a time when a masked model decodes ...
WHOLE = 0.25  # ... except in this share of the rows, where everything is
CAUSAL_LENGTHS = (32, 48, 64, 96, 128, 192, 256, 336)  # canvas lengths; few, so that a compiled step is reused
MASKED_LENGTHS = (32, 48, 64, 80, 96, 128, 160, 192, 224, 256, 288, 336, 384)
LENGTH_SHARES = (0.6, 0.2, 0.08, 0.05, 0.04, 0.03)  # shares of the shortest canvas that fits, the next longer one, ...
TAIL_WEIGHT = 0.05  # loss weight of a token after the first end token ...
TAIL_TOTAL = 1.0  # ... and the most that they weigh together in a row, in answer tokens


Surest = Callable[[Tensor], Tensor]  # inputs [B, L] -> how sure the model is of each position's token, [B, L]


@dataclass(frozen=True)
class Batch:
    """Clean rows of one length; generation starts at `prompt`, the first end token stands at `end`."""

    ids: Tensor  # [B, L] int64, prompt, answer, end tokens
    prompt: Tensor  # [B] int64
    end: Tensor  # [B] int64


@dataclass(frozen=True)
class Targets:
    """The targets of a step: the rows as the model sees them, and the weight of each position in the loss."""

    inputs: Tensor  # [B, L] int64
    labels: Tensor  # [B, L] int64, the clean rows
    weights: Tensor  # [B, L] float32


def chunk(
    tokenizer: Tokenizer,
    seed: int,
    index: int,
    masked: bool,
    budget: int,
    size: int = 4096,
    mix: dict[str, float] = MIX,
) -> list[Batch]:
    """Batches of `budget` tokens each, in random order; rows that fill no batch are dropped."""
    rng = random.Random(f"{seed}/{index}")
    names = rng.choices(tuple(mix), weights=tuple(mix.values()), k=size)
    problems = [task_or_drill(name).sample(rng, "train") for name in names]
    prompts = tokenizer.encode_batch([p.prompt for p in problems])
    answers = tokenizer.encode_batch([p.answer for p in problems], add_special_tokens=False)
    rows: dict[int, list[tuple[list[int], int, int]]] = defaultdict(list)
    for prompt, answer in zip(prompts, answers, strict=True):
        ids = prompt.ids + answer.ids
        if masked:
            fitting = [n for n in MASKED_LENGTHS if n > len(ids)][: len(LENGTH_SHARES)]
            length = rng.choices(fitting, weights=LENGTH_SHARES[: len(fitting)])[0]
        else:
            length = next(n for n in CAUSAL_LENGTHS if len(ids) < n)
        rows[length].append((ids + [EOS] * (length - len(ids)), len(prompt.ids), len(ids)))
    batches = []
    for length, group in sorted(rows.items()):
        count = max(1, budget // length)
        for start in range(0, len(group) - count + 1, count):
            part = group[start : start + count]
            batches.append(Batch(*(torch.tensor(column) for column in zip(*part, strict=True))))
    rng.shuffle(batches)
    return batches


def causal_targets(batch: Batch, prompt_weight: float) -> Targets:
    """Weights of the loss: 1 for the answer and the first end token, less for the prompt, 0 after the end."""
    at = torch.arange(batch.ids.shape[1])  # [L]
    answer = (at >= batch.prompt[:, None]) & (at <= batch.end[:, None])
    prompt = (at > 0) & (at < batch.prompt[:, None])
    return Targets(batch.ids, batch.ids, answer.float() + prompt_weight * prompt.float())


def masked_targets(
    batch: Batch, rng: torch.Generator, focus: float, surest: Surest | None = None, visited: float = 0.5
) -> Targets:
    """Masks part of each generation region, in three kinds of rows.

    Where `surest` is given, a share `visited` of the rows are in the states that decoding really visits: a prefix of
    the answer is shown and, of what follows in its block, the tokens the model itself is surest of. What is left has to
    be worked out, and cannot be copied from where it stands again. The other rows are masked at a random rate, or show
    a prefix and only a few later tokens. `focus` > 0 weighs a token with k masked answer tokens before it by
    (1 + k) ** -focus: tokens that can be known already count more.
    """
    rows, length = batch.ids.shape
    at = torch.arange(length)
    region = at >= batch.prompt[:, None]  # [B, L]
    noise = torch.rand(rows, length, generator=rng)
    rate = (torch.randperm(rows, generator=rng) + torch.rand(rows, generator=rng)) / rows  # stratified
    uniform = noise < rate[:, None]
    answer = batch.end - batch.prompt + 1
    shown = (torch.rand(rows, generator=rng) * (answer + 1)).long()
    stray = torch.rand(rows, generator=rng).square() * 0.3  # share of later tokens that are shown
    tail_shown = torch.rand(rows, generator=rng) < 0.2  # decoding by confidence commits end tokens early
    after = at > batch.end[:, None]
    states = (at >= (batch.prompt + shown)[:, None]) & (noise >= stray[:, None]) & ~(after & tail_shown[:, None])
    pick = torch.rand(rows, generator=rng) < 0.5
    masked = region & torch.where(pick[:, None], uniform, states)
    half = int(rows * visited)
    if surest is not None and half:
        from_start = torch.rand(half, generator=rng) < 0.6
        begin = batch.prompt[:half] + shown[:half] * ~from_start
        hidden = at >= begin[:, None]
        score = surest(batch.ids[:half].masked_fill(hidden, MASK))  # [B / 2, L]
        behind = torch.div(begin - batch.prompt[:half], BLOCK, rounding_mode="floor") + 1  # blocks up to the open one
        open_to = (batch.prompt[:half] + behind * BLOCK).masked_fill(torch.rand(half, generator=rng) < WHOLE, length)
        block = hidden & (at < open_to[:, None])
        order = score.masked_fill(~block, -1.0).argsort(1, descending=True).argsort(1)
        some = block.sum(1) * (1 - torch.rand(half, generator=rng).square())
        masked[:half] = hidden & (order >= some[:, None])
    first = torch.rand(rows, length, generator=rng).masked_fill(~region | after, -1.0).argmax(1)
    masked[torch.arange(rows), first] |= ~masked.any(1)  # never an empty row

    before = (masked & ~after).long().cumsum(1) - (masked & ~after).long()
    head = masked & ~after
    tail = masked & after
    tail_weight = (TAIL_TOTAL / tail.sum(1).clamp(min=1)).clamp(max=TAIL_WEIGHT)[:, None]
    weights = head * (1.0 + before).pow(-focus) + tail * tail_weight
    return Targets(batch.ids.masked_fill(masked, MASK), batch.ids, weights.float())
