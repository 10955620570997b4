"""Log-probabilities of committed tokens are the model's own at the forward that committed them, recomputed naively."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pardec.models.caches.kv_cache import KVCache
from pardec.models.load import load
from pardec.models.model import LanguageModel
from pardec.models.plan import Hidden, Plan
from pardec.samplers import logprobs as recording
from pardec.samplers import registry
from pardec.samplers.events import Finished, RowFinished, Started, Step
from pardec.samplers.logprobs import TokenLogprobs
from pardec.samplers.masked.loop import MaskedLoop
from pardec.samplers.masked.loop import decode as decode_masked
from pardec.samplers.masked.predict import MaskedForward
from pardec.samplers.ops import chunked_distribution
from pardec.samplers.request import Allowed, Request
from pardec.samplers.rng import JoinableSource
from pardec.samplers.speculative.loop import VerifyLoop
from tests.samplers import ar_toys
from tests.samplers.toys import BLOCK, EOS, MASK, VOCAB, Altered, fill, prompts, request, toy

TOP, IDS = 3, (5, 2, MASK)
WANTED: dict[str, Any] = {"logprobs": TOP, "logprob_ids": IDS}
LENGTHS, NEW = (3, 7, 2, 5), (9, 4, 12, 6)
NEAR = 1e-4


def compare(found: TokenLogprobs, tokens: np.ndarray, expected: Tensor, ids: Sequence[int] = IDS) -> None:
    """Compares the values at n positions with the distributions [n, V] there, changed by nothing but a softmax."""
    each = expected.double().log_softmax(-1)
    assert (found.own.dtype, found.ids.dtype, found.top.dtype) == (np.float32, np.int64, np.float32)
    own = each.gather(-1, torch.from_numpy(tokens)[:, None])[:, 0]
    np.testing.assert_allclose(found.own, own, atol=NEAR)
    np.testing.assert_allclose(found.top, each.topk(found.top.shape[1]).values, atol=NEAR)
    np.testing.assert_allclose(found.top, each.gather(-1, torch.from_numpy(found.ids)), atol=NEAR)
    assert all(len(set(row)) == len(row) for row in found.ids.tolist())
    np.testing.assert_allclose(found.candidates, each[:, list(ids)], atol=NEAR)


def equal(one: TokenLogprobs, other: TokenLogprobs) -> None:
    """Asserts that a row has the same values alone and in a batch, up to rounding."""
    np.testing.assert_array_equal(one.ids, other.ids)
    for name in ("own", "top", "candidates"):
        np.testing.assert_allclose(getattr(one, name), getattr(other, name), atol=NEAR)


def recorded(last: Finished) -> TokenLogprobs:
    assert last.trace.logprobs is not None
    return last.trace.logprobs


# --- masked models ---


class Watched:
    """A stack that records the logits of every query of each forward, whatever the loop wants of them."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.forwards = inner, list[tuple[Tensor, Tensor]]()

    def __call__(self, plan: Plan, cache: KVCache | None = None) -> Hidden:
        hidden = self.inner(replace(plan, narrow=False), cache)
        logits = hidden.head(hidden.states.flatten(0, 1)).float().view(*hidden.states.shape[:2], -1)
        self.forwards.append((plan.positions.clone(), logits))
        return hidden

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def at_forward(forward: tuple[Tensor, Tensor], query: int, cfg: float | None) -> Tensor:
    """[V]: the distribution at this position in a forward of one row; with guidance, of two copies."""
    positions, logits = forward
    rows = [logits[row, positions[row].tolist().index(query)] for row in range(len(positions))]
    return rows[0] if cfg is None else rows[1] + cfg * (rows[0] - rows[1])


