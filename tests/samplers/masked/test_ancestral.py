"""`ancestral`: its posterior, for one step and for the whole chain, by enumeration; tokens of a plain loop."""

from __future__ import annotations

from collections import Counter
from functools import cache, partial
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch

from pardec.models.errors import SpecError
from pardec.samplers.masked.ops.uniform_noise import alphas, posterior_draw
from pardec.samplers.rng import Keyed
from tests.reference import naive_uniform
from tests.reference.naive_uniform import Rule
from tests.samplers.masked.uniform_toys import VOCAB, predictions, uniform_toy
from tests.samplers.spec_checks import refused_specs
from tests.samplers.toys import fill, fill_alone, prompts, request, run, toy

ROWS = 3000
Tokens = tuple[int, ...]


# --- the law of one position, without a model ---


@pytest.mark.parametrize("vocab", [2, 3, 4])
@pytest.mark.parametrize(("before", "after"), [(0.1, 0.3), (0.5, 0.9), (0.02, 0.98), (0.6, 0.6)])
def test_one_draw_has_the_posterior_of_the_noise(vocab: int, before: float, after: float) -> None:
    """The uniforms are laid on a grid: each token's share of it is its chance, within a line of the grid."""
    lines = 300
    clean = np.random.RandomState(vocab).dirichlet(np.ones(vocab))
    grid = (torch.arange(lines, dtype=torch.float64) + 0.5) / lines
    third = (torch.arange(vocab, dtype=torch.float64) + 0.5) / vocab
    uniform = torch.cartesian_prod(grid, grid, third)[None]
    column = partial(torch.full, (1, 1), dtype=torch.float64)
    for current in range(vocab):
        found = np.zeros(vocab)
        for predicted in range(vocab):
            each = torch.full(uniform.shape[:2], 1)
            drawn = posterior_draw(
                current * each, predicted * each, torch.full(uniform.shape[:2], clean[current]).double(),
                column(before), column(after), uniform, vocab,
            )  # fmt: skip
            found += clean[predicted] * np.bincount(drawn[0].numpy(), minlength=vocab) / uniform.shape[1]
        expected = naive_uniform.posterior(current, clean, before, after)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1.5 / lines)


@pytest.mark.parametrize("schedule", ["linear", "cosine"])
@pytest.mark.parametrize("steps", [1, 2, 7, 128])
def test_the_schedule_is_the_published_one(schedule: Any, steps: int) -> None:
    for low, high in ((-9.0, 9.0), (-2.0, 3.0)):
        rule = Rule("ancestral", steps, 1.0, schedule, low, high)
        expected = [rule.alpha(step) for step in range(steps + 1)]
        found = alphas(steps, schedule, low, high)
        np.testing.assert_allclose(found, expected, rtol=0, atol=1e-12)
        assert (np.diff(found) >= 0).all()


# --- the joint law of a canvas of three positions ---

MODEL = uniform_toy(4, seed=11)
MASK, PROMPT = 4, (0, 3)


@cache
def clean(tokens: Tokens, temperature: float) -> np.ndarray:
    """x_hat [3, V] of the open positions."""
    logits = predictions(MODEL, [*PROMPT, *tokens])[len(PROMPT) :]
    rule = Rule("ancestral", 1, temperature)
    return np.stack([rule.clean(row) for row in logits])


@cache
def chain(steps: int, temperature: float, schedule: str) -> dict[Tokens, float]:
    """The distribution of the last canvas: each step draws its positions independently of each other."""
    rule = Rule("ancestral", steps, temperature, schedule)
    every = list(product(range(4), repeat=3))
    weights = dict.fromkeys(every, 4.0**-3)
    for step in range(steps):
        after: Counter[Tokens] = Counter()
        for tokens, weight in weights.items():
            each = [
                naive_uniform.posterior(token, row, rule.alpha(step), rule.alpha(step + 1))
                for token, row in zip(tokens, clean(tokens, temperature), strict=True)
            ]
            for new in every:
                after[new] += weight * float(np.prod([law[v] for law, v in zip(each, new, strict=True)]))
        weights = dict(after)
    return weights


@cache
def sampled(spec: str, temperature: float) -> Counter[Tokens]:
    asked = request(
        [[*PROMPT, *[MASK] * 3]] * ROWS, [2] * ROWS, source=Keyed(tuple(range(ROWS))), temperature=temperature
    )
    return Counter(map(tuple, run(MODEL, spec, asked).tokens[:, 2:].tolist()))


def excess(counts: Counter[Tokens], law: dict[Tokens, float]) -> float:
    """Pearson's chi-square in standard deviations above its mean (Wilson and Hilferty)."""
    cells = [(counts[tokens], ROWS * p) for tokens, p in law.items() if ROWS * p >= 5]
    cells.append((ROWS - sum(seen for seen, _ in cells), ROWS - sum(expected for _, expected in cells)))
    cells = [(seen, expected) for seen, expected in cells if expected >= 1]
    free = len(cells) - 1
    statistic = sum((seen - expected) ** 2 / expected for seen, expected in cells)
    return float(((statistic / free) ** (1 / 3) - (1 - 2 / (9 * free))) / np.sqrt(2 / (9 * free)))


