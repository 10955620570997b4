"""A bandit over two drafters: the choice, each drafter's inputs, and refusals."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch
from weakref import WeakKeyDictionary

import numpy as np
import pytest
import torch

import pardec
from pardec.models.errors import SpecError
from pardec.samplers import pace, registry
from pardec.samplers.speculative.contracts import Draft, RoundResult
from pardec.samplers.speculative.draft.auto import Auto, BanditState
from pardec.samplers.speculative.draft.eagle import Eagle
from pardec.samplers.speculative.draft.model import Model
from pardec.samplers.speculative.draft.mtp import Mtp
from pardec.samplers.speculative.forward import VerifyForward
from pardec.samplers.speculative.length.heuristic import Heuristic
from pardec.samplers.traits import Trait
from tests.models.draft_modules.dflash_writer import write
from tests.samplers.ar_toys import counted, g_test, is_greedy, plain_greedy, rows, run, toy_ar
from tests.samplers.draft_model_checks import keeps_greedy
from tests.samplers.drafter_checks import cyclic
from tests.samplers.fake_draft_model import NEW, RAGGED, distribution, distribution_errors, greedy, named, near, target
from tests.samplers.joint_distributions import WORLDS, drafting, small

SHAPES = ("chain", "template:widths=3-2", "dyspec:nodes=8,children=3", "beam:beams=3,nodes=8")
SPEC = 'auto:model="model:name=near,k=4",copy="lookup:k=6",measured=false'


@pytest.fixture(autouse=True)
def toy() -> Iterator[None]:
    with named(near=near(), same=target(), bad=toy_ar(9, 7, 4.0), cyclic=cyclic()):
        yield


class Watched:
    """Records which rows copied in each round, and the states."""

    def __init__(self) -> None:
        self.used: list[dict[int, bool]] = []
        self.states: list[BanditState] = []

    def __enter__(self) -> Watched:
        propose = Auto.propose

        def watching(auto: Auto, context: Any, room: Any, uniforms: Any, state: BanditState) -> Any:
            draft = propose(auto, context, room, uniforms, state)
            self.used.append(dict(zip(context.text.rows.tolist(), state.used.tolist(), strict=True)))
            self.states.append(state)
            return draft

        self.patch = patch.object(Auto, "propose", watching)
        self.patch.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self.patch.__exit__(*error)


@pytest.mark.parametrize("shape", SHAPES)
def test_both_draft_side_by_side_and_every_distribution_is_that_of_a_whole_forward(shape: str) -> None:
    """The model's cache then lacks the copied tokens, which are fed later."""
    with distribution_errors(lambda text: distribution(near(), text)) as errors, Watched() as watched:
        done = run(target(), f"{SPEC}+{shape}", RAGGED, NEW, temperature=1.0)
    assert max(errors) < 5e-5
    assert any(len(set(used.values())) == 2 for used in watched.used)
    assert sum(map(sum, done.trace.accepted)) > 0


def test_a_module_is_the_model_too(tmp_path: Path) -> None:
    write(tmp_path, dtype=torch.float32, markov="rnn", confidence="token")
    model = f'dflash:name=\\"{tmp_path}\\",k=4'
    for more in ("", "+beam:beams=3,nodes=8", "+fallback:below=0.3"):
        with Watched() as watched:
            assert (
                rows(run(target(), f'auto:model="{model}",copy="lookup:k=6",measured=false{more}', RAGGED, NEW))
                == greedy()
            )
        assert {used for each in watched.used for used in each.values()} == {True, False}


# --- which of the two drafts ---


def test_a_text_that_repeats_is_copied_and_a_draft_forward_a_round_is_saved() -> None:
    text = [0, 1, 2, 3, 4, 5, 6, 0, 1, 2]
    with Watched() as watched:
        done = run(cyclic(), 'auto:model="model:name=bad,k=3",copy="lookup:k=6",measured=false', [text], 40)
    assert rows(done) == [plain_greedy(cyclic(), text, 40)]
    assert all(used[0] for used in watched.used)
    assert done.draft_forwards == (0,)
    assert done.nfe == (1 + 6,)  # 39 tokens by 7 a round