ROWS: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("llada", "threshold:tau=0.3@none", {}),
    ("llada", "fixed:steps=5@prefix", {}),
    ("llada", "threshold:tau=0.3+edit:tau=0.2@dual", {"temperature": 1.0}),
    ("llada", "wino:draft=0.1,verify=0.9@none", {"block_length": 11}),
    ("llada", "wino:draft=0.1,verify=0.9@dual", {"block_length": 11}),
    ("llada", "remdm+fixed:steps=9@prefix", {"temperature": 1.0}),
    ("llada", "credit+threshold:tau=0.3+localleap@dual", {"temperature": 0.7, "top_p": 0.8}),
    ("dream", "threshold:tau=0.2+prophet:region=block,early=0.4,mid=0.4,late=0.2@none", {}),
    ("dream", "fixed:steps=7+prophet:region=block,early=1,mid=0.2,late=0.2@dual", {"repetition_penalty": 1.5}),
    ("dream", "fixed:steps=6,order=random@dkv_greedy", {"temperature": 1.0}),
    ("dream", "threshold:tau=0.3@vicinity:before=2,after=2,warmup=1", {"cfg": 1.7}),
    ("dream", "factor+smoothing@dual", {"cfg": 2.0, "temperature": 1.0, "min_new_tokens": 3}),
    ("dream", "threshold:tau=0.3+eos@dkv:settle=next", {"stop_ids": (EOS,)}),
    ("sdar", "threshold:tau=0.3@block", {}),
    ("shifted-sdar", "entropy_bound:gamma=0.5@block", {"temperature": 1.0}),
    ("llada2", "threshold:tau=0.3+edit:tau=0.3@block", {}),
    ("wedlm", "wedlm@window", {}),
    ("nemotron", "threshold:tau=0.3@causal", {}),
    ("sdlm", "contiguous:tau=0.3@next_sequence", {}),
)


@pytest.mark.parametrize(("family", "spec", "options"), ROWS)
def test_a_masked_row_has_the_distributions_of_its_committing_forwards(
    family: str, spec: str, options: dict[str, Any]
) -> None:
    plain = toy(family, sharp=1.2)
    watched = Watched(plain.decoder)
    [prompt] = prompts((6,))
    options = {"absolute": plain.decoding_config.attention == "block-causal", **options}
    asked = request([[*prompt, *[MASK] * 11]], [6], seeds=[7], **WANTED, **options)
    loop = MaskedLoop(replace(plain, decoder=watched), registry.resolve(spec), asked)
    shifts = []  # how far to the left of a position its prediction stands, a forward
    while len(loop.canvas):
        loop.step()
        shifts.append(int(loop.recorder.history[-1].shift[0]))
        list(loop.retire())
    trace, found = loop.finished().trace, recorded(loop.finished())[0]
    if family != "nemotron":
        assert set(shifts) == {plain.decoding_config.shift}
    assert len(watched.forwards) == len(shifts)
    at = np.flatnonzero(trace.commit_step[0] >= 0)
    assert len(at) >= 4
    rows = [
        at_forward(watched.forwards[step], max(position - shifts[step], 0), options.get("cfg"))
        for step, position in zip(trace.commit_step[0, at].tolist(), at.tolist(), strict=True)
    ]
    compare(found[at], trace.tokens[0, at], torch.stack(rows))
    others = np.flatnonzero(trace.commit_step[0] < 0)
    assert np.isnan(found.own[others]).all()
    assert (found.ids[others] == -1).all()


def test_every_way_to_change_a_token_took_part() -> None:
    """The rows above rewrite, reopen and fill tokens; otherwise their comparison would prove nothing about that."""
    [prompt] = prompts((6,))

    def steps(family: str, spec: str, **options: Any) -> list[Step]:
        model = toy(family, sharp=1.2)
        mask = request([[*prompt, *[MASK] * 11]], [6], seeds=[7], **WANTED, **options)
        return [event for event in decode_masked(model, registry.resolve(spec), mask) if isinstance(event, Step)]

    def revised(events: list[Step], *, reopened: bool) -> bool:
        marks = [event.revised & (event.open == reopened) for event in events if event.revised is not None]
        return any(mark.any() for mark in marks)

    assert revised(steps("llada", ROWS[2][1], **ROWS[2][2]), reopened=False)
    for spec, options in (row[1:] for row in ROWS[3:6]):
        assert revised(steps("llada", spec, **options), reopened=True), spec
    last = steps("dream", ROWS[8][1], **ROWS[8][2])[-1]
    assert last.committed.sum() > BLOCK  # of more than the active block