@pytest.mark.seeds("arXiv:2503.04482")
@pytest.mark.parametrize(
    ("steps", "temperature", "schedule"),
    [(1, 1.0, "linear"), (2, 1.0, "linear"), (4, 1.0, "linear"), (3, 0.6, "cosine"), (2, 0.0, "linear")],
)
def test_the_chain_has_the_distribution_of_its_posteriors(steps: int, temperature: float, schedule: str) -> None:
    if schedule == "cosine":
        test_tokens_are_those_of_the_plain_loop("steps=4,schedule=cosine", 0.7)  # over several blocks
    law = chain(steps, temperature, schedule)
    assert sum(law.values()) == pytest.approx(1)
    assert excess(sampled(f"ancestral:steps={steps},schedule={schedule}", temperature), law) < 3


def test_the_comparison_sees_another_distribution() -> None:
    """The counts of two steps are not those of one or four, and a temperature matters."""
    counts = sampled("ancestral:steps=2", 1.0)
    assert excess(counts, chain(2, 1.0, "linear")) < 3
    for other in (chain(1, 1.0, "linear"), chain(4, 1.0, "linear"), chain(2, 0.6, "linear")):
        assert excess(counts, other) > 5


# --- token for token ---


@pytest.mark.parametrize("temperature", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("rule", ["steps=5", "steps=4,schedule=cosine", "steps=6,low=-2,high=3", "steps=1"])
def test_tokens_are_those_of_the_plain_loop(rule: str, temperature: float) -> None:
    model = uniform_toy()
    row: list[int | None] = [1, 2, None, None, 4, None, None, None, None, None, 3]
    asked = [VOCAB if token is None else token for token in row]
    settings: dict[str, Any] = {
        key: value if key == "schedule" else (int(value) if key == "steps" else float(value))
        for key, value in (part.split("=") for part in rule.split(","))
    }
    for seed in (3, 4):
        found = run(model, f"ancestral:{rule}", request([asked], [2], seeds=[seed], temperature=temperature))
        expected = naive_uniform.decode(
            partial(predictions, model), row, 2, Rule("ancestral", temperature=temperature, **settings), seed, 4
        )
        assert found.tokens[0].tolist() == expected.tokens
        assert found.nfe[0] == expected.forwards


def test_a_row_is_the_same_alone_and_in_a_batch() -> None:
    fill_alone(uniform_toy(), "ancestral:steps=4", prompts((3, 1, 5), vocab=VOCAB), (9, 4, 6), temperature=1.0)


def test_rows_end_after_their_steps_and_not_at_an_end_token_of_the_noise() -> None:
    """With `eos`, a row whose canvas has the end token in its noise goes on to its last step."""
    model = uniform_toy()
    asked = request([[1, *[VOCAB] * 6]] * 40, [1] * 40, stop_ids=(5,), temperature=1.0, block_length=6)
    found = run(model, "ancestral:steps=4+eos", asked)
    assert set(found.nfe) == {4}
    assert any(5 in row[1:] for row in found.tokens.tolist())


test_what_is_refused = refused_specs(
    [
        ("ancestral:low=3,high=2", "low must be at most high, got low=3.0 and high=2.0"),
        ("ancestral:schedule=square", "schedule"),
        ("ancestral+threshold", "the select is 'threshold', which would have no effect"),
        ("ancestral+denoise", "denoise needs 'renoise'"),
        ("ancestral+adaptive", "writes the whole block at every step, and"),
        ("ancestral+edit", "writes the whole block at every step, and edit acts between steps"),
        ("ancestral+localleap", "localleap changes the choice of the select, which has no effect"),
        ("ancestral+adablock", "adablock moves blocks"),
        ("smoothing+ancestral", "smoothing adds to the inputs of masks"),
        ("ancestral@d2cache", "draws every position anew at each step, and d2cache does not compute all of them"),
        ("ancestral@dkv", "and dkv does not compute all of them"),
        ("prophet+ancestral", "prophet acts between steps"),
    ]
)


@pytest.mark.parametrize("argument", [{"min_new_tokens": 2}])
def test_what_restricts_tokens_is_refused(argument: dict[str, Any]) -> None:
    with pytest.raises(SpecError, match="may leave a random token anywhere"):
        fill(uniform_toy(), "ancestral", [[1]], 4, stop_ids=(5,), **argument)


def test_models_of_masks_are_refused() -> None:
    with pytest.raises(SpecError, match="is for models trained on uniform noise, such as Sumi"):
        fill(toy("dream"), "ancestral", prompts((3,)), 4)
