"""The caller's stopping criteria and logits processors in transformers' generate, with `custom_generate`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import StoppingCriteria
from transformers.generation import (
    MaxLengthCriteria,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
)

from pardec.interop.transformers import generate
from pardec.models.errors import SpecError
from tests.pardec.interop.tiny_llama import IDS, llama, new, same

# --- criteria ---


class Once(StoppingCriteria):
    """Stops all rows as soon as the last token of any row is the one before it plus a number."""

    def __init__(self, form: str) -> None:
        self.form = form

    def __call__(self, input_ids: Tensor, scores: Any, **more: Any) -> Any:
        any_row = bool((input_ids[:, -1] == input_ids[:, -2]).any())
        if self.form == "bool":
            return any_row
        return torch.tensor(any_row) if self.form == "scalar" else torch.full((len(input_ids),), any_row)


class Counting(StoppingCriteria):
    """Stops row r at its call number r + 3."""

    def __init__(self) -> None:
        self.asked = 0

    def __call__(self, input_ids: Tensor, scores: Any, **more: Any) -> Tensor:
        self.asked += 1
        return torch.arange(len(input_ids)) + 3 <= self.asked


class Shorter(MaxLengthCriteria):
    """A subclass of a known criterion with its own rule."""

    def __call__(self, input_ids: Tensor, scores: Any, **more: Any) -> Tensor:
        return torch.full((len(input_ids),), input_ids.shape[1] >= self.max_length - 4)


CRITERIA: dict[str, Callable[[], Any]] = {
    "a bool for the batch": lambda: [Once("bool")],
    "a scalar for the batch": lambda: [Once("scalar")],
    "the batch in every row": lambda: [Once("rows")],
    "a memory": lambda: [Counting()],
    "a class that is changed": lambda: [Shorter(20)],
    "several": lambda: [Counting(), Once("rows")],
}


@pytest.mark.parametrize("ends", [None, [2, 7, 11, 19]], ids=["no end token", "end tokens"])
@pytest.mark.parametrize("what", CRITERIA)
@pytest.mark.covers(1)
def test_criteria_are_asked_as_transformers_asks_them(what: str, ends: Any) -> None:
    model = new()
    model.generation_config.eos_token_id = ends
    late = same(model, pad_token_id=0)
    early = same(model, pad_token_id=0, stopping_criteria=CRITERIA[what])
    assert early.shape[1] <= late.shape[1]
    if what in ("a memory", "a class that is changed"):
        assert early.shape[1] < late.shape[1] or ends
    same(model, pad_token_id=0, stopping_criteria=CRITERIA[what], ids=IDS[:1])


def test_what_a_criterion_is_given_is_what_transformers_gives_it() -> None:
    told: list[list[Any]] = []

    class Telling(StoppingCriteria):
        def __init__(self) -> None:
            self.told: list[Any] = []
            told.append(self.told)

        def __call__(self, input_ids: Tensor, scores: Any, **more: Any) -> Tensor:
            self.told.append((input_ids.tolist(), scores))
            return torch.zeros(len(input_ids), dtype=torch.bool)

    model = new()
    model.generation_config.eos_token_id = [2, 7, 11, 19]
    same(model, pad_token_id=0, stopping_criteria=lambda: [Telling()])
    assert told[0] == told[1]


# --- processors ---


class Memory:
    """A processor with state: it forbids more of the vocabulary at each call."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.calls += 1
        return scores


class Listed(Memory):
    def __init__(self) -> None:
        self.lengths: list[int] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.lengths.append(input_ids.shape[1])
        return scores


class Lazy:
    """A processor that caches a tensor at its first call, which does not depend on earlier calls."""

    mask: Tensor | None = None

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        if self.mask is None:
            self.mask = torch.arange(scores.shape[1]) % 3 == 0
        return scores.masked_fill(self.mask, -torch.inf)


def closed() -> Callable[[Tensor, Tensor], Tensor]:
    numbers = iter(range(100))

    def process(input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores + next(numbers) * (torch.arange(scores.shape[1]) == 5)

    return process


class Penalty(RepetitionPenaltyLogitsProcessor):
    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return super().__call__(input_ids, scores) + 1


class Constraint(PrefixConstrainedLogitsProcessor):
    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return super().__call__(input_ids, scores).roll(1, -1)


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize(
    ("made", "says"),
    [
        (Memory, r"Memory keeps state between calls \(in calls\)"),
        (Listed, r"Listed keeps state between calls \(in lengths\)"),
        (closed, "function returns something else when it is called again"),
        (lambda: lambda ids, scores: scores + torch.rand_like(scores), "when it is called again"),
        (lambda: lambda ids, scores: scores - scores.mean(), "in a batch than alone"),
        (lambda: lambda ids, scores: scores * (ids[:1, -1:] % 3), "in a batch than alone"),
        (lambda: lambda ids, scores: scores.mean(1), r"gives \[\d\] for scores"),
        (lambda: lambda ids, scores: None, "gives NoneType for scores"),
        (lambda: Penalty(1.5), "Penalty is a subclass of a processor that uses"),
        (lambda: Constraint(lambda row, ids: [3, 4], 1), "Constraint is a subclass of a processor that uses"),
    ],
)
def test_a_processor_that_is_no_function_of_a_rows_text_is_refused(made: Any, says: str, rows: int) -> None:
    ids = IDS[:rows]  # of one row too: the nodes of a draft are rows to a processor
    how = {"max_new_tokens": 4, "do_sample": False, "custom_generate": generate, "sampler": "lookup"}
    with pytest.raises(SpecError, match=says) as error:
        llama().generate(ids, attention_mask=torch.ones_like(ids), logits_processor=[made()], **how)
    assert error.value.hint


def test_processors_of_the_callers_that_are_such_functions_run() -> None:
    plain = same()
    for made in (Lazy, lambda: lambda ids, scores: scores.roll(1, -1) + (ids[:, -1:] % 5)):
        assert not torch.equal(same(logits_processor=lambda made=made: [made()]), plain)
    same(prefix_allowed_tokens_fn=lambda: lambda row, ids: [3 + row, 9, 12 + len(ids) % 3])
