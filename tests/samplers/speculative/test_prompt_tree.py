"""Trees with prompt tokens after their nodes: expected tokens by hand, against all choices, and as specs."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch

from pardec import load
from pardec.models.errors import SpecError
from pardec.samplers.speculative.contracts import Draft, ProbeLayout
from pardec.samplers.speculative.probe_nodes import after_every
from scripts.prompt_tree import (
    PromptTree,
    Rates,
    best_paths,
    fastest_tree,
    main,
    prompt_tree,
    steady,
)
from tests.reference.naive_queries import prompt_logits
from tests.samplers.ar_toys import run
from tests.samplers.fake_draft_model import NEW, RAGGED, apart, target
from tests.samplers.heldout_answers import answered
from tests.samplers.module_files import learned, prompts, random

RATES = [[0.6, 0.2], [0.5, 0.1]]
CHAIN = ((0,), (0, 0))


def the_steady_state_is_that_of_the_equations() -> None:
    """Of the chain of two, node 0 is the last in 0.4 of the rounds, and the others in 0.3 each; f = 1, 1.6, 1.9."""
    assert steady(RATES, CHAIN, (2, 2, 2))[0] == pytest.approx(1.9)
    # (2, 1, 2): state 2 is kept by nodes 0 and 2, 0.7; state 1 is left by node 0, 0.4. So 4/7 and 3/7 of the rounds.
    tokens, last, gains = steady(RATES, CHAIN, (2, 1, 2))
    assert tokens == pytest.approx((4 * 1.9 + 3 * 1.6) / 7)
    assert last.tolist() == pytest.approx([0.4, (4 * 0.3 + 3 * 0.6) / 7, 4 * 0.3 / 7])
    assert gains.tolist() == pytest.approx([1, 1.6, 1.9])
    # (2, 2, 1): state 1 is left at once: 10/13 and 3/13.
    assert steady(RATES, CHAIN, (2, 2, 1))[0] == pytest.approx((10 * 1.9 + 3 * 1.6) / 13)
    # (0, 0, 0) never drafts.
    assert steady(RATES, CHAIN, (0, 0, 0))[0] == pytest.approx(1)


def the_prompt_token_that_is_missed_least_is_dropped() -> None:
    """Eight inputs: the chain of two with five prompt tokens, or trees of one or three nodes with other numbers."""
    tree = prompt_tree(RATES, 8)
    assert tree.inputs <= 8
    assert tree == PromptTree(CHAIN, (2, 2, 1), pytest.approx((10 * 1.9 + 3 * 1.6) / 13))
    assert prompt_tree(RATES, 3) == PromptTree(((0,),), (1, 0), pytest.approx(1 + 0.6 / 1.6))


@pytest.mark.parametrize("seed", range(6))
def test_it_gains_nearly_what_the_best_of_all_choices_does(seed: int) -> None:
    random = np.random.RandomState(seed)
    rates: Rates = [sorted(random.dirichlet((2, 1, 2))[:2], reverse=True) for _ in range(2)]
    for limit in (4, 6, 9):
        best = 0.0
        for count in range(1, 5):
            paths = tuple(sorted(best_paths(rates, count), key=lambda path: (len(path), path)))
            for carried in product(range(3), repeat=count + 1):
                if count + 1 + sum(carried) <= limit:
                    best = max(best, steady(rates, paths, carried)[0])
        tree = prompt_tree(rates, limit)
        assert tree.inputs <= limit
        assert tree.tokens >= 0.97 * best


def test_more_inputs_never_gain_less_and_measured_times_choose_them() -> None:
    tokens = [prompt_tree(RATES, limit).tokens for limit in range(3, 16)]
    assert (np.diff(tokens) > -1e-9).all()
    assert fastest_tree(RATES, {4: 1.0, 8: 1.0, 12: 1.0}).tokens == prompt_tree(RATES, 12).tokens
    assert fastest_tree(RATES, {4: 1.0, 8: 2.0, 12: 3.0}) == prompt_tree(RATES, 4)
    with pytest.raises(SpecError, match="fewer than 3 inputs"):
        fastest_tree(RATES, {2: 1.0})


@pytest.mark.parametrize("rates", [[[0.2, 0.6]], [[0.7, 0.4]], [[-0.1]], [[]], []])
def test_rates_that_cannot_be_are_refused(rates: list[list[float]]) -> None:
    with pytest.raises(SpecError, match="rates"):
        prompt_tree(rates, 8)


def a_draft_carries_the_prompt_tokens_of_each_node() -> None:
    tokens = torch.zeros(1, 4, dtype=torch.int64)
    parents, depths = torch.tensor([-1, 0, 0, 1]), torch.tensor([0, 1, 1, 2])
    draft = Draft(tokens, np.array([4]), np.array([5]), parents, depths, 2)
    queries = after_every(draft, ProbeLayout.single(2), np.array([20]), ((2,), (1, 0), (2,)))
    assert (queries.index >= 0)[0].sum(0).tolist() == [2, 1, 0, 2]
    whole = after_every(draft, ProbeLayout.single(2), np.array([20]), ((2,), (1,)))
    assert (whole.index >= 0)[0].sum(0).tolist() == [2, 1, 1, 1]


def test_the_spec_keeps_greedy_decoding_and_the_script_prints_it(capsys: pytest.CaptureFixture[str]) -> None:
    rates = [[0.6, 0.15, 0.05], [0.4, 0.1, 0.04], [0.3, 0.1, 0.02]]
    spec = prompt_tree(rates, 24).spec("tiny-llama-prompts", 3)
    assert "." in spec.partition("carry=")[2].partition("+")[0]
    model = load("tiny-llama")
    prompts = ["3+4*2=", "1+1="]
    plain = model.generate(prompts, sampler="sequential", max_new_tokens=24)
    assert model.generate(prompts, sampler=spec, max_new_tokens=24).text == plain.text
    text = " / ".join(" ".join(map(str, level)) for level in rates)
    command = ["tiny-llama-prompts", "--rates", text, "--inputs"]
    capsys.readouterr()
    main([*command, "24"])
    out, err = capsys.readouterr()
    assert (out.strip(), "inputs" in err) == (spec, True)
    with pytest.raises(SystemExit, match="^error:"):
        main([*command, "2"])


@pytest.mark.seeds("arXiv:2405.18628")
def test_trained_prompts_keep_greedy_text_and_gain_and_trees_are_expected_to_gain_more_than_chains(
    tmp_path: Path,
) -> None:
    """tiny-llama's own prompt tokens, 576 values; an optimized tree and a chain with as many inputs."""
    steps_of_several_vectors_are_those_of_whole_forwards(tmp_path)
    the_steady_state_is_that_of_the_equations()
    the_prompt_token_that_is_missed_least_is_dropped()
    test_it_gains_nearly_what_the_best_of_all_choices_does(2)
    test_more_inputs_never_gain_less_and_measured_times_choose_them()
    assert best_paths([[0.6, 0.2], [0.5, 0.1]], 5) == ((0,), (0, 0), (1,), (1, 0), (0, 1))  # .6 .3 .2 .1 .06
    a_draft_carries_the_prompt_tokens_of_each_node()
    _, plain = answered("tiny-llama", "arithmetic", "sequential", 8)
    _, done = answered("tiny-llama", "arithmetic", "prompts:name=tiny-llama-prompts+paths", 8)
    assert done.tokens == plain.tokens
    assert (sum(done.generated) - 8) / (sum(done.nfe) - 8) > 1.3
    rates = [[0.6, 0.15, 0.05], [0.4, 0.1, 0.04], [0.3, 0.1, 0.02]]
    chain = steady(rates, ((0,), (0, 0), (0, 0, 0)), (3, 3, 3, 3))[0]  # 4 nodes and 12 prompt tokens
    tree = prompt_tree(rates, 16)
    assert tree.inputs <= 16
    assert tree.tokens > 1.02 * chain


def steps_of_several_vectors_are_those_of_whole_forwards(folder: Path) -> None:
    """Three steps of two vectors: the mean of a step's logits, its position, and what each vector attends to."""
    vectors = random(6, target().width)
    for attention in ("decoder", "ensemble"):
        name = prompts(folder / attention, target(), each=2, vt_attention_type=attention)
        with learned() as seen:
            run(target(), f"prompts:name={name}", RAGGED[:2], NEW[:2])
        assert sum(len(raw) == 3 for _, raw in seen) >= 5
        for text, raw in seen:
            for mine, expected in zip(raw, prompt_logits(target(), text, vectors, 2, attention), strict=False):
                assert apart(mine, expected) < 5e-5
