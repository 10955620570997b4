"""Schedules: where each part of a round runs, and which outputs it waits for.

    sequential   the target alone, one token per forward
    plain        the drafter, then the target: rounds * (k d + t) on one device
    pearl        both at once: rounds * max(k d, t), https://arxiv.org/abs/2408.11850
    easyspec     as plain; groups of the drafter's layers run at once, https://arxiv.org/abs/2502.02493
    mirror       the drafter continues from the target's early exit: max(suffix, rollouts), https://arxiv.org/abs/2510.13161
    dovetail     as plain; the drafter and the target on different devices, https://arxiv.org/abs/2412.18934

A round ends with its verdict, the output of the target's forward, from which the next draft and forward begin.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pardec.models.errors import SpecError
from pardec.models.layers.layer_groups import SERIAL, group_of

from .exits import Exit
from .setting import ID_BYTES, Round, Row, Setting
from .timeline import Timeline

Schedule = Callable[[Row, str | None, Sequence[Round], Exit | None], str | None]


def timeline(
    schedule: str, setting: Setting, rows: Sequence[Sequence[Round]], exit_hits: Exit | None = None
) -> Timeline:
    """The intervals of all rows, each beginning at the end of the one before it.

    Raises SpecError for an unknown schedule, and for devices or links that it needs and the machine lacks.
    """
    if schedule not in SCHEDULES:
        raise SpecError(f"unknown schedule {schedule!r}", hint=f"it is one of {', '.join(SCHEDULES)}")
    result, last = Timeline(), None
    for number, row in enumerate(rows):
        last = SCHEDULES[schedule](Row(setting, result, number), last, row, exit_hits)
    return result


def sequential(row: Row, last: str | None, rounds: Sequence[Round], exit_hits: Exit | None) -> str | None:
    """One forward of the target per token."""
    device = row.setting.machine.target
    for number in range(sum(each.gained for each in rounds)):
        row.round = number
        last = row.run("forward", device, row.setting.target(1), reads=_after(last))
    return last


def plain(row: Row, last: str | None, rounds: Sequence[Round], exit_hits: Exit | None) -> str | None:
    """The forwards of the drafter, then the forward of the target."""
    for row.round, each in enumerate(rounds):
        last = _verify(row, each, _draft(row, each, _home(row, last, rounds)), last)
    return last


def dovetail(row: Row, last: str | None, rounds: Sequence[Round], exit_hits: Exit | None) -> str | None:
    """`plain` with two devices: tokens cross once per round, and states of the target that the drafter reads."""
    machine = row.setting.machine
    if machine.target in machine.draft:
        raise SpecError(
            f"{machine.name}: dovetail needs drafter and target on different devices, got {machine.target!r} for both",
            hint="name another device as draft in [roles]",
        )
    return plain(row, last, rounds, exit_hits)


def pearl(row: Row, last: str | None, rounds: Sequence[Round], exit_hits: Exit | None) -> str | None:
    """The target verifies the draft of the previous round while the drafter drafts on.

    Whether the drafter was right about the token after the draft is known when both are ready.
    """
    setting, machine = row.setting, row.setting.machine
    device = machine.draft[0]
    verdict, own, sent = last, None, None  # the verdict where the drafter is; the last draft there, and at the target
    for row.round, each in enumerate(rounds):
        verified = row.run("verify", machine.target, setting.target(each.nodes), reads=_after(last, sent))
        for number in range(setting.draft_tokens):
            seconds = setting.draft(1)
            own = row.run("draft", device, seconds, reads=_after(own, verdict), makes=f"draft {number}")
        assert own is not None, "it drafts in every round"
        sent = row.send(own, ID_BYTES * setting.draft_tokens, device, machine.target)
        last, verdict = verified, row.send(verified, ID_BYTES * each.gained, machine.target, device)
    return last if sent is None else row.run("verdict", machine.target, 0.0, reads=_after(last, sent))


def easyspec(row: Row, last: str | None, rounds: Sequence[Round], exit_hits: Exit | None) -> str | None:
    """`plain`, but from the second drafted token on, a group of layers runs on all devices in parallel."""
    for row.round, each in enumerate(rounds):
        home = _home(row, last, rounds)
        last = _verify(row, each, _draft(row, each, home, grouped=True), last)
    return last


def mirror(row: Row, last: str | None, rounds: Sequence[Round], exit_hits: Exit | None) -> str | None:
    """While the upper layers verify, the drafter drafts after every token that the early exit predicts.

    The exit gives kappa candidate tokens after each node of a draft. If the token after the accepted path is one of
    them, the next draft is ready.
    """
    if exit_hits is None:
        raise SpecError("mirror needs to know what an early exit predicts", hint="give an exit layer and kappa")
    setting, machine = row.setting, row.setting.machine
    target, device = machine.target, machine.draft[0]
    below = exit_hits.layer + 1
    ready: str | None = None  # the rollout that continues from the verdict, on the target's device
    for row.round, each in enumerate(rounds):
        draft = ready if ready is not None else _draft(row, each, _home(row, last, rounds))
        nodes, kappa = each.nodes, exit_hits.kappa
        lower = row.run(
            "lower layers", target, setting.layers("target", nodes, below, target), reads=_after(last, draft)
        )
        named = row.run("early exit", target, setting.head("target", nodes, target), reads=(lower,))
        rollout = row.send(named, ID_BYTES * nodes * kappa, target, device)
        for number in range(round(each.forwards)):
            seconds = setting.draft(nodes * kappa)
            rollout = row.run("rollout", device, seconds, reads=(rollout,), makes=f"rollout {number}")
        upper = setting.layers("target", nodes, setting.target_layers - below, target)
        last = row.run("verify", target, upper + setting.head("target", nodes, target), reads=(lower, named))
        hit = each.forwards and exit_hits.hit(row.number, row.round)
        ready = row.send(rollout, ID_BYTES * nodes * kappa * each.depth, device, target) if hit else None
    return last


SCHEDULES: dict[str, Schedule] = {
    "sequential": sequential,
    "plain": plain,
    "pearl": pearl,
    "easyspec": easyspec,
    "mirror": mirror,
    "dovetail": dovetail,
}


def _after(*parts: str | None) -> tuple[str, ...]:
    return tuple(part for part in parts if part is not None)


def _home(row: Row, last: str | None, rounds: Sequence[Round]) -> str | None:
    """Sends the tokens committed since the last draft to the drafter's device, with their states that it reads."""
    machine, tokens = row.setting.machine, 0
    if last is None or not rounds[row.round].depth:
        return last
    for number in range(row.round - 1, -1, -1):
        tokens += rounds[number].gained
        if rounds[number].depth:
            break
    size = ID_BYTES + row.setting.state_bytes
    return row.send(last, size * max(1, tokens), machine.target, machine.draft[0])


