"""Edits that delete and insert: by hand, compared with the rule on lists, moved records, and refusals."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import pardec
from pardec.models.caches.kv_cache import KVCache
from pardec.models.errors import SpecError
from pardec.models.model import LanguageModel
from pardec.models.plan import Hidden, Plan
from pardec.samplers import registry
from pardec.samplers.events import Step
from pardec.samplers.masked.canvas import Canvas
from pardec.samplers.masked.loop import MaskedLoop
from pardec.samplers.masked.revise.levenshtein import EditHistory, edit_sources
from pardec.samplers.rng import JoinableSource
from tests.samplers.toys import (
    BLOCK,
    MASK,
    VOCAB,
    events,
    fill,
    names,
    prompts,
    request,
    resolved,
    run,
    same,
    table,
    toy,
)

DELETE, SPLIT = 3, 4
EDITS = f"levenshtein:delete={DELETE},split={SPLIT}"


# --- where tokens go ---


def moved(block: str, operations: str, fixed: str = "") -> str:
    """The block of letters after edits, `_` being a mask: `-` deletes and `+` splits; `#` marks what may not move."""
    width = len(block)
    movable = torch.tensor([[mark != "#" for mark in fixed.ljust(width)]])
    each = [[torch.tensor([[mark == sign for mark in operations.ljust(width)]]) & movable for sign in "-+"]]
    source = edit_sources(movable, *each[0])[0].tolist()
    return "".join("_" if at < 0 else block[at] for at in source)


@pytest.mark.parametrize(
    ("block", "operations", "fixed", "after"),
    [
        ("abcde", "", "", "abcde"),
        ("abcde", " -", "", "acde_"),
        ("abcde", "  +", "", "ab_cd"),
        ("abcde", "--", "", "cde__"),
        ("abcde", "+ +", "", "_ab_c"),
        ("abcde", "-  +", "", "bc_de"),
        ("abcde", "    +", "", "abcd_"),  # the token that is split falls over the end
        ("abcde", "+++++", "", "_a_b_"),
        ("abcde", "-----", "", "_____"),
        ("Pabcd", "--", "#", "Pbcd_"),
        ("Pabcd", "++", "#", "P_abc"),
        ("abPcd", "-  +", "  #", "b_P_c"),  # what is given stays, and the others move beside it
        ("aPbQc", "+ + -", " # #", "_P_Q_"),
    ],
)
def test_tokens_move_within_their_stretch(block: str, operations: str, fixed: str, after: str) -> None:
    assert moved(block, operations, fixed) == after


def test_rows_move_each_by_its_own_edits() -> None:
    generator = torch.Generator().manual_seed(1)
    movable, marks = torch.rand(200, 9, generator=generator) < 0.8, torch.randint(4, (200, 9), generator=generator)
    together = edit_sources(movable, marks == 0, marks == 1)
    for row in range(200):
        alone = edit_sources(movable[row : row + 1], marks[row : row + 1] == 0, marks[row : row + 1] == 1)
        assert together[row].tolist() == alone[0].tolist()
        kept = [at for at in together[row].tolist() if at >= 0]
        assert kept == sorted(set(kept)), "tokens keep their order"


# --- by hand ---


class Script:
    """A model that predicts a given token at every position, with a given probability, depending on the block."""

    def __init__(self, script: dict[str, str], sure: dict[str, list[float]] | None = None) -> None:
        self.script, self.sure, self.met = script, sure or {}, list[str]()

    def __call__(self, plan: Plan, cache: KVCache | None = None) -> Hidden:
        states = torch.zeros(*plan.tokens.shape, 1)
        rows = []
        for tokens in plan.tokens.tolist():
            text = "".join("_" if token == MASK else ALPHABET[token] for token in tokens)
            self.met.append(text)
            said = self.script[text]
            sure = self.sure.get(text, [0.9] * len(said))
            law = torch.full((len(said), VOCAB), 0.0)
            for at, (token, p) in enumerate(zip(said, sure, strict=True)):
                law[at] = (1 - p) / (VOCAB - 1)
                law[at, ALPHABET.index(token)] = p
            rows.append(law.log())
        whole = torch.stack(rows).flatten(0, 1)
        states[..., 0] = torch.arange(whole.shape[0]).view(plan.tokens.shape)
        return Hidden(plan, states, lambda flat: whole[flat[:, 0].long()])

    def new_cache(self, batch: int, capacity: int) -> KVCache:
        return KVCache(layers=1, batch=batch, capacity=capacity, kv_heads=1, head_dim=1)


ALPHABET = "abc-+defghijklmnopqr"[:VOCAB]  # DELETE is -, SPLIT is +


def scripted(script: dict[str, str], sure: dict[str, list[float]] | None = None) -> tuple[LanguageModel, Script]:
    stack = Script(script, sure)
    return replace(toy("llada"), decoder=stack), stack  # type: ignore[arg-type]


def decoded(model: LanguageModel, prompt: str, spec: str = EDITS, block: int = 4) -> tuple[str, Any]:
    given = [ALPHABET.index(letter) for letter in prompt]
    done = run(model, spec, request([[*given, *[MASK] * 4]], [len(given)], block_length=block))
    return "".join(ALPHABET[token] for token in done.tokens[0, len(given) :].tolist()), done


def test_by_hand() -> None:
    """`deff` is written; its third f is deleted and a mask appended; then g, and a mask before d, where c belongs."""
    model, stack = scripted(
        {
            "ab____": "abdeff",
            "abdeff": "abde-f",
            "abdef_": "abdefg",
            "abdefg": "ab+efg",
            "ab_def": "abcdef",
            "abcdef": "abcdef",
        }
    )
    text, done = decoded(model, "ab")
    assert text == "cdef"
    assert stack.met == ["ab____", "abdeff", "abdef_", "abdefg", "ab_def", "abcdef"]
    assert done.nfe == (6,)
    # c was inserted by the fourth forward; d, e and the last f are those of the first one.
    assert done.trace.commit_step[0].tolist() == [-1, -1, 4, 0, 0, 0]
    assert done.trace.serial[0].tolist() == [0, 1, 6 + 3 * 4 + 0, 2, 3, 5]


def test_a_committed_mask_has_its_proposer_s_score_and_an_edit_its_probability() -> None:
    """Each of 19 other tokens has 0.1 / 19, and one of them is the mask, which counts for nothing."""
    model, _ = scripted({"a____": "adddd", "adddd": "aeddd", "aeddd": "aeddd"})
    _, done = decoded(model, "a", f"margin+{EDITS}")
    other = 0.1 / 19
    scores = [0.9 / (1 - other), *[(0.9 - other) / (1 - other)] * 3]
    assert done.trace.commit_score[0, 1:].tolist() == pytest.approx(scores)


def test_an_inserted_mask_raises_what_a_step_writes() -> None:
    """The second step has two inserted masks and one original mask: three are written, however unconfident."""
    model, stack = scripted(
        {"a____": "adeff", "ade__": "a++fg", "a_d_e": "acdfe", "acdfe": "acdfe"},
        {"a____": [0.9, 0.9, 0.9, 0.3, 0.2], "ade__": [0.9, 0.9, 0.9, 0.1, 0.1], "a_d_e": [0.9, 0.2, 0.9, 0.1, 0.9]},
    )
    text, done = decoded(model, "a")
    assert (text, stack.met) == ("cdfe", ["a____", "ade__", "a_d_e", "acdfe"])
    assert done.trace.serial[0].tolist()[1:3] == [5 + 1 * 4 + 0, 1]


def test_what_a_select_chose_is_kept_where_it_is_as_much_as_a_step_writes() -> None:
    """One position is enough in the first step: the leftmost, which `contiguous` chose, not the surest one."""
    model, stack = scripted(
        {"a____": "adefd", "ad___": "adefd", "ade__": "adefd", "adef_": "adefd", "adefd": "adefd"},
        {"a____": [0.9, 0.3, 0.4, 0.9, 0.3], "ad___": [0.9, 0.9, 0.3, 0.4, 0.4]},
    )
    decoded(model, "a", f"{EDITS}+contiguous:tau=0.5")
    assert stack.met[:3] == ["a____", "ad___", "ade__"]


def test_a_block_that_comes_back_takes_another_token_where_it_is_least_sure() -> None:
    """d and e would swap forever: when the block `d` returns, where e was tried, the next best token a is taken."""
    model, stack = scripted({"a____": "adddd", "adddd": "aeddd", "aeddd": "adddd", "aaddd": "aaddd"})
    text, _ = decoded(model, "a")
    assert (text, stack.met) == ("addd", ["a____", "adddd", "aeddd", "adddd", "aaddd"])


class Drawn:
    """Uniforms with which step i draws the i-th of `tokens` at each position; the last of them in all later steps."""

    def __init__(self, *tokens: list[int]) -> None:
        self.tokens = tokens

    def uniform(self, rows: np.ndarray, step: np.ndarray, positions: Tensor, purpose: str, width: int = 0) -> Tensor:
        values = torch.full((*positions.shape, width), 0.5, dtype=torch.float64)
        for at, (now, position) in enumerate(zip(step, positions[:, 0], strict=True)):
            values[at, 0, self.tokens[min(int(now), len(self.tokens) - 1)][int(position)]] = 1 - 1e-12
        return values


def test_the_least_sure_change_is_that_of_the_least_likely_token_drawn() -> None:
    """Both masks return after DELETE was drawn at both; then b, of 0.1, is replaced, not a, of 0.5."""
    laws = torch.full((2, 8), 1e-9)
    laws[0, :2], laws[1, :2] = torch.tensor([0.5, 0.1]), torch.tensor([0.3, 0.1])
    laws[:, DELETE] = torch.tensor([0.4, 0.6])
    asked = request([[7] * 2], [0], block_length=2, temperature=1.0, source=Drawn([DELETE, DELETE], [0, 1]))
    done = run(table(laws), f"{EDITS},tau=1+threshold:tau=0", asked)
    assert done.tokens[0].tolist() == [0, 0]
    assert done.trace.commit_step[0].tolist() == [1, 1]


def test_an_edit_needs_more_than_tau() -> None:
    """Of two equally likely tokens the second is drawn; the first is the likeliest, at exactly 0.5."""
    halves = torch.zeros(1, 8)
    halves[0, :2] = 0.5
    for tau, token in ((0.5, 1), (0.49, 0)):
        asked = request([[7]], [0], block_length=1, temperature=1.0, source=Drawn([1]))
        assert run(table(halves), f"{EDITS},tau={tau}+threshold:tau=0", asked).tokens.tolist() == [[token]]


def test_a_block_has_one_step_more_than_its_positions_and_post() -> None:
    canvas = Canvas([torch.tensor([7, 7, 0])], [0], mask_id=7, pad_id=5, block_length=3)
    history = EditHistory.empty(canvas, 8)
    history.enter(canvas, canvas.open.gather(1, canvas.window))
    masks_left = torch.tensor([False])
    assert [bool(history.count(masks_left, 3)) for _ in range(7)] == [False] * 5 + [True] * 2


def test_the_last_step_leaves_no_mask_and_writes_no_edit() -> None:
    """SPLIT forever: three steps after the block is full, the last of which takes the best of the other tokens."""
    script = {"a____": "adefg", "adefg": "a+efg", "a_def": "a+def", "a__de": "a++de"}
    model, stack = scripted(script)
    text, done = decoded(model, "a", f"levenshtein:delete={DELETE},split={SPLIT},post=3")
    assert stack.met == ["a____", "adefg", "a_def", "a__de"]
    assert text == "aade"
    assert done.nfe == (4,)


# --- against the rule on lists ---


class Naive:
    """The edits of one block, on lists: the rule as the published engine describes it."""

    def __init__(
        self, tau: float, edit: float, post: int, given: list[bool], tokens: list[int], propose: str = "confidence"
    ) -> None:
        self.tau, self.edit, self.post, self.given, self.propose = tau, edit, post, given, propose
        self.own = [token == MASK and not fixed for token, fixed in zip(tokens, given, strict=True)]
        self.size, self.steps, self.after = sum(self.own), 0, 0
        self.met: list[list[int]] = []
        self.tried: dict[int, set[int]] = {}

    def step(self, tokens: list[int], rows: torch.Tensor) -> tuple[list[int], bool]:
        """The block after a step with its logits [W, V], and whether the step was the last."""
        masks = [token == MASK and not fixed for token, fixed in zip(tokens, self.given, strict=True)]
        law = rows.softmax(-1)
        best = rows.argmax(-1).tolist()
        sure = [float(law[at, token]) for at, token in enumerate(best)]
        own = [one and two for one, two in zip(self.own, masks, strict=True)]
        self.steps += 1
        self.after += not any(own)
        last = self.after >= self.post or self.steps > self.size + self.post
        open_at = [at for at, mask in enumerate(masks) if mask]
        first, second = law.sort(descending=True).values[:, :2].T
        score = {"confidence": first, "margin": first - second, "entropy": law.xlogy(law).sum(1)}[self.propose].tolist()
        chosen = [at for at in open_at if score[at] >= self.tau]
        if last or not any(own):
            chosen = open_at
        elif len(chosen) < (need := 1 + len(open_at) - sum(own)):
            chosen = sorted(open_at, key=lambda at: (-score[at], at))[:need]
        changed = [
            at
            for at, token in enumerate(tokens)
            if not masks[at] and not self.given[at] and best[at] != token and sure[at] > self.edit
        ]
        writes = sorted({*chosen, *changed})
        if not writes:
            return tokens, True
        if last:
            for at in writes:
                if best[at] in (DELETE, SPLIT):
                    rest = rows[at].clone()
                    rest[[DELETE, SPLIT]] = -torch.inf
                    best[at] = int(rest.argmax())
        elif tokens in self.met:
            differ = [at for at in writes if best[at] != tokens[at]]
            if differ:
                at = min(differ, key=lambda at: (sure[at], at))
                rest = rows[at].clone()
                rest[list(self.tried.get(at, ()))] = -torch.inf
                if rest.max() > -torch.inf:
                    best[at] = int(rest.argmax())
        self.met.append(tokens)
        for at in writes:
            self.tried.setdefault(at, set()).add(best[at])
        after: list[int] = []
        marks: list[bool] = []
        stretch: list[tuple[int, bool]] = []

        def close(room: int) -> None:
            filled = (stretch + [(MASK, False)] * room)[:room]
            after.extend(token for token, _ in filled)
            marks.extend(mark for _, mark in filled)
            stretch.clear()

        begin = 0
        for at in range(len(tokens)):
            if self.given[at]:
                close(at - begin)
                after.append(tokens[at])
                marks.append(False)
                begin = at + 1
            elif at in writes and best[at] == SPLIT:
                stretch.extend([(MASK, False), (tokens[at], self.own[at])])
            elif not (at in writes and best[at] == DELETE):
                stretch.append((best[at] if at in writes else tokens[at], self.own[at]))
        close(len(tokens) - begin)
        self.own = marks
        return after, last


def naive(
    model: LanguageModel,
    canvas: list[int],
    start: int,
    *,
    tau: float,
    edit: float,
    post: int,
    propose: str = "confidence",
) -> list[list[int]]:
    """Every state of the row, block by block, by whole forwards without a cache."""
    absolute = model.decoding_config.attention == "block-causal"
    given = [token != MASK or at < start for at, token in enumerate(canvas)]
    states, text = [], list(canvas)
    begin = 0 if absolute else start
    for low in range(begin, len(text), BLOCK):
        high = min(low + BLOCK, len(text))
        if all(given[low:high]):
            continue
        block = Naive(tau, edit, post, given[low:high], text[low:high], propose)
        last = False
        while not last:
            plan = Plan.full(torch.tensor([text]), model.visible())
            rows = model.forward(plan).logits()[0]
            rows = rows[[max(at - model.decoding_config.shift, 0) for at in range(low, high)]].clone()
            rows[:, MASK] = -torch.inf
            before = text[low:high]
            text[low:high], last = block.step(before, rows)
            states.append(list(text))
    return states


CASES = [
    ("sdar", "block", "confidence", 0.5, 0.0, 16),
    ("sdar", "none", "confidence", 0.2, 0.3, 4),
    ("llada", "none", "confidence", 0.5, 0.0, 3),
    ("llada2", "dual", "confidence", 0.3, 0.1, 2),
    ("dream", "none", "confidence", 0.2, 0.0, 1),
    ("shifted-sdar", "block", "confidence", 0.4, 0.2, 5),
    ("sdar", "block", "margin", 0.3, 0.1, 6),
    ("llada", "none", "margin", 0.9, 0.0, 3),
    ("sdar", "block", "entropy", -0.8, 0.0, 6),
    ("dream", "none", "entropy", -0.1, 0.1, 3),
]


@pytest.mark.parametrize(("family", "cache", "propose", "tau", "edit", "post"), CASES)
def test_every_step_is_the_rules_alone_and_in_a_ragged_batch(
    family: str, cache: str, propose: str, tau: float, edit: float, post: int
) -> None:
    """The select scores by the proposer, and edits go by the probability of their token."""
    model, given, new = toy(family, seed=4, sharp=1.0), prompts((3, 6, 1, 5, 9, 2), seed=2), (9, 6, 11, 2, 7, 8)
    spec = f"{propose}+{EDITS},tau={edit},post={post}+threshold:tau={tau}@{cache}"
    canvases = [[*prompt, *[MASK] * count] for prompt, count in zip(given, new, strict=True)]
    canvases[2][4] = 7  # given between masks: it stays
    starts = list(map(len, given))
    absolute = model.decoding_config.attention == "block-causal"
    said = [
        event for event in events(model, spec, request(canvases, starts, absolute=absolute)) if isinstance(event, Step)
    ]
    expected = [
        naive(model, canvas, start, tau=tau, edit=edit, post=post, propose=propose)
        for canvas, start in zip(canvases, starts, strict=True)
    ]
    for row, states in enumerate(expected):
        seen = [
            event.tokens[event.rows.tolist().index(row), : len(states[0])].tolist()
            for event in said
            if row in event.rows
        ]
        assert seen == states, (family, row)
        alone = run(model, spec, request([canvases[row]], [starts[row]], absolute=absolute, seeds=[100 + row]))
        assert alone.tokens[0].tolist() == states[-1]
        assert alone.nfe == (len(states),)


def test_deletions_and_insertions_do_happen_in_those() -> None:
    model, given = toy("sdar", seed=4, sharp=1.0), prompts((3, 6, 1, 5, 9, 2), seed=2)
    done = fill(model, f"{EDITS}@block", given, 12)
    fresh = sum(
        int((row[:length] >= length).sum()) for row, length in zip(done.trace.serial, done.trace.lengths, strict=True)
    )
    assert fresh > 5


# --- what moves with a token ---


def test_k_v_of_moved_tokens_are_computed_again() -> None:
    """With only the block's K/V kept, tokens equal those of whole forwards, for three families and any batch."""
    for family in ("sdar", "llada2", "shifted-sdar"):
        model, given = toy(family, sharp=0.8), prompts((3, 6))
        whole, kept = (fill(model, f"{EDITS}+threshold:tau=0.3@{cache}", given, 7) for cache in ("none", "block"))
        assert (whole.tokens == kept.tokens).all()
        assert (whole.trace.serial == kept.trace.serial).all()
        assert whole.nfe == kept.nfe
        assert sum(kept.tokens_fed) < sum(whole.tokens_fed)


