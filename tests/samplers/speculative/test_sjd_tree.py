"""`sjd:tree`: one token per position is plain `sjd`; the law; what the next round reads; fewer forwards."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor

import pardec
from pardec.models.errors import SpecError
from pardec.samplers import registry
from pardec.samplers.ops.allowed import AllowedRows
from pardec.samplers.rng import Keyed
from pardec.samplers.speculative.contracts import DecodeContext, Draft, RoundResult, RoundUniforms
from pardec.samplers.speculative.draft.sjd import Sjd, WindowState, window_tree
from pardec.samplers.speculative.sequences import Sequences
from tests.samplers.ar_toys import counted, g_test, joint, logits, rows, run, toy_ar
from tests.samplers.fake_draft_model import NEW, RAGGED, greedy, target
from tests.samplers.picture_toys import codes, draw, features, toy_pictures

MODEL, CAPTIONS = toy_pictures(3, 4, 6, 1.5), features([3, 1, 2])
FIRST = (1, 4, 13)  # the first node of each level of a tree of three tokens per position


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_sjd_tree_of_one_token_per_position_is_sjd(temperature: float) -> None:
    plain, single = (draw(MODEL, spec, CAPTIONS, temperature=temperature) for spec in ("sjd", "sjd:tree=1x3"))
    assert (plain.tokens == single.tokens).all()
    assert (plain.nfe, plain.tokens_fed) == (single.nfe, single.tokens_fed)


def test_a_sjd_tree_keeps_greedy_text() -> None:
    assert rows(run(target(), "sjd:window=6,tree=3x2", RAGGED, NEW)) == greedy()


def siblings_of_a_position_have_its_own_noise() -> None:
    """A text of 2 tokens and one more a round at least: the tree's two positions follow the last token."""
    seen, noise = list[list[int]](), RoundUniforms.noise

    def watched(self: RoundUniforms, positions: Tensor, purpose: str, width: int, *, fixed: bool = False) -> Tensor:
        seen.extend(positions.tolist() if purpose == "siblings" else [])
        return noise(self, positions, purpose, width, fixed=fixed)

    with patch.object(RoundUniforms, "noise", watched):
        done = run(toy_ar(8, 3), "sjd:window=5,tree=3x2+rrs", [[2, 0]], 8, temperature=1.0)
    ends = np.cumsum(done.trace.gained[0])  # each round but that of the prompt feeds a tree
    assert [each for each in seen if len(each) == 2][:2] == [[2 + end, 3 + end] for end in ends.tolist()[:2]]


def fresh_guesses_have_no_siblings() -> None:
    """Not even those that are tested as samples of the uniform distribution: every second child is not tested."""
    text, free = Sequences([torch.tensor([1])], [100], pad_id=0), AllowedRows(None, 1, torch.device("cpu"))
    context: Any = SimpleNamespace(
        text=text, model=SimpleNamespace(vocab_size=3), request=SimpleNamespace(conditions=()), allowed=free
    )
    drafter = Sjd(5, init="random", uniform=True, tree="2x2")
    uniforms = RoundUniforms(Keyed((0,)), text.rows, text.nfe.copy(), text.device)
    draft = drafter.propose(context, np.array([90]), uniforms, drafter.start(context))
    assert draft.parents is not None
    assert draft.tested[0].tolist() == [False, True, False, True, False, True, False, True, True]


def the_law_is_kept(spec: str, accept: str, **more: Any) -> None:
    draws, model = 5000, toy_ar(8, 3)
    done = run(model, f"sjd:window=5,tree={spec}+{accept}", [[2, 0]] * draws, 5, seeds=range(draws), **more)
    assert g_test(counted(done, 2, 5, 3), joint(model, [2, 0], 5, **more)) < 4


@pytest.mark.parametrize(("spec", "accept"), [("2x3", "speculative"), ("3x3,reuse=0.3", "rrs")])
def test_a_sjd_tree_keeps_the_distribution(spec: str, accept: str) -> None:
    """With three tokens, three siblings are all of them; texts are longer than the tree, so that states are kept."""
    the_law_is_kept(spec, accept, temperature=0.9)


def test_a_sjd_tree_of_uniform_guesses_keeps_the_distribution_to_the_last_token() -> None:
    the_law_is_kept("2x2,init=random,uniform=true", "speculative", temperature=0.9)


