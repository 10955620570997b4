"""`pjd`: with a lag of a row it is `sjd`; what each node sees; which tokens of later rows are accepted; forwards."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch

import pardec
from pardec.models.errors import SpecError
from pardec.models.plan import Plan, Visible
from pardec.samplers import registry
from pardec.samplers.speculative.contracts import DecodeContext, RoundResult
from pardec.samplers.speculative.draft import pjd, sjd
from pardec.samplers.speculative.draft.pjd import Grid, Pjd
from tests.samplers.ar_toys import run, toy_ar
from tests.samplers.handmade_drafts import Given
from tests.samplers.picture_toys import codes, draw, features, toy_pictures
from tests.samplers.speculative import test_features

SIDE, CAPTIONS = 4, features([3, 1, 2])
MODEL = toy_pictures(3, SIDE, 6, 1.5)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("options", [{}, {"cfg": 3.0}, {"top_k": 3}])
@pytest.mark.covers(1)
def test_a_lag_of_a_row_is_sjd(temperature: float, options: dict[str, Any]) -> None:
    asked: dict[str, Any] = {"temperature": temperature, **options}
    ours, theirs = (draw(MODEL, spec, CAPTIONS, **asked) for spec in (f"pjd:lag={SIDE}", "sjd"))
    assert (ours.tokens == theirs.tokens).all()
    assert ours.nfe == theirs.nfe
    assert ours.tokens_fed == theirs.tokens_fed
    if temperature:
        assert (draw(MODEL, "pjd:lag=1", CAPTIONS, **asked).tokens != theirs.tokens).any()


def copied(init: str, guesses: torch.Tensor, known: np.ndarray, context: DecodeContext, _: Any) -> torch.Tensor:
    """`fresh` with the first guesses of `joint`: the token to the left, or the one above at the left edge."""
    text, filled = context.text, guesses.clone()
    for row in range(len(filled)):
        cells = [*text.row(row)[text.prompt[row] :].tolist(), *filled[row].tolist()]
        for at in range(len(cells) - filled.shape[1] + int(known[row]), len(cells)):
            cells[at] = cells[at - 1] if at % SIDE else cells[at - SIDE] if at else 0
        filled[row] = torch.tensor(cells[len(cells) - filled.shape[1] :])
    return filled


def test_a_rejected_token_of_a_later_row_is_redrawn_from_what_the_drafts_distribution_lacks() -> None:
    rows, generator = 200, torch.Generator().manual_seed(0)
    none, tokens = np.zeros((rows, 1), dtype=bool), torch.full((rows, 1), 2)
    p, q = (torch.tensor(each).expand(rows, 1, 3).clone() for each in ([0.5, 0.3, 0.2], [0.2, 0.3, 0.5]))
    state = Grid(none, tokens, p, q, tokens < 0, np.full((rows, 1), -1), none, none, none, np.full(rows, 1))
    text = SimpleNamespace(prompt=np.zeros(rows, dtype=np.int64), device=torch.device("cpu"))
    uniforms: Any = SimpleNamespace(
        noise=lambda positions, purpose, count: torch.rand(*positions.shape, count, generator=generator)
    )
    context: Any = SimpleNamespace(text=text)
    Pjd()._redraw(context, uniforms, state, ~none, ~none, after_test=True)
    assert (state.tokens == 0).all()  # p exceeds q there alone
    assert torch.equal(state.q, p)


def test_with_wait_a_rejected_draft_is_drawn_again_without_regard_to_what_it_was() -> None:
    accept, redraw, seen = Pjd._accept, Pjd._redraw, [np.zeros((1, 1), dtype=bool)]

    def accepted(self: Pjd, *arguments: Any) -> np.ndarray:
        seen.append(accept(self, *arguments))
        return seen[-1]

    def redrawn(self: Pjd, context: Any, uniforms: Any, state: Grid, which: np.ndarray, old: np.ndarray) -> None:
        assert not (old & seen[-1]).any()
        redraw(self, context, uniforms, state, which, old)

    with patch.object(Pjd, "_accept", accepted), patch.object(Pjd, "_redraw", redrawn):
        draw(MODEL, "pjd:lag=1,wait=true", CAPTIONS, temperature=1.0)
    assert any(each.any() for each in seen)


@pytest.mark.parametrize(
    ("temperature", "tree"), [(0.0, "none"), (1.0, "none"), (1.0, "1x2"), (1.0, "3x3"), (1.0, "2x4")]
)
@pytest.mark.covers(1)
def test_joint_with_a_lag_of_a_row_is_sjd_with_other_first_guesses(temperature: float, tree: str) -> None:
    ours = draw(MODEL, f"pjd:lag={SIDE},joint=true,tree={tree}", CAPTIONS, temperature=temperature)
    with patch.object(sjd, "fresh", copied):
        theirs = draw(MODEL, f"sjd:tree={tree}", CAPTIONS, temperature=temperature)
    assert (ours.tokens == theirs.tokens).all()
    assert ours.nfe == theirs.nfe
    plain = draw(MODEL, "sequential", CAPTIONS, temperature=temperature)
    assert (ours.tokens == plain.tokens).all() == (temperature == 0)
    if temperature:
        assert (draw(MODEL, "pjd:lag=1,joint=true", CAPTIONS, temperature=1.0).tokens != theirs.tokens).any()


@pytest.mark.parametrize(
    "how", ["wait=false", "wait=true", "joint=true", "joint=true,tree=3x2", "joint=true,tree=3x2,window=3"]
)
@pytest.mark.parametrize("lag", [1, 3])
def test_an_image_is_the_same_alone_and_in_a_batch(lag: int, how: str) -> None:
    spec = f"pjd:lag={lag},{how}"
    batch = draw(MODEL, spec, CAPTIONS, temperature=1.0)
    for row, caption in enumerate(CAPTIONS):
        alone = draw(MODEL, spec, [caption], temperature=1.0, seeds=[100 + row])
        assert (codes(alone, [caption])[0] == codes(batch, CAPTIONS)[row]).all()
        assert alone.nfe[0] == batch.nfe[row]


def logits(caption: torch.Tensor, cells: list[tuple[int, int]]) -> torch.Tensor:
    """The raw logits after the last of `cells`, each a cell and its token, by one forward over all of them."""
    imaging: Any = MODEL.imaging
    states = imaging.embedder(caption)
    size = len(states)
    plan = Plan.full(torch.tensor([[-1] * size + [token for _, token in cells]]), Visible.causal())
    where = torch.tensor([[*range(size), *(size + cell for cell, _ in cells)]])
    soft = torch.nn.functional.pad(states, (0, 0, 0, len(cells)))[None]
    plan = replace(plan, positions=where, span=None, soft=soft, origin=torch.tensor([size]))
    dense = torch.ones(plan.width, plan.width, dtype=torch.bool).tril()[None]
    return MODEL.decoder(replace(plan, visible=Visible.mask(dense))).logits()[0, -1]


@pytest.mark.parametrize("lag", [1, 2])
def test_a_draft_sees_the_accepted_tokens_before_it_and_the_drafts_of_its_row(
    lag: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    caption, nodes = CAPTIONS[:1], [0, 0]
    observe = Pjd.observe

    def checked(self: Pjd, outcome: RoundResult, context: DecodeContext, state: Grid) -> None:
        draft, (fed,) = outcome.draft, state.fed
        if draft.width > 1 and draft.sizes[0] > 1:
            begin = int(context.text.prompt[0])
            before = context.text.host[0, begin : int(outcome.before[0])].tolist()
            tokens, waiting = draft.tokens[0].tolist(), {int(cell) // SIDE for cell in state.waiting[0].nonzero()[0]}
            for node in range(1, int(draft.sizes[0])):
                cell = int(fed[node])
                stand_in = bool(cell % SIDE == SIDE - 1 and cell // SIDE + 1 in waiting)
                row = cell // SIDE + stand_in
                # Accepted cells come first; then drafts, which are seen by their own row alone.
                known = [at for at in range(1, node) if fed[at] < cell and fed[at] < row * SIDE
                         and not state.drafted[0, fed[at]] and fed[at] in accepted]  # fmt: skip
                own = [at for at in range(1, node) if fed[at] < cell and int(fed[at]) // SIDE == row]
                first = [at for at in range(1, node) if fed[at] == row * SIDE - 1 and fed[at] not in accepted]
                ahead = sorted({*known, *own, *(first if row in waiting else [])}, key=lambda at: fed[at])
                if not waiting:  # one chain, which may go on into the next row
                    ahead = list(range(1, node))
                cells = [*enumerate(before), *((int(fed[at]), tokens[at]) for at in (*ahead, node))]
                torch.testing.assert_close(
                    outcome.distributions.raw[0, node], logits(caption[0], cells), atol=1e-4, rtol=1e-4
                )
                nodes[row in waiting] += 1
        observe(self, outcome, context, state)
        accepted.clear()

    accepted: set[int] = set()
    propose = Pjd.propose

    def noted(self: Pjd, context: DecodeContext, remaining: Any, uniforms: Any, state: Grid) -> Any:
        made = propose(self, context, remaining, uniforms, state)
        accepted.update(state.accepted[0].nonzero()[0].tolist())
        return made

    monkeypatch.setattr(Pjd, "observe", checked)
    monkeypatch.setattr(Pjd, "propose", noted)
    for seed in range(6):
        draw(MODEL, f"pjd:lag={lag}", caption, temperature=1.0, seeds=[seed])
    assert min(nodes) > 5


def grid(wait: bool, second: int = 1) -> Grid:
    """Row 1 of a 2 x 4 image waits: of its three drafts 0 1 0, p is .9, .1 and .8, and q is .5 each.

    With `second` = 0 the second passes, too.
    """
    rule, context = Pjd(wait=wait), _Context()
    accepted = np.array([[True] * 4 + [False] * 4])
    accepted[0, 3] = False
    drafted = np.zeros_like(accepted)
    drafted[0, 4:7] = True
    p = torch.zeros(1, 8, 2)
    p[0, 4:7] = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.8, 0.2]])
    tokens = torch.zeros(1, 8, dtype=torch.int64)
    tokens[0, 5] = second
    known = drafted | (np.arange(8) == 7)
    q = torch.full_like(p, 0.5)
    state = Grid(accepted, tokens, p, q, tokens < 0, np.full((1, 1), 2), drafted, drafted, known, np.array([8]))
    rejected = rule._accept(context, Given(torch.zeros(1, 1)), state)  # type: ignore[arg-type]
    assert rejected[0].nonzero()[0].tolist() == [5] * second
    return state


class _Context:
    """The context of one image of 2 x 4 codes after a prompt of one token."""

    class text:
        prompt = np.array([1])

    model = toy_pictures(0, 4, 2)


def test_tokens_of_later_rows_are_tested_by_hand() -> None:
    """Every uniform is .5: .25 < .9 passes, .25 < .1 does not, and all of norm([p - q]+) is at token 0."""
    assert grid(wait=True).accepted[0].tolist() == [True] * 3 + [False, True, False, False, False]
    gained = grid(wait=False)
    assert gained.accepted[0].tolist() == [True] * 3 + [False, True, True, False, False]
    assert int(gained.tokens[0, 5]) == 0
    assert gained.q[0, 5].tolist() == gained.p[0, 5].tolist(), "it is a sample of p from now on"
    level = grid(wait=False, second=0)  # three of each row: the fourth of row 1 has nothing above it yet
    assert level.accepted[0].tolist() == [True] * 3 + [False, True, True, True, False]


def joint(lag: int, drafted: tuple[int, ...], p: dict[int, float], departed: int = 12) -> tuple[list[int], list[int]]:
    """A 3 x 4 image, of which cells 0 and 1 are known: the accepted cells, and those of them that were redrawn.

    All drafts are token 1 of q = (.5, .5), and all uniforms .5, so that `p` of a cell's 1 below .25 is a rejection.
    The path left the first tokens at the cell `departed`.
    """
    rule, context = Pjd(joint=True, lag=lag), _Context()
    context.model = toy_pictures(0, 4, 2)
    accepted = np.array([[cell < 2 for cell in range(12)]])
    tried = np.array([[cell in drafted for cell in range(12)]])
    laws = torch.full((1, 12, 2), 0.5)
    for cell, chance in p.items():
        laws[0, cell] = torch.tensor([1 - chance, chance])
    tokens = torch.ones(1, 12, dtype=torch.int64)
    q = torch.full_like(laws, 0.5)
    state = Grid(accepted, tokens, laws, q, tokens < 0, np.full((1, 1), 1), tried, tried, tried, np.array([departed]))
    context.text.length = np.array([3])  # type: ignore[attr-defined]
    with patch.object(Pjd, "_grid_sides", lambda *_: (3, 4)):
        rule._accept_joint(context, Given(torch.zeros(1, 1)), state)  # type: ignore[arg-type]
    gained = [cell for cell in range(2, 12) if state.accepted[0, cell]]
    return gained, [cell for cell in gained if state.tokens[0, cell] == 0]


def a_row_goes_on_to_where_the_row_above_was_accepted_by_hand() -> None:
    """Cell 1 was drawn after the path: the drafts of row 1 attended to cell 0 alone as it is, and row 2 to row 1's."""
    below = tuple(range(4, 12))
    assert joint(1, below, {}) == ([4, 8], [])
    assert joint(1, below, {4: 0.1}) == ([4], [4]), "a redrawn cell was seen by nobody: row 2 does not begin"
    assert joint(1, below, {8: 0.1}) == ([4, 8], [8])
    assert joint(2, below, {}) == ([], []), "one token is not two"
    assert joint(1, below, {}, departed=1) == ([4, 8], []), "cell 1 was redrawn in any case"
    assert joint(1, below, {}, departed=0) == ([], []), "the drafts of row 1 attended to another token in cell 0"
    assert joint(1, (5, 6, 7), {}) == ([], []), "a row is accepted from its left"
    source = pjd._newest(np.array([[True, True, False, False, False, True, False, False, *[False] * 4]]), 4)
    assert source[0].tolist() == [0, 1, 1, 1, 0, 5, 5, 5, 0, 0, 0, 0]


