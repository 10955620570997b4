"""`counterfactual`: a candidate is committed if it stays the likeliest with the other likely tokens filled in."""

from __future__ import annotations

from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

import pardec
from pardec.models.errors import SpecError
from pardec.models.model import LanguageModel
from pardec.models.plan import Plan, Visible
from pardec.samplers import registry
from pardec.samplers.masked.contracts import Proposal
from pardec.samplers.masked.predict import DraftedForward, Drafts
from pardec.samplers.masked.select.counterfactual import Counterfactual
from tests.samplers.eight_tokens import proposal
from tests.samplers.spec_checks import refused_specs
from tests.samplers.toys import EOS, MASK, fill, prompts, request, run, same, toy


def second_views(model: LanguageModel, tokens: list[int], drafts: dict[int, int], masks: list[int]) -> torch.Tensor:
    """Logits [L + masks, V]: of the text, and of each mask with all drafts but its own filled in.

    One text of originals and copies, with a mask made position by position.
    """
    length, shift = len(tokens), model.decoding_config.shift
    entries = [(p, tokens[p], None) for p in range(length)]  # position, token, the mask that it predicts
    entries += [(p, token, None) for p, token in drafts.items()]
    for p in masks:
        at = max(p - shift, 0)
        entries.append((at, MASK if at == p else drafts.get(at, tokens[at]), p))
    visible = torch.zeros(1, len(entries), len(entries), dtype=torch.bool)
    for query, (at, _, predicts) in enumerate(entries):
        for key, (position, _, _) in enumerate(entries):
            if query < length:
                sees = key < length
            elif key == query:
                sees = True
            elif key < length:  # of what it predicts, the mask
                sees = (position not in drafts or position == predicts) and (predicts is None or position != at)
            else:
                sees = key < length + len(drafts) and (predicts is None or position not in (at, predicts))
            visible[0, query, key] = sees
    plan = Plan(
        tokens=torch.tensor([[token for _, token, _ in entries]]),
        positions=torch.tensor([[at for at, _, _ in entries]]),
        slots=torch.arange(len(entries))[None],
        visible=Visible.mask(visible),
        lengths=torch.tensor([len(entries)]),
        want=torch.arange(len(entries))[None],
    )
    logits = model.forward(plan).logits()[0].clone()
    logits[:, MASK] = -torch.inf
    rows = [max(p - shift, 0) for p in range(length)]
    return torch.cat([logits[rows], logits[len(entries) - len(masks) :]])


def naive(
    model: LanguageModel, prompt: list[int], new: int, size: int, tau: float, draft: float
) -> tuple[list[int], list[int], int, list[dict[int, float]]]:
    """Tokens, the step of each commit, how many confident candidates were held back, and the second predictions.

    These are the highest probability of each mask, at each step.
    """
    tokens, when, step, held = [*prompt, *[MASK] * new], [-1] * len(prompt) + [0] * new, 0, 0
    second = list[dict[int, float]]()
    for begin in range(len(prompt), len(tokens), size):
        drafts: dict[int, int] = {}
        while masks := [p for p in range(begin, min(begin + size, len(tokens))) if tokens[p] == MASK]:
            drafts = {p: token for p, token in drafts.items() if p in masks}
            logits = second_views(model, tokens, drafts, masks)
            best = logits.softmax(-1).max(-1)
            sure = {p: float(best.values[p]) for p in masks}
            likely = {p: int(best.indices[p]) for p in masks}
            again = {p: int(best.indices[len(tokens) + i]) for i, p in enumerate(masks)}
            second.append({p: float(best.values[len(tokens) + i]) for i, p in enumerate(masks)})
            chosen = [p for p in masks if sure[p] >= tau and likely[p] == again[p]]
            held += sum(sure[p] >= tau for p in masks) - len(chosen)
            for p in chosen or [max(masks, key=lambda p: (sure[p], -p))]:
                tokens[p], when[p] = likely[p], step
            drafts, step = {p: likely[p] for p in masks if sure[p] > draft}, step + 1
    return tokens, when, held, second


