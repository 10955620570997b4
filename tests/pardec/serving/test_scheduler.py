"""Rows of any kind that arrive and leave at any time have the tokens of `generate` for each alone."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest
import torch

import pardec
from pardec.api import Model
from pardec.models.errors import ModelError
from pardec.result import Result
from pardec.serving.rows import QueuedRow
from pardec.serving.running import Progress, TokenBatch
from pardec.serving.scheduler import Job, Scheduler

MASKED = ("threshold:tau=0.7+eos@dual:refresh=3", "wino@dual", "threshold:tau=0.8@dkv:settle=next")
VERIFIED = ("sequential", "recycling:tree=4-6-4", "model:name=tiny-llama-draft,k=3+dyspec", "lookup+typical")
MIXED = {"tiny-dream": MASKED, "tiny-llama": VERIFIED}


class Waiter:
    """Records the events of a row."""

    def __init__(self, *, wants_progress: bool = False) -> None:
        self.wants_progress = wants_progress
        self.waited: str | None = None
        self.result: Result | None = None
        self.error: Exception | None = None
        self.settled: list[int] = []

    def started(self, waited: str | None) -> None:
        self.waited = waited

    def advanced(self, progress: Progress) -> None:
        self.settled.append(progress.settled)

    def finished(self, result: Result) -> None:
        self.result = result

    def failed(self, error: Exception) -> None:
        self.error = error


def job(model: Model, waiter: Waiter | None = None, **arguments: Any) -> Job:
    call = model.prepare(**arguments)
    request: Any = call.request
    if model.family == "masked":
        request = replace(request, block_length=32)
    return Job(QueuedRow(0, call, request), waiter or Waiter())


def problem(at: int, new: int, **arguments: Any) -> dict[str, Any]:
    prompt = f"Tom has {at} cups. " * (1 + at % 3) + "How many?"
    return {"prompt": prompt, "max_new_tokens": new, "seed": [at], **arguments}


def same_as_alone(model: Model, waiter: Any, arguments: dict[str, Any]) -> None:
    result, alone = waiter.result, model.generate(**arguments)
    assert result is not None, waiter.error
    assert (result.tokens, result.text, result.finish, result.nfe) == (
        alone.tokens,
        alone.text,
        alone.finish,
        alone.nfe,
    )
    for mine, its in zip(result.trace.steps[0], alone.trace.steps[0], strict=True):
        assert (mine.positions, mine.tokens, mine.fed, mine.clock) == (its.positions, its.tokens, its.fed, its.clock)
    assert (result.trace.drafted, result.trace.accepted) == (alone.trace.drafted, alone.trace.accepted)


def test_batch_whose_forward_stood_still_does_not_wait_until_all_others_had_as_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, original, ran = pardec.load("tiny-llama", device="cpu"), TokenBatch.advance, list[TokenBatch]()
    now = 0.0

    def advance(batch: TokenBatch) -> Any:
        nonlocal now
        ran.append(batch)
        now += 120.0 if len(ran) == 1 else 0.25
        return original(batch)

    monkeypatch.setattr(TokenBatch, "advance", advance)
    monkeypatch.setattr("pardec.serving.scheduler.time.perf_counter", lambda: now)
    scheduler = Scheduler(model, slots=4)
    scheduler.submit(
        [job(model, **problem(at, 400, sampler="sequential", temperature=at, stop_ids=[])) for at in (0, 1)]
    )
    while len(set(ran)) < 2 or ran[-1] is not ran[0]:
        scheduler.step()
        assert len(ran) < 60
    assert len(ran) == 2 + 5.0 / 0.25  # ties: the batch that came first
    for _ in range(20):  # from now on they take turns
        scheduler.step()
    assert [ran[-20:].count(batch) for batch in set(ran)] == [10, 10]


@pytest.mark.parametrize("name", MIXED)
def test_rows_of_several_kinds_come_and_go(name: str) -> None:
    model, order = pardec.load(name, device="cpu"), random.Random(3)
    scheduler = Scheduler(model, slots=4)
    items = [
        problem(at, order.choice([1, 3, 9, 24, 32]), sampler=order.choice(MIXED[name]), temperature=at % 2)
        for at in range(24)
    ]
    jobs: list[Job] = []
    most = 0
    while len(jobs) < len(items) or not scheduler.idle:
        new = [job(model, **arguments) for arguments in items[len(jobs) :][: order.randrange(4)]]
        jobs += new
        scheduler.submit(new)
        scheduler.step()
        most = max(most, scheduler.live)
    assert most == 4
    for each, arguments in zip(jobs, items, strict=True):
        same_as_alone(model, each.listener, arguments)


@pytest.mark.seeds("arXiv:2305.13484")
def test_a_batch_of_one_takes_rows_in_and_numbers_stay_few(monkeypatch: pytest.MonkeyPatch) -> None:
    rows_begin_in_the_order_in_which_they_came()
    a_client_without_a_row_takes_the_newest_of_one_with_several()
    rows_that_join_together_keep_their_own_requests()
    with monkeypatch.context() as patch:
        test_batch_whose_forward_stood_still_does_not_wait_until_all_others_had_as_long(patch)
    model = pardec.load("tiny-llama", device="cpu")
    scheduler = Scheduler(model, slots=3)
    long, late = problem(0, 60, stop_ids=[]), [problem(at, 2 + at % 3, stop_ids=[]) for at in range(1, 12)]
    jobs = [job(model, **long)]
    scheduler.submit(jobs)
    scheduler.step()
    for arguments in late:
        scheduler.step()
        jobs.append(job(model, **arguments))
        scheduler.submit(jobs[-1:])
    (batch,) = scheduler._batches.values()
    assert isinstance(batch, TokenBatch)
    assert batch.cost.rows > 5
    assert len(batch._loop.recorder.lengths) <= 3
    while not scheduler.idle:
        scheduler.step()
    scheduler.submit([job(model, **arguments) for arguments in late[:5]])
    scheduler.step()
    assert scheduler.live == 3, "every slot is used, and no more"
    for each, arguments in zip(jobs, [long, *late], strict=True):
        same_as_alone(model, each.listener, arguments)


def test_a_batch_that_takes_no_rows_is_waited_for() -> None:
    model = pardec.load("tiny-llama", device="cpu")
    scheduler = Scheduler(model, slots=4)
    closed, other = {"sampler": "layerskip:k=3,skip=search", "stop_ids": []}, {"sampler": "lookup"}
    items = [problem(0, 24, **closed), problem(1, 12, **closed), problem(2, 5, **other)]
    jobs = [job(model, **arguments) for arguments in items]
    scheduler.submit(jobs[:1])
    scheduler.step()
    scheduler.submit(jobs[1:])
    scheduler.step()
    assert scheduler.live == 2  # the first and the last
    while not scheduler.idle:
        scheduler.step()
    assert [each.listener.waited is None for each in jobs] == [True, False, True]  # type: ignore[attr-defined]
    for each, arguments in zip(jobs, items, strict=True):
        same_as_alone(model, each.listener, arguments)


@pytest.mark.parametrize("name", MIXED)
def test_a_row_that_nobody_wants_leaves_before_the_next_forward(name: str) -> None:
    model = pardec.load(name, device="cpu")
    scheduler = Scheduler(model, slots=3)
    slow = {"tiny-dream": "fixed:steps=24", "tiny-llama": "sequential"}[name]
    items = [problem(at, 24, stop_ids=[], sampler=slow) for at in range(5)]
    jobs = [job(model, **arguments) for arguments in items]
    scheduler.submit(jobs)
    scheduler.step()
    scheduler.step()
    (batch,) = scheduler._batches.values()
    scheduler.cancel([jobs[0], jobs[1], jobs[4]])
    assert (scheduler.live, len(scheduler.waiting)) == (1, 1)
    assert len(batch.live) == 1
    while not scheduler.idle:
        scheduler.step()
    scheduler.cancel(jobs)  # too late for all
    for at in (0, 1, 4):
        assert jobs[at].listener.result is None  # type: ignore[attr-defined]
    for at in (2, 3):
        same_as_alone(model, jobs[at].listener, items[at])
    assert not scheduler._batches


def test_progress_is_reported_until_the_end() -> None:
    model = pardec.load("tiny-dream", device="cpu")
    scheduler, waiter = Scheduler(model, slots=2), Waiter(wants_progress=True)
    scheduler.submit([job(model, waiter, **problem(1, 24, stop_ids=[])), job(model, **problem(2, 24))])
    while not scheduler.idle:
        scheduler.step()
    assert waiter.settled == sorted(waiter.settled)
    assert len(waiter.settled) == waiter.result.nfe[0] - 1


def test_an_error_fails_the_row_that_it_is_of_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    model = pardec.load("tiny-llama", device="cpu")
    scheduler = Scheduler(model, slots=4)
    items = [problem(0, 12), problem(1, 12), problem(2, 12, sampler="lookup")]
    jobs = [job(model, **arguments) for arguments in items]
    scheduler.submit(jobs)
    scheduler.step()
    original = TokenBatch.advance

    def advance(batch: TokenBatch) -> Any:
        if jobs[1].row in batch.live:
            raise ModelError("not finite")
        return original(batch)

    monkeypatch.setattr(TokenBatch, "advance", advance)
    while not scheduler.idle:
        scheduler.step()
    errors = [each.listener.error for each in jobs]  # type: ignore[attr-defined]
    assert [isinstance(error, ModelError) for error in errors] == [False, True, False]
    for at in (0, 2):
        same_as_alone(model, jobs[at].listener, items[at])


def test_images_of_vectors_come_a_batch_at_a_time() -> None:
    model = pardec.load("tiny-mar", device="cpu")
    scheduler = Scheduler(model, slots=4)
    items: list[dict[str, Any]] = [{"label": at, "seed": [at], "sampler": "mar:steps=6,head=5"} for at in range(3)]
    jobs = [job(model, **arguments) for arguments in items]
    scheduler.submit(jobs[:2])
    scheduler.step()
    scheduler.submit(jobs[2:])
    scheduler.step()
    scheduler.cancel(jobs[:1])
    while not scheduler.idle:
        scheduler.step()
    assert jobs[0].listener.result is None  # type: ignore[attr-defined]
    for each, arguments in zip(jobs[1:], items[1:], strict=True):
        result, alone = each.listener.result, model.generate(**arguments)  # type: ignore[attr-defined]
        near = 3e-4 * float(alone.latents.abs().max())  # how a batch is multiplied rounds otherwise than a row alone
        torch.testing.assert_close(result.latents, alone.latents, atol=near, rtol=0)
    assert "whole batch" in jobs[2].listener.waited  # type: ignore[attr-defined]


def rows_begin_in_the_order_in_which_they_came() -> None:
    """Two slots: the first two of four rows begin together, and each of the others when one of these is over."""
    model, live = pardec.load("tiny-llama", device="cpu"), list[set[int]]()
    scheduler = Scheduler(model, slots=2)
    jobs = [job(model, **problem(at, new, stop_ids=[])) for at, new in enumerate((2, 4, 4, 2))]
    scheduler.submit(jobs)
    while not scheduler.idle:
        scheduler._admit()
        live.append({at for at, each in enumerate(jobs) if each.row in scheduler._jobs})
        scheduler.step()
    order = [each for at, each in enumerate(live) if not at or each != live[at - 1]]
    assert order == [{0, 1}, {1, 2}, {2, 3}]
    scheduler, others = Scheduler(model, slots=2), [job(model, **problem(at, 2, stop_ids=[])) for at in range(3)]
    for each, client in zip(others, ("one", "one", "another"), strict=True):
        each.client = client
    scheduler.submit(others)
    scheduler._admit()
    assert [each.row in scheduler._jobs for each in others] == [True, False, True], "who has fewest rows comes first"


@pytest.mark.parametrize(
    ("arguments", "follows", "begins_again"),
    [
        ({"sampler": "auto", "temperature": 1.0}, True, False),
        ({"sampler": "auto", "temperature": 1.0}, False, True),
        ({"sampler": "auto"}, True, True),
        ({"sampler": "auto:measured=false", "temperature": 1.0}, True, True),
    ],
)
def test_a_followed_row_that_would_draw_other_tokens_does_not_begin_again(
    arguments: dict[str, Any], follows: bool, begins_again: bool
) -> None:
    model = pardec.load("tiny-llama", device="cpu")

    def begun() -> tuple[Scheduler, list[Job]]:
        scheduler = Scheduler(model, slots=2)
        rows = [problem(at, 9, stop_ids=[], **arguments) for at in range(2)]
        jobs = [job(model, Waiter(wants_progress=follows), **each) for each in rows]
        scheduler.submit(jobs)
        scheduler.step()
        return scheduler, jobs

    scheduler, jobs = begun()
    late = job(model, **problem(5, 9))
    late.client = "another"
    scheduler.submit([late])
    scheduler._admit()
    assert [each.row in scheduler._jobs for each in (*jobs, late)] == [True, not begins_again, begins_again]

    scheduler, jobs = begun()
    scheduler._break_up(jobs[0].kind, ModelError("not finite"))
    failed = [each.listener.error is not None for each in jobs]  # type: ignore[attr-defined]
    assert failed == [not begins_again] * 2
    assert list(scheduler.waiting) == (jobs if begins_again else [])


def rows_that_join_together_keep_their_own_requests() -> None:
    model = pardec.load("tiny-llama", device="cpu")
    scheduler, items = Scheduler(model, slots=3), [problem(at, new) for at, new in enumerate((9, 3, 5))]
    jobs = [job(model, **arguments) for arguments in items]
    for some in (jobs[:1], jobs[1:]):
        scheduler.submit(some)
        scheduler.step()
    assert scheduler.live == 3
    while not scheduler.idle:
        scheduler.step()
    for each, arguments in zip(jobs, items, strict=True):
        same_as_alone(model, each.listener, arguments)


def a_client_without_a_row_takes_the_newest_of_one_with_several() -> None:
    """Which begins again before all that wait; a batch of a new kind begins with the least time of the others."""
    model = pardec.load("tiny-llama", device="cpu")
    scheduler = Scheduler(model, slots=3)
    jobs = [job(model, **problem(at, 9, stop_ids=[])) for at in range(4)]
    scheduler.submit(jobs)
    scheduler.step()
    late = job(model, **problem(5, 9, sampler="lookup", stop_ids=[]))
    late.client = "another"
    scheduler.submit([late])
    scheduler._admit()
    assert [each.row in scheduler._jobs for each in (*jobs, late)] == [True, True, False, False, True]
    assert [jobs.index(each) for each in scheduler.waiting] == [2, 3]
    scheduler.cancel(jobs[1:])
    (one, other), scheduler._spent = scheduler._spent, dict(zip(scheduler._spent, (4.0, 2.5), strict=True))
    third = job(model, **problem(6, 9, sampler="sequential", temperature=1, stop_ids=[]))
    scheduler.submit([third])
    scheduler._admit()
    assert scheduler._spent == {one: 4.0, other: 2.5, third.kind: 2.5}
