"""Speculative Jacobi: each token follows the distribution it is labelled with, after any refreshes; the joint."""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from pardec.models.errors import SpecError
from pardec.samplers import registry
from pardec.samplers.ops.allowed import AllowedRows
from pardec.samplers.ops.inverse_cdf import sample
from pardec.samplers.rng import Keyed
from pardec.samplers.speculative.contracts import DecodeContext, Draft
from pardec.samplers.speculative.contracts import RoundUniforms as Round
from pardec.samplers.speculative.draft import sjd as redraw
from pardec.samplers.speculative.draft.image_grid import copy_left
from pardec.samplers.speculative.draft.sjd import Sjd, WindowState, coupled_sample, gumbel_sample
from pardec.samplers.speculative.sequences import Sequences
from tests.samplers.ar_toys import counted, g_test, joint, plain_greedy, prompts, rows, run, speculation, toy_ar
from tests.samplers.joint_distributions import WORLDS, World, measure, worst
from tests.samplers.loop_drafters import Literal

MODES = ("coupled", "independent", "gumbel")
LONG = WORLDS["3 tokens, length 6"]  # where places are refreshed again and again
V, ROWS, WINDOW, ROUNDS = 3, 12_000, 6, 4


@pytest.mark.parametrize("init", ["random", "random,uniform=true", "prompt", "repeat", "ngram"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.covers(1)
def test_at_temperature_0_it_is_plain_greedy_in_every_batch(mode: str, init: str) -> None:
    model, new = toy_ar(4, 6, 1.5), (20, 9, 14, 1, 8, 2, 7, 5)
    given = prompts((3, 6, 1, 9, 4, 12, 2, 7), vocab=6, seed=1)
    for window, count in ((2, 3), (5, 1), (16, 8)):
        done = run(model, f"sjd:window={window},refresh={mode},init={init}", given[:count], new[:count])
        assert rows(done) == [plain_greedy(model, *each) for each in zip(given[:count], new[:count], strict=True)]


# --- the law of every token of the window, with laws that a script gives ---


@dataclass
class Scripted:
    """Rounds without acceptance: a position is redrawn once per round until the text reaches it."""

    drafts: list[Draft]
    distributions: torch.Tensor  # [ROUNDS, places, V, V] what round t says of each place, by the token before it

    def worst(self) -> float:
        """The largest deviation, in standard deviations, of tokens of the last two rounds from their labelled q.

        Of every node, among the rows with one token before it, every token: its count against its chances' sum. A token
        that is from its law whatever stands before it, as the proof needs, is near 0 everywhere.
        """
        found = []
        for draft in self.drafts[-2:]:
            assert draft.q is not None
            for node in range(1, WINDOW):
                for before in range(V):
                    rows = draft.tokens[:, node - 1] == before
                    if draft.is_point_mass is not None:
                        rows &= ~draft.is_point_mass[:, node]
                    q = draft.q[rows, node].double()
                    seen = torch.nn.functional.one_hot(draft.tokens[rows, node], V)
                    found += ((seen - q).sum(0).abs() / (q * (1 - q)).sum(0).sqrt().clamp(min=1)).tolist()
        return max(found)


def scripted(mode: str, init: str = "random", reuse: float | None = None) -> Scripted:
    dice = np.random.RandomState(5)
    distributions = torch.from_numpy(dice.dirichlet([0.7] * V, (ROUNDS, WINDOW + ROUNDS + 2, V))).float()
    drafter = Sjd(window=WINDOW, refresh=mode, init=init, reuse=reuse)  # type: ignore[arg-type]
    text = Sequences([torch.tensor([1])] * ROWS, [100] * ROWS, pad_id=0)
    given, free = SimpleNamespace(conditions=()), AllowedRows(None, 1, torch.device("cpu"))
    context: Any = SimpleNamespace(text=text, model=SimpleNamespace(vocab_size=V), request=given, allowed=free)
    state, source = drafter.start(context), Keyed(tuple(range(ROWS)))
    drafts = []
    for at in range(ROUNDS):
        uniforms = Round(source, text.rows, text.nfe.copy(), text.device)
        draft = drafter.propose(context, np.full(ROWS, 90), uniforms, state)
        place = int(draft.base[0]) + 1 + torch.arange(WINDOW)
        one = np.ones(ROWS, dtype=np.int64)
        before = text.length.copy()
        text.nfe += 1
        text.commit(np.full((ROWS, 1), 2), one, np.ones((ROWS, 1)))
        said = SimpleNamespace(probs=distributions[at, place, draft.tokens])
        outcome: Any = SimpleNamespace(draft=draft, distributions=said, before=before, gained=one)
        drafter.observe(outcome, context, state)
        drafts.append(draft)
    return Scripted(drafts, distributions)


@pytest.mark.parametrize("init", ["random", "repeat"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.covers(1)
def test_after_two_refreshes_tokens_are_from_the_distribution_they_are_labelled_with(mode: str, init: str) -> None:
    made = scripted(mode, init)
    for at in range(1, ROUNDS):
        old, draft, first = made.drafts[at - 1], made.drafts[at], int(made.drafts[at].base[0])
        assert draft.q is not None
        assert draft.is_point_mass is not None
        assert not draft.is_point_mass.any()  # one token more is known than the window had guesses
        for node in range(1, WINDOW):  # the token of the place first + node, after the one that was there
            assert torch.equal(draft.q[:, node], made.distributions[at - 1, first + node, old.tokens[:, node]])
    assert made.worst() < 4.5


def test_mutation_coupling_with_the_same_numbers_twice_drifts(monkeypatch: pytest.MonkeyPatch) -> None:
    noise = Round.noise

    def by_place(self: Round, positions: torch.Tensor, purpose: str, width: int, *, fixed: bool = False) -> Any:
        return noise(self, positions, purpose, width, fixed=True)

    monkeypatch.setattr(Round, "noise", by_place)
    assert scripted("coupled").worst() > 8


def test_coupled_tokens_stay_as_often_as_any_coupling_can_make_them() -> None:
    kept = {mode: kept_share(scripted(mode)) for mode in MODES}
    for mode, (share, most) in kept.items():
        assert share < most + 0.015, mode
    assert kept["coupled"][0] > kept["coupled"][1] - 0.015
    assert kept["coupled"][0] > kept["gumbel"][0] > kept["independent"][0] + 0.05


def kept_share(made: Scripted) -> tuple[float, float]:
    """The share of positions that keep the previous round's token, and the sum of min(p, q) there."""
    share, most = [], []
    for old, new in zip(made.drafts[1:], made.drafts[2:], strict=False):
        assert old.q is not None
        assert new.q is not None
        for node in range(1, WINDOW - 1):  # one node further in the older round
            share.append(float((new.tokens[:, node] == old.tokens[:, node + 1]).float().mean()))
            most.append(float(torch.minimum(new.q[:, node], old.q[:, node + 1]).sum(-1).mean()))
    return float(np.mean(share)), float(np.mean(most))


# --- the kernels ---


def a_coupled_draw_by_hand() -> None:
    p = torch.tensor([[0.5, 0.2, 0.3]] * 7)
    q = torch.tensor([[0.1, 0.5, 0.4]] * 7)
    old = torch.tensor([1, 1, 2, 2, 1, 1, 1])
    keep = torch.tensor([0.39, 0.41, 0.74, 0.76, 0.1, 0.3, 0.3]).double()
    u = torch.tensor([0.9, 0.9, 0.9, 0.9, 0.9, 0.6, 0.9]).double()
    point = torch.tensor([False, False, False, False, True, True, True])
    has_old = torch.tensor([True] * 7)
    # 1 stays below p/q = .4, 2 below .75, a point mass of 1 below .2; the residual is token 0 alone, .4 + 0 + 0;
    # p without 1 is .5, .3: .6 of .8 is token 0, and .9 of it token 2.
    assert coupled_sample(p, old, q, point, has_old, keep, u).tolist() == [1, 0, 2, 0, 1, 0, 2]
    assert coupled_sample(p, old, q, point, ~has_old, keep, u).tolist() == [2, 2, 2, 2, 2, 1, 2]  # p itself: .5, .7, 1
    p, q, zero = torch.tensor([[0.0, 0.5, 0.5]]), torch.tensor([[1.0, 0.0, 0.0]]), torch.zeros(1)
    impossible = coupled_sample(p, zero.long(), q, zero.bool(), ~zero.bool(), zero, torch.tensor([0.1]))
    assert impossible.tolist() == [1], "0 < 0 lets nothing stay"


def test_a_draw_never_takes_what_has_no_weight() -> None:
    p = torch.tensor([[0.0, 0.6, 0.0, 0.3, 0.0]])
    u = torch.tensor([[1e-17, 0.5, 1 - 1e-16]]).double()
    assert sample(p[:, None].expand(1, 3, 5), u).tolist() == [[1, 1, 3]]
    noise = Keyed((3,)).uniform(np.zeros(1, int), np.zeros(1, int), torch.arange(4000)[None], "x", 5)
    found = gumbel_sample(p.expand(1, 4000, 5), noise)[0]
    assert set(found.tolist()) == {1, 3}
    assert abs(float((found == 1).float().mean()) - 2 / 3) < 0.03


def test_what_cannot_be_is_refused() -> None:
    for bad in ("sjd:window=1", "sjd:init=repeat,uniform=true", "sjd:refresh=other"):
        with pytest.raises(SpecError):
            registry.resolve(bad, "ar")


# --- the joint law ---


@pytest.mark.parametrize("rest", ["", "init=repeat", "init=random,uniform=true", "init=prompt", "init=ngram"])
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.slow
def test_the_joint_distribution_is_the_target_s_in_every_mode(mode: str, rest: str) -> None:
    assert worst(measure(f"sjd:window=6,refresh={mode},{rest}".rstrip(","), LONG, 20_000, seed=3)) < 3.5


@pytest.mark.parametrize("mode", MODES)
def test_the_joint_distribution_is_the_target_s(mode: str) -> None:
    assert worst(measure(f"sjd:window=6,refresh={mode},init=repeat", LONG, 4000, seed=1)) < 3.5


def test_mutation_the_index_one_place_off_is_told_by_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.samplers.speculative.test_sjd.Sjd", Literal)
    assert scripted("coupled").worst() > 10


def test_mutation_copied_tokens_labelled_uniform_break_the_distribution() -> None:
    copying = Sjd(window=6, init="repeat")
    object.__setattr__(copying, "uniform", True)  # which its parameters refuse
    assert worst(measure(speculation(copying), LONG, 4000)) > 8


def test_mutation_a_dropped_residual_breaks_the_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(redraw, "residual", lambda r, q: r)
    monkeypatch.setattr(redraw, "without", lambda r, gone: r)
    assert scripted("coupled").worst() > 10
    assert worst(measure(speculation(Sjd(window=6, init="repeat")), World(toy_ar(0, 3, 1.2), ((2, 0),), 5), 4000)) > 8


def test_mutation_a_stale_label_is_told_by_the_script(monkeypatch: pytest.MonkeyPatch) -> None:
    class Late(Sjd):
        def propose(self, context: DecodeContext, room: np.ndarray, uniforms: Any, state: WindowState) -> Draft:
            draft = super().propose(context, room, uniforms, state)
            if draft.q is not None and state.q.shape[1]:
                q = draft.q.clone()
                q[:, 1:-1] = state.q[:, :-1]
                object.__setattr__(draft, "q", q)
            return draft

    monkeypatch.setattr("tests.samplers.speculative.test_sjd.Sjd", Late)
    assert scripted("coupled").worst() > 10


@pytest.mark.seeds("arXiv:2410.01699")
def test_samples_have_the_joint_distribution_greedy_is_greedy_and_smooth_images_take_few_forwards() -> None:
    a_coupled_draw_by_hand()
    a_fresh_guess_is_a_point_mass_and_the_known_ones_are_samples()
    fresh_guesses_of_an_image_are_the_tokens_to_the_left_by_hand()
    what_is_known_of_the_window_by_hand()
    test_after_two_refreshes_tokens_are_from_the_distribution_they_are_labelled_with("coupled", "random")
    model, draws = toy_ar(3, 5), 1500
    done = run(model, "sjd:window=4", [[1, 3]] * draws, 3, temperature=1.0, seeds=range(draws))
    for place in range(3):
        marginal = joint(model, [1, 3], 3).sum(tuple(at for at in range(3) if at != place))
        assert g_test(counted(done, 2, 3, 5).sum(tuple(at for at in range(3) if at != place)), marginal) < 4
    smooth = toy_ar(0, 7)  # the next code is the last one three times out of four, as in a smooth image
    stack: Any = smooth.decoder
    with torch.no_grad():
        for name, weight in stack.named_parameters():
            if "out_weight" in name or "down_weight" in name:
                weight.zero_()
        stack.embed.weight.copy_(torch.eye(7, smooth.width))
        stack.head.weight.copy_(torch.eye(7, smooth.width) * 0.75)
    assert 0.7 < float(joint(smooth, [3], 1)[3]) < 0.8
    image = run(smooth, "sjd:window=8,init=repeat", [[3]] * 20, 64, temperature=1.0)
    assert sum(image.nfe) < 0.6 * 20 * 64
    greedy = run(model, "sjd:window=8", [[1, 3], [0, 2, 4]], 20)
    assert rows(greedy) == [plain_greedy(model, prompt, 20) for prompt in ([1, 3], [0, 2, 4])]


def a_fresh_guess_is_a_point_mass_and_the_known_ones_are_samples() -> None:
    """Of a window of 5 three positions have a distribution; the fourth guess, the fresh one, has none."""
    text, free = Sequences([torch.tensor([1])], [100], pad_id=0), AllowedRows(None, 1, torch.device("cpu"))
    given, half = SimpleNamespace(conditions=()), torch.full((1, 3, 2), 0.5)
    context: Any = SimpleNamespace(text=text, model=SimpleNamespace(vocab_size=2), request=given, allowed=free)
    state = WindowState(half, np.array([3]), half[..., 0].long(), half, half[..., 0] > 1, np.array([4]))
    uniforms = Round(Keyed((0,)), text.rows, text.nfe.copy(), text.device)
    draft = Sjd(5, init="random").propose(context, np.array([90]), uniforms, state)
    assert draft.is_point_mass is not None
    assert draft.is_point_mass[0].tolist() == [False] * 4 + [True]
    assert draft.q is not None
    assert draft.q[0, 1:4].tolist() == half[0].tolist()


def fresh_guesses_of_an_image_are_the_tokens_to_the_left_by_hand() -> None:
    """Rows of three codes, of which 5 and 6 are known: the next one ends their row, and a row begins at random."""
    text: Any = SimpleNamespace(length=np.array([3]), prompt=np.array([1]), last=torch.tensor([6]))
    guesses, random = torch.tensor([[7, 8, 9, 0, 0]]), torch.tensor([[40, 41, 42, 43, 44]])
    for known, expected in ((0, [6, 41, 41, 41, 44]), (1, [7, 41, 41, 41, 44]), (3, [7, 8, 9, 9, 44])):
        assert copy_left(text, guesses, np.array([known]), random, 3)[0].tolist() == expected
    image, words = SimpleNamespace(imaging=object()), SimpleNamespace(imaging=None)
    assert [Sjd().opening(each) for each in (image, words)] == ["left", "random"]  # type: ignore[arg-type]
    assert [Sjd().positions(each) for each in (image, words)] == [32, 16]  # type: ignore[arg-type]


def what_is_known_of_the_window_by_hand() -> None:
    """Nodes 7 | 0 1 2 3 of a window of 5; two tokens are gained: nodes 2, 3 and 4 have distributions of what follows.

    The first of these three places was drafted as 2, the second as 3, from the q of nodes 3 and 4; the last has none.
    """
    p, q = (torch.arange(10.0).expand(2, 10).view(2, 5, 2) + shift for shift in (0, 100))
    none = torch.zeros(2, 0, 2)
    state = WindowState(none, np.array([0]), none[..., 0].long(), none, none[..., 0].bool(), np.array([4, 4]))
    point = torch.tensor([[False, True, False, True, False]] * 2)
    draft = SimpleNamespace(tokens=torch.tensor([[7, 0, 1, 2, 3]] * 2), q=q, is_point_mass=point, parents=None)
    outcome: Any = SimpleNamespace(draft=draft, gained=np.array([2, 4]), distributions=SimpleNamespace(probs=p))
    Sjd(5).observe(outcome, None, state)  # type: ignore[arg-type]
    assert state.known.tolist() == [3, 1], "the second row has gained four"
    assert state.distribution[0].tolist() == p[0, 2:].tolist()
    assert state.old[0, :2].tolist() == [2, 3]
    assert state.q[0, :2].tolist() == q[0, 3:].tolist()
    assert state.point[0, :2].tolist() == [True, False]
