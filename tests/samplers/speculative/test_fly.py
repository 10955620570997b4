"""`fly`: paths by hand and by a naive rule, its exact end, its gain on the tiny drafter, and refusals."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch

import pardec
from pardec.models.errors import SpecError
from pardec.samplers import registry
from pardec.samplers.speculative.accept.fly import Fly
from pardec.samplers.speculative.accept.speculative import Speculative
from tests.samplers.ar_toys import plain_greedy, rows, run, toy_ar
from tests.samplers.handmade_drafts import Given, distributions, tree
from tests.samplers.joint_distributions import drafting


def naive(
    tokens: Sequence[int],
    p: np.ndarray,
    q: np.ndarray | None,
    u: Sequence[float],
    rule: Fly,
    *,
    greedy: bool,
) -> tuple[int, int, np.ndarray]:
    """Accepted tokens, overruled ones among them, and what the next token is drawn from; token i follows p[i - 1]."""
    vocab, count, overruled = p.shape[1], 0, 0

    def passes(i: int) -> bool:
        token, law = tokens[i], p[i - 1]
        if greedy:
            return token == int(law.argmax())
        return bool(u[i] * (1 if q is None else q[i][token]) < law[token])

    for i in range(1, len(tokens)):
        if not passes(i):
            likeliest = sorted(p[i - 1])[::-1][: rule.top]
            unsure = -sum(x * np.log(x) for x in likeliest if x > 0) >= rule.entropy
            after = range(i + 1, i + 1 + rule.window)
            if after[-1] >= len(tokens) or not unsure or not p[i - 1][tokens[i]] or not all(map(passes, after)):
                law = np.eye(vocab)[int(p[i - 1].argmax())] if greedy else p[i - 1]
                drawn = np.eye(vocab)[tokens[i]] if q is None else q[i]
                rest = np.maximum(law - drawn, 0)
                return count, overruled, rest / rest.sum()
            overruled += 1
        count += 1
    return count, overruled, np.eye(vocab)[int(p[-1].argmax())] if greedy else p[-1]


@pytest.mark.parametrize(("greedy", "points"), [(True, True), pytest.param(False, True, marks=pytest.mark.slow)])
def test_it_decides_as_the_naive_rule(greedy: bool, points: bool) -> None:
    seeded = np.random.RandomState(5)
    fired = 0
    for _ in range(300):
        width, vocab = seeded.randint(2, 9), seeded.randint(2, 5)
        p, q = (seeded.dirichlet([0.5] * vocab, width) for _ in range(2))
        p[:, 0] *= seeded.rand(width) < 0.8
        p /= p.sum(1, keepdims=True)
        tokens = np.where(seeded.rand(width) < 0.6, np.roll(p.argmax(1), 1), seeded.randint(0, vocab, width))
        u, rule = seeded.rand(width), Fly(float(seeded.rand() * 0.7), int(seeded.randint(1, 4)), seeded.randint(1, 4))
        drawn = None if points or greedy else torch.from_numpy(q)[None]
        draft = tree(torch.from_numpy(tokens)[None], None, drawn)
        given = Given(torch.from_numpy(u)[None])
        made = rule.accept(draft, distributions(torch.from_numpy(p)[None], greedy=greedy), given, None)
        law = None if drawn is None else q
        count, overruled, left = naive(tokens.tolist(), p, law, u.tolist(), rule, greedy=greedy)
        assert int(made.count) == count
        assert int(made.next) == int(left.argmax())
        if made.deviation is not None:
            assert int(made.deviation) == overruled
            fired += overruled
    assert fired > 10


def test_a_synonym_stands_and_an_error_does_not() -> None:
    """p_1 = (.5, .4, .1) is unsure, .94 nats; token 1 is kept if the two tokens after it are the likeliest ones."""
    p = torch.tensor([[[0.5, 0.4, 0.1], [0.9, 0.1, 0.0], [0.9, 0.1, 0.0], [0.2, 0.2, 0.6]]])
    rule, target = Fly(window=2), distributions(p, greedy=True)
    for tokens, count, following in (([9, 1, 0, 0], 3, 2), ([9, 1, 0, 1], 0, 0), ([9, 0, 0, 0], 3, 2)):
        made = rule.accept(tree(torch.tensor([tokens]), None), target, Given(torch.zeros(1, 4)), None)
        assert (int(made.count), int(made.next)) == (count, following)
        assert made.deviation is not None
        assert made.ratio is not None
        assert int(made.deviation) == (tokens[1] == 1 and count == 3)
        assert float(made.ratio[0, 1]) == (count == 3), "an overruled token is as good as accepted"
    p[0, 0] = torch.tensor([0.5, 0.5, 0.0])  # as unsure as asked for
    made = Fly(math.log(2), window=2, top=2).accept(
        tree(torch.tensor([[9, 1, 0, 0]]), None), distributions(p.double(), greedy=True), Given(torch.zeros(1, 4)), None
    )
    assert int(made.count) == 3
    p[0, 0] = torch.tensor([0.98, 0.02, 0.0])
    sure = distributions(p, greedy=True)
    made = rule.accept(tree(torch.tensor([[9, 1, 0, 0]]), None), sure, Given(torch.zeros(1, 4)), None)
    assert int(made.count) == 0


@pytest.mark.parametrize("spec", ["lookup:k=12", "model:name=draft,k=8"])
def test_an_entropy_that_cannot_be_reached_is_the_exact_rule(spec: str) -> None:
    model, given = toy_ar(2, 6, 1.5), [[1, 2, 1, 2], [3]]
    assert registry.resolve("lookup+fly:entropy=2", "ar", sampling=True).exact == "distribution"
    assert registry.resolve("lookup+fly:entropy=0.73,top=2", "ar", sampling=True).exact == "relaxed"
    assert registry.resolve("lookup+fly:entropy=0.74,top=2", "ar", sampling=True).exact == "distribution"
    with drafting(6):
        assert rows(run(model, f"{spec}+fly:entropy=2", given, 30)) == [plain_greedy(model, one, 30) for one in given]
        drawn = [
            rows(run(model, f"{spec}+{rule}", given, 30, temperature=1.0)) for rule in ("fly:entropy=2", "speculative")
        ]
    assert drawn[0] == drawn[1]


def test_a_short_chain_is_verified_as_usual() -> None:
    seeded = np.random.RandomState(1)
    p = torch.from_numpy(seeded.dirichlet([0.5] * 4, (40, 7)))
    draft, u = tree(torch.from_numpy(seeded.randint(0, 4, (40, 7))), None), torch.from_numpy(seeded.rand(40, 7))
    ours, usual = (rule.accept(draft, distributions(p), Given(u), None) for rule in (Fly(0.0), Speculative()))
    assert torch.equal(ours.count, usual.count)
    assert torch.equal(ours.next, usual.next)


@pytest.mark.seeds("arXiv:2511.22972")
def test_more_is_accepted_and_the_answers_of_sums_stay() -> None:
    """On chains the target is often unsure: 3.6 tokens per forward become 3.8. On sums it hardly ever is."""
    assert (Fly().top, Fly().entropy, Fly().window) == (3, 0.3, 6), "vLLM's"
    test_a_synonym_stands_and_an_error_does_not()  # the rule by hand
    for greedy in (True, False):
        test_it_decides_as_the_naive_rule(greedy, points=False)
    model = pardec.load("tiny-llama", device="cpu")
    for name, count, gain in (("arithmetic", 20, 0.0), ("chains", 30, 0.1)):
        task = pardec.task(name)
        problems = task.problems(split="heldout", n=count, seed=3)
        scores, lengths = [], []
        for rule in ("greedy", "fly:window=3,entropy=0.1"):
            spec = f"model:name=tiny-llama-draft,k=8+{rule}"
            done = model.generate([one.prompt for one in problems], sampler=spec, max_new_tokens=64)
            assert done.text is not None
            scores.append(np.mean([task.score(one, text) for one, text in zip(problems, done.text, strict=True)]))
            lengths.append(sum(done.generated) / sum(done.nfe))
        assert lengths[1] >= lengths[0] + gain
        assert scores[1] >= scores[0] - 0.01
    assert done.deviation is not None
    assert sum(done.deviation) > 0  # overruled tokens, on chains


@pytest.mark.parametrize("spec", ["recycling+fly", "model:name=x+template+fly", 'rasd:model="model:name=x"+fly'])
def test_trees_are_refused(spec: str) -> None:
    with pytest.raises(SpecError, match="fly verifies one chain per row"):
        registry.resolve(spec, "ar", sampling=False)
