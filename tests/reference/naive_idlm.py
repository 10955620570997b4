"""I-DLM (https://arxiv.org/abs/2604.11035) from the paper: one row, greedy, every forward over the whole text."""

from __future__ import annotations

import torch

from pardec.models.model import LanguageModel
from pardec.models.plan import Plan, Visible


def decode(model: LanguageModel, prompt: list[int], new: int, mask: int, k: int) -> tuple[list[int], list[int], int]:
    """Tokens, how many drafted tokens each forward after the prompt's accepted, and how many tokens were fed."""
    text, end, drafted, accepted, fed = list(prompt), len(prompt) + new, [], [], len(prompt)
    text.append(likeliest(model, text)[-1])
    while len(text) < end:
        drafted = drafted[: end - len(text) - 1]
        masks = min(k, max(end - len(text) - 1 - len(drafted) - 1, 0))
        after = likeliest(model, [*text, *drafted, *[mask] * masks])[len(text) - 1 :]
        fed += 1 + len(drafted) + masks
        count = 0
        while count < len(drafted) and drafted[count] == after[count]:
            count += 1
        text += [*drafted[:count], after[count]]
        accepted.append(count)
        drafted = after[len(drafted) + 1 :] if count == len(drafted) else []
    return text, accepted, fed


def likeliest(model: LanguageModel, tokens: list[int]) -> list[int]:
    """The likeliest token after each position."""
    result: list[int] = (
        model.forward(Plan.full(torch.tensor([tokens]), Visible.causal())).logits()[0].argmax(-1).tolist()
    )
    return result