@pytest.mark.parametrize(("family", "spec", "options"), ROWS)
def test_a_masked_row_alone_equals_the_row_in_a_ragged_batch(family: str, spec: str, options: dict[str, Any]) -> None:
    model, given = toy(family, sharp=1.2), prompts(LENGTHS)
    whole = fill(model, spec, given, NEW, **WANTED, **options)
    for row in (len(given) - 1,):
        alone = fill(model, spec, [given[row]], NEW[row], seeds=[100 + row], **WANTED, **options)
        size = int(alone.trace.lengths[0])
        assert (alone.trace.commit_step[0] == whole.trace.commit_step[row, :size]).all()
        equal(recorded(alone)[0], recorded(whole)[row, :size])


@pytest.mark.parametrize("name", ["tiny-dream", "tiny-llada"])
@pytest.mark.parametrize("spec", ["threshold:tau=0.6@none", "fixed:steps=8@none", "edit+threshold:tau=0.5@none"])
@pytest.mark.covers(1)
def test_replayed_canvases_give_the_same(name: str, spec: str) -> None:
    """The canvas before each forward, rebuilt from the events, run through the model without a cache."""
    model = load(name, device="cpu")
    mask = model.decoding_config.mask_id
    assert mask is not None
    given = prompts((9, 4), vocab=200)
    rows = [[*prompt, *[mask] * 12] for prompt in given]
    asked = request(rows, [9, 4], block_length=6, temperature=1.0, **WANTED)
    canvas, expected = np.empty(0), dict[tuple[int, int], Tensor]()
    for event in decode_masked(model, registry.resolve(spec), asked):
        if isinstance(event, Started):
            canvas = np.where(event.open, mask, event.tokens)
        elif isinstance(event, Step):
            for at, row in enumerate(event.rows.tolist()):
                size = len(rows[row])
                ids = torch.from_numpy(canvas[row, :size])[None]
                logits = model.forward(Plan.full(ids, model.visible(model.masks(ids)))).logits()[0].float()
                changed = event.committed[at] if event.revised is None else event.committed[at] | event.revised[at]
                for position in np.flatnonzero(changed):
                    expected[row, int(position)] = logits[max(position - model.decoding_config.shift, 0)]
            canvas[event.rows] = np.where(event.open, mask, event.tokens)
        elif isinstance(event, Finished):
            found = recorded(event)
            for row in range(2):
                at = np.flatnonzero(event.trace.commit_step[row] >= 0)
                assert len(at) == 12
                compare(found[row][at], event.tokens[row, at], torch.stack([expected[row, p] for p in at.tolist()]))


def test_allowed_tokens_and_the_mask_leave_the_recorded_distribution_alone() -> None:
    model, [prompt] = toy("llada", sharp=1.2), prompts((5,))
    sets = torch.ones(2, VOCAB, dtype=torch.bool)
    sets[1] = torch.arange(VOCAB) < 4
    limits = Allowed(sets, (torch.tensor([0] * 5 + [1] * 4),))
    watched = Watched(model.decoder)
    last = fill(replace(model, decoder=watched), "threshold:tau=0.5", [prompt], 4, allowed=limits, **WANTED)
    trace, at = last.trace, np.arange(5, 9)
    rows = [at_forward(watched.forwards[trace.commit_step[0, position]], position, None) for position in at]
    compare(recorded(last)[0, 5:], trace.tokens[0, 5:], torch.stack(rows))
    assert (recorded(last).ids[0, 5:] >= 4).any()  # what is not allowed is recorded nevertheless
    assert (trace.tokens[0, 5:] < 4).all()
    assert np.isfinite(recorded(last).candidates[0, 5:, IDS.index(MASK)]).all()


