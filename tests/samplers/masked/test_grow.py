"""`grow`: rows begin short and become longer until the model predicts their end, and where it is unsure."""

from __future__ import annotations

import pytest
import torch

import pardec
from pardec.models.errors import SpecError
from pardec.samplers import registry
from tests.reference import naive_grow as naive
from tests.samplers.spec_checks import refused_specs
from tests.samplers.toys import EOS, MASK, fill, prompts, request, run, same, table, toy

RULE = {"start": 6, "step": 4, "spare": 5, "enough": 0.02, "sure": 0.5, "unsure": 0.25}


def spec_of(rule: dict[str, float]) -> str:
    return "threshold:tau=0.4+grow:" + ",".join(f"{name}={value}" for name, value in rule.items()) + "@none"


SPEC = spec_of(RULE)


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("most", [50, 17, 4])
@pytest.mark.seeds("arXiv:2508.00819")
def test_it_is_the_naive_rule(family: str, most: int) -> None:
    """Tokens, the step of each and the length of the row, up to `max_new_tokens`."""
    test_a_mask_is_replaced_where_no_token_is_likely_enough(1.0)
    as_sure_as_asked_is_sure()
    of_equal_masks_the_first_is_replaced()
    model, replaced, waited = toy(family, sharp=1.2), 0, 0
    for seed in range(4):
        (prompt,) = prompts((5,), seed=seed)
        rule = RULE if seed % 2 else RULE | {"enough": 0}  # long enough at once, and not yet sure of its end
        got = fill(model, spec_of(rule), [prompt], most, block_length=8, stop_ids=(EOS,))
        tokens, when, moves = naive.decode(model, prompt, most, size=8, tau=0.4, ends=(EOS,), **rule)
        assert got.tokens[0, : len(tokens)].tolist() == tokens
        assert got.trace.commit_step[0, : len(tokens)].tolist() == when
        assert (got.trace.commit_step[0, len(tokens) :] < -1).all()
        replaced, waited = replaced + moves, waited + (0 not in when)
    an_end_that_is_predicted_within_the_prompt_does_not_count()
    if most == 4:
        ends_count_in_the_last_32_positions()
        test_rows_of_a_batch_grow_for_themselves()
    assert most < 50 or (replaced and waited), "no row grew in one of the two ways: the test shows nothing"


def as_sure_as_asked_is_sure() -> None:
    """Every position ends the text with 1/2: of three e = 3/64, of five 5/64."""
    halves = torch.zeros(8, 7)
    halves[:, :2] = 0.5
    for sure, length in ((3 / 64, 3), (3.01 / 64, 5)):
        spec = f"threshold:tau=0.99+grow:start=3,step=3,spare=0,enough=0,sure={sure},unsure=0.51@none"
        got = run(table(halves), spec, request([[6] * 8], [0], block_length=8, stop_ids=(0,)))
        assert (got.trace.commit_step >= 0).sum() == length


def of_equal_masks_the_first_is_replaced() -> None:
    """The token at 3 comes first, then that at 0, and the mask at 1 becomes three: what stood at 3 stands at 5."""
    halves = torch.zeros(7, 7)
    halves[:, :2] = 0.5
    halves[3] = torch.tensor([0, 1.0, 0, 0, 0, 0, 0])
    spec = "threshold:tau=0.99+grow:start=5,step=3,spare=0,enough=0,sure=1,unsure=0.51@none"
    got = run(table(halves), spec, request([[6] * 7], [0], block_length=8, stop_ids=(5,)))
    assert got.trace.commit_step[0].tolist().index(0) == 5


def an_end_that_is_predicted_within_the_prompt_does_not_count() -> None:
    """It would make e = .9 / 32, enough to begin with two masks; without it the row grows to its bound."""
    distributions = torch.zeros(7, 5)
    distributions[:, 0], distributions[:, 1] = 0.6, 0.4
    distributions[0] = torch.tensor([0.1, 0, 0, 0.9, 0])
    spec = "sequential+grow:start=2,step=2,spare=0,enough=0.02,unsure=0@none"
    got = run(table(distributions), spec, request([[0, *[4] * 6]], [1], block_length=8, stop_ids=(3,)))
    assert (got.trace.commit_step[0, 1:] >= 2).all()