def a_token_is_drafted_if_it_is_likelier_than_asked_for() -> None:
    """A model that knows nothing gives each of the tokens that are no mask the same probability."""
    model, note, counts = toy("llada", sharp=0.0), DraftedForward.note, list[int]()
    equal = 1 / (model.vocab_size - 1)

    def watched(self: DraftedForward, read: Any) -> None:
        counts.append(int(read["drafted"].sum()))
        note(self, read)

    for draft, most in ((np.nextafter(np.float32(equal), np.float32(1)), 0), (equal, 0), (equal - 1e-3, 4)):
        counts.clear()
        with patch.object(DraftedForward, "note", watched):
            fill(model, f"counterfactual:tau=0.9,draft={float(np.float32(draft)):.17g}@none", [[5, 6, 7]], 4)
        assert max(counts) == most


def a_token_that_was_drawn_and_committed_is_no_draft_any_more() -> None:
    """Copies that stand at committed positions have the tokens there, and not what was the likeliest in their place."""
    prepare, drawn = Drafts.prepare, [0]

    def watched(self: Drafts, plan: Plan, group: Any) -> Plan:
        made, canvas = prepare(self, plan, group), self.forward.canvas
        at = group.plan.positions[: len(group.want), plan.tokens.shape[1] :]
        likely, tokens, masks = (
            group.of(each).gather(1, at.clamp(min=0)) for each in (self.forward.likely, canvas.tokens, canvas.open)
        )
        closed = (at >= 0) & ~masks
        assert (made.tokens[:, plan.tokens.shape[1] :] == tokens)[closed].all()
        drawn[0] += int((closed & (likely != tokens) & (likely > 0)).sum())
        return made

    with patch.object(Drafts, "prepare", watched):
        fill(toy("dream", sharp=1.2), "counterfactual:tau=0.1,draft=0.1@none", [[5, 6, 7]] * 3, 14, temperature=1.0)
    assert drawn[0] > 3


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.seeds("arXiv:2605.10980")
def test_it_is_the_naive_rule(family: str) -> None:
    test_rows_of_a_batch_have_their_own_drafts()
    a_token_is_drafted_if_it_is_likelier_than_asked_for()
    a_token_that_was_drawn_and_committed_is_no_draft_any_more()
    model, held, select = toy(family, sharp=1.2), 0, Counterfactual.select
    for seed in range(8):
        seen: list[dict[int, float]] = []

        def recording(rule: Counterfactual, proposal: Proposal, *more: Any, seen: Any = seen) -> Any:
            evidence, (row,) = proposal.evidence, proposal.eligible
            assert evidence.leave_one_out is not None
            again = evidence.leave_one_out.greedy[1][0][row]
            seen.append(dict(zip(evidence.positions[0][row].tolist(), again.tolist(), strict=True)))
            return select(rule, proposal, *more)

        (prompt,) = prompts((3 * seed,), seed=seed)
        draft = 0.1 if seed % 2 else 0.3
        with patch.object(Counterfactual, "select", recording):
            got = fill(model, f"counterfactual:tau=0.4,draft={draft}@none", [prompt], 14, block_length=7)
        tokens, when, refused, second = naive(model, prompt, 14, 7, 0.4, draft)
        assert got.tokens[0].tolist() == tokens
        assert got.trace.commit_step[0].tolist() == when
        for each, own in zip(seen, second, strict=True):
            assert each == pytest.approx(own, abs=1e-5)
        held += refused
    assert held, "no candidate was ever held back: the test shows nothing"
    found = proposal("confidence")
    evidence = replace(found.evidence, leave_one_out=found.evidence.distribution)
    just = Counterfactual(tau=float(found.score[0, 5])).select(replace(found, evidence=evidence), None, None)  # type: ignore[arg-type]
    assert just[0].nonzero()[:, 0].tolist() == [0, 2, 4, 5, 6]  # .85 is enough where .85 is asked for
    drawn = replace(found, evidence=evidence, tokens=found.tokens + 1)  # the likeliest are compared, not the drawn
    assert torch.equal(Counterfactual(tau=float(found.score[0, 5])).select(drawn, None, None), just)  # type: ignore[arg-type]