@pytest.mark.parametrize("window", [16, 3])  # of 3 both guesses may be accepted, so that nothing is known
def test_an_image_is_the_same_alone_and_in_a_batch_with_a_sjd_tree(window: int) -> None:
    spec = f"sjd:tree=3x2,window={window}"
    batch = draw(MODEL, spec, CAPTIONS, temperature=1.0, seeds=range(3))
    for row, caption in enumerate(CAPTIONS):
        alone = draw(MODEL, spec, [caption], temperature=1.0, seeds=[row])
        assert (codes(alone, [caption])[0] == codes(batch, CAPTIONS)[row]).all()
        assert alone.nfe[0] == batch.nfe[row]


def the_next_round_reads_distributions_after_the_accepted_tokens() -> None:
    """Within the tree they are those after the accepted path and the first token below it; siblings are three."""
    observe, siblings = Sjd.observe, [0]

    def watched(self: Sjd, outcome: RoundResult, context: DecodeContext, state: WindowState) -> None:
        draft, gained = outcome.draft, outcome.gained
        texts = [context.text.row(row)[: draft.base[row] + 1].tolist() for row in range(len(gained))]
        observe(self, outcome, context, state)
        for row, text in enumerate(texts):
            if draft.parents is not None and draft.sizes[row] > 1:
                check_siblings(draft, row, kept)
            count = int(gained[row]) - 1
            if kept < 5 or draft.parents is None or count >= min(3, int(state.counts[row])) or not state.known[row]:
                continue
            path = outcome.verdict.path[row, 1 : count + 1].tolist()
            siblings[0] += any(node not in FIRST for node in path)
            after = [*text, *draft.tokens[row, path].tolist(), int(draft.tokens[row, FIRST[count]])]
            expected = logits(context.model, [after])[0, -1].softmax(-1)
            torch.testing.assert_close(state.distribution[row, 0], expected, rtol=1e-4, atol=1e-5)

    with patch.object(Sjd, "observe", watched):
        for kept in (5, 2):  # tokens that filters leave of five
            run(
                toy_ar(3, 5), "sjd:window=6,tree=3x3", RAGGED * (4 if kept == 5 else 1), 25, temperature=1.0, top_k=kept
            )
    assert siblings[0] > 3


def check_siblings(draft: Draft, row: int, kept: int) -> None:
    """Of a position whose distribution is known, three tokens are tested, or as many as it leaves, and all differ."""
    assert draft.q is not None
    assert draft.is_point_mass is not None
    tokens, tested, point = draft.tokens[row], draft.tested[row].clone(), draft.is_point_mass[row]
    assert not point[window_tree(3, 3, draft.deepest).ranks > 0].any(), "siblings are drawn"
    for first in FIRST[: min(3, draft.deepest)]:
        if first < draft.sizes[row] and not point[first]:
            some = tokens[first : first + 3][tested[first : first + 3]].tolist()
            assert len({*some}) == len(some) == min(3, kept)
    tested[0] = False
    assert (draft.q[row].gather(1, tokens[:, None])[:, 0][tested & ~point] > 0).all()


def test_the_next_round_reads_distributions_after_the_accepted_tokens() -> None:
    the_next_round_reads_distributions_after_the_accepted_tokens()


@pytest.mark.slow  # seconds for 12 pictures; the tests above have the rule and the law
@pytest.mark.seeds("arXiv:2603.18599")
def test_a_sjd_tree_takes_fewer_forwards_than_coupled_samples_alone_and_keeps_the_distribution() -> None:
    the_next_round_reads_distributions_after_the_accepted_tokens()
    siblings_of_a_position_have_its_own_noise()
    fresh_guesses_have_no_siblings()
    the_law_is_kept("3x2", "rrs", temperature=1.0)
    model = pardec.load("tiny-llamagen", device="cpu")
    prompts = [one.prompt for one in pardec.task("captions").problems(split="heldout", n=4, seed=3)]

    def forwards(more: str) -> int:
        return sum(model.generate(prompts, sampler=f"sjd:{more}", temperature=0.9, cfg=2.5, seed=0).nfe)

    independent, coupled, tree = map(forwards, ("refresh=independent", "refresh=coupled", "tree=2x3"))
    assert independent > coupled > tree


@pytest.mark.parametrize("tree", ["3", "0x2", "3x0", "9x2", "3x5", "axb"])
def test_sjd_trees_that_make_no_sense_are_refused(tree: str) -> None:
    with pytest.raises(SpecError, match="sjd: tree must be tokens x positions, at most 8x4"):
        registry.resolve(f"sjd:tree={tree}", "ar")