def test_it_is_declared_relaxed_and_refuses_what_it_cannot_do() -> None:
    assert registry.resolve("pjd", "ar").exact == "relaxed"
    with pytest.raises(SpecError, match="lag=5 is more than the 4 tokens of a row"):
        draw(MODEL, "pjd:lag=5", CAPTIONS)
    for spec, why in {
        "joint=true,wait=true": "joint=true redraws rejected tokens",
        "tree=3x3": "pjd: tree=3x3 needs joint=true",
        "joint=true,tree=9x1": "pjd: tree must be tokens x positions, at most 8x4",
    }.items():
        with pytest.raises(SpecError, match=why):
            registry.resolve(f"pjd:{spec}", "ar")
    with pytest.raises(SpecError, match="pjd needs the token grid of an image"):
        run(toy_ar(0), "pjd", [[1, 2]], 4)


def neighbours(tokens: list[list[int]]) -> np.ndarray:
    """[images, 2]: the share of codes equal to the one on the right, and below."""
    images = np.array([row[:144] for row in tokens]).reshape(-1, 12, 12)
    right, below = images[:, :, :-1] == images[:, :, 1:], images[:, :-1] == images[:, 1:]
    return np.stack((right.mean((1, 2)), below.mean((1, 2))), 1)


def test_rows_begin_and_are_guessed_by_hand() -> None:
    a_row_begins_when_the_one_above_is_ahead_by_hand()
    only_the_last_forward_s_distributions_draw_drafts_by_hand()
    the_first_guess_of_a_row_is_the_newest_token_above_by_hand()
    the_newest_token_above_stands_in_for_the_one_before_a_row()
    a_row_goes_on_to_where_the_row_above_was_accepted_by_hand()
    rows_below_see_the_first_tokens_of_a_tree_by_hand()


