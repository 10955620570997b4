"""Checks of drafters without a model, in addition to test_verify_contract.py and the joint distributions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from pardec.models.model import LanguageModel
from tests.samplers.ar_toys import plain_greedy, prompts, rows, run, toy_ar

RAGGED = [[5, 6, 7, 5, 6, 7, 5], [9, 4, 9], [3], [8, 1, 2, 3, 4, 8, 1, 2, 3, 4, 8, 1, 2], [2] * 6]

# The other modes of acceptances, and what reduces relaxed ones to the exact rule.
SETTINGS = {
    "match": ("noise=seeded",),
    "rrs": ("replacement=true",),
    "typical": ("reference=true", "epsilon=1,delta=0"),
    "gsd": ("mode=reference", "group=0"),
    "lantern": ("mode=reference", "ratio=3", "ratio=3,mode=reference", "k=0", "delta=0,mode=reference"),
    "fly": ("entropy=2", "entropy=0,window=1"),
    "bild": ("rollback=0", "rollback=20"),
    "lenience": ("mode=reference", "mode=reference,f=exponential", "mix=0", "tv=0", "tv=0.2", "mode=reference,eps=1"),
    "topk": ("k=1", "tolerance=0"),
}

# How the lists task words one operation.
WORDS = {
    "copy": ("Copy", "Repeat", "Write the list again"),
    "reverse": ("Reverse", "Write this list backwards", "Turn"),
    "replace": ("Replace", "Change", "Write the list with"),
    "sort": ("Sort", "Put", "Write the list in"),
}


def cyclic(vocab: int = 7) -> LanguageModel:
    """A model that predicts token x + 1 after token x, and 0 after the last."""
    model = toy_ar(0, vocab)
    stack: Any = model.decoder
    with torch.no_grad():
        for name, weight in stack.named_parameters():
            if "out_weight" in name or "down_weight" in name:
                weight.zero_()
        stack.embed.weight.copy_(torch.eye(vocab, model.width))
        stack.head.weight.copy_(torch.eye(vocab, model.width).roll(1, 0) * 10)
    return model


def drafts_alone_what_it_drafts_in_a_batch(
    spec: str, model: LanguageModel | None = None, given: Sequence[Sequence[int]] = ()
) -> None:
    """Checks that a row's drafts do not depend on the rows beside it, by default of five tokens, which repeat."""
    model, new = model or toy_ar(3, vocab=5, sharp=1.0), [14, 10, 12]
    given = [list(prompt) for prompt in given] or prompts([9, 14, 12], vocab=5)
    done = run(model, spec, given, new, seeds=[0, 1, 2])
    for at, prompt in enumerate(given):
        alone = run(model, spec, [prompt], new[at], seeds=[at])
        assert rows(alone)[0] == rows(done)[at]
        assert (alone.trace.drafted[0], alone.trace.accepted[0]) == (done.trace.drafted[at], done.trace.accepted[at])
    assert sum(map(sum, done.trace.accepted)) > 0
    assert len(set(done.trace.drafted)) > 1, "rows differ"


@cache
def _model() -> LanguageModel:
    return toy_ar(3, vocab=11, sharp=2.0)


@cache
def _greedy(prompt: tuple[int, ...], count: int) -> list[int]:
    return plain_greedy(_model(), prompt, count)


def greedy_holds(spec: str, given: Sequence[Sequence[int]] = RAGGED, new: int = 40) -> float:
    """Checks that rows of a ragged batch equal greedy decoding, and that two of them take as many rounds as alone.

    Returns the tokens per forward.
    """
    model = _model()
    counts = [new - 3 * row for row in range(len(given))]
    done = run(model, spec, given, counts)
    for row, (prompt, count, text) in enumerate(zip(given, counts, rows(done), strict=True)):
        assert text == _greedy(tuple(prompt), count), (spec, row)
        if row % 2 == 0:
            continue
        alone = run(model, spec, [prompt], [count])
        assert rows(alone) == [text]
        assert alone.nfe[0] == done.nfe[row]
        assert alone.tokens_fed[0] == done.tokens_fed[row]
    return sum(counts) / sum(done.nfe)


def gained(spec: str, task: str, operation: str | None = None, count: int = 60) -> float:
    """Acceptance length on tiny-llama's held-out problems: tokens per verify forward, without the prompt's."""
    plain, made = (_decoded(sampler, task, operation, count) for sampler in ("sequential", spec))
    assert made.tokens == plain.tokens
    return (sum(map(len, made.tokens)) - len(made.tokens)) / (sum(made.nfe) - len(made.tokens))


def forwards_a_token(spec: str) -> float:
    """Forwards per token of tiny-llama on held-out lists to copy."""
    made = _decoded(spec, "lists", "copy", 60)
    return sum(made.nfe) / sum(made.generated)


@cache
def _decoded(spec: str, task: str, operation: str | None, count: int) -> Any:
    import pardec

    model = pardec.load("tiny-llama", device="cpu")
    problems = pardec.task(task).problems(split="heldout", n=count, seed=7)
    given = [p.prompt for p in problems if operation is None or p.prompt.startswith(WORDS[operation])]
    return model.generate(given, sampler=spec, max_new_tokens=64)
