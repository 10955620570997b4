"""The exit and length chosen per row: hand-computed counts, the layers that run, and the best choice."""

from __future__ import annotations

from collections import Counter
from itertools import product
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor

from pardec.models.decoder import DecoderLayer
from pardec.models.errors import SpecError
from pardec.models.model import LanguageModel
from pardec.samplers.events import Finished
from pardec.samplers.speculative.draft.exit_states import Choice, ExitStates, tokens_per_layer
from tests.samplers.ar_toys import rows, run, toy_ar
from tests.samplers.draft_model_checks import keeps_greedy
from tests.samplers.fake_draft_model import NEW, RAGGED, apart, distribution, greedy, outcome, path, target
from tests.samplers.spec_checks import refused_specs

SHAPES = ("chain", "template:widths=3-2-1", "dyspec:nodes=8,children=3", "beam:beams=3,nodes=8")


def test_greedy_decoding_is_kept_with_few_exits() -> None:
    keeps_greedy("del:k=3,exits=1-3,every=2,decay=0.5+template:widths=3-2-1")


@pytest.mark.parametrize("shape", SHAPES[:2])
def test_every_distribution_is_that_of_a_whole_forward_of_the_row_s_exit(shape: str) -> None:
    """Rows that exit at different layers are in one batch."""
    exits, forward = set(), ExitStates.forward

    def watched(self: ExitStates, draft: Any, nodes: Tensor) -> Tensor:
        logits = forward(self, draft, nodes)
        exits.add(tuple(self.exit.tolist()))
        for row, column in zip(*np.nonzero(nodes.numpy() >= 0), strict=True):
            text = [*self.context.text.row(row).tolist(), *path(draft, row, int(nodes[row, column]))]
            expected = distribution(target(), text, layers=slice(0, int(self.exit[row])))
            assert apart(logits[row, column], expected) < 5e-5
        return logits

    with patch.object(ExitStates, "forward", watched):
        done = run(target(), f"del:k=4+{shape}", RAGGED, NEW, temperature=1.0)
    assert max(map(max, done.trace.accepted)) >= 2
    assert any(len(set(each)) > 1 for each in exits)


def queries(model: LanguageModel, spec: str, prompts: list[list[int]], new: int) -> tuple[Finished, Counter[int]]:
    """The number of queries that each layer ran on."""
    counts: Counter[int] = Counter()
    forward = DecoderLayer.forward

    def watched(self: DecoderLayer, h: Tensor, step: Any, index: int, picked: Any = None) -> Tensor:
        counts[index] += int((step.plan.slots >= 0).sum())
        return forward(self, h, step, index, picked)

    with patch.object(DecoderLayer, "forward", watched):
        done = run(model, spec, prompts, new)
    return done, counts


@pytest.mark.parametrize("prompts", [[[1, 0, 2]], [[1, 0, 2], [3], [0, 0, 1, 4, 2]]])
def test_no_layer_runs_twice_on_a_node(prompts: list[list[int]]) -> None:
    """For rows that exit at the deepest exit of the batch, at an earlier one, or that do not draft."""
    done, counts = queries(target(), "del:k=4", prompts, 20)
    assert sum(done.draft_forwards) > 0
    assert set(counts.values()) == {sum(done.tokens_fed)}


# --- the choice ---


def tokens_per_layer_are_those_of_the_formula() -> None:
    for acceptance, exit_, length in product((0.0, 0.3, 0.9, 1.0), (1, 5), (0, 1, 6)):
        whole = tokens_per_layer(np.array([[0.5, acceptance]]), np.array([2, exit_]), 8, 6)
        assert whole.shape == (1, 2, 7)
        tokens = length + 1 if acceptance == 1 else (1 - acceptance ** (length + 1)) / (1 - acceptance)
        assert whole[0, 1, length] == pytest.approx(tokens / (length * exit_ + 8))