@pytest.mark.slow  # seconds for 18 pictures; the tests above have the rules
@pytest.mark.seeds("arXiv:2606.05703")
def test_forwards_fall_and_neighbours_are_as_equal_as_before() -> None:
    """Rows of 12 codes begin one after the other, so that 12 rows take 13 forwards at the least; `sjd` takes 33."""
    test_tokens_of_later_rows_are_tested_by_hand()
    test_a_rejected_token_of_a_later_row_is_redrawn_from_what_the_drafts_distribution_lacks()
    test_with_wait_a_rejected_draft_is_drawn_again_without_regard_to_what_it_was()
    test_rows_begin_and_are_guessed_by_hand()
    test_joint_with_a_lag_of_a_row_is_sjd_with_other_first_guesses(1.0, "3x3")
    test_features.test_the_exact_rule_tests_no_preaccepted_token()
    test_features.test_preaccepted_tokens_stay_outside_of_later_filters_unless_constraints_read_the_tokens_before(True)
    model, task = pardec.load("tiny-llamagen", device="cpu"), pardec.task("captions")
    prompts = [one.prompt for one in task.problems(split="heldout", n=6, seed=3)]
    found = {}
    for spec in ("sjd", "pjd:lag=2", "pjd:lag=1,joint=true,window=145"):
        done = model.generate(prompts, sampler=spec, temperature=0.7, top_k=64, cfg=2.5, seed=0)
        found[spec] = np.mean(done.nfe), neighbours(done.tokens)
    (most, exact), *others = found.values()
    for (fewer, ours), least in zip(others, (0.92, 0.65), strict=True):
        assert fewer < least * most
        spread = np.sqrt(exact.var(0) + ours.var(0)) / np.sqrt(len(prompts))
        assert (np.abs(exact.mean(0) - ours.mean(0)) < 3 * spread).all()


