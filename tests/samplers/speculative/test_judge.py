"""`judge`: on a target with known equivalents, compared with a plain version of the rule; the states it reads."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor

import pardec
from pardec.models.errors import ModelError, SpecError
from pardec.models.files.catalog import EMBEDDED
from pardec.models.plan import Plan, TargetStates
from pardec.samplers import registry
from pardec.samplers.ops.judge_heads import JUDGES, WEIGHTS, JudgeHead, judge_names, load_judge
from pardec.samplers.speculative.accept import judge as module
from pardec.samplers.speculative.accept.judge import Judge, JudgeState
from pardec.samplers.speculative.contracts import Draft, TargetDistributions, Uniforms, Verdict
from pardec.samplers.speculative.forward import VerifyForward
from tests.reference.naive_acceptance import Node, children, normal
from tests.samplers.ar_toys import prompts, request, rows, run, speculation, toy_ar
from tests.samplers.fake_draft_model import apart, path
from tests.samplers.handmade_drafts import Given, distributions, tree
from tests.samplers.module_files import random_judge, random_modules
from tests.samplers.speculative.test_rrs import random_tree
from tests.samplers.two_spellings_model import Careless, counting, guess, right
from tests.test_train_judge import auc, fit, states_of

GIVEN = [[row % 4, (row + 1) % 4] for row in range(8)]


@dataclass(frozen=True)
class Pass:
    """The inputs of a call of an acceptance, and its verdict."""

    draft: Draft
    distributions: TargetDistributions
    uniforms: Uniforms
    texts: list[list[int]]
    verdict: Verdict


def recorded(model: Any, sampler: Any, given: list[list[int]], new: int, **options: Any) -> tuple[Any, list[Pass]]:
    """The result, and every verification of drafts."""
    passes: list[Pass] = []
    accept, verify = Judge.accept, VerifyForward.verify
    texts: list[list[int]] = []

    def verified(self: VerifyForward, draft: Draft) -> Any:
        texts[:] = [self.text.row(at).tolist() for at in range(len(self.text))]
        return verify(self, draft)

    def noted(self: Judge, draft: Draft, distributions: Any, uniforms: Any, state: Any) -> Verdict:
        verdict = accept(self, draft, distributions, uniforms, state)
        if draft.width > 1:
            passes.append(Pass(draft, distributions, uniforms, list(texts), verdict))
        return verdict

    with patch.object(Judge, "accept", noted), patch.object(VerifyForward, "verify", verified):
        return run(model, sampler, given, new, **options), passes


def examples(count: int, seed: int) -> tuple[Tensor, Tensor]:
    """[N, E]: states at tokens that the target would not have written, and [N] whether each is a wrong digit."""
    seeded, texts = np.random.RandomState(seed), list[list[int]]()
    while len(texts) < count:
        text = [int(seeded.randint(8))]
        for _ in range(seeded.randint(1, 8)):
            text.append((text[-1] + 1) % 4 + 4 * int(seeded.randint(2)))
        token = guess(text[-1], seeded.rand())
        if token != (text[-1] + 1) % 4:
            texts.append([*text, token])
    important = torch.tensor([not right(text[-2], text[-1]) for text in texts])
    return states_of(counting(), texts), important


@pytest.mark.seeds("arXiv:2501.19309")
def test_a_linear_head_accepts_what_is_as_good_and_rejects_injected_errors(tmp_path: Path) -> None:
    """AUC on held-out states and on injected wrong digits; thr=0 is lossless; a higher threshold accepts no less."""
    for greedy in (True, False):
        random_trees_follow_the_plain_rule(greedy)
    the_least_important_of_the_rejected_stands_if_it_is_below_the_threshold()
    head = fit(*examples(400, 0), penalty=1e-4)
    replace(head, thr=0.3).save(tmp_path / "stored")
    context: Any = SimpleNamespace(model=counting(), text=SimpleNamespace(device=torch.device("cpu")))
    stored = [Judge(str(tmp_path / "stored"), thr).start(context) for thr in (None, 0.1)]
    assert [state and state.thr for state in stored] == [0.3, 0.1]
    states, important = examples(200, 1)
    assert auc(head(states), important) > 0.9
    head.save(tmp_path)
    rule = {thr: Judge(str(tmp_path), thr) for thr in (0.0, 0.05, 0.2, 0.5, 0.9)}
    plain = run(counting(), "sequential", GIVEN, 40)
    for temperature in (0.0, 1.0):
        options = {"temperature": temperature}
        off, exact = (
            run(counting(), speculation(Careless(), accept), GIVEN, 40, **options)
            for accept in (rule[0.0], "speculative" if temperature else "greedy")
        )
        assert rows(off) == rows(exact)
        done, passes = recorded(counting(), speculation(Careless(), rule[0.5]), GIVEN, 40, **options)
        assert sum(done.nfe) < 0.7 * sum(off.nfe), "second spellings stand"
        bench = JudgeState(load_judge(str(tmp_path)), 0.5)
        counts = [
            sum(
                int(each.accept(p.draft, p.distributions, p.uniforms, JudgeState(bench.head, thr)).count.sum())
                for p in passes
            )
            for thr, each in rule.items()
        ]
        assert counts == sorted(counts)
        assert counts[0] < counts[-1]
    assert rows(run(counting(), speculation(Careless(), rule[0.0]), GIVEN, 40)) == rows(plain)
    done, passes = recorded(counting(), speculation(Careless(), rule[0.5]), GIVEN, 40)
    assert done.deviation == tuple(sum(token > 3 for token in row[2:]) for row in rows(done))
    injected = accepted = 0
    for each in passes:
        wrong = each.verdict.tested & (each.draft.tokens % 4 != (each.draft.tokens.roll(1, 1) + 1) % 4)
        stands = torch.arange(each.draft.width) <= each.verdict.count[:, None]
        injected, accepted = injected + int(wrong.sum()), accepted + int((wrong & stands).sum())
    assert injected > 40
    assert accepted <= 0.05 * injected


def naive(
    nodes: Sequence[Node], law: np.ndarray, u: np.ndarray, important: Sequence[float], least: float, *, greedy: bool
) -> tuple[list[int], float, np.ndarray]:
    """The exact test of the children in order, each against the remaining residual; then the least important one.

    The path, what it gives away, and what is left to draw the next token from.
    """
    here, path, off = 0, list[int](), 0.0
    while True:
        left, chosen = law[here], -1
        for node in children(nodes, here):
            q = nodes[node].q
            q = np.eye(len(left))[nodes[node].token] if q is None or greedy else np.asarray(q)
            if u[node] * q[nodes[node].token] < left[nodes[node].token]:
                chosen = node
                break
            rest = np.maximum(left - q, 0)
            left = normal(rest) if rest.max() > 1e-12 else left
        if chosen < 0:
            passing = [node for node in children(nodes, here) if important[node] < least]
            if not passing:
                return path, off, left
            chosen = min(passing, key=lambda node: important[node])
            off += 1 - law[here][nodes[chosen].token]
        path.append(chosen)
        here = chosen


def the_least_important_of_the_rejected_stands_if_it_is_below_the_threshold() -> None:
    """Tokens 1, 2 and 3 are rejected, and matter by .5, .25 and .75: at a threshold of .25 none stands.

    In the second row they matter by .75, .5 and .25.
    """
    p = torch.tensor([1.0, 0, 0, 0]).expand(2, 4, 4)
    draft = tree(torch.tensor([[0, 1, 2, 3]] * 2), [-1, 0, 0, 0])
    important = torch.tensor([[0.0, 0.5, 0.25, 0.75], [0.0, 0.75, 0.5, 0.25]])
    for thr, expected in ((0.25, [[], []]), (0.26, [[2], [3]]), (0.6, [[2], [3]])):
        given = TargetDistributions(p.log(), p.log(), True, important)
        head: Any = lambda states: states  # noqa: E731
        verdict = Judge("x", thr).accept(draft, given, Given(torch.zeros(2, 4)), JudgeState(head, thr))
        assert [
            path[1 : count + 1] for path, count in zip(verdict.path.tolist(), verdict.count.tolist(), strict=True)
        ] == expected


def random_trees_follow_the_plain_rule(greedy: bool) -> None:
    seeded, alone_counts = np.random.RandomState(5), set()
    for _ in range(60):
        nodes, p, draft = random_tree(seeded, points=2, size=10)
        if greedy:
            draft = replace(draft, q=None, is_point_mass=None)
        states, u = torch.from_numpy(seeded.standard_normal((1, 10, 4))).float(), seeded.rand(1, 10)
        head = random_judge(4, seed=1)
        important = head(states)[0].tolist()
        law = p.numpy()[0].astype(np.float64)
        law = np.eye(law.shape[1])[law.argmax(1)] if greedy else law
        expected, off, left = naive(nodes, law, u[0], important, 0.4, greedy=greedy)
        base = distributions(p, greedy=greedy)
        given = TargetDistributions(base.raw, base.logits, greedy, states)
        uniforms = Given(torch.from_numpy(u))
        verdict = Judge("x", 0.4).accept(draft, given, uniforms, JudgeState(head, 0.4))
        assert verdict.path[0, 1 : int(verdict.count) + 1].tolist() == expected
        assert verdict.deviation is not None
        assert float(verdict.deviation) == pytest.approx(off, abs=1e-5)
        np.testing.assert_allclose(uniforms.left[0].numpy(), left, atol=1e-6)
        alone_counts.add(round(off) > 0)
    assert alone_counts == {True, False}


@pytest.mark.parametrize("drafter", ["model:name=toy,k=3+template", "eagle:name=toy,k=3", "prompts:name=toy,k=3"])
def test_it_reads_the_normed_states_at_the_nodes_and_drafters_still_read_theirs(
    drafter: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, given = toy_ar(3, 8, layers=4), prompts((3, 6, 1), vocab=8)
    monkeypatch.setattr("pardec.requests.draft_models.language_model", lambda *_: toy_ar(4, 8))
    with random_modules():
        done, passes = recorded(model, f"{drafter}+judge:head=toy,thr=0.3", given, 12, temperature=1.0)
        off = run(model, f"{drafter}+judge:thr=0", given, 12, temperature=1.0)
        exact = run(model, f"{drafter}+speculative", given, 12, temperature=1.0)
    assert rows(off) == rows(exact)
    assert done.deviation
    for each in passes[:3]:
        for row, size in enumerate(each.draft.sizes):
            for node in range(1, size):
                text = [*each.texts[row], *path(each.draft, row, node)]
                plan = Plan.full(torch.tensor([text]), model.visible())
                assert each.distributions.states is not None
                assert apart(each.distributions.states[row, node], model.forward(plan).normed()[0, -1]) < 1e-4


def test_states_that_nobody_reads_are_not_made(monkeypatch: pytest.MonkeyPatch) -> None:
    wishes: list[TargetStates | None] = []
    made = VerifyForward.__init__

    def noted(self: VerifyForward, *args: Any, **options: Any) -> None:
        made(self, *args, **options)
        wishes.append(self.every)

    monkeypatch.setattr(VerifyForward, "__init__", noted)
    with random_modules():
        for spec in ("lookup", "lookup+judge:thr=0", "lookup+judge:head=toy,thr=0.3"):
            run(toy_ar(3, 8, layers=4), spec, [[1, 2]], 4)
    assert wishes == [None, None, TargetStates(normed=True)]


def test_wishes_are_joined_and_taken_apart() -> None:
    one, other = TargetStates((2, 0)), TargetStates((0, 3), normed=True)
    both = one | other
    assert both == TargetStates((2, 0, 3), normed=True)
    values = torch.arange(8.0).view(1, 1, 8)  # 2, 0, 3 and the normed state, of width 2
    assert both.part(values, one).flatten().tolist() == [0, 1, 2, 3]
    assert both.part(values, other).flatten().tolist() == [2, 3, 4, 5, 6, 7]
    assert (one | None) is one
    assert one.part(values, one) is values


# --- files ---


def test_heads_that_cannot_be_used_are_refused(tmp_path: Path) -> None:
    for spec, says in (
        ("lookup+judge", "judge: head is missing"),
        ("lookup+judge:head=x,thr=2", r"judge: thr must lie in \[0, 1\], got 2.0"),
    ):
        with pytest.raises(SpecError, match=says):
            registry.resolve(spec, "ar")
    assert registry.resolve("lookup+judge:thr=0", "ar").exact == "greedy"
    assert registry.resolve("lookup+judge:head=x", "ar").exact == "relaxed"
    with pytest.raises(SpecError, match="unknown head 'tiny-lama'"):
        Judge("tiny-lama").admit(request([[1]], 3), None)
    random_judge(24).save(tmp_path)
    with pytest.raises(ModelError, match="reads states of width 24, and those of toy have 16"):
        run(toy_ar(3), f'lookup+judge:head="{tmp_path}",thr=0.1', [[1]], 3)
    random_judge(16).save(tmp_path)
    with pytest.raises(SpecError, match="no threshold is stored with"):
        run(toy_ar(3), f'lookup+judge:head="{tmp_path}"', [[1]], 3)
    (tmp_path / WEIGHTS).write_bytes(b"nothing")
    with pytest.raises(ModelError, match="holds no head of a judge"):
        module.load_judge(str(tmp_path))


def test_a_stored_head_is_the_same(tmp_path: Path) -> None:
    weights = (torch.randn(5), torch.rand(5) + 0.5, torch.randn(5), torch.randn(()))
    JudgeHead(*weights, "toy", 0.25).save(tmp_path)
    loaded = load_judge(str(tmp_path))
    assert (loaded.target, loaded.thr, loaded.width) == ("toy", 0.25, 5)
    states = torch.randn(3, 2, 5)
    mean, scale, w, b = weights
    np.testing.assert_allclose(loaded(states), torch.sigmoid(((states - mean) / scale * w).sum(-1) + b), rtol=1e-5)


@pytest.mark.parametrize("name", judge_names())
def test_an_embedded_head_is_what_its_card_says(name: str) -> None:
    card, head = json.loads((JUDGES / name / "card.json").read_text()), load_judge(name)
    assert (card["name"], card["target"], card["thr"]) == (name, head.target, head.thr)
    assert head.width == json.loads((EMBEDDED / name / "config.json").read_text())["hidden_size"]
    assert card["parameters"] == head.width + 1
    assert card["auc"] > 0.7
    assert sum(file.stat().st_size for file in (JUDGES / name).iterdir()) < 100_000


def test_the_embedded_head_of_tiny_llama_keeps_its_answers_right() -> None:
    """With thr=0 it is lossless; with the stored threshold, the tokens that only `judge` accepts are counted."""
    model, problems = pardec.load("tiny-llama", device="cpu"), pardec.task("records").problems(n=4)
    given, score = [problem.prompt for problem in problems], pardec.task("records").score
    drafted = "earlyexit:layers=2,k=10+judge:head=tiny-llama"
    plain, off, stored = (
        model.generate(given, sampler=spec, max_new_tokens=48) for spec in ("sequential", f"{drafted},thr=0", drafted)
    )
    assert off.tokens == plain.tokens
    assert off.exact == "greedy"
    assert stored.exact == "relaxed"
    assert stored.deviation is not None
    assert all(score(problem, text) == 1 for problem, text in zip(problems, stored.text or (), strict=True))