def _draft(row: Row, each: Round, home: str | None, *, grouped: bool = False) -> str | None:
    """The forwards of a round's draft, and its transfer to the target; None if nothing is drafted."""
    setting, machine = row.setting, row.setting.machine
    device = machine.draft[0]
    if not each.depth:
        return None
    state, left, number = home, each.forwards, 0
    while left > 0:
        if grouped and number and setting.parallel > 1:
            state = _parallel(row, each.width, state, number)
        else:
            share = min(left, 1.0)  # a forward that other rounds have a part of
            seconds = share * setting.draft(each.width)
            state = row.run("draft", device, seconds, reads=_after(state), makes=f"draft {number}")
        left, number = round(left - 1, 9), number + 1
    return None if state is None else row.send(state, ID_BYTES * each.nodes, device, machine.target)


def _parallel(row: Row, width: int, state: str | None, number: int) -> str:
    """One forward of the drafter in groups of layers: each group runs on all devices, its sum on the first."""
    setting, devices = row.setting, row.setting.machine.draft
    first, layer = devices[0], 0
    while layer < setting.draft_layers:
        group = group_of(layer, setting.draft_layers, setting.parallel)
        shares = [len(group[at :: len(devices)]) for at in range(len(devices))]
        changes = []
        for device, share in zip(devices, shares, strict=True):
            if not share:
                continue
            size = width * setting.draft_state_bytes
            begin = state if state is None else row.send(state, size, first, device)
            seconds = setting.layers("draft", width, share, device)
            name = f"draft {number}, layers {group.start + 1}-{group.stop} on {device}"
            change = row.run("draft" if layer < SERIAL else "layers", device, seconds, reads=_after(begin), makes=name)
            changes.append(row.send(change, size, device, first))
        layer = group.stop
        state = row.run("sum", first, 0.0, reads=tuple(changes), makes=f"draft {number}, up to layer {layer}")
    assert state is not None, "there is a layer"
    seconds = setting.head("draft", width, first)
    return row.run("draft head", first, seconds, reads=(state,), makes=f"draft {number}")


def _verify(row: Row, each: Round, draft: str | None, last: str | None) -> str:
    return row.run("verify", row.setting.machine.target, row.setting.target(each.nodes), reads=_after(last, draft))
