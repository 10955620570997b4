"""Checks a draft module on a target: how it loads, and its accuracy for both meanings of its layer ids."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch

import pardec
from pardec.models.draft_modules.contracts import DraftModule
from pardec.models.draft_modules.eagle import EagleModule
from pardec.models.draft_modules.eagle_check import Agreement, agreement
from pardec.models.draft_modules.load import load_draft_module
from pardec.models.errors import SpecError

from .served import served
from .texts import chat_ids, network_of

_PROMPTS, _ANSWER = 8, 64  # prompts that the target answers, and tokens of each answer
_POSITIONS = 2048  # positions compared at most


@dataclass(frozen=True)
class SelfCheck:
    """A loaded module, and its agreement with the target."""

    module: DraftModule
    agreement: Agreement | None  # None for other kinds than EAGLE, whose layer ids have one meaning
    positions: int


def self_check(model: pardec.Model, drafter: str, rows: Sequence[Path] = ()) -> SelfCheck:
    """Loads `drafter` for `model` and compares its likeliest tokens, teacher-forced, with the target's.

    Args:
        model: the target.
        drafter: an embedded name, a folder or a hub id, in any published layout.
        rows: files of served rows; without any the target first answers a few questions itself, greedily.

    Raises:
        ModelError: the module does not fit the target.
        SpecError: rows that cannot be read, or none for a target without a tokenizer.
    """
    target = network_of(model)
    module = load_draft_module(drafter, target)
    if not isinstance(module, EagleModule):
        return SelfCheck(module, None, 0)
    texts = _served(model, rows) if rows else _answered(model)
    results: list[tuple[int, Agreement]] = []
    remaining = _POSITIONS
    for ids in texts:
        ids = ids[: remaining + 1]
        if len(ids) > 2:
            results.append((len(ids) - 1, agreement(module, torch.tensor([ids], device=target.device))))
            remaining -= len(ids) - 1
    count = sum(length for length, _ in results)
    share = sum(length * each.share for length, each in results) / count
    other_share = sum(length * each.other_share for length, each in results) / count
    return SelfCheck(module, replace(results[0][1], share=share, other_share=other_share), count)


def _served(model: pardec.Model, rows: Sequence[Path]) -> Iterable[list[int]]:
    longest = network_of(model).max_positions
    for entries in served(network_of(model), rows).values():
        for prompt, answer in entries:
            yield [*prompt, *answer][:longest]


def _answered(model: pardec.Model) -> Iterable[list[int]]:
    if model.tokenizer is None:
        raise SpecError(f"{model.name} comes without a tokenizer", hint="give ids that it served with rows=FILE")
    prompts = [chat_ids(model, str(problem.prompt)) for problem in pardec.task("arithmetic").problems(n=_PROMPTS)]
    result = model.generate(input_ids=prompts, max_new_tokens=_ANSWER, sampler="sequential")
    return [[*prompt, *answer] for prompt, answer in zip(prompts, result.tokens, strict=True)]