def test_a_cheap_model_that_is_always_right_is_not_left_for_copies_that_are_wrong() -> None:
    """A sampled text over five tokens has many matches, few of which continue as before."""
    new = [60] * len(RAGGED)
    with Watched() as watched, patch.object(Model, "cost_ratio", lambda *_: 0.02):
        done = run(
            target(), 'auto:model="model:name=same,k=4",copy="lookup:k=6",measured=false', RAGGED, new, temperature=1.0
        )
    used = [value for each in watched.used for value in each.values()]
    right = run(target(), "model:name=same,k=4", RAGGED, new, temperature=1.0)
    assert 0 < np.mean(used) < 0.35
    assert sum(done.nfe) <= 1.15 * sum(right.nfe)


def test_a_model_that_costs_as_much_as_it_saves_is_left_for_copies() -> None:
    with Watched() as watched:
        run(target(), 'auto:model="model:name=same,k=4",copy="lookup:k=6",measured=false', RAGGED, [40] * 4)
    assert np.mean([value for each in watched.used for value in each.values()]) > 0.8


def test_copies_take_over_within_two_rounds_where_the_text_begins_to_repeat() -> None:
    """The copying drafter is scored in every round, also while the model drafts."""
    text = [6, 3, 0, 5, 1, 4, 2]  # nothing in it is followed as the model goes on
    with Watched() as watched:
        done = run(cyclic(), 'auto:model="model:name=cyclic,k=3",copy="lookup:k=6",measured=false', [text], 60)
    assert rows(done) == [plain_greedy(cyclic(), text, 60)]
    used = [each[0] for each in watched.used]
    first = used.index(True)
    assert first <= 4
    assert all(used[first + 1 :])


def test_what_a_copy_would_have_given_is_counted() -> None:
    arms = BanditState.start(None, None, 4, 0.03)
    arms.guess, arms.count = np.array([[1, 2, 9], [1, 2, 3], [9, 2, 3], [1, 2, 3]]), np.array([3, 3, 3, 2])
    arms.used, arms.size = np.array([False, False, False, True]), np.full(4, 2)
    arms.copied[:, 2] = 2.5
    text: Any = SimpleNamespace(host=np.array([[7, 1, 2, 3, 4, 5]] * 4))
    outcome: Any = SimpleNamespace(
        before=np.full(4, 1), gained=np.array([3, 2, 2, 2]), draft=SimpleNamespace(sizes=np.full(4, 5))
    )
    # two right and one wrong; both right, and then as much as is usual there; none right; it was used
    assert arms.would_give(outcome, text).tolist() == [3.0, 4.0, 1.0, 2.0]
    arms.learn(outcome, text, np.full(4, 1.5))
    assert arms.copied[:, 2].tolist() == pytest.approx([0.85 * 2.5 + gave for gave in (3.0, 4.0, 1.0, 2.0)])
    assert arms.rounds.tolist() == [[1, 1, 1.85, 1]] * 4
    assert arms.gained.tolist() == [3, 2, 2, 0]
    assert arms.cost.tolist() == [1.5, 1.5, 1.5, 0]


class NaiveBandit:
    """The choice of one row, in plain Python: what the model and copies after each match length have given."""

    def __init__(self, k: int, token: float, forward: float, *, at_once: bool) -> None:
        self.token, self.forward, self.at_once = token, forward, at_once
        self.gained, self.cost = 2 * (1 + 0.4 * min(k, 4)), 2 * self.price(k)
        self.copied = {0: (2.0, 1.0), 1: (2.0, 1.0), 2: (2.5, 1.0), 3: (3.5, 1.0)}

    def price(self, drafted: int) -> float:
        return 1 + self.token * drafted + self.forward * (1 if self.at_once else drafted)

    def copies(self, text: list[int], count: int) -> bool:
        ends = (n for n in (3, 2, 1) if any(text[s : s + n] == text[len(text) - n :] for s in range(len(text) - n)))
        self.size = next(ends, 0)
        total, weight = self.copied[self.size]
        return count > 0 and total / weight / (1 + self.token * count) > self.gained / self.cost

    def learn(self, used: bool, drafted: int, guess: list[int], committed: list[int]) -> None:
        total, weight = self.copied[self.size]
        if not used and drafted:
            self.gained, self.cost = 0.9 * self.gained + len(committed), 0.9 * self.cost + self.price(drafted)
        if guess:
            pairs = zip(guess, committed, strict=False)
            right = next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(guess), len(committed)))
            onward = max(1.0, total / weight) if right == len(committed) and right < len(guess) else 1
            gave = len(committed) if used else min(right + onward, len(guess) + 1)
            self.copied[self.size] = 0.85 * total + gave, 0.85 * weight + 1