def a_row_begins_when_the_one_above_is_ahead_by_hand() -> None:
    """3 x 4 cells, of which 0 and 1 are known: with lag 2 row 1 begins, and gets no farther than the row above."""
    accepted = np.zeros((1, 12), dtype=bool)
    accepted[0, :2] = True

    def layout(window: int, lag: int) -> list[list[int]]:
        found = Pjd(window=window)._layout(accepted, np.array([[1]]), np.array([10]), 3, 4, lag)
        return [each[0].nonzero()[0].tolist() for each in found]

    # Stand-ins, drafts, and the cells of rows that wait: cell 3 is drafted as the one before row 1.
    assert layout(5, 2) == [[3], [2, 4, 5], [4, 5, 6, 7]]
    assert layout(2, 2) == [[3], [2, 4], [4, 5, 6, 7]]  # a window of one guess
    assert layout(5, 3) == [[], [2, 3, 4, 5], []]  # two are not three: one chain, into the next row
    accepted[0, 4] = True  # of row 1, so that row 2 is one behind
    assert layout(5, 2) == [[], [2, 5], [4, 5, 6, 7]]
    assert layout(5, 1)[1:] == [[2, 5, 8], [*range(4, 12)]]
    assert Pjd()._lag(toy_pictures(0, 4, 2)) == 1, "a quarter of a row"
    both = np.zeros((2, 12), dtype=bool)
    both[0, :2] = both[1, 0] = True  # of the second image row 1 has not begun
    found = Pjd(window=5)._layout(both, np.array([[1], [0]]), np.array([10, 10]), 3, 4, 2)
    assert [each[0].nonzero()[0].tolist() for each in found] == [[3], [2, 4, 5], [4, 5, 6, 7]]
    assert [each[1].nonzero()[0].tolist() for each in found] == [[], [1, 2, 3, 4], []]