@pytest.mark.parametrize("family", ["llada", "dream"])
@pytest.mark.parametrize("cache", ["none", "dual", "prefix", "dkv"])
@pytest.mark.parametrize("options", [{}, {"cfg": 1.5, "temperature": 0.7}], ids=["greedy", "guided"])
@pytest.mark.covers(2)
def test_without_drafts_it_is_threshold(family: str, cache: str, options: dict[str, float]) -> None:
    lengths, new = (3, 6, 1, 5), (17, 6, 23, 2)
    plain, own = (
        fill(toy(family, sharp=1.2), f"{rule}@{cache}", prompts(lengths), new, stop_ids=(EOS,), **options)
        for rule in ("threshold:tau=0.3", "counterfactual:tau=0.3,draft=1")
    )
    assert all(same(plain, row, own, row) for row in range(4))


@pytest.mark.parametrize("family", ["llada", "dream"])
def test_without_drafts_the_second_prediction_is_the_first_under_guidance(family: str) -> None:
    select = Counterfactual.select

    def compared(rule: Counterfactual, proposal: Proposal, *more: Any) -> Any:
        evidence, row = proposal.evidence, proposal.eligible
        assert evidence.leave_one_out is not None
        first, second = (each.logits.softmax(-1)[row] for each in (evidence.distribution, evidence.leave_one_out))
        torch.testing.assert_close(first, second)
        return select(rule, proposal, *more)

    model, template = toy(family, sharp=1.2), [MASK, 5, MASK, MASK]
    rows = [[*prompt, *template] for prompt in prompts((3, 6, 1))]
    with patch.object(Counterfactual, "select", compared):
        run(model, "counterfactual:draft=1", request(rows, (3, 6, 1), cfg=2.5))


def test_rows_of_a_batch_have_their_own_drafts() -> None:
    model, rows, new = toy("dream", sharp=1.2), prompts((3, 6, 1)), (17, 6, 23)
    spec = "counterfactual:tau=0.3,draft=0.25@dual"
    together = fill(model, spec, rows, new, block_length=8)
    for row, prompt in enumerate(rows):
        assert same(together, row, fill(model, spec, [prompt], new[row], block_length=8), 0)


def test_it_has_fewer_errors_than_its_threshold_alone_and_no_more_steps_than_a_high_one() -> None:
    """On `grids`, held-back candidates are worth more than the steps that they cost."""
    model, task = pardec.load("tiny-llada", device="cpu", dtype="float32"), pardec.tasks.task("grids")
    problems = task.problems(split="heldout", n=16, seed=1)

    def decoded(select: str) -> tuple[int, float]:
        got = model.generate([p.prompt for p in problems], sampler=f"{select}@none", max_new_tokens=task.tokens)
        return sum(got.nfe), sum(map(task.score, problems, got.text))

    high, low, own = (decoded(rule) for rule in ("threshold:tau=0.9", "threshold:tau=0.8", "counterfactual:tau=0.8"))
    assert own[1] == high[1] > low[1]
    assert own[0] <= high[0]


def test_what_adds_copies_or_has_none_is_refused() -> None:
    with pytest.raises(SpecError, match="counterfactual and wino both add copies of the block to a forward"):
        registry.resolve("wino+counterfactual")
    with pytest.raises(SpecError, match="counterfactual needs bidirectional attention, and toy has block-causal"):
        pardec.Model(toy("sdar")).prepare("a", sampler="counterfactual")


test_bad_parameters = refused_specs(
    [("tau=1.2", r"tau must lie in \[0, 1\], got 1.2"), ("draft=-0.1", r"draft must lie in \[0, 1\], got -0.1")],
    before="counterfactual:",
)
