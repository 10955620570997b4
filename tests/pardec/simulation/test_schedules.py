"""Schedules of handmade rounds: times computed independently, and no interval before its inputs."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from pardec.models.errors import SpecError
from pardec.models.layers.layer_groups import stages
from pardec.simulation import SCHEDULES, Machine
from pardec.simulation.exits import Exit
from pardec.simulation.schedules import timeline
from pardec.simulation.setting import ID_BYTES, Round, Setting
from pardec.simulation.timeline import Timeline
from tests.pardec.simulation.timelines import violations

K = 4
# Two rows of rounds that draft K tokens, of which so many are accepted.
ACCEPTED = ((4, 0, 2, 4, 4), (1, 3, 0))
ROWS = [[Round(10, K + 1, K, accepted, accepted + 1, K) for accepted in row] for row in ACCEPTED]
COUNT = sum(map(len, ROWS))


def machine(target: str = "a", draft: tuple[str, ...] = ("b",), link: float = 0.0, **costs: Any) -> Machine:
    """A machine where a layer of the target takes 1 second and one of the drafter 0.25, for any number of tokens."""
    names = sorted({target, *draft})
    devices = {
        name: {"target": {"layer": costs.get("t", 1.0)}, "draft": {"layer": costs.get("d", 0.25)}} for name in names
    }
    cost = {"seconds": link, "seconds_per_byte": costs.get("per_token", 0.0) / ID_BYTES}
    links = [{"between": [one, other], **cost} for one in names for other in names if one < other]
    return Machine.of({"roles": {"target": target, "draft": list(draft)}, "devices": devices, "links": links})


def setting(where: Machine, **more: Any) -> Setting:
    return replace(Setting(where, target_layers=3, draft_layers=2, draft_tokens=K), **more)


T, D = 3.0, 0.5  # a forward of each, with these layers


def hits(rate: int) -> Exit:
    """An exit with a hit in every `rate`-th round, from the first on."""
    return Exit(0, 2, tuple(tuple(0 if number % rate == 0 else 9 for number in range(len(row))) for row in ROWS))


def clock(name: str, where: Setting, rows: Any = ROWS) -> Timeline:
    return timeline(name, where, rows, hits(2))


@pytest.mark.parametrize("link", [0.0, 0.1, 3.0])
@pytest.mark.parametrize("draft", [("a",), ("b",), ("b", "c"), ("b", "c", "a")])
@pytest.mark.parametrize("name", SCHEDULES)
def test_nothing_is_read_before_it_is_there_and_no_device_does_two_things(
    name: str, draft: tuple[str, ...], link: float
) -> None:
    where = setting(machine(draft=draft, link=link), parallel=2, draft_layers=5, draft_state_bytes=8, state_bytes=4)
    if name == "dovetail" and "a" in draft:
        with pytest.raises(SpecError, match="on different devices"):
            clock(name, where)
        return
    done = clock(name, where)
    assert violations(done) == []
    assert all(share <= 1 + 1e-9 for share in done.utilisation().values())
    assert done.seconds == pytest.approx(max(each.end for each in done.intervals))
    rounds = {(each.row, each.round) for each in done.intervals}
    tokens = [sum(each.gained for each in row) for row in ROWS]
    assert len(rounds) == (sum(tokens) if name == "sequential" else COUNT)


def test_what_breaks_causality_is_reported() -> None:
    done = clock("plain", setting(machine()))
    at = next(index for index, each in enumerate(done.intervals) if each.name == "verify")
    early = replace(done.intervals[at], start=0.1)
    done.intervals[at] = early
    assert any("reads" in each for each in violations(done))
    done.intervals[at] = replace(early, reads=(), start=0.0, end=9.0)
    assert any("overlap on a" in each for each in violations(done))
    with pytest.raises(KeyError):
        Timeline().run("verify", "a", 1.0, reads=("nothing",), makes="x", row=0, round=0)


def test_on_one_device_a_plain_clock_is_rounds_times_k_drafts_and_a_verification() -> None:
    one = clock("plain", setting(machine(draft=("a",))))
    assert one.seconds == pytest.approx(COUNT * (K * D + T))
    assert one.utilisation() == {"a": pytest.approx(1.0)}
    assert clock("plain", setting(machine())).seconds == pytest.approx(one.seconds)
    tokens = sum(each.gained for row in ROWS for each in row)
    assert clock("sequential", setting(machine())).seconds == pytest.approx(tokens * T)


def test_links_are_paid_twice_a_round() -> None:
    linked = clock("dovetail", setting(machine(link=0.2))).seconds
    free = clock("plain", setting(machine())).seconds
    assert linked - free == pytest.approx(0.2 * (2 * COUNT - 1))  # before the first draft nothing has to cross
    # With its state of 8 bytes a committed token is 3 ids long. It crosses before the draft that reads it, a row's
    # first one as one token. The third round drafts nothing, so that the fourth reads 1 + 1 tokens.
    row = [
        Round(10, K + 1, K, 4, 5, K),
        Round(15, K + 1, K, 0, 1, K),
        Round(16, 1, 0, 0, 1, 0),
        Round(17, 5, K, 2, 3, K),
    ]
    done = clock("dovetail", setting(machine(per_token=0.01), state_bytes=8), [row, row[:1]])
    home = [each.end - each.start for each in done.intervals if each.copies and each.makes.endswith(" on b")]
    assert home == pytest.approx([0.03 * tokens for tokens in (5, 2, 1)])
    away = [each.end - each.start for each in done.intervals if each.copies and each.makes.endswith(" on a")]
    assert away == pytest.approx([0.01 * nodes for nodes in (K + 1, K + 1, 5, K + 1)])


@pytest.mark.parametrize("t", [0.2, 1.0])
def test_pearl_takes_the_longer_of_the_two(t: float) -> None:
    done = clock("pearl", setting(machine(t=t)))
    assert done.seconds == pytest.approx(COUNT * max(K * D, 3 * t))
    assert max(done.utilisation().values()) == pytest.approx(1.0)
    crossing = clock("pearl", setting(machine(t=t, link=0.1)))
    assert crossing.seconds > done.seconds
    sends = [each for each in clock("pearl", setting(machine(t=t, per_token=0.01))).intervals if each.copies]
    gained = [each.gained for row in ROWS for each in row]
    assert sorted(each.end - each.start for each in sends) == pytest.approx(
        sorted(0.01 * tokens for tokens in [K] * COUNT + gained)  # each draft, and what each verdict commits
    )


@pytest.mark.parametrize(("layers", "size"), [(5, 2), (7, 3), (4, 4)])
def test_easyspec_takes_stages_in_place_of_layers_but_for_the_first_forward(layers: int, size: int) -> None:
    devices = tuple("bcde"[:size])
    where = setting(machine(draft=devices), parallel=size, draft_layers=layers)
    expected = COUNT * (0.25 * (layers + (K - 1) * stages(layers, size)) + T)
    assert clock("easyspec", where).seconds == pytest.approx(expected)
    # To every other device and back a link is crossed by each group of several layers, beside the two ways of a round.
    linked = setting(machine(draft=devices, link=0.1), parallel=size, draft_layers=layers)
    more = 0.1 * (2 * COUNT - 1) + COUNT * (K - 1) * (stages(layers, size) - 1) * 0.2
    assert clock("easyspec", linked).seconds == pytest.approx(expected + more)
    fewer = setting(machine(draft=("b",)), parallel=size, draft_layers=layers)
    assert clock("easyspec", fewer).seconds == pytest.approx(COUNT * (0.25 * layers * K + T))


@pytest.mark.parametrize("d", [0.05, 0.25, 2.0])
@pytest.mark.parametrize("rate", [1, 2, 100])
def test_mirror_takes_the_longer_of_suffix_and_rollouts_and_drafts_again_after_a_miss(rate: int, d: float) -> None:
    done = timeline("mirror", setting(machine(d=d)), ROWS, hits(rate))
    target = drafter = 0.0  # when each is free; of three layers the exit is after the first
    for number, row in enumerate(ROWS):
        ready = False
        for at in range(len(row)):
            if not ready:  # rollouts of a miss are run to their end before
                drafter = max(target, drafter) + K * 2 * d
            lower = max(target, drafter) + 1
            target, drafter = lower + 2, max(lower, drafter) + K * 2 * d
            ready = hits(rate).hit(number, at)
    assert done.seconds == pytest.approx(max(target, drafter))
    if rate == 1 and d < 0.25:  # drafting is hidden but for each row's first
        assert done.seconds == pytest.approx(COUNT * T + len(ROWS) * K * 2 * d)
    crossing, named = list[int](), 2 * (K + 1)  # the exit's two candidates after each node
    for number, row in enumerate(ROWS):
        for at in range(len(row)):
            if not at or not hits(rate).hit(number, at - 1):  # a draft, after the text that it continues
                crossing += [row[at - 1].gained] if at else [1] * (number > 0)
                crossing.append(K + 1)
            crossing += [named, named * K] if hits(rate).hit(number, at) else [named]
    linked = timeline("mirror", setting(machine(per_token=0.01)), ROWS, hits(rate))
    sends = [each.end - each.start for each in linked.intervals if each.copies]
    assert sends == pytest.approx([0.01 * tokens for tokens in crossing])


def test_copies_have_no_drafter_and_an_empty_draft_nothing_to_wait_for() -> None:
    rows = [[Round(5, 3, 2, 2, 3, 0.0), Round(8, 1, 0, 0, 1, 0.0)]]
    for name in ("plain", "dovetail"):
        assert clock(name, setting(machine(link=1.0)), rows).utilisation().keys() <= {"a", "a - b"}
    assert clock("plain", setting(machine()), rows).seconds == 2 * T


def test_schedules_and_what_they_need_are_named() -> None:
    with pytest.raises(SpecError, match="unknown schedule 'jazz'"):
        timeline("jazz", setting(machine()), ROWS)
    with pytest.raises(SpecError, match="what an early exit predicts"):
        timeline("mirror", setting(machine()), ROWS)


def test_an_exit_hits_below_kappa() -> None:
    """Of ranks 0, 1, 2 and 3 the first two are among the two likeliest tokens."""
    found = Exit(0, 2, ((0, 1, 2, 3),))
    assert [found.hit(0, at) for at in range(4)] == [True, True, False, False]
    assert found.rate == 0.5


def test_a_forward_takes_as_long_as_its_tokens_on_its_own_device() -> None:
    """A tree of 8 nodes in 4 levels is drafted 2 at a time: 4 (.1 + 2 * .2) for one layer, then 9 * .5 + 1."""
    devices = {
        "a": {"target": {"layer": [1.0, 0.5]}, "draft": {"layer": [9.0, 9.0]}},
        "b": {"draft": {"layer": [0.1, 0.2]}, "target": {"layer": [7.0, 7.0]}},
    }
    links = [{"between": ["a", "b"], "seconds": 0.0}]
    where = Machine.of({"roles": {"target": "a", "draft": ["b"]}, "devices": devices, "links": links})
    done = clock("dovetail", Setting(where, target_layers=1, draft_layers=1), [[Round(10, 9, 4, 2, 3, 4)]])
    assert done.seconds == pytest.approx(4 * 0.5 + 5.5)
