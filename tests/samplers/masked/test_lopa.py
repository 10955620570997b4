"""`lopa`: continues from the draft with the most confident forward; its naive version, and refusals."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import pardec
from pardec import Model
from pardec.samplers.masked import query_plan
from pardec.samplers.masked.branch.lopa import LookaheadParallel
from tests.samplers.parity import recorded
from tests.samplers.spec_checks import refused_specs
from tests.samplers.toys import MASK, fill, prompts, toy


def naive(name: str, prompt: list[int], new: int, size: int, tau: float, branches: int) -> tuple[list[int], int]:
    """https://arxiv.org/abs/2512.16229 for one row, in plain Python."""
    model = Model(recorded(name))
    decoding = model.language_model.decoding_config
    mask = decoding.mask_id

    def predict(tokens: list[int]) -> list[tuple[int, float]]:
        logits = model.logits(torch.tensor([tokens]))[0].double()
        logits[:, mask] = -torch.inf
        best = logits.softmax(-1).max(-1)
        pairs = list(zip(best.indices.tolist(), best.values.tolist(), strict=True))
        return pairs[:1] + pairs[:-1] if decoding.shift else pairs

    tokens, start = [*prompt, *[mask] * new], len(prompt)
    before: tuple[int, list[tuple[int, float]]] | None = None
    count = 0
    while mask in tokens[start:]:
        first = tokens.index(mask, start)
        begin = start + (first - start) // size * size
        block = range(begin, min(begin + size, len(tokens)))
        states, extras = [list(tokens)], [1.0]
        if before is not None and before[0] == begin:
            ranked = sorted((p for p in block if tokens[p] == mask), key=lambda p: (-before[1][p][1], p))
            for p in ranked[: branches - 1]:
                states.append([*tokens[:p], before[1][p][0], *tokens[p + 1 :]])
                extras.append(before[1][p][1])
        states, extras = zip(*[(s, e) for s, e in zip(states, extras, strict=True) if mask in s[start:]], strict=True)
        predictions = [predict(state) for state in states]
        scores = []
        for state, extra, pairs in zip(states, extras, predictions, strict=True):
            now = state.index(mask, start)
            here = start + (now - start) // size * size
            lowest = sorted(pairs[p][1] for p in range(here, min(here + size, len(state))) if state[p] == mask)
            half = lowest[: max(1, (len(lowest) + 1) // 2)]
            scores.append((extra + sum(half) / len(half)) / 2)
        best = int(np.argmax(np.array(scores, dtype=np.float32)))
        tokens, pairs = list(states[best]), predictions[best]
        first = tokens.index(mask, start)
        begin = start + (first - start) // size * size
        masks = [p for p in range(begin, min(begin + size, len(tokens))) if tokens[p] == mask]
        chosen = [p for p in masks if pairs[p][1] >= tau] or [max(masks, key=lambda p: (pairs[p][1], -p))]
        for p in chosen:
            tokens[p] = pairs[p][0]
        before, count = (begin, pairs), count + 1
    return tokens, count


@pytest.mark.parametrize("branches", [2, 4])
@pytest.mark.parametrize("name", ["llada", "dream"])
@pytest.mark.covers(1)
def test_it_is_its_naive_version(name: str, branches: int) -> None:
    model = Model(recorded(name))
    drawn = np.random.RandomState(5)
    given = [drawn.randint(3, model.language_model.vocab_size - 10, length).tolist() for length in (5, 9, 3)]
    for tau in (0.05, 0.15, 1.0):
        result = model.generate(
            input_ids=given,
            sampler=f"lopa:branches={branches}+threshold:tau={tau}",
            max_new_tokens=21,
            block_length=6,
            stop_ids=[],
        )
        for row, prompt in enumerate(given):
            tokens, count = naive(name, prompt, 21, 6, tau, branches)
            assert result.sequences[row, : len(tokens)].tolist() == tokens
            assert result.nfe[row] == count


@pytest.mark.parametrize(("own", "extra", "mean"), [(0.9, 0.8, 0.95), (0.5, 0.75, 0.75)])
def test_a_branch_is_judged_by_its_likeliest_tokens_and_of_equal_ones_the_row_stays(
    own: float, extra: float, mean: float
) -> None:
    """(1 + .9) / 2 against (.8 + .95) / 2, and (1 + .5) / 2 against (.75 + .75) / 2.

    The tokens drawn in the row itself have 0.1 each.
    """
    canvas = SimpleNamespace(
        nfe=np.array([3, 3]),
        commit_step=torch.tensor([[-1, -2, -2], [-1, 3, -2]]),
        open=torch.tensor([[False, True, True], [False, False, True]]),
        commit_score=torch.tensor([[0.0, 0.0, 0.0], [0.0, extra, 0.0]]),
    )
    likeliest = (torch.zeros(2, 2), torch.tensor([[own, own], [0.0, mean]]))
    proposal = SimpleNamespace(
        eligible=torch.tensor([[True, True], [False, True]]),
        score=torch.tensor([[0.1, 0.1], [0.0, mean]]),
        evidence=SimpleNamespace(distribution=SimpleNamespace(greedy=likeliest)),
    )
    asked: Any = SimpleNamespace(
        canvas=canvas, proposal=proposal, number=np.array([0, 1]), table=torch.tensor([[0, 1]])
    )
    assert LookaheadParallel().survivors(asked).tolist() == [0]


@pytest.mark.parametrize(
    "rest", ["credit+threshold:tau=0.3@dual", "klass@prefix", "smoothing+threshold:tau=0.3@dkv", "fixed:steps=9"]
)
def test_it_goes_with_stages_that_remember(rest: str) -> None:
    got = fill(toy("dream", sharp=1.2), f"lopa:branches=3+{rest}", prompts((3, 6)), 13)
    assert not (got.tokens == MASK).any()


test_what_acts_between_hypotheses_is_refused = refused_specs(
    [("threshold+prophet", "prophet acts between them"), ("dsb+threshold", "both change what a forward computes")],
    family="masked",
    before="lopa+",
)


def test_hypotheses_keep_to_what_the_tokens_of_a_schema_allow_beside_each_other() -> None:
    model = pardec.load("tiny-dream", device="cpu")
    for temperature in (0.0, 1.3):
        schema = {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2}
        asked: dict[str, Any] = {"response_format": schema, "max_new_tokens": 16, "temperature": temperature, "seed": 3}
        got = model.generate(["Tom has 8 cups.", "a"], sampler="lopa+sequential", **asked)
        assert got.parsed is not None


@pytest.mark.parametrize(
    ("family", "rest"),
    [("sdar", "threshold:tau=0.3@subblock:size=2"), ("llada", "random+fixed:steps=6@dkv_greedy")],
)
def test_it_drafts_no_positions_that_the_last_forward_left_out(
    monkeypatch: pytest.MonkeyPatch, family: str, rest: str
) -> None:
    """Whether logits are computed there nonetheless depends on the number of rows."""
    model, found = Model(toy(family, sharp=1.2)), []
    asked: dict[str, Any] = {"input_ids": prompts((4, 5, 2, 9)), "temperature": 1.0, "stop_ids": []}
    for gain in (0, 10**9):  # all but the wanted positions are left out, or none
        monkeypatch.setattr(query_plan, "_COMPACT_GAIN", gain)
        found.append(model.generate(**asked, sampler=f"lopa:branches=4+{rest}", max_new_tokens=8).tokens)
    assert found[0] == found[1]