def test_a_number_follows_its_token() -> None:
    """A token with the same serial number in two steps is unchanged, or was overwritten in its place."""
    model, given = toy("sdar", seed=4, sharp=1.0), prompts((3, 6), seed=2)
    canvases = [[*prompt, *[MASK] * 9] for prompt in given]
    steps = [
        event
        for event in events(model, f"{EDITS}@block", request(canvases, (3, 6), absolute=True))
        if isinstance(event, Step)
    ]
    moves = 0
    for before, after in pairwise(steps):
        for row in set(before.rows.tolist()) & set(after.rows.tolist()):
            one, two = before.rows.tolist().index(row), after.rows.tolist().index(row)
            old, new = before.serial[one].tolist(), after.serial[two].tolist()
            assert len(set(new)) == len(new), "no number twice"
            survivors = [number for number in new if number in old]
            assert survivors == [number for number in old if number in new], "in their order"
            moves += sum(old.index(number) != new.index(number) for number in survivors)
    assert moves > 5


def test_a_saved_result_keeps_the_numbers(tmp_path: Path) -> None:
    model = pardec.load("tiny-llada", device="cpu")
    done = model.generate(
        "Tom has 8 cups.", sampler="levenshtein:delete=20,split=21+threshold:tau=0.9", max_new_tokens=24
    )
    assert done.trace.serial is not None
    for path in (tmp_path / "folder", tmp_path / "one.json"):
        done.save(path)
        assert (pardec.Result.load(path).trace.serial == done.trace.serial).all()
    plain = model.generate("Tom has 8 cups.", sampler="threshold:tau=0.9", max_new_tokens=24)
    assert plain.trace.serial is None