@pytest.mark.parametrize("at_once", [False, True])
def test_auto_chooses_as_a_plain_bandit_does_in_every_row_and_round(at_once: bool) -> None:
    model = "model:name=near,k=5" if not at_once else "dflash:name=draft,k=4"
    k, seen, observe = int(model[-1]), {True: 0, False: 0}, Auto.observe
    bandits: dict[int, NaiveBandit] = {}

    def compared(self: Auto, outcome: RoundResult, context: Any, state: BanditState) -> None:
        text, first = context.text, state.copies is None  # nothing is drafted with the prompt
        guesses = [] if state.copies is None else state.copies.tolist()
        for at, row in enumerate(text.rows.tolist() if not first else ()):
            start, whole = int(outcome.before[at]), text.row(at).tolist()
            guess, drafted = guesses[at][: int(state.count[at])], int(outcome.draft.sizes[at]) - 1
            bandit = bandits.setdefault(row, NaiveBandit(k, 0.06, 0.15, at_once=at_once))
            used = bandit.copies(whole[:start], len(guess))
            assert used == state.used[at]
            seen[used] += bool(guess)
            bandit.learn(used, drafted, guess, whole[start:])
        observe(self, outcome, context, state)

    spec = f'auto:model="{model}",copy="lookup:k=6,max_ngram=2",measured=false,token=0.06'
    world = WORLDS["5 tokens, length 4"].model
    with drafting(5), patch.object(Auto, "cost_ratio", lambda *_: 0.15), patch.object(Auto, "observe", compared):
        for seed in range(4):
            bandits.clear()
            run(world, spec, RAGGED, 40, temperature=1.0, seeds=range(4 * seed, 4 * seed + 4))
    assert min(seen.values()) > 20


def test_a_round_without_drafts_counts_for_neither_drafter() -> None:
    arms = BanditState.start(None, None, 1, 0.03)
    arms.guess, arms.count, arms.used = np.array([[1, 2, 9]]), np.array([3]), np.array([True])
    before = arms.copied.tolist(), arms.rounds.tolist(), arms.gained.tolist(), arms.cost.tolist()
    arms.rest()
    text: Any = SimpleNamespace(host=np.array([[7, 1, 2, 3]]))
    outcome: Any = SimpleNamespace(
        before=np.array([1]), gained=np.array([1]), draft=SimpleNamespace(sizes=np.array([1]))
    )
    arms.learn(outcome, text, np.array([1.0]))
    assert (arms.copied.tolist(), arms.rounds.tolist(), arms.gained.tolist(), arms.cost.tolist()) == before


def test_a_copy_is_taken_only_where_it_gains_more_than_the_model() -> None:
    """The model gained 2 tokens, 1.75 and 1.5 for a cost of 1, copies 1.75 in rounds of cost 1."""
    arms = BanditState.start(None, None, 3, 0.0)
    arms.gained, arms.cost = np.array([2, 1.75, 1.5]), np.ones(3)
    arms.copied[:], arms.rounds[:] = 3.5, 2
    copied: Any = SimpleNamespace(tokens=torch.zeros(3, 3, dtype=torch.int64), sizes=np.array([3, 3, 3]))
    text: Any = SimpleNamespace(row=lambda at: np.array([at, 5]))
    arms.choose(copied, text)
    assert arms.used.tolist() == [False, False, True]


def test_rows_copied_count_for_no_length_controller() -> None:
    """Otherwise `heuristic` would lengthen the model's drafts when copies are accepted."""
    told: list[np.ndarray] = []
    observe = Heuristic.observe

    def watching(self: Heuristic, outcome: RoundResult, context: Any, state: Any) -> None:
        told.append(np.concatenate(outcome.levels()))
        observe(self, outcome, context, state)

    text = [0, 1, 2, 3, 4, 5, 6, 0, 1, 2]
    with patch.object(Heuristic, "observe", watching):
        run(cyclic(), 'auto:model="model:name=bad,k=3",copy="lookup:k=6",measured=false+heuristic', [text], 40)
    assert max(each.max() for each in told) == 0


# --- drafts or none, by the clock ---


