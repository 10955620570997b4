"""`match`: the sample decides which drafts are accepted; fixed noise gives one sample, whatever was drafted."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pardec.models.model import LanguageModel
from pardec.samplers.rng import Keyed
from pardec.samplers.speculative.accept.match import Match
from pardec.samplers.speculative.contracts import RoundUniforms as Uniforms
from tests.samplers.ar_toys import logits, rows, run, toy_ar
from tests.samplers.handmade_drafts import Given, distributions, tree


def test_a_draft_stands_where_the_draw_holds_it() -> None:
    """With equal noise everywhere the sample is the likeliest token."""
    p = torch.tensor([[[0.2, 0.7, 0.1], [0.1, 0.1, 0.8], [0.6, 0.3, 0.1]]], dtype=torch.float64)
    for tokens, count, following in (([0, 1, 2], 2, 0), ([0, 1, 0], 1, 2), ([0, 0, 2], 0, 1)):
        made = Match().accept(tree(torch.tensor([tokens]), None), distributions(p), Given(torch.zeros(0)), None)
        assert (int(made.count), int(made.next)) == (count, following)


def test_siblings_share_the_draw_of_their_parent_and_levels_the_noise() -> None:
    made = Uniforms(Keyed((3,)), np.array([0]), np.array([0]), torch.device("cpu"))
    p = torch.full((1, 4, 5), 0.2, dtype=torch.float64)
    star = Match().sample(tree(torch.zeros(1, 4, dtype=torch.int64), [-1, 0, 0, 0]), distributions(p), made)
    chain = Match().sample(tree(torch.zeros(1, 4, dtype=torch.int64), None), distributions(p), made)
    assert star[0, 1] == star[0, 2] == star[0, 3] == chain[0, 1]
    assert star[0, 0] == chain[0, 0]


def naive(model: LanguageModel, prompt: list[int], new: int, seed: int) -> list[int]:
    """Token i is argmax(log p + G[i]), by one whole forward each."""
    text = list(prompt)
    for at in range(len(prompt), len(prompt) + new):
        u = Keyed((seed,)).uniform(np.array([0]), np.array([0]), torch.tensor([[at]]), "match", 6)[0, 0]
        distribution = logits(model, [text])[0, -1].double().log_softmax(-1)
        text.append(int((distribution - (-u.log()).log()).argmax()))
    return text


@pytest.mark.parametrize("drafter", ["sequential", "lookup:k=3", "recycling:k=3,tree=3-4-2", "jacobi"])
def test_seeded_noise_gives_one_text_whatever_is_drafted(drafter: str) -> None:
    model, given = toy_ar(6, 6, 0.7), [[1, 2, 1], [5], [0, 3, 3, 1]]
    done = run(model, f"{drafter}+match:noise=seeded", given, 12, temperature=1.0, seeds=[7, 8, 9])
    for row, (prompt, seed) in enumerate(zip(given, (7, 8, 9), strict=True)):
        assert rows(done)[row] == naive(model, prompt, 12, seed)


def test_fresh_noise_is_new_in_every_round() -> None:
    model = toy_ar(6, 6, 0.7)
    fresh = run(model, "sequential+match", [[1, 2, 1]], 12, temperature=1.0, seeds=[7])
    seeded = run(model, "sequential+match:noise=seeded", [[1, 2, 1]], 12, temperature=1.0, seeds=[7])
    assert rows(fresh) != rows(seeded)


def test_at_temperature_0_it_is_greedy() -> None:
    model, given = toy_ar(6, 6, 0.7), [[1, 2, 1], [5]]
    assert rows(run(model, "lookup+match", given, 12)) == rows(run(model, "sequential", given, 12))
