"""Rows that end in the block in which an end token is predicted: by hand, a naive version, and other stages."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import pardec
from pardec.models.errors import SpecError
from pardec.samplers import registry
from pardec.samplers.events import Step
from pardec.samplers.masked.canvas import Canvas
from pardec.samplers.masked.contracts import Update
from pardec.samplers.masked.finish.adaptive_length import AdaptiveLength
from pardec.samplers.trace import UNCOMMITTED
from tests.samplers.toys import EOS, MASK, PAD, events, fill, fill_alone, prompts, request, run, table, toy

GOLDEN = Path(__file__).parents[2] / "golden"
LENGTHS, NEW = (3, 6, 1, 5), (17, 6, 23, 2)
SPEC = "adaptive_length:beyond={},tau=0.6+threshold:tau=0.9"


def distributions(ends: dict[int, float], length: int = 16) -> torch.Tensor:
    """Distributions in which token 1 is certain, except at `ends`, where an end token has that probability."""
    result = torch.full((length, 7), 1e-6)
    for position in range(length):
        sure = ends.get(position)
        result[position, 1] = 1.0 if sure is None else 1 - sure
        if sure is not None:
            result[position, 5] = sure
    return result / result.sum(1, keepdim=True)


SIXTEEN: list[tuple[dict[int, float], int, int]] = [
    ({9: 0.95}, 4, 12),  # the block of 8 .. 11 is the last
    ({8: 0.95}, 4, 12),
    ({11: 0.95}, 4, 12),
    ({12: 0.95}, 4, 16),  # in the last block: nothing to leave out
    ({9: 0.55}, 4, 16),  # the likeliest, and not sure enough
    ({5: 0.55, 9: 0.95}, 0, 12),
    ({2: 0.95, 9: 0.95}, 0, 4),
    ({2: 0.95, 9: 0.95}, 3, 12),  # 2 is too near
    ({}, 0, 16),
]


def sixteen_tokens_by_hand(ends: dict[int, float], beyond: int, length: int) -> None:
    mask = 6
    asked = request([[mask] * 16], [0], block_length=4, stop_ids=(5,))
    got = run(table(distributions(ends)), SPEC.format(beyond), asked)
    assert got.trace.commit_step[0].tolist()[length:] == [UNCOMMITTED] * (16 - length)
    assert (got.trace.commit_step[0, :length] >= 0).all()
    assert got.tokens[0, length:].tolist() == [4] * (16 - length)
    assert got.reasons == ("stop" if length < 16 else "length",)
    # The forward that sees it is of the whole row, those after it are not.
    assert [len(positions) for positions in got.trace.fed[0]] == [16, *[length] * (got.nfe[0] - 1)]


def test_an_end_token_as_likely_as_tau_counts() -> None:
    """Everywhere the end token 0 is the likeliest, at exactly 0.5, the first of two such tokens."""
    halves = torch.zeros(8, 7)
    halves[:, :2] = 0.5
    for tau, length in ((0.5, 4), (0.51, 8)):
        asked = request([[6] * 8], [0], block_length=2, stop_ids=(0,))
        got = run(table(halves), f"adaptive_length:beyond=2,tau={tau}+threshold:tau=0.9", asked)
        assert int((got.trace.commit_step[0] >= 0).sum()) == length


def a_later_block_shortens_the_row_further() -> None:
    """After the first block, 9 is too near to the block's start; after the second, 13 is not."""
    row = request([[6] * 24], [0], block_length=4, stop_ids=(5,))
    got = run(table(distributions({13: 0.95, 21: 0.95}, 24)), SPEC.format(14), row)
    assert [len(positions) for positions in got.trace.fed[0]][:3] == [24, 24, 24]
    got = run(table(distributions({17: 0.95, 13: 0.7}, 24)), SPEC.format(12), row)
    assert len(got.trace.fed[0][-1]) == 16