def test_a_row_that_joins_begins_its_own_blocks() -> None:
    model, given = toy("sdar", seed=4, sharp=1.0), prompts((3, 6, 5), seed=2)
    canvases = [[*prompt, *[MASK] * count] for prompt, count in zip(given, (4, 12, 9), strict=True)]
    sampler = registry.resolve(f"{EDITS}@block")

    def loop(rows: slice, seeds: list[int]) -> MaskedLoop:
        starts = list(map(len, given))[rows]
        return MaskedLoop(
            model, sampler, request(canvases[rows], starts, absolute=True, source=JoinableSource(seeds)), columns=18
        )

    running, joining = loop(slice(0, 2), [100, 101]), loop(slice(2, 3), [102])
    while not (over := running.finished_rows()).any():
        running.step()
    first = [event.row for event in running.leave(over)]
    assert first == [0]
    running.put(np.flatnonzero(over), joining)
    ended: dict[int, list[int]] = {}
    while len(running.canvas):
        running.step()
        ended.update((event.row, event.tokens.tolist()) for event in running.retire())
    for row, at in ((0, 2), (1, 1)):
        alone = run(model, f"{EDITS}@block", request([canvases[at]], [len(given[at])], absolute=True, seeds=[100 + at]))
        assert ended[row] == alone.tokens[0].tolist()


