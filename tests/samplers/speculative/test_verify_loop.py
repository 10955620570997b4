"""The verify loop with drafters made for the test: what it feeds and commits, and possible faults."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any

import numpy as np
import pytest
import torch
from transformers.generation.logits_process import (
    MinLengthLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
)

from pardec.models.caches.kv_cache import KVCache
from pardec.requests import draft_models
from pardec.samplers.events import Accepted, Finished, RowFinished
from pardec.samplers.request import Allowed
from pardec.samplers.speculative import forward
from pardec.samplers.speculative.accept.greedy import Greedy
from pardec.samplers.speculative.contracts import (
    Acceptance,
    DecodeContext,
    Draft,
    TargetDistributions,
    Uniforms,
    Verdict,
)
from pardec.samplers.speculative.forward import VerifyForward
from pardec.samplers.speculative.loop import VerifyLoop, decode
from tests.samplers.ar_toys import (
    counted,
    g_test,
    joint,
    logits,
    plain_greedy,
    prompts,
    request,
    rows,
    run,
    speculation,
    toy_ar,
)
from tests.samplers.joint_distributions import drafting
from tests.samplers.loop_drafters import (
    LENGTHS,
    VOCAB,
    Chain,
    Forest,
    check_plain,
    greedy,
    processed_greedy,
    right,
    wrong,
)

PENALTIES = (RepetitionPenaltyLogitsProcessor(1.6), NoRepeatNGramLogitsProcessor(3), MinLengthLogitsProcessor(12, 2))


def watch(monkeypatch: pytest.MonkeyPatch, look: Callable[[VerifyLoop, Draft, torch.Tensor], None]) -> None:
    """Calls `look` with every draft and the raw logits after it, before acceptance."""
    real = VerifyForward.verify
    loops: list[VerifyLoop] = []
    begin = VerifyLoop._begin

    def noted(self: VerifyLoop) -> Any:
        loops.append(self)
        return begin(self)

    def verify(self: VerifyForward, draft: Draft) -> Any:
        raw, made = real(self, draft)
        look(loops[-1], draft, raw)
        return raw, made

    monkeypatch.setattr(VerifyLoop, "_begin", noted)
    monkeypatch.setattr(VerifyForward, "verify", verify)


# --- the list of what goes wrong (in the order of the project's notes on text models) ---


@pytest.mark.parametrize("right_share", [0.0, 0.5, 1.0])
def test_01_every_node_stands_where_its_own_path_puts_it(right_share: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Logits after each node of ragged trees equal those of its path alone, without cache, batch or tree."""
    model, seen = toy_ar(1, VOCAB), 0

    def look(loop: VerifyLoop, draft: Draft, raw: torch.Tensor) -> None:
        nonlocal seen
        tokens, parents = draft.tokens.tolist(), draft.parent.tolist()
        for row, node in ((row, node) for row, size in enumerate(draft.sizes) for node in range(size)):
            path, at = [], node
            while at > 0:
                path.append(tokens[row][at])
                at = parents[row][at]
            text = [*loop.text.row(row).tolist(), *reversed(path)]
            torch.testing.assert_close(raw[row, node], logits(model, [text])[0, -1], atol=2e-5, rtol=1e-5)
            seen += 1

    watch(monkeypatch, look)
    given = prompts(LENGTHS, vocab=VOCAB)
    check_plain(model, run(model, greedy(Forest(right_share)), given, 14), given, 14)
    assert seen > 40