class ScriptedClock:
    """A clock that only forwards advance: a forward of one node per row costs 1, each further node `node` more."""

    def __init__(self, node: float) -> None:
        self.node, self.now, self.drafted = node, 0.0, list[bool]()

    def __enter__(self) -> ScriptedClock:
        verify = VerifyForward.verify

        def timed(forward: VerifyForward, draft: Draft) -> Any:
            self.now += 1 + self.node * (draft.width - 1)
            self.drafted.append(draft.width > 1)
            return verify(forward, draft)

        self.patches = [
            patch.object(VerifyForward, "verify", timed),
            patch.object(pace, "clock_of", lambda *_: lambda: self.now),
            patch.object(pace, "_PACES", WeakKeyDictionary()),
            patch.object(pace, "_PLAIN", WeakKeyDictionary()),
        ]
        for each in self.patches:
            each.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        for each in self.patches:
            each.__exit__(*error)


MEASURED = ("auto:copy=lookup", SPEC.replace(",measured=false", ""))


@pytest.mark.parametrize("spec", MEASURED)
@pytest.mark.parametrize("node", [0.0, 0.3, 5.0])
def test_greedy_tokens_do_not_depend_on_the_clock(spec: str, node: float) -> None:
    with ScriptedClock(node) as clock:
        keeps_greedy(spec)
    assert len(set(clock.drafted)) == 2  # rounds went both ways


@pytest.mark.parametrize("spec", MEASURED)
def test_dear_drafts_are_left_out_and_cheap_ones_used(spec: str) -> None:
    text = [0, 1, 2, 3, 4, 5, 6, 0, 1, 2]
    shares = []
    with patch.object(Model, "cost_ratio", lambda *_: 0.02):
        for node in (0.01, 5.0):
            with ScriptedClock(node) as clock:
                done = run(cyclic(), spec.replace("near", "cyclic"), [text], 400)
            assert is_greedy(cyclic(), rows(done)[0], len(text))
            shares.append(np.mean(clock.drafted[20:]))
    assert shares[0] > 0.8
    assert shares[1] < 0.05


def test_a_later_request_starts_with_what_an_earlier_one_measured() -> None:
    text, model = [0, 1, 2, 3, 4, 5, 6, 0, 1, 2], cyclic()
    with ScriptedClock(5.0) as clock:
        run(model, "auto", [text], 120)
        first = sum(clock.drafted)
        clock.drafted.clear()
        run(model, "auto", [text], 120)
        assert first > 0
        assert not any(clock.drafted)
        run(cyclic(), "auto", [text], 120)  # another model
        assert any(clock.drafted)


@pytest.mark.parametrize("spec", ['auto:copy="lookup:k=3"', small("auto").replace(",measured=false", "")])
def test_sampled_tokens_have_the_true_joint_whichever_way_rounds_go(spec: str) -> None:
    world = WORLDS["5 tokens, length 4"]
    counts = [np.zeros((5,) * world.n, dtype=np.int64) for _ in world.prompts]
    with drafting(5), ScriptedClock(0.5) as clock, patch.object(pace, "ROUNDS", 1), patch.object(pace, "_REST", 1):
        for number in range(10):
            given = [prompt for prompt in world.prompts for _ in range(400)]
            seeds = range(number * len(given), (number + 1) * len(given))
            done = run(world.model, spec, given, world.n, temperature=1.0, seeds=seeds)
            for which, prompt in enumerate(world.prompts):
                counts[which] += counted(done, len(prompt), world.n, 5, slice(400 * which, 400 * which + 400))
    assert len(set(clock.drafted)) == 2
    for each, truth in zip(counts, world.distributions, strict=True):
        assert g_test(each, truth) < 4


def test_a_seed_gives_the_same_tokens_again_without_the_clock() -> None:
    spec = "auto:measured=false"
    first, second = (run(target(), spec, RAGGED, 20, temperature=1.0, seeds=[5, 6, 7, 8]) for _ in range(2))
    assert rows(first) == rows(second)
    assert Trait.TIMES_ROUNDS not in registry.resolve(spec, "ar").traits
    assert Trait.TIMES_ROUNDS in registry.resolve("auto", "ar").traits


