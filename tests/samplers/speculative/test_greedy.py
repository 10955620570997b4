"""`greedy`: the target's argmax, token by token, through chains and trees."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pardec.samplers import registry
from pardec.samplers.speculative.accept.greedy import Greedy, follow
from pardec.samplers.speculative.accept.match import Match
from pardec.samplers.speculative.contracts import Draft
from tests.samplers.ar_toys import plain_greedy, prompts, rows, run, toy_ar
from tests.samplers.handmade_drafts import Given, distributions, tree
from tests.samplers.joint_distributions import drafting, small

# After nodes 0..4 the likeliest tokens are 1, 2, 0, 2, 1.
PICKS = torch.tensor([[1, 2, 0, 2, 1]])
P = torch.nn.functional.one_hot(PICKS, 3) * 0.5 + 0.1


def test_a_chain_stands_up_to_the_first_token_that_differs() -> None:
    for tokens, count, following in (([0, 1, 2, 0, 2], 4, 1), ([0, 1, 2, 1, 2], 2, 0), ([0, 2, 2, 0, 2], 0, 1)):
        made = Greedy().accept(tree(torch.tensor([tokens]), None), distributions(P), Given(torch.zeros(0)), None)
        assert (int(made.count), int(made.next)) == (count, following)
        assert made.tested is not None
        assert made.tested[0].tolist() == [0 < node <= count + 1 for node in range(5)]


def test_ragged_chains_with_untested_nodes_are_followed_row_by_row() -> None:
    seeded = torch.Generator().manual_seed(5)
    for width in (2, 3, 6):
        tokens, pick = torch.randint(0, 2, (2, 40, width), generator=seeded)
        sizes = torch.randint(1, width + 1, (40,), generator=seeded).numpy()
        verify = torch.rand(40, width, generator=seeded) < 0.8
        made = follow(Draft(tokens, sizes, np.zeros_like(sizes), verify=verify), pick)
        for row in range(40):
            real = [0 < node < sizes[row] and bool(verify[row, node]) for node in range(width)]
            fits = [real[node] and tokens[row, node] == pick[row, node - 1] for node in range(width)]
            count = next((node - 1 for node in range(1, width) if not fits[node]), width - 1)
            assert (int(made.count[row]), int(made.next[row])) == (count, int(pick[row, count]))
            assert made.tested is not None
            assert made.ratio is not None
            assert made.tested[row].tolist() == [real[node] and node <= count + 1 for node in range(width)]
            assert made.ratio[row].tolist() == fits
            assert made.path[row].tolist() == list(range(width))


def test_a_tree_is_followed_through_the_child_that_is_right() -> None:
    draft = tree(torch.tensor([[0, 0, 1, 2, 0]]), [-1, 0, 0, 1, 2])
    made = Greedy().accept(draft, distributions(P), Given(torch.zeros(0)), None)
    assert made.path[0, :3].tolist() == [0, 2, 4]
    assert int(made.next) == 1
    assert made.tested is not None
    assert made.tested[0].tolist() == [False, True, True, False, True]


def test_padding_and_untested_nodes_are_never_taken() -> None:
    draft = tree(torch.tensor([[0, 1, 2, 0, 2]]), None, verify=torch.tensor([[True, True, False, True, True]]))
    assert int(Greedy().accept(draft, distributions(P), Given(torch.zeros(0)), None).count) == 1


@pytest.mark.parametrize("drafter", [small(name) for name in ("lookup", "recycling", "lookahead", "seeded_jacobi")])
def test_drafters_end_with_the_tokens_of_plain_decoding(drafter: str) -> None:
    """A chain, trees and a drafter with a rule of its own; test_verify_contract.py has all of them."""
    model, given = toy_ar(4, 6, 1.2), prompts((4, 1, 7), seed=2, vocab=6)
    sampler = registry.resolve(drafter, "ar")
    assert isinstance(sampler.accept, Greedy if drafter != "seeded_jacobi" else Match)
    with drafting(6):
        done = run(model, drafter, given, [14, 9, 11])
    true = [plain_greedy(model, prompt, new) for prompt, new in zip(given, (14, 9, 11), strict=True)]
    assert rows(done) == true