def a_row_is_shortened_only_when_it_enters_a_block() -> None:
    """Every position of eight predicts an end token; nothing is shortened after a commit within the block."""
    canvas = Canvas((torch.full((8,), 6),), (0,), mask_id=6, pad_id=4, block_length=4)
    asked = request([[6] * 8], [0], block_length=4, stop_ids=(5,))
    greedy = SimpleNamespace(greedy=(torch.full((1, 8), 5), torch.full((1, 8), 0.95)))
    predictions: Any = SimpleNamespace(has=lambda at: at < 8, at=lambda at: greedy)
    rule = AdaptiveLength(beyond=0)
    assert rule.cut(predictions, canvas, asked).tolist() == [4]
    predictions.has = lambda at: at >= 5  # the forward computed the last three alone
    assert rule.cut(predictions, canvas, asked).tolist() == [8]
    which = torch.zeros_like(canvas.eligible)
    which[0, 1] = True
    canvas.commit(Update(which, torch.zeros_like(canvas.window), which.float()))
    greedy.greedy = tuple(each[:, :7] for each in greedy.greedy)
    predictions.has = lambda at: at < 8
    assert rule.cut(predictions, canvas, asked).tolist() == [8]
    both = Canvas((torch.full((12,), 6),) * 2, (0, 0), mask_id=6, pad_id=4, block_length=4)
    which = torch.zeros_like(both.eligible)
    which[0], which[1, 0] = True, True  # the first row enters its second block, the other one does not
    both.commit(Update(which, torch.zeros_like(both.window), which.float()))
    predictions.at = lambda at: SimpleNamespace(greedy=(torch.full_like(at, 5), torch.full(at.shape, 0.95)))
    assert rule.cut(predictions, both, asked).tolist() == [8, 12]


def test_end_tokens_of_the_request_alone_count() -> None:
    asked = request([[6] * 16], [0], block_length=4)
    got = run(table(distributions({9: 0.95})), SPEC.format(0), asked)
    assert not (got.trace.commit_step == UNCOMMITTED).any()


def test_tokens_that_were_given_after_it_keep_the_row_long() -> None:
    for at in (12, 14):  # the row would end at 12
        row = [3 if place == at else 6 for place in range(16)]
        got = run(table(distributions({9: 0.95})), SPEC.format(0), request([row], [0], block_length=4, stop_ids=(5,)))
        assert got.tokens[0, at] == 3
        assert not (got.trace.commit_step == UNCOMMITTED).any()


def test_a_row_is_not_cut_below_its_least_length() -> None:
    asked = request([[6] * 16], [0], block_length=4, stop_ids=(5,), min_new_tokens=10)
    got = run(table(distributions({9: 0.95})), SPEC.format(0), asked)
    assert not (got.trace.commit_step == UNCOMMITTED).any()


def test_steps_do_not_count_padding_as_committed() -> None:
    asked = request([[6] * 16], [0], block_length=4, stop_ids=(5,))
    steps = [step for step in events(table(distributions({9: 0.95})), SPEC.format(4), asked) if isinstance(step, Step)]
    assert sum(int(step.committed.sum()) for step in steps) == 12
    assert not steps[0].open[0, 12:].any()


@lru_cache
def golden(name: str) -> pardec.Model:
    return pardec.load(GOLDEN / name / "checkpoint", device="cpu", dtype="float32")