# --- what goes together ---


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("auto:copy=recycling", "does not copy known tokens"),
        ("auto:model=lookup", "model must be the spec of one drafting model, got 'lookup'"),
        ('auto:model="model:name=near+beam"', "model must be the spec of one drafting model"),
        ('auto:model="model:name=near",copy="model:name=near"', "copy must be the spec of one drafter that copies"),
        ('auto:model="model:name=near",copy=recycling', "does not copy known tokens"),
        ("auto:model=earlyexit", "earlyexit drafts within every verify forward"),
        ('auto:model="prompts:name=x"', "prompts drafts within every verify forward"),
        ('auto:model="model:k=3"', "model: name is missing"),
        ('auto:model="model:name=near",token=-1', "token must be at least 0"),
        ('auto:model="model:name=near,depth=3"', "model: unknown parameter 'depth'"),
    ],
)
def test_specs_that_cannot_be(spec: str, message: str) -> None:
    with pytest.raises(SpecError) as error:
        registry.resolve(spec, "ar")
    assert message in str(error.value)


def test_a_spec_is_written_as_it_is_read() -> None:
    resolved = registry.resolve(SPEC, "ar")
    again = registry.resolve(str(resolved.spec), "ar")
    assert again.spec == resolved.spec
    assert resolved.draft.needed_model == "near"
    assert resolved.draft.needed_module is None


@pytest.mark.parametrize(("module", "drafter"), [("eagle", Eagle), ("mtp", Mtp)])
def test_drafts_after_rounds_without_are_those_of_a_module_that_saw_every_round(module: str, drafter: Any) -> None:
    """States of the rounds between wait, while rows end, and are fed before the next draft."""
    model = pardec.load("tiny-llama", device="cpu")
    prompts = ["Tom has 18 cups. He loses 4. How many has he?", "add 3 4", "Hugo has 55 apples. Olga removes 9.", "7 8"]
    drafts: list[dict[tuple[int, ...], list[int]]] = []
    propose = drafter.propose

    def noted(self: Any, context: Any, remaining: np.ndarray, uniforms: Any, state: Any) -> Draft:
        draft: Draft = propose(self, context, remaining, uniforms, state)
        for at, size in enumerate(draft.sizes.tolist()):
            if size > 1:
                drafts[-1][tuple(context.text.row(at).tolist())] = draft.tokens[at, 1:size].tolist()
        return draft if len(drafts) > 1 else Draft.none(context.text)  # the first time at every token

    spec = f'auto:model="{module}:name=tiny-llama-{module},k=3",copy="lookup:k=2,max_ngram=5"'
    for rest in (0, 6):
        numbers = count()
        drafts.append({})
        with (
            patch.object(drafter, "propose", noted),
            patch.object(pace.RoundTimer, "begin", lambda *_, rest=rest, numbers=numbers: next(numbers) % 9 >= rest),
        ):
            model.generate(prompts, sampler=spec, max_new_tokens=40, temperature=0)
    both = drafts[0].keys() & drafts[1].keys()
    assert len(both) > 8
    assert all(drafts[0][text] == drafts[1][text] for text in both)


@pytest.mark.usefixtures("in_c")
@pytest.mark.parametrize(
    ("quantize", "spec", "cost"), [(None, "", 0.03), ("int8", "", 0.1), ("int8", ",token=0.2", 0.2)]
)
def test_a_position_costs_more_with_packed_weights(quantize: str | None, spec: str, cost: float) -> None:
    model = pardec.load("tiny-llama", device="cpu", quantize=quantize)
    sampler = f'auto:model="eagle:name=tiny-llama-eagle",copy=lookup,measured=false{spec}'
    with Watched() as watched:
        model.generate("add 3 4", sampler=sampler, max_new_tokens=4)
    assert {state.token for state in watched.states} == {cost}
    priced = registry.resolve(sampler, "ar").draft._price(np.array([1, 3]), watched.states[0])
    assert priced[1] - priced[0] == pytest.approx(2 * (cost + watched.states[0].forward))


def test_requests_that_sample_are_timed_apart_from_greedy_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """Their rounds cost more, and their drafts are accepted less often."""
    keys = list[tuple[object, ...]]()

    def timer(network: object, clock: Any, *key: object) -> None:
        keys.append(key)

    monkeypatch.setattr("pardec.samplers.speculative.draft.auto.RoundTimer", timer)
    spec = SPEC.replace("measured=false", "measured=true") + "+match"  # the same acceptance at every temperature
    for temperature in (0.0, 1.0, 0.5, 0.0):
        run(target(), spec, [[1, 2]], 3, temperature=temperature)
    greedy, sampled = keys[0], keys[1]
    assert keys == [greedy, sampled, sampled, greedy]
    assert greedy != sampled
