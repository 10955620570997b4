"""Tokens that constraints and filters exclude are never committed, with any acceptance and any drafter."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from pardec.requests import draft_models
from pardec.samplers.request import Allowed
from pardec.samplers.speculative.contracts import Draft, TargetDistributions, Verdict
from pardec.samplers.speculative.loop import VerifyLoop
from tests.grids import one_in, pairwise
from tests.samplers.ar_toys import prompts, run
from tests.samplers.module_files import random_modules
from tests.samplers.picture_toys import draw, features, toy_pictures
from tests.samplers.speculative import test_image_contract as images
from tests.samplers.speculative import test_verify_contract as texts
from tests.samplers.toys import drafter_named, resolved

VOCAB, LENGTHS, NEW = texts.VOCAB, (3, 1, 6), 9


class Alternating:
    """A grammar in which even and odd ids alternate, even ones first."""

    def mask(self, ids: Sequence[int]) -> np.ndarray:
        which: np.ndarray = np.arange(VOCAB) % 2 == len(ids) % 2
        return which


def _allowed(lengths: Sequence[int], new: int, vocab: int) -> Allowed:
    """Two tokens at every second position."""
    sets = torch.ones(4, vocab, dtype=torch.bool)
    for at in range(1, 4):
        sets[at] = False
        sets[at, [at, at + 2]] = True
    each = [torch.cat([torch.zeros(size), torch.arange(new) % 2 * (torch.arange(new) % 3 + 1)]) for size in lengths]
    return Allowed(sets, tuple(row.long() for row in each))


FILTERS: dict[str, dict[str, Any]] = {
    "top_k": {"temperature": 1.0, "top_k": 2},
    "top_p": {"temperature": 1.0, "top_p": 0.5},
    "min_p": {"temperature": 1.3, "min_p": 0.5},
}
TEXT: dict[str, dict[str, Any]] = {
    "allowed": {"allowed": _allowed(LENGTHS, NEW, VOCAB)},
    "allowed, sampled": {"allowed": _allowed(LENGTHS, NEW, VOCAB), "temperature": 1.0},
    "grammar": {"grammars": (Alternating(), None, Alternating())},
    "grammar, sampled": {"grammars": (Alternating(), None, Alternating()), "temperature": 1.0},
    "min_new_tokens": {"min_new_tokens": 6, "stop_ids": (1, 2, 3)},
    "min_new_tokens, sampled": {"min_new_tokens": 6, "stop_ids": (1, 2, 3), "temperature": 1.0},
    **FILTERS,
}
CAPTIONS = features((3, 1, 2), seed=6)
CELLS = images.SIDE**2
PICTURES: dict[str, dict[str, Any]] = {
    "allowed": {"allowed": _allowed((3, 1, 2), CELLS, images.VOCAB), "cfg": 3.0},
    "allowed, sampled": {"allowed": _allowed((3, 1, 2), CELLS, images.VOCAB), "temperature": 1.0},
    **{name: {**more, "cfg": 3.0} for name, more in FILTERS.items()},
}


def of_text() -> list[str]:
    """Every drafter with every acceptance, and the acceptances' other modes."""
    rules = [
        f"{name}{more}"
        for name in texts.names("accept")
        for more in ("", *(f":{each}" for each in texts.SETTINGS.get(name, ())))
    ]
    shapes = [f"{texts.NEEDS['model']}+{shape}" for shape in texts.names("shape")]
    return [f"{draft}+{rule}" for draft, rule in product((*texts.names("draft"), *shapes), rules)]


def cases(specs: Sequence[str], constraints: dict[str, dict[str, Any]]) -> list[Any]:
    """With `sjd` every acceptance, of text greedy and sampled, and every constraint; all drafters and shapes.

    Slow ones are every acceptance under every constraint, and one in six of the other pairs.
    """
    found, seen = list[tuple[str, str]](), set[str]()
    for at, spec in enumerate(specs):
        drafter = spec.rsplit("+", 1)[0]
        if drafter != "sjd" and drafter in seen and not one_in(6, spec):
            continue
        names = [name for name, more in constraints.items() if resolved(spec, "ar", sampling="temperature" in more)]
        found += [(spec, name) for name in (names if drafter == "sjd" else names[at % max(len(names), 1) :][:1])]
        seen |= {drafter for _ in names}

    def axes(spec: str, name: str) -> tuple[Any, ...]:
        drafter, accept = spec.rsplit("+", 1)
        if drafter != "sjd":
            return drafter, "", ""
        return drafter, (accept, constraints is TEXT and bool(constraints[name].get("temperature"))), name

    return pairwise(found, axes, 1)


@pytest.fixture(autouse=True)
def other_models(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(draft_models, "language_model", lambda name, *_: drafter_named(name, texts.drafter()))
    with random_modules():
        yield


@contextmanager
def watched(*, filtered: bool = False) -> Iterator[list[int]]:
    """Fails if a committed token has no probability after the request's constraints and filters.

    If it is only `filtered`, tokens accepted in an earlier round may be outside of the filters by now.
    """
    commit, rounds = VerifyLoop.commit, list[int]()

    def checked(self: VerifyLoop, draft: Draft, distributions: TargetDistributions, verdict: Verdict) -> np.ndarray:
        gained = commit(self, draft, distributions, verdict)
        for row, count in enumerate(gained.tolist()):
            path, end = verdict.path[row].tolist(), int(self.text.length[row])
            for at, token in enumerate(self.text.host[row, end - count : end].tolist()):
                earlier = draft.preaccepted is not None and at < int(verdict.count[row])
                if filtered and earlier and bool(draft.preaccepted[row, path[at + 1]]):  # type: ignore[index]
                    continue
                assert distributions.logits[row, path[at], token] > -torch.inf, (row, at, token)
        rounds.append(len(gained))
        return gained

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(VerifyLoop, "commit", checked)
        yield rounds


@pytest.mark.parametrize(("spec", "name"), cases(of_text(), TEXT))
def test_no_excluded_token_is_committed_to_text(spec: str, name: str) -> None:
    with watched() as rounds:
        run(texts.target(), spec, prompts(LENGTHS, vocab=VOCAB), NEW, **TEXT[name])
    assert rounds


@pytest.mark.parametrize(("spec", "name"), cases(images.SPECS, PICTURES))
def test_no_excluded_code_is_committed_to_images(spec: str, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    other = toy_pictures(5, images.SIDE, images.VOCAB, 0.7, layers=3, knock=1)
    monkeypatch.setattr(draft_models, "language_model", lambda *_: other)
    with watched(filtered=name in FILTERS) as rounds:
        draw(images.target(), spec, CAPTIONS, **PICTURES[name])
    assert rounds