def counts_fade_and_the_choice_is_the_best_product() -> None:
    choice = Choice(2, (1, 2, 3), 4, k=3, decay=0.5)
    assert (choice.exit.tolist(), choice.most.tolist()) == ([2, 2], [3, 3])
    choice.count(np.array([1]), np.array([[0, 3, 3]]), np.array([3]))
    assert choice.exit.tolist() == [2, 2]
    choice.count(np.array([1]), np.array([[4, 4, 4]]), np.array([4]))
    matched = np.array([0.0625 + 4, 0.125 + 1.5 + 4, 0.1875 + 1.5 + 4])
    tested = 0.25 + 1.5 + 4
    assert choice.matched[1] == pytest.approx(matched)
    assert choice.tested[1] == pytest.approx([tested] * 3)
    rate = {
        (exit_, length): sum((matched[exit_ - 1] / tested) ** i for i in range(length + 1)) / (length * exit_ + 4)
        for exit_, length in product((1, 2, 3), range(4))
    }
    assert (int(choice.exit[1]), int(choice.most[1])) == max(rate, key=lambda pair: rate[pair])
    assert (int(choice.exit[0]), int(choice.most[0])) == (2, 3), "the other row's own affair"
    choice.count(np.array([0]), np.array([[0, 0, 0]]), np.array([50]))
    assert choice.most[0] == 0, "nothing is drafted where nothing is accepted"
    choice = Choice(1, (1, 2), 2, k=2, decay=1.0)  # a token of the first exit costs half a pass, and half are accepted
    choice.matched[0], choice.tested[0] = [0, 0], [1, 1]
    choice.count(np.array([0]), np.array([[1, 2]]), np.array([1]))
    assert choice.matched[0].tolist() == [1, 2]
    assert (int(choice.exit[0]), int(choice.most[0])) == (1, 0), "of (1, 0), (1, 1) and all of exit 2, alike, the first"


def the_threshold_lies_between_the_means_of_accepted_and_rejected_tokens() -> None:
    choice = Choice(2, (1,), 2, k=3, decay=0.5)
    for sure in ((0.9, 0.5), (0.7, 0.6), (0.5, 0.9)):
        assert not choice.stop(torch.tensor(sure), 0, None, None).any()  # type: ignore[arg-type]
    choice.observe(outcome([3, 3], [2, 3]), None, None)  # type: ignore[arg-type]
    assert choice.threshold.tolist() == pytest.approx([(0.8 + 0.5) / 2, 0])
    assert choice.stop(torch.tensor([0.6, 0.01]), 0, None, None).tolist() == [True, False]  # type: ignore[arg-type]
    exact = Choice(2, (1,), 2, k=3, decay=0.5)
    exact.sure[0] = [[1.5, 2], [0.5, 2]]
    assert exact.stop(torch.tensor([0.5, 0.5]), 0, None, None).tolist() == [False, False], "as sure as the threshold"  # type: ignore[arg-type]
    choice.observe(outcome([1, 1], [1, 0]), None, None)  # type: ignore[arg-type]
    accepted = [(0.5 * 1.6 + 0.6) / 2, (0.5 * 2.0) / 1.5]
    assert choice.threshold.tolist() == pytest.approx([(accepted[0] + 0.5) / 2, (accepted[1] + 0.01) / 2])
    sums = choice.sure.copy()
    choice.observe(outcome([2, 0], [1, 0]), None, None)  # type: ignore[arg-type]
    assert choice.sure[0].tolist() == (sums[0] / 2).tolist()
    assert choice.sure[1].tolist() == sums[1].tolist(), "a row that drafted nothing forgets nothing"
    first = Choice(1, (1,), 2, k=3, decay=0.5)
    for sure in (0.9, 0.5, 0.1):
        first.stop(torch.tensor([sure]), 0, None, None)  # type: ignore[arg-type]
    first.observe(outcome([3], [1]), None, None)  # type: ignore[arg-type]
    assert first.threshold.tolist() == pytest.approx([0.7]), "the token after the first rejected one says nothing"