def test_logits_in_chunks_give_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model, given = toy("dream", sharp=1.2), prompts(LENGTHS)
    for spec in (
        "threshold:tau=0.3+prophet:region=block,early=1,mid=0.4,late=0.2@dual",
        "wino:draft=0.1,verify=0.9@none",
    ):
        family = model if "prophet" in spec else toy("llada", sharp=1.2)
        whole = fill(family, spec, given, NEW, cfg=1.5, **WANTED)
        with monkeypatch.context() as patch:
            patch.setattr(chunked_distribution, "CHUNK_BYTES", 4 * VOCAB * 3)
            patch.setattr("pardec.samplers.masked.recorder.CHUNK_BYTES", 4 * VOCAB * 3)
            chunks = fill(family, spec, given, NEW, cfg=1.5, **WANTED)
        assert (whole.trace.commit_step == chunks.trace.commit_step).all()
        equal(recorded(whole), recorded(chunks))


# --- autoregressive models ---

AR: tuple[tuple[str, dict[str, Any]], ...] = (
    ("sequential", {}),
    ("sequential", {"temperature": 1.0, "top_k": 4, "repetition_penalty": 1.3}),
    ("lookup", {}),
    ("lookup", {"temperature": 0.8}),
    ("recycling:tree=4-6-4", {}),
    ("jacobi:window=5", {"temperature": 1.0}),
    ("lookup+typical", {"temperature": 1.0}),
    ("model:name=tiny-llama-draft,k=3", {"temperature": 1.0, "top_p": 0.9}),
    ("model:name=tiny-llama-draft,k=3+dyspec", {}),
    ("eagle:name=tiny-llama-eagle,k=8+beam", {}),
    ("eagle:name=tiny-llama-eagle,k=4+chain", {"temperature": 1.0}),
    ("medusa:name=tiny-llama-medusa", {}),
    ("earlyexit:layers=1,k=3", {"min_new_tokens": 4}),
)


@pytest.fixture(scope="module")
def llama() -> LanguageModel:
    return load("tiny-llama", device="cpu")


@pytest.mark.parametrize(("spec", "options"), AR)
def test_autoregressive_rows_have_the_teacher_forced_distributions(
    llama: LanguageModel, spec: str, options: dict[str, Any]
) -> None:
    given = ar_toys.prompts(LENGTHS, vocab=llama.vocab_size)
    ends = llama.decoding_config.eos_ids
    last = ar_toys.run(llama, spec, given, NEW, stop_ids=ends, **WANTED, **options)
    for row, prompt in enumerate(given):
        text = ar_toys.rows(last)[row]
        logits = ar_toys.logits(llama, [text])[0, len(prompt) - 1 : -1]
        found = recorded(last)[row, : len(text)]
        assert np.isnan(found.own[: len(prompt)]).all()
        compare(found[len(prompt) :], np.array(text[len(prompt) :]), logits)
        if row < len(given) - 1:
            continue
        seeds = [100 + row]
        alone = ar_toys.run(llama, spec, [prompt], NEW[row], stop_ids=ends, seeds=seeds, **WANTED, **options)
        assert ar_toys.rows(alone)[0] == text
        equal(recorded(alone)[0], found)


def test_processors_and_allowed_tokens_leave_the_recorded_distribution_alone() -> None:
    model, [prompt] = ar_toys.toy_ar(vocab=8), ar_toys.prompts((4,), vocab=8)
    sets = torch.ones(2, 8, dtype=torch.bool)
    sets[1, 5:] = False
    limits = Allowed(sets, (torch.tensor([0] * 4 + [1] * 6),))
    last = ar_toys.run(
        model, "lookup", [prompt], 6, temperature=1.0, processors=(lambda ids, scores: scores * 3,), allowed=limits,
        logprobs=8, logprob_ids=(7,),
    )  # fmt: skip
    text = ar_toys.rows(last)[0]
    compare(recorded(last)[0, 4:], np.array(text[4:]), ar_toys.logits(model, [text])[0, 3:-1], (7,))
    np.testing.assert_allclose(np.exp(recorded(last).top[0, 4:]).sum(-1), 1, atol=NEAR)