def ends_count_in_the_last_32_positions() -> None:
    """Of 41 positions these are 9 to 40: an end of .9 at 9 gives e = .9 / 32 = .028, one at 8 nothing."""
    for end, grows in ((9, False), (8, True)):
        distributions = torch.zeros(60, 5)
        distributions[:, 0], distributions[:, 1] = 0.6, 0.4
        distributions[end] = torch.tensor([0.1, 0, 0, 0.9, 0])
        spec = "threshold:tau=0.5+grow:start=40,step=2,spare=0,enough=0.028,unsure=0@none"
        got = run(table(distributions), spec, request([[0, *[4] * 59]], [1], block_length=64, stop_ids=(3,)))
        assert (got.trace.commit_step[0, 1:] >= 0).sum() == (59 if grows else 40)
        assert got.trace.commit_step[0, 1] == (10 if grows else 0)  # 41, 43, ..., 59, 60 positions


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_mask_is_replaced_where_no_token_is_likely_enough(temperature: float) -> None:
    """By the likeliest token's probability, at exactly 0.5 here, whichever is drawn; `unsure` itself is enough."""
    halves = torch.zeros(8, 7)
    halves[:, :2] = torch.tensor([0.5, 0.5])
    sevenths = torch.zeros(8, 7)
    sevenths[:, :2] = torch.tensor([0.7, 0.3])
    for distributions, unsure, lengths in ((halves, 0.5, {3}), (halves, 0.51, {8}), (sevenths, 0.6, {3})):
        spec = f"threshold:tau=0.99+grow:start=3,step=3,spare=0,enough=0,sure=1,unsure={unsure}@none"
        asked = request([[6] * 8] * 16, [0] * 16, block_length=8, temperature=temperature, stop_ids=(5,))
        committed = (run(table(distributions), spec, asked).trace.commit_step >= 0).sum(1)
        assert set(committed.tolist()) == lengths


def test_rows_of_a_batch_grow_for_themselves() -> None:
    model, rows, new = toy(sharp=1.2), prompts((3, 6, 1)), (17, 40, 23)
    for rule in (RULE, RULE | {"enough": 0, "unsure": 0.4}):  # rows wait until they are long, or masks are replaced
        spec = spec_of(rule)
        together = fill(model, spec, rows, new, block_length=8, stop_ids=(EOS,))
        for row, prompt in enumerate(rows):
            assert same(together, row, fill(model, spec, [prompt], new[row], block_length=8, stop_ids=(EOS,)), 0)
    used = (together.trace.commit_step >= 0).sum(1)
    assert (used > RULE["start"] + RULE["spare"]).sum() > 1, "no mask was replaced: the test shows nothing"


def test_a_row_with_given_tokens_in_it_does_not_grow() -> None:
    row = [4, 5, *[MASK] * 20, 7, MASK]
    grown, plain = (
        run(toy(sharp=1.2), spec, request([row], [2], stop_ids=(EOS,))) for spec in (SPEC, "threshold:tau=0.4@none")
    )
    assert grown.tokens.tolist() == plain.tokens.tolist()


@pytest.mark.slow  # seconds at rows of 256 tokens; the tests above have the rule
def test_the_row_follows_the_answer_and_computes_less_than_the_bound() -> None:
    """On `chains`: all right as at full length, rows at most 1.5 times the answer, fewer positions than at 256."""
    model, task = pardec.load("tiny-dream", device="cpu", dtype="float32"), pardec.tasks.task("chains")
    problems = task.problems(split="heldout", n=6, seed=3)
    texts = [problem.prompt for problem in problems]
    plain, grown = (
        model.generate(texts, sampler=f"{spec}@none", max_new_tokens=256) for spec in ("threshold", "threshold+grow")
    )
    assert sum(map(task.score, problems, grown.text)) >= sum(map(task.score, problems, plain.text))
    used = (grown.trace.commit_step >= 0).sum(1)
    ratio = used.sum() / sum(map(len, grown.tokens))
    assert ratio <= 1.5
    assert sum(grown.tokens_fed) < sum(plain.tokens_fed)


def test_what_keeps_positions_is_refused() -> None:
    with pytest.raises(SpecError, match="grow moves tokens, and dual keeps keys and values"):
        registry.resolve("threshold+grow@dual")
    with pytest.raises(SpecError, match="grow looks at the end of the row, and toy has block-causal attention"):
        pardec.Model(toy("sdar")).prepare("a", sampler="threshold+grow@none")
    with pytest.raises(SpecError, match="grow lengthens rows and adaptive_length shortens them"):
        registry.resolve("threshold+grow+adaptive_length@none")


test_bad_parameters = refused_specs(
    [
        ("start=0", "grow: start must be at least 1, got 0"),
        ("step=0", "grow: step must be at least 1, got 0"),
        ("spare=-1", "grow: spare must be at least 0, got -1"),
        ("sure=2", r"grow: sure must lie in \[0, 1\], got 2.0"),
    ],
    before="threshold+grow:",
)
