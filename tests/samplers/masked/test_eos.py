"""A row ends at its first end token once everything before it is committed: eight tokens by hand."""

from __future__ import annotations

import pytest
import torch

from pardec.samplers.events import Finished
from tests.samplers.toys import Table, altered, request, run, table

SURE = (0.95, 0.60, 0.91, 0.97, 0.99, 0.85, 0.901, 0.45)
PAD, EOS, MASK = 4, 5, 6
M = MASK


def distributions(ends: tuple[int, ...]) -> torch.Tensor:
    """Distributions in which token 1 is the likeliest, except the end token at `ends`."""
    made = torch.zeros(8, 7)
    for place, sure in enumerate(SURE):
        made[place, [0, 1, 2, 3, EOS]] = (1 - sure) / 4
        made[place, EOS if place in ends else 1] = sure
    return made


def decoded(
    spec: str, ends: tuple[int, ...], *, block: int = 8, row: list[int] | None = None, **options: object
) -> Finished:
    options.setdefault("stop_ids", (EOS,))
    return run(table(distributions(ends)), spec, request([row or [M] * 8], [0], block_length=block, **options))


@pytest.mark.parametrize(
    ("spec", "ends", "block", "steps", "reason"),
    [
        # Step 0 commits all that pass 0.9, the end token at 3 too; 1 is open before it until step 2.
        ("threshold:tau=0.9+eos", (3,), 8, [0, 2, 0, 0, 0, 1, 0, -2], "stop"),
        ("threshold:tau=0.9+eos", (3,), 4, [0, 1, 0, 0, -2, -2, -2, -2], "stop"),
        ("threshold:tau=0.9+eos:reference=true", (3,), 4, [0, 1, 0, 0, -2, -2, -2, -2], "stop"),
        ("threshold:tau=0.9+eos:reference=true", (2,), 4, [0, 1, 0, 0, -2, -2, -2, -2], "stop"),
        ("threshold:tau=0.9+eos:reference=true", (3,), 8, [0, 2, 0, 0, 0, 1, 0, 3], "stop"),
        ("threshold:tau=0.9+eos", (0,), 8, [0, -2, 0, 0, 0, -2, 0, -2], "stop"),
        ("threshold:tau=0.9+eos", (2, 4), 8, [0, 2, 0, 0, 0, 1, 0, -2], "stop"),
        ("threshold:tau=0.9+eos", (7,), 8, [0, 2, 0, 0, 0, 1, 0, 3], "stop"),
        ("threshold:tau=0.9+eos", (), 8, [0, 2, 0, 0, 0, 1, 0, 3], "length"),
        ("threshold:tau=0.9", (3,), 8, [0, 2, 0, 0, 0, 1, 0, 3], "length"),
        ("sequential+eos", (4,), 8, [2, 6, 3, 1, 0, 5, 4, -2], "stop"),
    ],
)  # fmt: skip
def test_eight_tokens_by_hand(spec: str, ends: tuple[int, ...], block: int, steps: list[int], reason: str) -> None:
    got = decoded(spec, ends, block=block)
    assert got.trace.commit_step[0].tolist() == steps
    assert got.tokens[0].tolist() == [PAD if s == -2 else EOS if p in ends else 1 for p, s in enumerate(steps)]
    assert got.reasons == (reason,)
    assert got.nfe == (max(steps) + 1,)
    assert got.trace.commit_score[0, [p for p, s in enumerate(steps) if s == -2]].tolist() == [0.0] * steps.count(-2)


def test_a_given_end_token_stops_nothing() -> None:
    got = decoded("threshold:tau=0+eos", (), row=[M, EOS, M, M, EOS, M, M, M])
    assert got.tokens[0].tolist() == [1, EOS, 1, 1, EOS, 1, 1, 1]
    assert got.reasons == ("length",)


def test_tokens_given_after_the_end_stay() -> None:
    got = decoded("sequential+eos", (4,), row=[1, 1, 1, 1, M, M, 2, M])
    assert got.tokens[0].tolist() == [1, 1, 1, 1, EOS, PAD, 2, PAD]
    assert got.nfe == (1,)


@pytest.mark.parametrize("stop_ids", [(), (0,)])
def test_other_stop_ids(stop_ids: tuple[int, ...]) -> None:
    assert decoded("threshold:tau=0.9+eos", (3,), stop_ids=stop_ids).reasons == ("length",)


def test_several_stop_ids_end_at_whichever_comes_first() -> None:
    got = decoded("sequential+eos", (4,), stop_ids=(EOS, 1), row=[0, 0, M, M, M, M, M, M])
    assert got.tokens[0].tolist() == [0, 0, 1, 1, EOS, PAD, PAD, PAD]


def test_a_stopped_row_leaves_the_others_alone() -> None:
    rows = [[M] * 8, [M] * 5, [1, 1, 1, M, M]]
    got = run(
        table(distributions((3,))),
        "threshold:tau=0.9+eos@dual",
        request(rows, [0, 0, 3], block_length=8, stop_ids=(EOS,)),
    )
    assert got.nfe == (3, 2, 1)
    assert got.reasons == ("stop", "stop", "stop")
    assert got.tokens[2].tolist() == [1, 1, 1, EOS, 1, PAD, PAD, PAD]


def test_nothing_is_asked_after_the_end() -> None:
    forwards: list[int] = []
    model = altered(table(distributions((0,))), lambda logits: forwards.append(1) or logits)
    assert isinstance(model.decoder.inner, Table)
    run(model, "sequential+eos", request([[M, M, M, M]], [0], block_length=1, stop_ids=(EOS,)))
    assert len(forwards) == 1