# --- the recorder ---


JOINED = registry.resolve("threshold:tau=0.3@dual"), registry.resolve("lookup", "ar")  # states are of these objects
NEWER = (2, 12, 8, 20)  # tokens of four rows; the last of them joins, and is longer than all before it


def masked_loop(which: Sequence[int], columns: int = 0, **options: Any) -> MaskedLoop:
    """A loop that decodes some of four rows."""
    canvases = [[*row, *[MASK] * count] for row, count in zip(prompts((3, 5, 4, 9)), NEWER, strict=True)]
    source = JoinableSource([100 + row for row in which])
    rows, starts = [canvases[row] for row in which], [len(canvases[row]) - NEWER[row] for row in which]
    asked = request(rows, starts, **{**WANTED, "source": source, **options})
    return MaskedLoop(toy("llada", sharp=1.2), JOINED[0], asked, columns=columns)


def verify_loop(which: Sequence[int], columns: int = 0, **options: Any) -> VerifyLoop:
    """A verify loop that decodes some of four rows; rows that join have been fed their prompts."""
    rows, source = prompts((3, 5, 4, 9)), JoinableSource([100 + row for row in which])
    asked = ar_toys.request([rows[row] for row in which], [NEWER[row] for row in which], source=source, **WANTED)
    loop = VerifyLoop(ar_toys.toy_ar(vocab=VOCAB), JOINED[1], replace(asked, **options))
    if columns:
        loop.round()
    return loop


def advance(loop: MaskedLoop | VerifyLoop) -> None:
    loop.step() if isinstance(loop, MaskedLoop) else loop.round()


def check_live(loop: MaskedLoop | VerifyLoop) -> None:
    """Asserts that every live row has values exactly where a forward committed tokens."""
    masked = isinstance(loop, MaskedLoop)
    lengths = loop.canvas.total if masked else loop.text.length
    steps = loop.canvas.commit_step.numpy() if masked else loop.text.commit_step
    assert loop.logprobs is not None
    for at, length in enumerate(lengths.tolist()):
        live = loop.logprobs.row(at, 0, length)
        assert (np.isfinite(live.own) == (steps[at, :length] >= 0)).all()
        assert len(live) == length
        assert np.array_equal(loop.logprobs.row(at, 1, length).own, live[1:].own, equal_nan=True)


@pytest.mark.parametrize("start", [masked_loop, verify_loop])
def test_live_rows_have_theirs_while_others_leave_and_join(start: Callable[..., Any]) -> None:
    loop, row_at, ends = start([0, 1, 2]), {0: 0, 1: 1, 2: 2}, dict[int, RowFinished]()
    while len(loop.rows):
        advance(loop)
        check_live(loop)
        over = loop.finished_rows()
        ends |= {row_at[end.row]: end for end in loop.leave(over)}
        free = np.flatnonzero(over)
        if len(free) and 3 not in row_at.values():
            row_at[int(loop.rows[free[0]])] = 3
            loop.put(free[:1], start([3], 1))
            check_live(loop)
            free = free[1:]
        loop.keep(np.setdiff1d(np.arange(len(loop.rows)), free))
    assert sorted(ends) == [0, 1, 2, 3]
    for row, end in ends.items():
        alone = start([row])
        while not (over := alone.finished_rows()).any():
            advance(alone)
        [result] = alone.leave(over)
        assert (result.tokens == end.tokens).all()
        assert (result.commit_step == end.commit_step).all()
        assert result.logprobs is not None
        assert end.logprobs is not None
        equal(end.logprobs, result.logprobs)


