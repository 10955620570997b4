"""`block`: every outcome enumerated, the naive rule, its acceptance beside the usual rule's, and refusals."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import pardec
from pardec.models.errors import SpecError
from pardec.samplers import registry
from pardec.samplers.speculative.accept.block import BlockVerification
from pardec.samplers.speculative.accept.speculative import Speculative
from pardec.samplers.speculative.contracts import Acceptance, Draft
from tests.reference import naive_acceptance as naive
from tests.samplers.handmade_drafts import Given, distributions, tree

Law = Callable[[tuple[int, ...]], np.ndarray]


def laws(seed: int, vocab: int, k: int) -> Law:
    """A random distribution after each text of up to `k` tokens, in float64."""
    seeded = np.random.RandomState(seed)
    texts = [text for length in range(k + 1) for text in product(range(vocab), repeat=length)]
    each = {text: seeded.dirichlet([0.7] * vocab) for text in texts}
    return each.__getitem__


def drafts(p: Law, q: Law, vocab: int, k: int, cut: bool = False) -> tuple[Draft, Tensor, np.ndarray]:
    """Every draft of `k` tokens as a row, the target's distributions [N, k + 1, V] and each draft's probability.

    With `cut` a chain ends after token 0, as a length controller may end it: then only its first such row has weight.
    """
    texts = list(product(range(vocab), repeat=k))
    draft_law = np.array([[np.zeros(vocab), *(q(text[:i]) for i in range(k))] for text in texts])
    target = np.array([[p(text[:i]) for i in range(k + 1)] for text in texts])
    sizes, weight = np.full(len(texts), k + 1), np.ones(len(texts))
    for row, text in enumerate(texts):
        stop = text.index(0) + 1 if cut and 0 in text else k
        sizes[row] = stop + 1
        weight[row] = np.prod([q(text[:i])[text[i]] for i in range(stop)]) * (not any(text[stop:]))
    tokens = torch.nn.functional.pad(torch.tensor(texts), (1, 0))
    draft = Draft(tokens, sizes, np.full(len(texts), 7), q=torch.from_numpy(draft_law))
    return draft, torch.from_numpy(target), weight


def outcome(rule: Acceptance, draft: Draft, p: Tensor, weight: np.ndarray, length: int, law: Law) -> tuple[Any, float]:
    """The joint distribution [V] * length of what a round commits, continued by the target, and tokens accepted.

    Each count of accepted tokens is forced by its uniforms; its probability comes from the tests' probabilities.
    """
    vocab, width = p.shape[-1], draft.width
    ratio = rule.accept(draft, distributions(p), Given(torch.ones(draft.tokens.shape)), None).ratio
    assert ratio is not None
    joint, accepted = np.zeros((vocab,) * length), 0.0
    for count in range(width):
        uniforms = torch.full(draft.tokens.shape, 2.0, dtype=torch.float64)
        uniforms[:, count] = -1.0
        given = Given(uniforms)
        made = rule.accept(draft, distributions(p), given, None)
        fails = torch.cat((1 - ratio[:, count + 1 :], torch.ones(len(ratio), 1)), 1).prod(1)
        chance = fails * (ratio[:, count] if count else 1)
        for row in np.flatnonzero((made.count == count).numpy() & (weight > 0)):
            share = weight[row] * float(chance[row])
            accepted += share * count
            text = tuple(draft.tokens[row, 1 : count + 1].tolist())
            for token, next_prob in enumerate(given.left[row].tolist()):
                _continue(joint, (*text, token), share * next_prob, law)
    return joint, accepted


def _continue(joint: np.ndarray, text: tuple[int, ...], share: float, law: Law) -> None:
    if len(text) == joint.ndim:
        joint[text] += share
    elif share:
        for token, chance in enumerate(law(text)):
            _continue(joint, (*text, token), share * chance, law)


def true_joint(law: Law, vocab: int, length: int) -> np.ndarray:
    joint = np.zeros((vocab,) * length)
    _continue(joint, (), 1.0, law)
    return joint


def usual(draft: Draft, p: Tensor, weight: np.ndarray) -> float:
    """Tokens that the usual rule accepts on average."""
    made = Speculative().accept(draft, distributions(p), Given(torch.zeros(draft.tokens.shape)), None)
    assert made.ratio is not None
    return float((made.ratio[:, 1:].cumprod(1).sum(1) * torch.from_numpy(weight)).sum())


@pytest.mark.seeds("arXiv:2403.10444")
@pytest.mark.parametrize("k", [1, 2, 3])
@pytest.mark.parametrize("cut", [False, True])
@pytest.mark.covers(1)
def test_what_comes_out_has_the_target_s_distribution_and_no_fewer_tokens_are_accepted(k: int, cut: bool) -> None:
    test_a_worked_example()
    test_it_decides_as_the_naive_rule()
    gains = []
    for seed in range(6):
        p, q = laws(seed, 3, k + 1), laws(100 + seed, 3, k)
        draft, target, weight = drafts(p, q, 3, k, cut)
        assert weight.sum() == pytest.approx(1)
        joint, accepted = outcome(BlockVerification(), draft, target, weight, k + 1, p)
        np.testing.assert_allclose(joint, true_joint(p, 3, k + 1), atol=1e-12)
        gains.append(accepted - usual(draft, target, weight))
    assert min(gains) > -1e-12
    assert max(gains) < 1e-12 if k == 1 else max(gains) > 0.01


def test_it_decides_as_the_naive_rule() -> None:
    seeded = np.random.RandomState(3)
    for _ in range(60):
        width, vocab = seeded.randint(2, 7), seeded.randint(2, 6)
        p, q = (torch.from_numpy(seeded.dirichlet([0.5] * vocab, (1, width))) for _ in range(2))
        tokens = torch.from_numpy(seeded.randint(0, vocab, (1, width)))
        point = torch.from_numpy(seeded.rand(1, width) < 0.3)
        u = seeded.rand(width)
        given = Given(torch.from_numpy(u)[None])
        made = BlockVerification().accept(tree(tokens, None, q, is_point_mass=point), distributions(p), given, None)
        marked = zip(tokens[0].tolist(), point[0].tolist(), q[0].tolist(), strict=True)
        nodes = [naive.Node(token, at - 1, True, None if mass else law) for at, (token, mass, law) in enumerate(marked)]
        found = naive.block(nodes, p[0].numpy(), lambda node, u=u: u[node])  # type: ignore[misc]
        assert int(made.count) == len(found.path)
        np.testing.assert_allclose(given.left[0].numpy(), found.distribution, atol=1e-9)


def test_a_worked_example() -> None:
    """p_1 = (.2, .8), q_1 = (.5, .5), x_1 = 0: w_1 = .4. p_2 = (.9, .1), q_2 = (.3, .7), x_2 = 0: w_2 = min(1, 1.2).

    S_1 = [.36 - .3]+ + [.04 - .7]+ = .06 and h_1 = .06 / .66 = 1/11, while h_2 = 1: token 2 saves token 1, which the
    usual rule rejects with probability .6.
    """
    p = torch.tensor([[[0.2, 0.8], [0.9, 0.1], [0.5, 0.5]]], dtype=torch.float64)
    q = torch.tensor([[[0.5, 0.5], [0.5, 0.5], [0.3, 0.7]]], dtype=torch.float64)  # of node 0 it is not read
    draft = tree(torch.tensor([[1, 0, 0]]), None, q)
    made = BlockVerification().accept(draft, distributions(p), Given(torch.tensor([[0.0, 0.99, 0.99]])), None)
    assert made.ratio is not None
    np.testing.assert_allclose(made.ratio[0].numpy(), [0, 1 / 11, 1], atol=1e-12)
    assert int(made.count) == 2
    assert int(Speculative().accept(draft, distributions(p), Given(torch.full((1, 3), 0.41)), None).count) == 0
    same = BlockVerification().accept(draft, distributions(q.roll(-1, 1)), Given(torch.full((1, 3), 0.99)), None)
    assert same.ratio is not None
    assert same.ratio[0].tolist() == pytest.approx([0, 1, 1]), "p = q: nothing is left, and nothing is rejected"
    both, given = tree(torch.tensor([[1, 0, 0]] * 2), None, q.expand(2, 3, 2)), torch.full((2, 3), 0.99)
    p[0, 0] = torch.tensor([0.0, 1.0])  # w_1 = h_1 = 0, and so are w_2 and h_2
    made = BlockVerification().accept(both, distributions(torch.cat((q.roll(-1, 1), p))), Given(given), None)
    assert made.count.tolist() == [2, 0]
    assert int(BlockVerification().accept(draft, distributions(p), Given(torch.zeros(1, 3)), None).count) == 0


@pytest.mark.parametrize("k", [1, 4])
def test_no_fewer_tokens_are_accepted_over_a_thousand_rounds(k: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Expected counts given each round's draft, of both rules in the same rounds; equal for drafts of one token."""
    seen: list[tuple[Tensor, Tensor]] = []
    accept, least = BlockVerification.accept, 1000 if k > 1 else 100

    def both(rule: BlockVerification, draft: Draft, p: Any, uniforms: Any, state: None) -> Any:
        made = accept(rule, draft, p, uniforms, state)
        if draft.q is not None and made.ratio is not None:
            h, index = made.ratio[:, 1:].double(), torch.arange(1, draft.width)
            later = torch.nn.functional.pad((1 - h).flip(1).cumprod(1).flip(1)[:, 1:], (0, 1), value=1.0)
            usual = Speculative().accept(draft, p, Given(torch.zeros(draft.tokens.shape)), None).ratio
            assert usual is not None
            seen.append(((index * h * later).sum(1), usual[:, 1:].double().cumprod(1).sum(1)))
        return made

    monkeypatch.setattr(BlockVerification, "accept", both)
    model, prompts = pardec.load("tiny-llama", device="cpu"), ["add 3 4", "Copy: 4 1 5", "Tom has 18 cups."] * 12
    for seed in range(20):
        spec = f"model:name=tiny-llama-draft,k={k}+block"
        model.generate(prompts, sampler=spec, temperature=1.0, max_new_tokens=32, seed=seed)
        if sum(len(ours) for ours, _ in seen) >= least:
            break
    ours, theirs = (torch.cat(each) for each in zip(*seen, strict=True))
    assert len(ours) >= least
    if k == 1:
        torch.testing.assert_close(ours, theirs)
    else:
        assert ours.mean() > theirs.mean() + 0.01


def test_point_masses_alone_are_verified_by_the_usual_rule() -> None:
    seeded = np.random.RandomState(2)
    p = torch.from_numpy(seeded.dirichlet([0.5] * 4, (32, 4)))
    draft = tree(torch.from_numpy(seeded.randint(0, 4, (32, 4))), None)
    u = torch.from_numpy(seeded.rand(32, 4))
    ours, usual = (rule().accept(draft, distributions(p), Given(u), None) for rule in (BlockVerification, Speculative))
    assert torch.equal(ours.count, usual.count)
    assert torch.equal(ours.next, usual.next)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("sjd+block", "block verifies one chain per row, and .* keeps rejected tokens"),
        ("recycling+block", "block verifies one chain per row, and .* keeps rejected tokens"),
        ('rasd:model="model:name=x"+block', "adds branches"),
        ("model:name=x+template+block", "drafts trees"),
    ],
)
def test_trees_and_kept_tokens_are_refused(spec: str, said: str) -> None:
    with pytest.raises(SpecError, match=said):
        registry.resolve(spec, "ar", sampling=True)
