"""PEARL: its rounds are those of the paper's two modes, and it saves time on a simulated clock."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

import pardec
from pardec.models.errors import SpecError
from pardec.models.model import LanguageModel
from pardec.samplers import registry
from pardec.simulation import Machine, simulate
from tests.pardec.simulation import test_schedules as schedules
from tests.reference.naive_pearl import pearl
from tests.samplers.ar_toys import logits, plain_greedy, rows, run
from tests.samplers.fake_draft_model import RAGGED, named, near, target

NEW = 28


def following(model: LanguageModel, text: Sequence[int]) -> int:
    return int(logits(model, [list(text)])[0, -1].argmax())


def rounds_are_those_of_a_plain_version_of_the_two_modes(k: int) -> None:
    with named(near=near()):
        done = run(target(), f"pearl:name=near,k={k}", RAGGED, NEW)
    modes = set()
    for row, prompt in enumerate(RAGGED):
        text, gained = rows(done)[row], done.trace.gained[row]
        expected = pearl(
            lambda text: following(target(), text),
            lambda text: following(near(), text),
            text[: len(prompt) + 1],  # the prompt's forward gives one token
            k,
            len(gained) - 1,
        )
        assert [token for new in expected for token in new][: len(text) - len(prompt) - 1] == text[len(prompt) + 1 :]
        long = [len(new) for new in expected]
        whole = next(n for n in range(len(long) + 1) if n == len(long) or sum(long[: n + 1]) > NEW - 2 * k - 1)
        assert gained[1 : 1 + whole] == long[:whole]
        modes |= {drafted > 0 for drafted in done.trace.drafted[row][1:]}
    assert modes == {False, True}


def a_drafter_that_is_always_right_gains_k_tokens_a_round() -> None:
    """With 4 tokens left 3 are drafted, since the target adds one; the last of them is the prediction, not fed."""
    assert registry.resolve("pearl:name=same,k=4", "ar").draft.width(target()) == 4, "the last token and k - 1"
    with named(same=target()):
        done = run(target(), "pearl:name=same,k=4", RAGGED, 2 + 3 * 4)
    assert list(done.trace.gained) == [[1, 1, 4, 4, 3, 1]] * len(RAGGED)
    assert rows(done) == [plain_greedy(target(), prompt, 14) for prompt in RAGGED]


def test_trees_and_lengths_are_refused_when_the_spec_is_read() -> None:
    with pytest.raises(SpecError, match="pearl drafts chains, and 'dyspec' is a tree"):
        registry.resolve("pearl:name=near+dyspec", "ar")
    with pytest.raises(SpecError, match="'goodput' needs a drafter with a model"):
        registry.resolve("pearl:name=near+goodput", "ar")
    with pytest.raises(SpecError, match="pearl: name is missing"):
        registry.resolve("pearl", "ar")


@pytest.mark.seeds("arXiv:2408.11850")
def test_tokens_are_greedy_ones_and_rounds_take_less_time_than_drafting_first() -> None:
    """rounds * max(draft, verify) < rounds of the same drafter without overlap * (draft + verify)."""
    schedules.test_pearl_takes_the_longer_of_the_two(0.2)
    for k in (2, 4):
        rounds_are_those_of_a_plain_version_of_the_two_modes(k)
    a_drafter_that_is_always_right_gains_k_tokens_a_round()
    model = pardec.load("tiny-llama", device="cpu")
    prompts = [problem.prompt for problem in pardec.task("records").problems(split="heldout", n=4, seed=7)]
    k, c = 4, 0.25  # a forward of the drafter takes c of one of the target
    devices = {"gpu0": {"target": {"layer": 1 / 4}}, "gpu1": {"draft": {"layer": c / 2}}}
    links = [{"between": ["gpu0", "gpu1"], "seconds": 0}]
    machine = Machine.of({"roles": {"target": "gpu0", "draft": "gpu1"}, "devices": devices, "links": links})
    report = simulate(model, prompts, sampler=f"pearl:name=tiny-llama-draft,k={k}", machine=machine, max_new_tokens=48)
    assert report.result.tokens == model.generate(prompts, max_new_tokens=48).tokens
    ahead, plain = report.of("pearl"), report.of("plain")
    assert ahead.seconds == pytest.approx(ahead.rounds * max(k * c, 1))
    drafted = sum(depth for row in plain.drafted for depth in row)
    assert plain.seconds == pytest.approx(drafted * c + plain.rounds)
    assert ahead.tokens == plain.tokens
    assert ahead.rounds * max(k * c, 1) < plain.seconds <= plain.rounds * (k * c + 1)
