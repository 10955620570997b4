"""The guarantees of the masked loop for any stages, and the events that it yields."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch

from pardec.models.errors import ModelError, SpecError
from pardec.samplers import registry
from pardec.samplers.batching import take_rows
from pardec.samplers.events import Finished, RowFinished, Started, Step
from pardec.samplers.masked.contracts import Cache, Logits, MaskedSampler, Propose, QuerySpec, Select, Widen
from pardec.samplers.masked.loop import MaskedLoop, decode
from pardec.samplers.ops.distribution import DenseDistribution
from tests.samplers.toys import EOS, MASK, PAD, altered, biased, events, fill, prompts, request, run, toy

GIVEN = prompts((3, 5, 2))
ROWS = [row + [MASK] * new for row, new in zip(GIVEN, (6, 9, 4), strict=True)]
STARTS = [3, 5, 2]


def with_stages(spec: str, **stages: Any) -> MaskedSampler:
    return replace(registry.resolve(spec), **stages)


def result(
    sampler: MaskedSampler, rows: list[list[int]] = ROWS, starts: list[int] = STARTS, **options: Any
) -> Finished:
    *_, last = decode(options.pop("model", None) or toy(sharp=1.2), sampler, request(rows, starts, **options))
    assert isinstance(last, Finished)
    return last


@dataclass(frozen=True)
class Scores(Propose):
    """A proposer that gives every position the same score, including positions that are not eligible."""

    value: float

    def propose(self, evidence: Any, canvas: Any) -> Any:
        return replace(
            evidence.propose(*evidence.distribution.greedy),
            score=torch.full_like(evidence.distribution.greedy[1], self.value),
        )


@pytest.mark.parametrize("value", [-torch.inf, torch.inf, torch.nan, -1.0, 0.0])
@pytest.mark.parametrize("select", ["threshold:tau=1", "sequential", "fixed:steps=3", "factor:f=0"])
@pytest.mark.covers(1)
def test_every_forward_commits_whatever_the_scores(select: str, value: float) -> None:
    """A score of -inf means that a method wants the position last: LLaDA does so to end tokens."""
    forwards = 0

    def count(logits: torch.Tensor) -> torch.Tensor:
        nonlocal forwards
        forwards += 1
        assert forwards < 100, "the loop makes no progress"
        return logits

    got = result(with_stages(select, propose=Scores(value)), model=altered(toy(), count))
    assert not (got.trace.commit_step == -2).any()
    assert all(nfe <= new for nfe, new in zip(got.nfe, (6, 9, 4), strict=True))


@pytest.mark.parametrize("cache", ["prefix", "dual", "dual:refresh=1", "dual:refresh=2"])
@pytest.mark.parametrize("select", ["threshold:tau=0.4", "fixed:steps=4"])
def test_a_published_refresh_commits_even_where_the_first_token_of_a_block_is_given(select: str, cache: str) -> None:
    rows = [[1, 2, 3, 4, MASK, MASK, 5, MASK, MASK, MASK], [MASK, 5, MASK, MASK, 6, 7, MASK, MASK]]
    spec = select + "@" + cache + (":" if ":" not in cache else ",") + "reference=true"
    got = result(registry.resolve(spec), rows, [3, 0], model=toy("dream", sharp=1.2))
    for row, steps in enumerate(got.trace.steps):
        assert all(step.positions for step in steps), row
        assert sum(len(step.positions) for step in steps) == rows[row].count(MASK)


@dataclass(frozen=True)
class Choose(Select):
    """A select that returns the same value everywhere."""

    answer: bool

    def select(self, proposal: Any, canvas: Any, state: Any) -> Any:
        return torch.full_like(proposal.eligible, self.answer)


def test_a_select_that_wants_everything_gets_the_open_positions_of_the_block() -> None:
    rows, starts = [[MASK, 5, MASK, MASK, 6, 7, MASK, MASK]], [0]
    got = result(with_stages("sequential", select=Choose(True)), rows, starts)
    assert [step.positions for step in got.trace.steps[0]] == [(0, 2, 3), (6, 7)]
    assert got.tokens[0, [1, 4, 5]].tolist() == [5, 6, 7]


def test_a_select_that_wants_nothing_is_sequential() -> None:
    none, one = result(with_stages("sequential", select=Choose(False))), result(registry.resolve("sequential"))
    assert (none.tokens == one.tokens).all()
    assert (none.trace.commit_step == one.trace.commit_step).all()


@pytest.mark.parametrize("blocks", [2, 4])
@pytest.mark.parametrize("select", ["klass", "threshold:tau=1"])
def test_multiblock_with_d2cache_commits_where_the_forward_computed_no_mask_of_the_first_block(
    select: str, blocks: int
) -> None:
    """Two masks per forward, both of a later active block, so the position to commit was never computed again."""
    spec = f"multiblock:blocks={blocks}+{select}@d2cache:k=2"
    got = fill(toy(sharp=1.2), spec, prompts((3, 6, 1)), (10, 12, 5), temperature=0.8, cfg=1.5)
    assert not (got.trace.commit_step == -2).any()
    assert all(nfe <= new for nfe, new in zip(got.nfe, (10, 12, 5), strict=True))


def test_a_row_that_no_forward_commits_to_ends_in_an_error() -> None:
    @dataclass(frozen=True)
    class Nothing(Cache):
        def query(self, canvas: Any, state: Any) -> QuerySpec:
            never = torch.zeros(canvas.window_host.shape, dtype=torch.bool)
            return QuerySpec(np.zeros_like(canvas.end), canvas.end, only=never)

    with pytest.raises(SpecError, match="row 1 has masks left after 110 forwards: its sampler commits nothing more"):
        result(with_stages("sequential", cache=Nothing()), [ROWS[0][:3] + [1] * 6, ROWS[1]], [3, 5])


def test_a_widen_stage_adds_and_is_held_to_the_block() -> None:
    @dataclass(frozen=True)
    class More(Widen):
        def widen(self, chosen: Any, proposal: Any, canvas: Any, state: Any) -> Any:
            return torch.ones_like(chosen)

    got = result(with_stages("sequential", widen=(More(),)))
    assert got.nfe == (2, 3, 1)


def test_a_logits_stage_is_heard_by_propose_and_select_and_remembers_by_row() -> None:
    @dataclass(frozen=True)
    class Countdown(Logits):
        """Makes the row's index the likeliest token, and counts the row's forwards in its state."""

        def start(self, canvas: Any) -> dict[str, Any]:
            return {"row": torch.arange(len(canvas)), "forwards": np.zeros(len(canvas), dtype=int)}

        def logits(self, evidence: Any, canvas: Any, state: Any) -> Any:
            assert (state["row"].numpy() == canvas.rows).all()
            state["forwards"] += 1
            assert (state["forwards"] == canvas.nfe + 1).all()
            bias = torch.nn.functional.one_hot(state["row"], evidence.logits.shape[-1])
            return DenseDistribution(evidence.logits + 100.0 * bias[:, None])

    got = result(with_stages("threshold:tau=0.9@dual", logits=(Countdown(),)))
    for row, length in enumerate(got.trace.lengths):
        assert set(got.tokens[row, STARTS[row] : length].tolist()) == {row}


def test_take_rows_reaches_everything_that_a_state_holds() -> None:
    @dataclass
    class State:
        a: torch.Tensor
        b: tuple[np.ndarray, ...]
        c: dict[str, torch.Tensor]
        name: str = "kept"
        nothing: None = None

    taken = take_rows(
        State(torch.arange(4), (np.arange(8).reshape(4, 2),), {"x": torch.arange(4) * 10}), np.array([3, 1])
    )
    assert taken.a.tolist() == [3, 1]
    assert taken.b[0].tolist() == [[6, 7], [2, 3]]
    assert taken.c["x"].tolist() == [30, 10]
    assert (taken.name, taken.nothing) == ("kept", None)


def test_a_model_without_a_mask_token_is_refused() -> None:
    model = toy()
    model = replace(model, decoding_config=replace(model.decoding_config, mask_id=None))
    with pytest.raises(ModelError, match="toy has no mask token"):
        run(model, "sequential", request(ROWS, STARTS))


def test_a_model_that_is_being_trained_decodes_all_the_same() -> None:
    model = toy(sharp=1.2)
    expected = fill(model, "threshold:tau=0.4+eos@dual", GIVEN, 6, temperature=1.0, stop_ids=(EOS,))
    model.decoder.requires_grad_(True)
    got = fill(model, "threshold:tau=0.4+eos@dual", GIVEN, 6, temperature=1.0, stop_ids=(EOS,))
    assert (got.tokens == expected.tokens).all()
    assert all(weight.grad_fn is None for weight in model.decoder.parameters())


# --- what is told ---


def test_events_tell_the_decode_step_by_step() -> None:
    model = biased(toy(seed=3, sharp=1.2), EOS, 1.5)
    told = events(model, "threshold:tau=0.4+eos@dual", request(ROWS, STARTS, stop_ids=(EOS,)))
    started, *middle, finished = told
    assert isinstance(started, Started)
    assert isinstance(finished, Finished)
    assert started.tokens[0, :9].tolist() == ROWS[0]
    assert started.open.sum(1).tolist() == [6, 9, 4]
    assert started.prompts.tolist() == STARTS
    tokens, open_ = started.tokens.copy(), started.open.copy()
    steps = [event for event in middle if isinstance(event, Step)]
    assert [step.number for step in steps] == list(range(len(steps)))
    for step in steps:
        for at, row in enumerate(step.rows):
            number = step.nfe[at] - 1
            done = finished.trace.steps[row][number]
            assert tuple(np.flatnonzero(step.committed[at])) == done.positions
            assert tuple(step.tokens[at][step.committed[at]]) == done.tokens
            assert not (step.committed[at] & ~open_[row]).any()
            assert (step.tokens[at][~step.committed[at]] == tokens[row][~step.committed[at]]).all()
            assert (step.open[at] == (open_[row] & ~step.committed[at])).all()
            tokens[row], open_[row] = step.tokens[at], step.open[at]
    ends = [event for event in middle if isinstance(event, RowFinished)]
    assert sorted(end.row for end in ends) == [0, 1, 2]
    for end in ends:
        assert end.tokens.tolist() == finished.tokens[end.row, : len(ROWS[end.row])].tolist()
        assert (end.reason, end.nfe) == (finished.reasons[end.row], finished.nfe[end.row])
        after = told[told.index(end) + 1 :]
        assert not [event for event in after if isinstance(event, Step) and end.row in event.rows]
    assert finished.tokens_fed == tuple(sum(map(len, row)) for row in finished.trace.fed)
    assert finished.forward_rows == finished.nfe


def test_events_may_be_kept() -> None:
    told = events(toy(sharp=1.2), "sequential@dual", request(ROWS, STARTS))
    steps = [event for event in told if isinstance(event, Step)]
    assert (steps[0].tokens != steps[-1].tokens[0]).any()
    assert [int(step.open[list(step.rows).index(1)].sum()) for step in steps] == list(range(8, -1, -1))


def test_without_steps_the_rest_is_the_same() -> None:
    asked = request(ROWS, STARTS)
    quiet = list(decode(toy(sharp=1.2), registry.resolve("threshold:tau=0.4"), asked, steps=False))
    assert not [event for event in quiet if isinstance(event, Step)]
    assert quiet[-1].tokens.tolist() == run(toy(sharp=1.2), "threshold:tau=0.4", asked, steps=True).tokens.tolist()


def test_the_trace_holds_scores_and_padding() -> None:
    got = result(registry.resolve("sequential"))
    for row, steps in enumerate(got.trace.steps):
        assert sum(len(step.positions) for step in steps) == (6, 9, 4)[row]
        assert all(0 < score <= 1 for step in steps for score in step.scores)
        assert (got.tokens[row, len(ROWS[row]) :] == PAD).all()


def test_a_decode_that_is_dropped_leaves_nothing_behind() -> None:
    model, sampler = toy(sharp=1.2), registry.resolve("fixed:steps=4@dual")
    dropped = decode(model, sampler, request(ROWS, STARTS))
    for _ in range(4):
        next(dropped)
    dropped.close()
    kept, beside = (
        decode(model, sampler, request(ROWS, STARTS)),
        decode(model, sampler, request(ROWS[::-1], STARTS[::-1])),
    )
    for one, _ in zip(kept, beside, strict=False):  # two requests interleaved
        last = one
    rest = [*kept]
    last = rest[-1] if rest else last
    assert last.tokens.tolist() == fill(model, "fixed:steps=4@dual", GIVEN, (6, 9, 4)).tokens.tolist()


def test_finished_rows_are_fed_no_more() -> None:
    fed = []

    class Watched(Cache):
        def __init__(self, inner: Any) -> None:
            self.inner = inner

        def query(self, canvas: Any, state: Any) -> QuerySpec:
            fed.append(len(canvas))
            return self.inner.query(canvas, state)

        def start(self, canvas: Any) -> Any:
            return self.inner.start(canvas)

    sampler = registry.resolve("sequential@dual")
    result(replace(sampler, cache=Watched(sampler.cache)))
    assert fed == [3] * 4 + [2] * 2 + [1] * 3


# --- what a request does not ask for ---


HOOKS = ("before_query", "with_evidence", "with_distribution", "with_decision", "after_commit", "ended")
FORWARD_HOOKS = ("begin", "prepare", "read", "mix", "process", "complete")


@pytest.mark.parametrize("spec", ["threshold", "threshold@dual", "sequential@prefix", "factor"])
def test_a_plain_request_has_no_hooks(spec: str) -> None:
    loop = MaskedLoop(toy(), registry.resolve(spec), request(ROWS, STARTS))
    assert not any(getattr(loop, name) for name in HOOKS)
    assert not any(getattr(loop.forward, name) for name in FORWARD_HOOKS)
    assert loop.forward.limits is None


@pytest.mark.parametrize(
    ("spec", "options", "hooks"),
    [
        ("threshold", {"cfg": 1.5}, {"prepare", "mix"}),
        ("threshold", {"min_new_tokens": 2, "stop_ids": (EOS,)}, {"process"}),
        ("threshold", {"repetition_penalty": 1.2}, {"begin", "process"}),
        ("threshold", {"logprobs": 0}, {"begin", "read", "with_decision", "after_commit"}),
        ("threshold+eos", {"stop_ids": (EOS,)}, {"ended"}),
        ("fixed:steps=3", {}, {"before_query"}),
        ("credit+threshold", {}, {"with_distribution"}),
    ],
)
def test_a_feature_hooks_in_where_it_is_needed_and_nowhere_else(
    spec: str, options: dict[str, Any], hooks: set[str]
) -> None:
    loop = MaskedLoop(toy(), registry.resolve(spec), request(ROWS, STARTS, **options))
    found = {name for name in HOOKS if getattr(loop, name)}
    found |= {name for name in FORWARD_HOOKS if getattr(loop.forward, name)}
    assert found == hooks