def only_the_last_forward_s_distributions_draw_drafts_by_hand() -> None:
    """Cells 1, 2 and 3 were fed, so that 2, 3 and 4 are predicted; 6 was by a forward before."""
    context, none = _Context(), np.zeros((1, 8), dtype=bool)
    text = SimpleNamespace(prompt=np.array([1]), length=np.array([3]), host=np.array([[0, 1, 1]]))
    context.text = text  # type: ignore[assignment]
    known = np.arange(8)[None] == 6
    tokens, p, q = torch.zeros(1, 8, dtype=torch.int64), torch.zeros(1, 8, 2), torch.zeros(1, 8, 2)
    state = Grid(none, tokens, p, q, tokens < 0, np.array([[1, 2, 3]]), none, none, known, np.array([1]))
    probs = torch.tensor([[[0.1, 0.9], [0.2, 0.8], [0.3, 0.7]]])
    outcome: Any = SimpleNamespace(
        draft=SimpleNamespace(sizes=np.array([3])), distributions=SimpleNamespace(probs=probs)
    )
    Pjd().observe(outcome, context, state)  # type: ignore[arg-type]
    assert state.known[0].nonzero()[0].tolist() == [2, 3, 4]
    assert torch.equal(state.p[:, 2:5], probs)
    assert state.accepted[0].nonzero()[0].tolist() == [0, 1]


