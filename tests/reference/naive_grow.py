"""DAEDAL (https://arxiv.org/abs/2508.00819) from the paper: one row, a list that becomes longer, whole forwards."""

from __future__ import annotations

from pardec.models.model import LanguageModel
from tests.reference.naive_revise import distributions


def decode(
    model: LanguageModel,
    prompt: list[int],
    most: int,
    *,
    size: int,
    tau: float,
    start: int,
    step: int,
    spare: int,
    enough: float,
    sure: float,
    unsure: float,
    ends: tuple[int, ...],
) -> tuple[list[int], list[int], int]:
    """Tokens, the step that committed each (-1: given), and how many masks were replaced by several."""
    mask, limit = model.decoding_config.mask_id, len(prompt) + most
    tokens = [*prompt, *[mask] * min(start, most)]
    when, steps, replaced, begun = [-1] * len(prompt) + [-2] * (len(tokens) - len(prompt)), 0, 0, False
    while mask in tokens[len(prompt) :]:
        seen = distributions(model, tokens, mask)
        likely = {p: (int(seen[p].argmax()), float(seen[p].max())) for p in range(len(prompt), len(tokens))}
        e = sum(p for token, p in list(likely.values())[-32:] if token in ends) / 32
        room = limit - len(tokens)
        if not begun and e < enough and room:
            tokens += [mask] * min(step, room)
            when += [-2] * min(step, room)
            steps += 1
            continue
        first = next(p for p in likely if tokens[p] == mask)
        begin = len(prompt) + (first - len(prompt)) // size * size
        masks = [p for p in range(begin, min(begin + size, len(tokens))) if tokens[p] == mask]
        best = max(masks, key=lambda p: (likely[p][1], -p))
        for p in (chosen := [p for p in masks if p == best or likely[p][1] >= tau]):
            tokens[p], when[p] = likely[p][0], steps
        left = [p for p in masks if p not in chosen]
        if not begun:
            tokens, when, begun = tokens + [mask] * min(spare, room), when + [-2] * min(spare, room), True
        elif e < sure and left and likely[at := min(left, key=lambda p: (likely[p][1], p))][1] < unsure:
            more = min(step - 1, room)
            tokens[at + 1 : at + 1], when[at + 1 : at + 1] = [mask] * more, [-2] * more
            replaced += more > 0
        steps += 1
    return tokens, when, replaced