# --- what goes together ---


def test_what_goes_by_positions_is_refused() -> None:
    for other in ("credit", "prophet", "smoothing", "adablock", "lopa", "edit", "klass", "fixed:steps=4"):
        with pytest.raises(SpecError, match="levenshtein moves tokens, and .* needs them to stay in place"):
            registry.resolve(f"{EDITS}+{other}")
    for cache in ("dkv", "causal", "window", "subblock", "mlcache"):
        with pytest.raises(SpecError, match=f"levenshtein moves tokens, and {cache} does not compute the K/V"):
            registry.resolve(f"{EDITS}@{cache}")
    assert {cache for cache in names("cache") if resolved(f"{EDITS}@{cache}")} >= {"none", "block", "dual", "prefix"}
    assert str(registry.resolve(EDITS).select).startswith("Threshold(tau=0.5")
    with pytest.raises(SpecError, match="log-probabilities are recorded for fixed positions"):
        fill(toy(), EDITS, prompts((3,)), 4, logprobs=1)


def test_its_two_tokens() -> None:
    with pytest.raises(SpecError, match="toy has no delete token: its config names none"):
        fill(toy(), "levenshtein", prompts((3,)), 4)
    with pytest.raises(SpecError, match="toy has no split token: id 99 is none of its 20 ids"):
        fill(toy(), "levenshtein:delete=3,split=99", prompts((3,)), 4)
    with pytest.raises(SpecError, match="delete and split are both 3"):
        registry.resolve("levenshtein:delete=3,split=3")
    named: Any = replace(toy(), config={"delete_token_id": DELETE, "split_token_id": SPLIT})
    by_config, by_spec = (fill(named, spec, prompts((3,), seed=2), 5) for spec in ("levenshtein", EDITS))
    assert same(by_config, 0, by_spec, 0)