def shadow_tokens_are_the_argmax_of_every_exit_behind_each_committed_token() -> None:
    """Compared with whole forwards of the first layers; positions are tested up to and including the first mismatch."""
    model, texts = target(), []
    count = Choice.count

    def watched(self: Choice, rows_: np.ndarray, matched: np.ndarray, tested: np.ndarray) -> None:
        texts.append((matched[0].tolist(), int(tested[0])))
        count(self, rows_, matched, tested)

    with patch.object(Choice, "count", watched):
        done = run(model, "del:k=4", [[1, 0, 2]], 24)
    text, at = rows(done)[0], 4  # after the prompt and its bonus token
    for matched, tested in texts:
        for exit_, hits in zip((1, 2, 3), matched, strict=True):
            shadow = [
                int(distribution(model, text[:end], layers=slice(0, exit_)).argmax()) for end in range(at, at + tested)
            ]
            # Only the last round may commit fewer tokens than it verified.
            if at + tested <= len(text):
                assert hits == sum(token == text[at + i] for i, token in enumerate(shadow))
        at += tested
    assert at >= len(text)


def early_exits(layers: int = 6) -> LanguageModel:
    """A model whose later layers add less and less, so that they change few tokens."""
    model = toy_ar(11, 24, 2.0, layers=layers, width=24)
    with torch.no_grad():
        for layer, scale in zip(model.decoder.layers, 0.55 ** np.arange(layers), strict=True):  # type: ignore[attr-defined]
            layer.out_weight.mul_(scale)
            layer.down_weight.mul_(scale)
    return model


@pytest.mark.seeds("arXiv:2504.05598")
def test_the_chosen_exit_and_length_are_within_a_twentieth_of_the_best() -> None:
    """Tokens per layer run: the final choice compared with the best of all fixed exits and lengths."""
    tokens_per_layer_are_those_of_the_formula()
    counts_fade_and_the_choice_is_the_best_product()
    the_threshold_lies_between_the_means_of_accepted_and_rejected_tokens()
    shadow_tokens_are_the_argmax_of_every_exit_behind_each_committed_token()
    model, prompt, new, choices = early_exits(), [1, 2, 3], 40, list[tuple[int, int]]()
    count = Choice.count

    def watched(self: Choice, *values: Any) -> None:
        count(self, *values)
        choices.append((int(self.exit[0]), int(self.most[0])))

    with patch.object(Choice, "count", watched):
        done = run(model, "del:k=4", [prompt], new)
    assert rows(done) == rows(run(model, "sequential", [prompt], new))
    rate = {}
    for exit_, length in product(range(1, 6), range(1, 5)):
        fixed = run(model, f"earlyexit:layers={exit_},k={length}", [prompt], new)
        rounds = fixed.nfe[0] - 1
        rate[exit_, length] = (new - 1) / (fixed.draft_forwards[0] * exit_ + rounds * 6)
    chosen, _ = Counter(choices[len(choices) // 2 :]).most_common(1)[0]
    assert rate[chosen] > 0.95 * max(rate.values())
    assert max(rate.values()) > 1.2 / 6, "drafting pays"


test_what_makes_no_sense_is_refused = refused_specs(
    [
        ("del:exits=2-1", "del: exits lists rising numbers of layers"),
        ("del+unsure", "'unsure' needs a drafter with a model"),
    ],
    family="ar",
)


def test_all_layers_are_no_exit() -> None:
    with pytest.raises(SpecError, match="del: exits must be below the 4 layers of toy, got 2-4"):
        run(target(), "del:exits=2-4", [[1]], 3)
    with pytest.raises(SpecError, match="del: exits must be below the 1 layers of toy, got none"):
        run(toy_ar(0, 5, layers=1), "del", [[1]], 3)


def test_rows_take_the_choices_of_their_own_with_them() -> None:
    assert rows(run(target(), "del:k=4", RAGGED, NEW)) == greedy()
    choice, other = Choice(3, (1, 2), 3, 2, 0.9), Choice(1, (1, 2), 3, 2, 0.9)
    choice.count(np.array([2]), np.array([[2, 2]]), np.array([2]))
    other.count(np.array([0]), np.array([[0, 0]]), np.array([9]))
    choice.put(np.array([1]), other)
    choice.keep(np.array([1, 2]))
    assert choice.tested[:, 0].tolist() == pytest.approx([9.9, 2.9])
    assert choice.most.tolist() == [0, 2]
