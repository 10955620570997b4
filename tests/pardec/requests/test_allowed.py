"""allowed=: every form of it, and every method, distribution, batch and template keeps to it."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pardec
from pardec.models.errors import SpecError
from tests.samplers.toys import FAMILIES, names, resolved, toy

TEXTS = ["Tom has 3 cups.", "Sara buys 12 apples and finds 4 more apples.", "Ann"]
MASK, NEW = 4, 7
LAWS: tuple[dict[str, Any], ...] = (
    {},
    {"temperature": 0.7},
    {"temperature": 0.7, "top_k": 5, "top_p": 0.9},
    {"cfg": 1.5},
)


CACHES = [name for name in ("none", "prefix", "dual") if name in names("cache")]
OTHERS = [name for stage in ("inputs", "logits", "propose", "widen", "revise", "finish") for name in names(stage)]
SPECS = [
    f"{select}@{cache}"
    for (at, select), (turn, cache) in product(enumerate(names("select")), enumerate(CACHES))
    if (at + turn) % 2 == 0  # each with half of the caches
]
# Parameters that make fills and revisions likely.
ACTIVE = [
    "sequential+prophet:early=0.0,mid=0.0,late=0.0@none",
    "fixed:steps=2+wino@dual",
    "fixed:steps=2+remdm",
    "fixed:steps=2+edit:tau=0.0",
]
SPECS = [spec for spec in (*SPECS, *ACTIVE, *(f"threshold:tau=0.3+{name}@none" for name in OTHERS)) if resolved(spec)]


def sets(count: int, *, vocab: int = 361, seed: int = 0) -> list[list[int] | None]:
    """Small sets for `count` positions: some free, some including the mask id, some of one token."""
    render = np.random.RandomState(seed)
    made: list[list[int] | None] = [render.randint(5, vocab - 4, 1 + i % 4).tolist() for i in range(count)]
    for i in range(count):
        if i % 5 == 4:
            made[i] = None
        elif i % 3 == 2:
            made[i] = [*(made[i] or []), MASK]
    return made


def held(result: pardec.Result, allowed: list[list[list[int] | None]], mask: int = MASK) -> bool:
    """Whether every position was committed, and every token committed by a forward is allowed."""
    for row, start in enumerate(result.prompts):
        for index, choices in enumerate(allowed[row]):
            done = result.trace.at(row, start + index)
            if done.forward == -2 or done.token == mask:
                return False
            if done.forward >= 0 and choices is not None and done.token not in choices:
                return False
    return True


@pytest.mark.parametrize("spec", SPECS)
def test_every_method_keeps_to_what_is_allowed(model: pardec.Model, spec: str) -> None:
    distribution = LAWS[sum(map(ord, spec)) % len(LAWS)]
    each = [sets(NEW, seed=row) for row in range(3)]
    fixed: dict[str, Any] = {"sampler": spec, "max_new_tokens": NEW, "block_length": 4, "stop_ids": [], **distribution}
    if "levenshtein" in spec or "grow" in spec:
        with pytest.raises(SpecError, match="for fixed positions, and (levenshtein|grow) moves tokens"):
            model.generate(TEXTS, allowed=each, seed=[1, 2, 3], **fixed)
        return
    free = model.generate(TEXTS, seed=[1, 2, 3], **fixed)
    assert not held(free, each)  # or the constraint would say nothing
    together = model.generate(TEXTS, allowed=each, seed=[1, 2, 3], **fixed)
    assert held(together, each)
    alone = model.generate(TEXTS[1], allowed=each[1], seed=[2], **fixed)
    assert alone.tokens[0] == together.tokens[1]


@pytest.mark.parametrize("distribution", LAWS)
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.covers(1)
def test_families_and_laws_keep_to_what_is_allowed(family: str, distribution: dict[str, Any]) -> None:
    model = pardec.Model(toy(family, sharp=1.2))
    ids, each = [[1, 2, 3], [4, 5, 6, 7, 8, 9]], [sets(9, vocab=20, seed=row) for row in (3, 4)]
    clean = [[None if s is None else [i for i in s if i != MASK] or [5] for s in row] for row in each]
    for sampler in ("threshold:tau=0.4@dual", "fixed:steps=3", "random"):  # block-causal families bring `block`
        arguments: dict[str, Any] = {
            "input_ids": ids,
            "max_new_tokens": 9,
            "stop_ids": [],
            "sampler": sampler,
            **distribution,
        }
        assert held(model.generate(allowed=clean, **arguments), clean, mask=19)


@pytest.mark.parametrize("distribution", LAWS)
@pytest.mark.parametrize("sampler", ["threshold:tau=0.0@dual", "random", "sequential@prefix"])
def test_one_token_a_position_gives_exactly_that_text(
    model: pardec.Model, sampler: str, distribution: dict[str, Any]
) -> None:
    text = "Sara sells 4 apples."
    forced = model.tokenizer(text, add_special_tokens=False)["input_ids"]
    arguments: dict[str, Any] = {"max_new_tokens": len(forced), "sampler": sampler, **distribution}
    result = model.generate(TEXTS, allowed=[[token] for token in forced], **arguments)
    assert result.tokens == [forced] * 3
    assert result.text == [model.tokenizer.decode(forced)] * 3


def test_a_template_counts_along_and_stays_as_it_is(model: pardec.Model) -> None:
    template = [None, 50, None, None, 51, None]
    allowed = {0: [60, 61], 1: [62], 3: [63], 5: ["he", "she"]}
    result = model.generate(TEXTS, template=template, allowed=allowed, temperature=0.7)
    words = [model.tokenizer(word, add_special_tokens=False)["input_ids"][0] for word in ("he", "she")]
    for tokens in result.tokens:
        assert tokens[0] in (60, 61)
        assert (tokens[1], tokens[3], tokens[4]) == (50, 63, 51)
        assert tokens[5] in words
    asked: list[tuple[int, int]] = []
    model.generate(TEXTS[:2], template=template, allowed=lambda row, index: asked.append((row, index)))
    assert asked == [(row, index) for row in range(2) for index in (0, 2, 3, 5)]


@pytest.mark.parametrize("name", ["tiny-dream", "tiny-llada"])
def test_of_two_answers_the_likelier_is_given(name: str) -> None:
    model = pardec.load(name, device="cpu")
    words = ("more", "left")
    ids = [model.tokenizer(word, add_special_tokens=False)["input_ids"][0] for word in words]
    prompts = [f"Tom has 8 cups. He {verb} 3 cups. How many cups has he" for verb in ("loses", "finds", "buys")]
    result = model.generate(prompts, max_new_tokens=1, allowed=[words])
    assert set(result.text) <= set(words)
    decoding_config = model.language_model.decoding_config
    for row, start in enumerate(result.prompts):
        canvas = torch.tensor([[*result.sequences[row, :start].tolist(), decoding_config.mask_id]])
        there = model.logits(canvas)[0, start - decoding_config.shift]
        assert result.tokens[row] == [max(ids, key=lambda token: float(there[token]))]


def test_every_form_says_the_same(model: pardec.Model) -> None:
    choices: list[Any] = [[5, 6], None, [7]]
    expected = model.generate(TEXTS[:2], max_new_tokens=4, allowed=choices, stop_ids=[])
    same: list[Any] = [
        (*choices, None),
        {0: [5, 6], 2: [7]},
        {0: torch.tensor([5, 6]), np.int64(2): np.array([7])},
        {0: {6, 5}, 1: None, 2: range(7, 8)},
        lambda row, index: choices[index] if index < 3 else None,
        [choices, {0: (6, 5, 5), 2: [7]}],
        [lambda row, index: {0: [5, 6], 2: [7]}.get(index), choices],
    ]
    for form in same:
        got = model.generate(TEXTS[:2], max_new_tokens=4, allowed=form, stop_ids=[])
        assert got.tokens == expected.tokens
        assert got.settings == expected.settings
    one = model.generate(TEXTS[:2], max_new_tokens=4, allowed=[None, choices], stop_ids=[])
    free = model.generate(TEXTS[:2], max_new_tokens=4, allowed=[None, {}], stop_ids=[])
    assert one.tokens == [free.tokens[0], expected.tokens[1]]
    assert free.settings["allowed"] is None
    assert one.settings["allowed"] == [None, expected.settings["allowed"]]


def test_equal_sets_are_kept_once_and_rows_taken_keep_theirs(model: pardec.Model) -> None:
    each = [[[5, 6], [7], [6, 5]], [[7, 7], None, [8]], None]
    call = model.prepare(TEXTS, max_new_tokens=3, allowed=each)
    allowed = call.request.allowed
    assert allowed.sets.sum(1).tolist() == [361, 2, 1, 1]
    part = call.take([2, 1]).request.allowed
    starts = call.request.prompts
    assert part.at[0].tolist() == [0] * (starts[2] + 3)
    assert part.at[1].tolist() == [0] * starts[1] + [2, 0, 3]
    assert call.take([1]).constraints == [call.constraints[1]]
    assert model.prepare(TEXTS, allowed=[None, None]).request.allowed is None


def test_the_command_line_reads_a_file(
    cli: Callable[..., tuple[int, str, str]], folder: Path, tmp_path: Path, model: pardec.Model
) -> None:
    file, output = tmp_path / "allowed.json", tmp_path / "rows.jsonl"
    command = ("generate", folder, "-p", TEXTS[0], "-p", "Ann", "-n", 4, "--device", "cpu", "--allowed", file)
    for form in ({"0": ["he", "she"], "2": [7]}, [["he", "she"], None, [7]], [{"0": ["he", "she"], "2": [7]}] * 2):
        file.write_text(json.dumps(form))
        code, out, _ = cli(*command)
        assert code == 0
        assert (
            out.splitlines()
            == model.generate([TEXTS[0], "Ann"], max_new_tokens=4, allowed={0: ["he", "she"], 2: [7]}).text
        )
    assert cli(*command, "-o", output)[0] == 0
    file.write_text('{"0": ["he"]}')
    code, _, err = cli(*command, "-o", output)
    assert code == 2
    assert "rows of other settings: allowed" in err


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "No such file"),
        ("{", "it is not JSON"),
        ('{"first": ["he"]}', "has the index 'first'"),
        ('{"9": ["he"]}', "names index 9, and 4 positions"),
        ('[["18"]]', "splits into"),
        ("[5]", "not a list of choices"),
    ],
)
def test_a_file_that_cannot_work_is_refused(
    cli: Callable[..., tuple[int, str, str]], folder: Path, tmp_path: Path, content: str | None, said: str
) -> None:
    file = tmp_path / "allowed.json"
    if content is not None:
        file.write_text(content)
    code, out, err = cli("generate", folder, "-p", "a", "-n", 4, "--allowed", file, "--quiet", "--device", "cpu")
    assert (code, out) == (2, "")
    assert said in err
    assert len(err.splitlines()) == 2


def test_a_function_of_one_argument_is_refused_in_words() -> None:
    model = pardec.load("tiny-dream", device="cpu")
    with pytest.raises(SpecError, match="cannot be called with a row and an index") as error:
        model.generate("Tom", allowed=lambda index: [1], max_new_tokens=2)
    assert "allowed(row, index)" in str(error.value.hint)