@pytest.mark.parametrize(("spec", "options"), [ROWS[3][1:], ROWS[5][1:]])
def test_what_is_open_again_has_none_until_it_is_committed_again(spec: str, options: dict[str, Any]) -> None:
    [prompt] = prompts((6,))
    asked = request([[*prompt, *[MASK] * 11]], [6], seeds=[7], **WANTED, **options)
    loop, reopened = MaskedLoop(toy("llada", sharp=1.2), registry.resolve(spec), asked), 0
    while not loop.finished_rows().any():
        before = loop.canvas.open_host.copy()
        loop.step()
        reopened += int((loop.canvas.open_host & ~before).sum())
        check_live(loop)
    assert reopened


def test_likely_tokens_come_in_order_and_the_lowest_id_first_among_equals() -> None:
    class Live:
        rows = np.array([0, 1])

    recorder = recording.LogprobRecorder(Live(), 4, top=3, ids=(), device=torch.device("cpu"))
    logits = torch.tensor([[0.0, 2.0, 1.0, 2.0, 2.0]])
    recorder.add(np.array([1]), np.array([2]), torch.tensor([2]), logits)
    row = recorder.row(1, 2, 3)
    assert row.ids.tolist() == [[1, 3, 4]]
    assert np.isnan(recorder.row(0, 0, 4).own).all()
    recorder.clear(np.array([1]), np.array([2]))
    assert np.isnan(recorder.row(1, 2, 3).top).all()
    assert row.ids.tolist() == [[1, 3, 4]]  # what was read stays


@pytest.mark.parametrize("vocab", [17, 1000])
def test_likely_tokens_that_tie_at_the_last_place_are_those_of_the_lowest_ids(vocab: int) -> None:
    logits = torch.randn(50, vocab, generator=torch.Generator().manual_seed(0)).bfloat16().float()  # ties
    logits[:2] = torch.tensor([[0.0], [-torch.inf]])
    logits[2, 1:] = -torch.inf
    order = logits.sort(dim=-1, descending=True, stable=True).indices
    for count in (1, 2, 5, 16, vocab):
        assert torch.equal(recording.top_ids(logits, count), order[:, :count])


# --- what it costs ---


def test_off_nothing_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("no log-probabilities were asked for")

    monkeypatch.setattr(recording.LogprobRecorder, "__init__", refuse)
    monkeypatch.setattr(MaskedForward, "_unprocessed", refuse)
    last = fill(toy("llada"), "threshold+prophet@dual", prompts((3, 5)), 8)
    assert last.trace.logprobs is None
    assert ar_toys.run(ar_toys.toy_ar(), "lookup", ar_toys.prompts((3,)), 6).trace.logprobs is None
    assert masked_loop([0], logprobs=None).logprobs is None
    assert verify_loop([0], logprobs=None).logprobs is None


def test_the_head_runs_again_only_for_what_was_committed() -> None:
    """One additional row of the head for each committed token, and none for other positions."""
    sizes: list[int] = []

    def count(logits: Tensor) -> Tensor:
        sizes.append(len(logits))
        return logits

    plain = toy("llada", sharp=1.2)
    model = replace(plain, decoder=Altered(plain.decoder, count))
    totals = []
    for options in ({}, WANTED):
        sizes.clear()
        fill(model, "threshold:tau=0.3@dual", prompts((4, 6)), (7, 9), **options)
        totals.append(sum(sizes))
    assert totals[1] - totals[0] == 16


def test_a_reference_decoded_beforehand_records_nothing() -> None:
    asked: list[Request] = []
    original = recording.LogprobRecorder.of

    def note(request: Request, *rest: Any) -> Any:
        asked.append(request)
        return original(request, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recording.LogprobRecorder, "of", note)
        last = fill(toy("llada", sharp=1.2), "oracle", prompts((4,)), 6, **WANTED)
    assert [each.logprobs for each in asked] == [None, TOP]
    assert np.isfinite(recorded(last).own[0, 4:]).all()