def naive(
    name: str, prompt: list[int], new: int, size: int, tau: float, ends: set[int], sure: float, beyond: int
) -> tuple[list[int], list[int]]:
    """https://arxiv.org/abs/2511.21759 for one row in plain Python: the canvas itself is shortened."""
    model = golden(name)
    decoding = model.language_model.decoding_config
    mask, tokens = decoding.mask_id, [*prompt, *[decoding.mask_id] * new]
    when = [-1] * len(prompt) + [-2] * new
    begin, step = len(prompt), 0
    while begin < len(tokens):
        first = True
        while masks := [p for p in range(begin, min(begin + size, len(tokens))) if tokens[p] == mask]:
            logits = model.logits(torch.tensor([tokens]))[0].double()
            logits[:, mask] = -torch.inf
            best = logits.softmax(-1).max(-1)
            row = list(zip(best.indices.tolist(), best.values.tolist(), strict=True))
            row = row[:1] + row[:-1] if decoding.shift else row
            far = [p for p in range(begin + beyond, len(tokens)) if tokens[p] == mask]
            found = [p for p in far if row[p][0] in ends and row[p][1] >= sure]
            surest = max(masks, key=lambda p: (row[p][1], -p))
            for p in masks:
                if p == surest or row[p][1] >= tau:
                    tokens[p], when[p] = row[p][0], step
            if first and found:
                tokens = tokens[: begin + ((found[0] - begin) // size + 1) * size]
            first, step = False, step + 1
        begin += size
    return tokens, when


@pytest.mark.parametrize("name", ["llada", "dream"])
@pytest.mark.seeds("arXiv:2511.21759")
def test_it_is_its_naive_version_step_by_step(name: str) -> None:
    """With these random checkpoints every third id is an end token; the naive version shortens its own canvas."""
    for case in SIXTEEN:
        sixteen_tokens_by_hand(*case)
    a_later_block_shortens_the_row_further()
    a_row_is_shortened_only_when_it_enters_a_block()
    test_tokens_that_were_given_after_it_keep_the_row_long()
    test_an_end_token_as_likely_as_tau_counts()
    test_a_row_alone_is_the_row_in_a_ragged_batch("fixed:steps=9", "dkv")
    model, new, size, cut = golden(name), 30, 6, 0
    vocab = model.language_model.vocab_size
    ends = set(range(0, vocab, 3)) - {model.language_model.decoding_config.mask_id}
    drawn = np.random.RandomState(3)
    for beyond, sure, length in ((0, 0.01, 5), (8, 0.03, 9), (14, 0.05, 4)):
        prompt = drawn.randint(3, vocab - 10, length).tolist()
        row = [*prompt, *[model.language_model.decoding_config.mask_id] * new]
        spec = f"adaptive_length:beyond={beyond},tau={sure}+threshold:tau=0.1"
        asked = request([row], [length], block_length=size, stop_ids=tuple(sorted(ends)))
        got = run(model.language_model, spec, asked)
        tokens, when = naive(name, prompt, new, size, 0.1, ends, sure, beyond)
        assert got.tokens[0, : len(tokens)].tolist() == tokens
        assert got.trace.commit_step[0].tolist() == when
        cut += len(tokens) < len(row)
    assert cut


HEAD = "adaptive_length:beyond=2,tau=0.2"


@pytest.mark.parametrize("cache", ["none", "dual", "prefix", "dkv", "spa", "mlcache"])
@pytest.mark.parametrize(
    "rest",
    ["fixed:steps=9", "dsb+threshold:tau=0.3", "suffix:window=3+threshold:tau=0.3", "prophet+eos+threshold:tau=0.3"],
)
@pytest.mark.covers(1)
def test_a_row_alone_is_the_row_in_a_ragged_batch(rest: str, cache: str) -> None:
    given, model, options = prompts(LENGTHS), toy("dream", sharp=1.2), {"stop_ids": (EOS, 1, 2, 3)}
    whole = fill_alone(model, f"{HEAD}+{rest}@{cache}", given, NEW, **options)
    assert not (whole.tokens == MASK).any()
    assert (whole.trace.commit_step == UNCOMMITTED).any()
    assert (whole.tokens[whole.trace.commit_step == UNCOMMITTED] == PAD).all()


def test_blocks_keep_their_share_of_a_schedule() -> None:
    """Four blocks of four and eight steps: two steps each, whether two of the blocks are cut off or not."""
    row = request([[6] * 16], [0], block_length=4, stop_ids=(5,))
    heads = ("", "adaptive_length:beyond=0,tau=0.6+")
    plain, cut = (run(table(distributions({6: 0.95})), f"{head}fixed:steps=8", row) for head in heads)
    assert plain.nfe == (8,)
    assert cut.nfe == (4,)
    assert cut.trace.commit_step[0, :8].tolist() == plain.trace.commit_step[0, :8].tolist()


def test_models_that_predict_nothing_after_the_block_refuse_it() -> None:
    for family, cache in (("sdar", "block"), ("wedlm", "window"), ("nemotron", "causal")):
        with pytest.raises(SpecError, match="which predicts nothing there"):
            fill(toy(family), f"adaptive_length+threshold@{cache}", prompts((3,)), 8)
    with pytest.raises(SpecError, match="adaptive_length acts between them"):
        fill(toy(), "freedave+adaptive_length+sequential", prompts((3,)), 8)
    for bad in ("tau=1.5", "tau=-0.1", "beyond=-1"):
        with pytest.raises(SpecError, match="must"):
            registry.resolve(f"adaptive_length:{bad}+threshold")
