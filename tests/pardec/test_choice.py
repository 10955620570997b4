"""`Model.choose`: labels in the slots of an answer, against forwards that are written out by hand."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
import torch
from torch import Tensor

import pardec
from pardec.models.errors import SpecError
from pardec.models.model import LanguageModel
from pardec.models.plan import Hidden, Plan

PROMPTS = ["Tom has 8 cups. He loses 3. How many cups does Tom have now?", "Ann has 4 cups."]
SLOTS = {"sign": ["+", "-", "minus 1"], "value": ["5", "12 cups", "7"]}
ANSWER = "8 {sign} 3 ={value}."


@pytest.fixture(scope="module", params=["tiny-dream", "tiny-llada", "tiny-llama"])
def model(request: pytest.FixtureRequest) -> pardec.Model:
    return pardec.load(request.param, device="cpu")


def ids(model: pardec.Model, text: str, *, special: bool = False) -> list[int]:
    found: list[int] = model.tokenizer(text, add_special_tokens=special)["input_ids"]
    return found


def split(model: pardec.Model, texts: list[str]) -> list[list[int]]:
    """The ids of consecutive texts, from the ids of all that comes before."""
    found: list[list[int]] = []
    for at in range(len(texts)):
        before, whole = [token for own in found for token in own], ids(model, "".join(texts[: at + 1]))
        assert whole[: len(before)] == before
        found.append(whole[len(before) :])
    return found


def log_probs(model: pardec.Model, row: list[int]) -> Tensor:
    """[L, V]: entry i is the distribution of the token at position i."""
    logits = model.logits(torch.tensor([row]))[0].double().log_softmax(-1)
    shift = model.language_model.decoding_config.shift
    return logits if shift == 0 else torch.cat([logits[:1], logits[:-1]])


def by_hand(model: pardec.Model, prompt: list[int]) -> dict[str, dict[str, float]]:
    """The log-likelihoods of SLOTS in ANSWER: a row for each label alone."""
    mask = model.driver.mask_id
    first, _, between, _, after = split(model, ["8", " +", " 3 =", "5", "."])
    pieces = [(first, "sign"), (between, "value")]
    tokens = {
        "sign": {label: split(model, ["8", f" {label}"])[1] for label in SLOTS["sign"]},
        "value": {label: split(model, ["8 + 3 =", label])[1] for label in SLOTS["value"]},
    }
    found: dict[str, dict[str, float]] = {name: {} for name in SLOTS}
    if mask is None:
        row = list(prompt)
        for before, name in pieces:
            row = row + before
            for label, own in tokens[name].items():
                scores = log_probs(model, row + own)
                found[name][label] = sum(float(scores[len(row) + i, token]) for i, token in enumerate(own))
            row = row + tokens[name][max(found[name], key=found[name].__getitem__)]
        return found
    for name, labels in tokens.items():
        for label, own in labels.items():
            row, start = list(prompt), 0
            for before, each in pieces:
                row += before
                start = len(row) if each == name else start
                row += [mask] * (len(own) if each == name else max(map(len, tokens[each].values())))
            scores = log_probs(model, row + after)
            found[name][label] = sum(float(scores[start + i, token]) for i, token in enumerate(own))
    return found


def test_ragged_labels_in_two_slots_and_a_ragged_batch_equal_rows_by_hand(model: pardec.Model) -> None:
    assert len({len(ids(model, f" {label}")) for label in SLOTS["sign"]}) > 1
    choices = model.choose(PROMPTS, slots=SLOTS, answer=ANSWER)
    for prompt, choice in zip(PROMPTS, choices, strict=True):
        expected = by_hand(model, ids(model, prompt, special=True))
        for name, labels in SLOTS.items():
            assert list(choice.log_likelihoods[name]) == labels
            assert list(choice.log_likelihoods[name].values()) == pytest.approx(list(expected[name].values()), abs=1e-3)
            total = sum(math.exp(value) for value in expected[name].values())
            shares = [math.exp(value) / total for value in expected[name].values()]
            assert list(choice.probabilities[name].values()) == pytest.approx(shares, abs=1e-3)
            assert choice.best[name] == max(expected[name], key=expected[name].__getitem__)


def test_all_labels_of_one_length_take_one_forward_of_one_row(
    model: pardec.Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes, forward = [], LanguageModel.forward

    def counted(network: LanguageModel, plan: Plan) -> Hidden:
        shapes.append(plan.tokens.shape[0])
        return forward(network, plan)

    monkeypatch.setattr(LanguageModel, "forward", counted)
    model.choose(PROMPTS[0], slots={"a": ["5", "6", "7"], "b": ["1", "2"]}, answer="{a} {b}")
    assert shapes == ([1] if model.family == "masked" else [3, 2])
    shapes.clear()
    model.choose(PROMPTS, slots=SLOTS, answer=ANSWER)
    if model.family == "masked":
        assert shapes == [2 * 3]  # in one forward: each prompt, and once more for the further length of each slot


def test_conversations_and_the_default_answer(model: pardec.Model) -> None:
    slots = {"a": ["5", "6"], "b": ["1", "2"]}
    conversation = [{"role": "user", "content": PROMPTS[0]}]
    [lines] = model.choose(conversation, slots=slots)
    [written] = model.choose(conversation, slots=slots, answer="a: {a}\nb: {b}")
    assert lines == written
    [alone] = model.choose(conversation, slots={"a": ["5", "6"]})
    assert alone == model.choose(conversation, slots={"a": ["5", "6"]}, answer="{a}")[0]
    [same] = model.choose(input_ids=[ids(model, PROMPTS[0], special=True)], slots={"a": ["5", "6"]})
    assert same == model.choose(PROMPTS[0], slots={"a": ["5", "6"]})[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"slots": {}}, "slots must map each name"),
        ({"slots": {"a": ["x"]}}, "a needs at least two labels"),
        ({"slots": {"a": "xy"}}, "a needs at least two labels"),
        ({"slots": {"a": ["x", ""]}}, "a has the label ''"),
        ({"slots": {"a": ["x", "y", "x"]}}, "a has the label 'x' twice"),
        ({"slots": {"a b": ["x", "y"]}}, "slots has the name 'a b'"),
        ({"slots": {"mood": ["x", "y"]}, "answer": "{moot}"}, "slot 'moot' without labels (did you mean 'mood'"),
        ({"slots": {"a": ["x", "y"]}, "answer": "{a} {a}"}, "the slot 'a' twice"),
        ({"slots": {"a": ["x", "y"]}, "answer": "none"}, "answer has no slot 'a'"),
        ({"slots": {"a": ["x", "y"]}, "answer": "{a:>3}"}, "a conversion or format after the slot 'a'"),
        ({"slots": {"a": ["x", "y"]}, "answer": "{a"}, "cannot be read"),
        ({"slots": {"a": ["x", "y"]}, "prompt": "Tom has 3 cups. " * 400}, "positions"),
    ],
)
def test_what_cannot_work_is_refused_by_name(model: pardec.Model, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        model.choose(**{"prompt": "Tom", **arguments})
    assert message in str(caught.value)
    assert caught.value.hint


def test_labels_that_begin_one_another_are_refused_from_left_to_right() -> None:
    slots = {"a": ["1", "1 2"]}
    with pytest.raises(SpecError, match="the label '1' of a begins the label '1 2'"):
        pardec.load("tiny-llama", device="cpu").choose("Tom", slots=slots)
    assert len(pardec.load("tiny-dream", device="cpu").choose("Tom", slots=slots)) == 1


def chosen(name: str, *, worked: bool) -> tuple[float, float]:
    """The share of word problems with the right number among four, and the mean probability of the chosen one."""
    model, right, sure = pardec.load(name, device="cpu"), [], []
    for problem in pardec.task("arithmetic").problems(split="heldout", n=24, seed=5):
        *steps, last = problem.answer.split("; ")
        number = last.removeprefix("answer ")
        near = random.Random(problem.id).sample([int(number) + step for step in (-10, -3, -2, -1, 1, 2, 3, 10)], 3)
        shown = "; ".join([*steps[:-1], steps[-1].rpartition(" ")[0]]) if worked else "answer"
        labels = [number, *(str(other) for other in near if other > 9)]  # "5" would begin "52"
        if len(number) == 1:
            continue
        [choice] = model.choose(problem.prompt, slots={"number": labels}, answer=f"{shown} {{number}}")
        right.append(choice.best["number"] == number)
        sure.append(choice.probabilities["number"][choice.best["number"]])
    return sum(right) / len(right), sum(sure) / len(sure)


def test_one_canvas_forward_is_as_calibrated_as_exact_likelihoods() -> None:
    for worked in (True, False):
        accuracy, sure = chosen("tiny-llama", worked=worked)
        error = abs(sure - accuracy)
        for name in ("tiny-dream", "tiny-llada"):
            own_accuracy, own_sure = chosen(name, worked=worked)
            assert own_accuracy > (0.9 if worked else 0.25) - 0.1
            assert abs(own_sure - own_accuracy) <= error + 0.05
