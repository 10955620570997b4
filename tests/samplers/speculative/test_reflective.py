"""`reflective`: its added nodes, its second prediction compared with separate passes, exact and extreme settings."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from types import SimpleNamespace
from typing import Any, Literal
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor

from pardec.models.errors import SpecError
from pardec.models.model import LanguageModel
from pardec.samplers import registry
from pardec.samplers.speculative.accept.reflective import Reflection, Reflective
from pardec.samplers.speculative.contracts import Draft, TargetDistributions, Uniforms, Verdict
from pardec.samplers.speculative.logits.momentum import Momentum
from tests.samplers.ar_toys import logits, prompts, rows, run, toy_ar
from tests.samplers.draft_model_checks import nothing_after_committed
from tests.samplers.fake_draft_model import apart, named
from tests.samplers.handmade_drafts import Given

VOCAB, K = 6, 4
CHAIN = f"model:name=near,k={K}"
PROBE = [5, 0, 3]


class Words:
    """A tokenizer that has one text."""

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        assert (text, add_special_tokens) == ("again", False)
        return PROBE

    def get_vocab(self) -> dict[str, int]:
        return {}


@cache
def copying(offset: int | None = K - 1, seed: int = 1) -> LanguageModel:
    """A bigram model with one head that raises the logit of the token `offset` positions back, which copying needs.

    An embedding is one-hot, queries and keys are constant: rotated, they match at one distance alone.
    """
    model = toy_ar(0, VOCAB, layers=1)
    stack: Any = model.decoder
    frequency, seeded = torch.tensor([1.0, 0.3, 0.1, 0.03]), np.random.RandomState(7)
    bigrams = torch.from_numpy(seeded.standard_normal((VOCAB, VOCAB))).float() * 0.6
    if offset is None:
        bigrams = bigrams + torch.from_numpy(np.random.RandomState(seed).standard_normal(bigrams.shape)).float() * 0.2
    with torch.no_grad():
        for weight in stack.parameters():
            if weight.dim() > 1:
                weight.zero_()
        stack.embed.weight[:, :VOCAB] = torch.eye(VOCAB)
        stack.head.weight[:, :VOCAB] = bigrams
        if offset is not None:
            qkv = stack.layers[0].qkv_weight
            qkv[:4] = 2.0
            angle = frequency * offset
            qkv[16:20], qkv[20:24] = 2 * angle.cos()[:, None], 2 * angle.sin()[:, None]
            qkv[24 : 24 + VOCAB, :VOCAB] = torch.eye(VOCAB)
            stack.layers[0].out_weight[8 : 8 + VOCAB, :VOCAB] = torch.eye(VOCAB) * 1.2
            stack.head.weight[:, 8 : 8 + VOCAB] = torch.eye(VOCAB)
    return replace(model, tokenizer=Words() if offset is not None else None)


@dataclass(frozen=True)
class Pass:
    """The inputs of a call of an acceptance."""

    draft: Draft
    distributions: TargetDistributions
    uniforms: Uniforms
    state: Reflection
    texts: list[list[int]]
    added: np.ndarray
    verdict: Verdict
    left: Tensor  # what the next token is drawn from


def recorded(spec: str, given: list[list[int]], new: int | list[int], **options: Any) -> list[Pass]:
    """Every verification of drafts."""
    passes: list[Pass] = []
    accept = Reflective.accept

    def noted(self: Reflective, draft: Draft, distributions: Any, uniforms: Any, state: Reflection) -> Verdict:
        verdict = accept(self, draft, distributions, uniforms, state)
        text = state.context.text
        texts = [text.row(at).tolist() for at in range(len(text))]
        now: Any = SimpleNamespace(
            text=SimpleNamespace(limit=text.limit.copy()), target_distribution=state.context.target_distribution
        )
        if draft.width > 1:
            given: Any = uniforms
            given = Given(given.accepts(draft.width))
            accept(self, draft, distributions, given, state)
            then = replace(state, context=now)
            passes.append(Pass(draft, distributions, uniforms, then, texts, state.added(draft), verdict, given.left))
        return verdict

    with patch.object(Reflective, "accept", noted), named(near=copying(None)):
        run(copying(), spec, given, new, **options)
    return passes


GIVEN = prompts((3, 6, 1, 9), vocab=VOCAB)


def again(each: Pass, row: int) -> Tensor:
    """[k, V]: logits that predict each drafted token a second time, by a forward of the whole text without a cache."""
    drafted = each.draft.tokens[row, 1 : each.draft.sizes[row]].tolist()
    before = [*each.texts[row], *drafted, *each.state.probe.tolist()]
    return logits(copying(), [[*before, *drafted]])[0, len(before) - 1 : -1]


@pytest.mark.seeds("arXiv:2505.18629")
def test_a_second_opinion_of_the_same_pass_lets_more_of_a_draft_stand() -> None:
    """alpha=0 equals the base rule bit for bit; second predictions equal two passes'; alpha raises acceptance."""
    which_node_predicts_which_drafted_token_again_by_hand()
    test_every_verdict_is_that_of_the_naive_rule("logits", 0.8, None)
    test_every_verdict_is_that_of_the_naive_rule("probs", 0.8, None)
    test_every_verdict_is_that_of_the_naive_rule("logits", 0.0, None)
    with named(near=copying(None)):
        for temperature, base in ((0.0, "greedy"), (1.0, "speculative")):
            exact, zero = (
                run(copying(), f"{CHAIN}+{rule}", GIVEN, 20, temperature=temperature)
                for rule in (base, "reflective:alpha=0,probe=again")
            )
            assert rows(zero) == rows(exact)
            assert zero.trace.accepted == exact.trace.accepted
            assert zero.trace.fed == exact.trace.fed, "and nothing is fed beside the draft"
    passes = recorded(f"{CHAIN}+reflective:alpha=0.4,probe=again", GIVEN, 40, temperature=1.0)
    compared = 0
    for each in passes[:6]:
        second = each.state.second(each.draft)
        for row in np.flatnonzero(each.added >= 0):
            at = second[row, : each.draft.sizes[row] - 1]
            assert each.distributions.extended is not None
            assert apart(each.distributions.extended[row, at], again(each, row)) < 1e-5
            compared += 1
    assert compared > 12
    passes = recorded(f'{CHAIN}+reflective:alpha=0.4,probe=""', GIVEN * 2, 30, temperature=1.0)
    counts = [
        sum(
            int(Reflective(alpha, "").accept(p.draft, p.distributions, p.uniforms, p.state).count.sum()) for p in passes
        )
        for alpha in (0.0, 0.125, 0.25, 0.375, 0.5, 0.75, 1.0)
    ]
    assert counts == sorted(counts)
    assert counts[0] < counts[1] < counts[-1], "the target thinks better of what it reads twice"