def rows_below_see_the_first_tokens_of_a_tree_by_hand() -> None:
    """Of 2 x 2 tokens and one more, the path takes the second token of cell 3, node 4; cell 4 is node 7."""
    context, none = _Context(), np.zeros((1, 8), dtype=bool)
    text = SimpleNamespace(prompt=np.array([1]), length=np.array([5]), host=np.array([[0, 1, 1, 1, 1]]))
    context.text = text  # type: ignore[assignment]
    tokens, p = torch.zeros(1, 8, dtype=torch.int64), torch.zeros(1, 8, 2)
    state = Grid(none, tokens, p, p.clone(), tokens < 0, np.array([[1, 2, 3, 4]]), none, none, none, np.array([8]))
    probs = torch.stack((torch.arange(8) / 8, 1 - torch.arange(8) / 8), 1)[None]
    verdict = SimpleNamespace(path=torch.tensor([[0, 1, 4]]), count=torch.tensor([2]))
    draft = SimpleNamespace(sizes=np.array([8]), parents=torch.tensor([-1, 0, 0, 1, 1, 2, 2, 3]), deepest=3)
    outcome: Any = SimpleNamespace(draft=draft, verdict=verdict, distributions=SimpleNamespace(probs=probs))
    Pjd(joint=True, tree="2x2").observe(outcome, context, state)  # type: ignore[arg-type]
    assert state.departed.tolist() == [3]
    assert (8 * state.p[0, 2:6, 0]).tolist() == [0, 1, 4, 7]
    verdict.path = torch.tensor([[0, 1, 3]])
    Pjd(joint=True, tree="2x2").observe(outcome, context, state)  # type: ignore[arg-type]
    assert state.departed.tolist() == [8], "all tokens of the path are first ones"


def the_newest_token_above_stands_in_for_the_one_before_a_row() -> None:
    propose, seen = Pjd.propose, [0]

    def checked(self: Pjd, context: DecodeContext, remaining: Any, uniforms: Any, state: Grid) -> Any:
        made = propose(self, context, remaining, uniforms, state)
        known = {int(cell) for cell in (state.accepted | state.drafted)[0].nonzero()[0]}
        for node in range(1, int(made.sizes[0])):
            cell = int(state.fed[0, node])
            if cell in known:
                continue
            row = range(cell - SIDE + 1, cell + 1)  # `cell` is its last one
            newest = max(at for at in row if state.accepted[0, at])
            assert made.tokens[0, node] == state.tokens[0, newest]
            seen[0] += state.tokens[0, newest] != state.tokens[0, newest - 1]
        return made

    with patch.object(Pjd, "propose", checked):
        for seed in range(4):
            draw(MODEL, "pjd:lag=2", CAPTIONS[:1], temperature=1.0, seeds=[seed])
    assert seen[0] > 3


def the_first_guess_of_a_row_is_the_newest_token_above_by_hand() -> None:
    """Row 0 begins 5 3: cell 4 gets the 3, and cell 6 gets what is to its left, the 2 in cell 5."""
    rule, context = Pjd(), _Context()
    context.text.length = np.array([3])  # type: ignore[attr-defined]
    accepted = np.zeros((1, 8), dtype=bool)
    accepted[0, :2] = True
    tokens = torch.tensor([[5, 3, 0, 0, 0, 2, 0, 0]])
    p = torch.zeros(1, 8, 6)
    state = Grid(accepted, tokens, p, p, tokens < 0, np.full((1, 1), 1), accepted, accepted, accepted, np.array([8]))
    given, missing, waiting = accepted.copy(), np.zeros_like(accepted), np.zeros_like(accepted)
    given[0, 5] = missing[0, 4] = missing[0, 6] = True
    waiting[0, 4:] = True
    with patch.object(pjd, "fresh", lambda init, guesses, *_: guesses):
        rule._fresh(context, Given(torch.zeros(1, 1)), state, given, missing, waiting, np.array([1]))  # type: ignore[arg-type]
    assert state.tokens[0].tolist() == [5, 3, 0, 0, 3, 2, 2, 0]
    assert state.point[0].nonzero()[:, 0].tolist() == [4, 6], "guesses are point masses"