@pytest.mark.parametrize("kind", ["wrong", "right", "mixed"])
@pytest.mark.parametrize("poison", [1e4, float("nan")])
@pytest.mark.covers(1)
def test_02_slots_that_a_row_must_not_see_change_nothing(
    kind: str, poison: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After each round every slot after the committed K/V is poisoned, including the scratch slot of padding."""
    model = toy_ar(1, VOCAB)
    drafters = {"wrong": Chain(wrong(model)), "right": Chain(right(model)), "mixed": Forest()}
    sampler, given = greedy(drafters[kind]), prompts(LENGTHS, vocab=VOCAB)
    clean = run(model, sampler, given, 9)
    poisoned(monkeypatch, poison)
    done = run(model, sampler, given, 9)
    assert (done.tokens == clean.tokens).all()
    assert done.nfe == clean.nfe
    assert (done.trace.commit_score == clean.trace.commit_score).all()  # to the last bit
    sampled = run(model, speculation(drafters[kind]), given, 9, temperature=0.8)
    monkeypatch.undo()
    again = run(model, speculation(drafters[kind]), given, 9, temperature=0.8)
    assert (sampled.tokens == again.tokens).all()
    assert (sampled.trace.commit_score == again.trace.commit_score).all()


def poisoned(monkeypatch: pytest.MonkeyPatch, value: float) -> None:
    """Overwrites every slot that no row may read, in the caches of target and drafters, after every round."""
    real = VerifyLoop.round

    def caches(found: Any) -> list[KVCache]:
        if isinstance(found, KVCache):
            return [found]
        held = [getattr(found, field.name) for field in fields(found)] if is_dataclass(found) else []
        held += (
            list(vars(found).values()) if hasattr(found, "__dict__") and not isinstance(found, DecodeContext) else []
        )
        return [cache for each in held if isinstance(each, KVCache) for cache in [each]]

    def after(self: VerifyLoop) -> None:
        real(self)
        every = [self.forward.cache, *(cache for state in self.memory.values() for cache in caches(state))]
        for cache in every:
            slot = torch.arange(cache.capacity + 1)
            hidden = slot >= torch.from_numpy(self.text.length - 1)[:, None]
            for tensor in (*cache.k, *cache.v):
                tensor[hidden] = value

    monkeypatch.setattr(VerifyLoop, "round", after)


@pytest.mark.parametrize("poison", [1e4, float("nan")])
@pytest.mark.parametrize("spec", ["lookup", "model:name=toy", "model:name=toy+template:widths=2-2-1"])
@pytest.mark.covers(1)
def test_02_nor_do_they_in_a_drafters_own_cache(spec: str, poison: float, monkeypatch: pytest.MonkeyPatch) -> None:
    model, other = toy_ar(1, VOCAB), toy_ar(2, VOCAB)
    monkeypatch.setattr(draft_models, "language_model", lambda *_: other)
    given = prompts(LENGTHS, vocab=VOCAB)
    clean = run(model, spec, given, 9)
    poisoned(monkeypatch, poison)
    done = run(model, spec, given, 9)
    assert (done.tokens == clean.tokens).all()
    assert done.trace.accepted == clean.trace.accepted
    assert (done.trace.commit_score == clean.trace.commit_score).all()


def test_03_a_drafter_that_is_the_target_is_accepted_wholly_every_round(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing K/V after a full acceptance would lower the acceptance, but never give a wrong token."""
    model = toy_ar(1, VOCAB)
    monkeypatch.setattr(draft_models, "language_model", lambda *_: model)
    given = prompts(LENGTHS, vocab=VOCAB)
    for shape in ("", "+template:widths=2-1-1", "+template:widths=3-2-1"):
        done = run(model, f"model:name=toy,k=3{shape}", given, 13)
        check_plain(model, done, given, 13)
        assert done.trace.accepted == ((0, 3, 3, 3),) * 4
        assert done.nfe == (4,) * 4  # one for the prompt, then four tokens per forward


def test_04_the_token_after_a_full_acceptance_comes_once() -> None:
    model, given = toy_ar(1, VOCAB), prompts(LENGTHS, vocab=VOCAB)
    done = run(model, greedy(Chain(right(model), k=4)), given, 11)
    check_plain(model, done, given, 11)
    assert done.trace.accepted == ((0, 4, 4),) * 4
    for row, length in enumerate(LENGTHS):
        assert done.trace.commit_step[row, length : length + 11].tolist() == [0, *[1] * 5, *[2] * 5]


def test_05_an_end_token_inside_a_draft_or_as_the_bonus_ends_the_row() -> None:
    model = toy_ar(1, VOCAB)
    (prompt,) = prompts((5,), vocab=VOCAB, seed=3)
    whole = plain_greedy(model, prompt, 12)[5:]
    firsts = {token: whole.index(token) for token in whole}
    hit = set()
    for stop, at in firsts.items():
        done = run(model, greedy(Chain(right(model), k=2)), [prompt, prompt], (12, 2), stop_ids=(stop, 99))
        assert rows(done)[0] == [*prompt, *whole[: at + 1]]
        assert rows(done)[1] == [*prompt, *whole[: min(at + 1, 2)]]
        assert done.reasons[0] == "stop"
        assert done.reasons[1] == ("stop" if at < 2 else "length")
        hit.add((at - 1) % 3 if at else "prompt")  # 0, 1: drafted; 2: the bonus
    assert hit >= {0, 1, 2}


@pytest.mark.parametrize(
    "distribution", [{"top_p": 0.5}, {"top_k": 2}, {"temperature": 0.4}, {"top_k": 5, "top_p": 0.6}]
)
def test_06_the_draft_distribution_is_processed_like_the_targets(
    distribution: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A drafter equal to the target then has q = p: no test fails, for all filters, temperatures and processors."""
    model = toy_ar(1, VOCAB)
    monkeypatch.setattr(draft_models, "language_model", lambda *_: model)
    given, distribution = prompts(LENGTHS, vocab=VOCAB), {"temperature": 0.9, **distribution}
    for more in ({}, {"processors": PENALTIES[:1], "stop_ids": ()}):
        done = run(model, "model:name=toy,k=3+speculative", given, 13, **distribution, **more)
        assert done.trace.accepted == ((0, 3, 3, 3),) * 4


@pytest.mark.parametrize("token", range(3))
def test_07_a_point_mass_leaves_the_distribution_without_itself(token: int) -> None:
    """The joint distribution of three tokens with a drafter that always proposes the same token, however unlikely."""
    model, prompt, draws = toy_ar(4, 3, 1.5), [0, 2], 4000
    done = run(model, speculation(Chain(lambda text: token, k=2)), [prompt] * draws, 3, temperature=1.0)
    distribution = joint(model, prompt, 3)
    assert abs(g_test(counted(done, 2, 3, 3), distribution)) < 4
    assert 0.02 < np.mean([sum(row) > 0 for row in done.trace.accepted]) < 0.99


def test_08_siblings_drawn_without_replacement_are_tested_in_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """The joint distribution is the target's; with the siblings of each node reversed it is not."""
    model, other, prompt, draws = toy_ar(4, 4, 1.5), toy_ar(9, 4, 1.5), [0, 2, 1], 4000
    monkeypatch.setattr(draft_models, "language_model", lambda *_: other)
    spec, distribution = "model:name=toy,k=2+template:widths=3-1+speculative", joint(model, prompt, 3)
    assert abs(g_test(counted(run(model, spec, [prompt] * draws, 3, temperature=1.0), 3, 3, 4), distribution)) < 4

    real = VerifyForward.verify

    def turned(self: VerifyForward, draft: Draft) -> Any:
        if draft.parents is not None and draft.width > 3:
            assert draft.q is not None
            order = torch.arange(draft.width)
            order[1:4] = torch.tensor([3, 2, 1])
            draft.tokens.copy_(draft.tokens[:, order].clone())
            draft.q.copy_(draft.q[:, order].clone())
        return real(self, draft)

    monkeypatch.setattr(VerifyForward, "verify", turned)
    assert abs(g_test(counted(run(model, spec, [prompt] * draws, 3, temperature=1.0), 3, 3, 4), distribution)) > 6


def test_09_the_pad_id_is_a_token_like_any_other() -> None:
    model = toy_ar(1, VOCAB)
    assert model.decoding_config.pad_id == 0
    given = [[0], [0, 0, 3, 0], [5, 0, 0, 0, 0, 0], [4, 1, 7, 2, 6, 5, 3, 1]]
    for drafter in (Forest(), Chain(right(model)), Chain(lambda text: 0)):
        check_plain(model, run(model, greedy(drafter), given, 7), given, 7)


def test_10_a_finished_row_changes_no_more() -> None:
    model, given = toy_ar(1, VOCAB), prompts(LENGTHS, vocab=VOCAB)
    ended: dict[int, list[int]] = {}
    for event in decode(model, greedy(Forest()), request(given, (9, 2, 14, 5))):
        if isinstance(event, RowFinished):
            ended[event.row] = event.tokens.tolist()
        elif isinstance(event, Accepted):
            assert not set(event.rows.tolist()) & set(ended)
        elif isinstance(event, Finished):
            assert rows(event) == [ended[row] for row in range(4)]
            assert (event.nfe[1], event.nfe[3]) <= (2, 5)
    assert list(ended)[-1] == 2


@pytest.mark.parametrize("over", [0, 1, 5])
def test_11_no_drafter_makes_a_row_longer_than_its_limit(over: int) -> None:
    """Even if the drafter drafts deeper than it may."""
    model, given = toy_ar(1, VOCAB), prompts(LENGTHS, vocab=VOCAB)
    for drafter in (Chain(right(model), k=4, over=over), Forest(0.9, over=over)):
        for new in (1, 2, 3, 4, 5, 6):
            check_plain(model, run(model, greedy(drafter), given, new), given, new)


def test_12_distributions_are_float32_whatever_the_model_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """In half precision a small q is 0, and p/q infinite."""
    target, other = toy_ar(1, VOCAB, 6.0, dtype=torch.bfloat16), toy_ar(2, VOCAB, 6.0, dtype=torch.bfloat16)
    monkeypatch.setattr(draft_models, "language_model", lambda *_: other)
    distributions: list[torch.Tensor] = []
    ratios: list[torch.Tensor] = []
    real = VerifyLoop.commit

    def commit(self: VerifyLoop, draft: Draft, said: TargetDistributions, verdict: Verdict) -> np.ndarray:
        assert said.raw.dtype == said.logits.dtype == torch.float32
        if draft.q is not None:
            distributions.append(draft.q)
            assert verdict.ratio is not None
            ratios.append(verdict.ratio)
        return real(self, draft, said, verdict)

    monkeypatch.setattr(VerifyLoop, "commit", commit)
    run(target, "model:name=toy,k=3+speculative", prompts(LENGTHS, vocab=VOCAB), 9, temperature=1.0)
    assert distributions
    assert all(distribution.dtype == torch.float32 for distribution in distributions)
    assert (
        min(float(distribution[distribution > 0].min()) for distribution in distributions)
        < torch.finfo(torch.float16).tiny
    )
    assert all(bool(((ratio >= 0) & (ratio <= 1)).all()) for ratio in ratios)


@pytest.mark.parametrize("spec", ["sequential", "lookup", "model:name=toy", "model:name=toy+template:widths=2-2"])
def test_13_acceptance_does_not_depend_on_who_is_in_the_batch(spec: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = toy_ar(1, VOCAB)
    monkeypatch.setattr(draft_models, "language_model", lambda *_: toy_ar(2, VOCAB))
    given = prompts((4,) * 6, vocab=VOCAB)
    whole = run(model, spec, given, 10, temperature=1.0, seeds=range(6))
    for some in ([3], [5, 3], [3, 0, 1, 2]):
        part = run(model, spec, [given[row] for row in some], 10, temperature=1.0, seeds=some)
        at = some.index(3)
        assert rows(part)[at] == rows(whole)[3]
        assert part.trace.accepted[at] == whole.trace.accepted[3]
    twins = run(model, spec, [given[3]] * 3, 10, temperature=1.0, seeds=[3, 3, 4])
    assert rows(twins)[0] == rows(twins)[1] == rows(whole)[3] != rows(twins)[2]


@pytest.mark.parametrize("which", [(0,), (1,), (2,), (0, 1, 2)])
def test_14_processors_see_the_history_of_each_node(which: tuple[int, ...]) -> None:
    """Drafts of the processed and of the unprocessed continuation, as chains and trees, in ragged batches."""
    model, given = toy_ar(1, VOCAB, 2.0), prompts(LENGTHS, vocab=VOCAB)
    chosen = [PENALTIES[index] for index in which]
    expected = [processed_greedy(model, prompt, 12, chosen) for prompt in given]
    assert which == (2,) or expected != [plain_greedy(model, prompt, 12) for prompt in given]

    def truth(text: Sequence[int]) -> int:
        return processed_greedy(model, text, 1, chosen)[-1]

    accepted = 0
    for drafter in (Chain(truth), Chain(right(model)), Forest(0.9, truth=truth), Forest(0.9), Forest(0.3, truth=truth)):
        done = run(model, greedy(drafter), given, 12, processors=tuple(chosen))
        assert rows(done) == expected
        accepted += sum(map(sum, done.trace.accepted))
    assert accepted > 60
    assert rows(run(model, "lookup", given, 12, processors=tuple(chosen))) == expected


# --- what else the loop promises ---


def test_allowed_tokens_hold_after_every_node() -> None:
    """Each row has its own sets; a drafted token that is not allowed is rejected."""
    model, given = toy_ar(1, VOCAB), prompts((3, 6), vocab=VOCAB)
    sets = torch.ones(4, VOCAB, dtype=torch.bool)
    sets[1, :4], sets[2, 4:], sets[3, 1:] = False, False, False
    patterns = ([1, 2] * 4, [0, 3, 1, 0] * 2)
    at = tuple(torch.tensor([*[0] * len(p), *pattern]) for p, pattern in zip(given, patterns, strict=True))

    def truth(prompt: list[int], row: int) -> list[int]:
        text = list(prompt)
        for index in range(8):
            distribution = logits(model, [text])[0, -1].masked_fill(~sets[at[row][len(prompt) + index]], -torch.inf)
            text.append(int(distribution.argmax()))
        return text

    expected = [truth(prompt, row) for row, prompt in enumerate(given)]
    for drafter in (Chain(right(model)), Forest(0.9), Chain(lambda text: 0)):
        assert rows(run(model, greedy(drafter), given, 8, allowed=Allowed(sets, at))) == expected


def test_a_trace_names_what_each_forward_fed_and_committed() -> None:
    model = toy_ar(1, VOCAB)
    (prompt,) = prompts((4,), vocab=VOCAB)
    done = run(model, greedy(Chain(right(model), k=2)), [prompt], 6)
    steps = done.trace.steps[0]
    assert [step.fed for step in steps] == [(0, 1, 2, 3), (4, 5, 6), (7, 8)]
    assert [step.positions for step in steps] == [(4,), (5, 6, 7), (8, 9)]
    assert done.trace.drafted == ((0, 2, 1),)
    text = rows(done)[0]
    assert [token for step in steps for token in step.tokens] == text[4:]
    uniform = logits(model, [text])[0].softmax(-1)
    expected = [float(uniform[at - 1, text[at]]) for at in range(4, 10)]
    assert [score for step in steps for score in step.scores] == pytest.approx(expected, abs=1e-5)


def test_an_acceptance_is_handed_raw_and_processed_distributions() -> None:
    seen: list[tuple[torch.Tensor, torch.Tensor, bool]] = []

    @dataclass(frozen=True)
    class Spy(Acceptance):
        def accept(self, draft: Draft, distributions: TargetDistributions, uniforms: Uniforms, state: None) -> Verdict:
            seen.append((distributions.raw, distributions.logits, distributions.greedy))
            return Greedy().accept(draft, distributions, uniforms, state)

    model = toy_ar(1, VOCAB)
    run(model, speculation(Forest(), Spy()), prompts((4,), vocab=VOCAB), 5, temperature=0.5)
    for raw, processed, flat in seen:
        torch.testing.assert_close(processed, raw / 0.5)
        assert not flat


@pytest.mark.seeds("arXiv:2510.22876")
def test_batches_of_one_to_eight_are_each_row_s_own_text_and_groups_of_like_lengths_feed_less_padding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    groups_by_hand()
    model, sizes = toy_ar(3, vocab=11, sharp=2.0), (3, 40, 1, 9, 38, 12, 2, 7)
    given, new = prompts(sizes, vocab=11), (9, 12, 7, 11, 10, 2, 11, 5)
    alone = [plain_greedy(model, prompt, count) for prompt, count in zip(given, new, strict=True)]
    useful = []
    with drafting(11):
        for count in range(1, 9):
            done = run(model, "model:name=draft,k=3", given[:count], new[:count])
            assert rows(done) == alone[:count]
        useful.append(sum(done.tokens_fed) / (sum(done.tokens_fed) + done.padding))
        assert rows(run(model, "model:name=draft,k=3+template:widths=3-2-1", given, new)) == alone
        monkeypatch.setattr(forward, "grouped", lambda sizes: [np.arange(len(sizes))])
        done = run(model, "model:name=draft,k=3", given, new)
        useful.append(sum(done.tokens_fed) / (sum(done.tokens_fed) + done.padding))
    assert rows(done) == alone
    assert useful[0] > useful[1] + 0.1


def groups_by_hand() -> None:
    """Padding is at most a quarter of what is needed: 2 * 5 of 8 is, 2 * 6 of 9 is not."""

    def groups(*sizes: int) -> list[list[int]]:
        return [rows.tolist() for rows in forward.grouped(np.array(sizes))]

    assert groups(3, 5) == [[0, 1]]
    assert groups(3, 6) == [[1], [0]]
    assert groups(3, 40, 4, 38) == [[1, 3], [0, 2]]
    assert groups(4, 4, 4, 9) == [[3], [0, 1, 2]]
    assert groups(8, 6, 6, 1) == [[0, 1, 2], [3]], "24 of 20, and 32 of 21 is too much"