def which_node_predicts_which_drafted_token_again_by_hand() -> None:
    """Text of 4 tokens, draft x y z, probe p q: x y z p q x y is fed after the last token; the second row drafts 1."""
    context: Any = SimpleNamespace(text=SimpleNamespace(limit=np.array([40, 40])))
    state = Reflection(torch.tensor(PROBE), context)
    draft = Draft(torch.tensor([[9, 1, 2, 4], [8, 5, 0, 0]]), np.array([4, 2]), np.array([3, 1]))
    whole = state.extended(draft)
    assert whole.sizes.tolist() == [4 + 3 + 2, 2 + 3]
    assert whole.tokens[0].tolist() == [9, 1, 2, 4, *PROBE, 1, 2]
    assert whole.tokens[1, :5].tolist() == [8, 5, *PROBE]
    assert state.second(draft).tolist() == [[6, 7, 8, -1], [4, -1, -1, -1]]
    context.text.limit = np.array([3 + 4 + 5, 1 + 2 + 2])  # just room for the first row, and one too few for the second
    assert state.added(draft).tolist() == [5, -1]
    assert state.second(draft).tolist() == [[6, 7, 8, -1], [-1] * 4]


def naive(
    each: Pass, row: int, alpha: float, mix: str, temperature: float, stage: Momentum | None
) -> tuple[int, Tensor]:
    """The accepted draft tokens and what the next one is drawn from: in float64, from forwards of whole texts."""
    accepts: Any = each.uniforms
    u = accepts.accepts(each.draft.width)
    size = each.draft.sizes[row]
    drafted = each.draft.tokens[row, 1:size].tolist()
    first, second = logits(copying(), [each.texts[row] + drafted])[0, -size:], again(each, row)

    def staged(i: int, logits: Tensor) -> Tensor:
        ids = torch.tensor([each.texts[row] + drafted[:i]])
        return logits if stage is None else stage.scores(ids, logits[None], torch.zeros(1))[0]

    def plain(i: int) -> Tensor:
        own = staged(i, first[i].double())
        return (own / temperature).softmax(-1) if temperature else (own == own.max()).double()

    for i, token in enumerate(drafted):
        own = first[i].double()
        two = second[i].double() if each.added[row] >= 0 else own
        scale = temperature or 1.0
        blend = staged(i, (1 - alpha) * own + alpha * two)
        own, two = staged(i, own), staged(i, two)
        mixed = (1 - alpha) * (own / scale).softmax(-1) + alpha * (two / scale).softmax(-1)
        p = (blend / scale).softmax(-1) if mix == "logits" else mixed
        bar = 1.0 if each.draft.q is None else float(each.draft.q[row, i + 1, token])
        if not (int(p.argmax()) == token if not temperature else float(u[row, i + 1]) * bar < float(p[token])):
            q = torch.eye(VOCAB)[token] if each.draft.q is None else each.draft.q[row, i + 1]
            rest = (plain(i) - q.double()).clamp(min=0)
            return i, rest / rest.sum()
    return len(drafted), plain(len(drafted))


@pytest.mark.parametrize("mix", ["logits", "probs"])
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.parametrize("stage", [None, Momentum(0.05, 3)])
@pytest.mark.covers(2)
def test_every_verdict_is_that_of_the_naive_rule(
    mix: Literal["logits", "probs"], temperature: float, stage: Momentum | None
) -> None:
    alpha, outcomes = 0.3, set()
    spec = f"{CHAIN}{'+momentum:alpha=0.05,k=3' if stage else ''}+reflective:probe=again,alpha={alpha},mix={mix}"
    for each in recorded(spec, GIVEN, 24, temperature=temperature):
        for row in range(len(each.draft.sizes)):
            count, left = naive(each, row, alpha, mix, temperature, stage)
            assert int(each.verdict.count[row]) == count
            assert apart(each.left[row], left) < 1e-5, "the next token is the target's own, whatever the second opinion"
            outcomes.add(count)
    assert len(outcomes) > 1


def test_nothing_committed_attends_to_the_probe_or_the_copy() -> None:
    clean = run_rows()
    with nothing_after_committed():
        assert run_rows() == clean
    one, other = (
        recorded(f'{CHAIN}+reflective:alpha=0.4,probe="{probe}"', GIVEN, 40, temperature=1.0)[0]
        for probe in ("again", "")
    )
    assert torch.allclose(one.distributions.raw, other.distributions.raw, atol=1e-5)


def run_rows() -> list[list[int]]:
    with named(near=copying(None)):
        return rows(run(copying(), f"{CHAIN}+reflective:probe=again", GIVEN, 30, temperature=1.0))


def test_at_the_end_of_a_row_the_base_rule_takes_over_and_nothing_is_fed_beyond_it() -> None:
    passes = recorded(f"{CHAIN}+reflective:probe=again", [[1, 2], [3]], [30, 12])
    assert passes[0].added.tolist() == [K + 2, K + 2]
    assert passes[-1].added.tolist() == [-1]
    with named(near=copying(None)):
        done = run(copying(), f"{CHAIN}+reflective:probe=again", [[1, 2], [3]], [30, 12])
    for row, limit in enumerate((32, 13)):
        assert max(max(fed) for fed in done.trace.fed[row]) <= limit - 1


@pytest.mark.parametrize(
    ("spec", "says"),
    [
        (f"{CHAIN}+template", "one drafted chain per row, and 'template' drafts trees"),
        ("recycling", "'recycling' lays out its own nodes"),
        ("earlyexit", "'earlyexit' drafts in that forward"),
        ("prompts:name=x", "'prompts' drafts in that forward"),
    ],
)
def test_what_it_cannot_read_twice_is_refused(spec: str, says: str) -> None:
    with pytest.raises(SpecError, match=says) as refused:
        registry.resolve(f"{spec}+reflective", "ar")
    assert refused.value.hint


def test_a_probe_needs_a_tokenizer_and_alpha_a_range() -> None:
    with pytest.raises(SpecError, match="probe is text, and toy has no tokenizer"):
        run(toy_ar(0), "lookup+reflective", [[1]], 4)
    with pytest.raises(SpecError, match=r"reflective: alpha must lie in \[0, 1\], got 1.5"):
        Reflective(alpha=1.5)
    assert registry.resolve("lookup+reflective:alpha=0", "ar").exact == "greedy"
    assert registry.resolve("lookup+reflective", "ar").exact == "relaxed"
    assert Reflective().alpha == 0.3
