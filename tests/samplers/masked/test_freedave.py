"""`freedave` keeps every token in fewer forwards; sets of drafts by hand and by a naive version; refusals."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

import pardec
from pardec import Model
from pardec.models.errors import SpecError
from pardec.samplers import registry
from pardec.samplers.events import Finished
from pardec.samplers.masked.branch.draft_sets import follows, graph_of, read_nodes, text_of, tree_tokens
from pardec.samplers.masked.branch.freedave import FreeDave, of_ranks, other_tokens
from pardec.samplers.masked.contracts import Choice
from pardec.samplers.masked.loop import decode
from scripts.draft_graph import StepCounts, draft_graph, main
from tests.samplers.eight_tokens import proposal
from tests.samplers.parity import recorded
from tests.samplers.toys import EOS, MASK, fill, fill_alone, prompts, request, run, toy

LENGTHS, NEW = (3, 6, 1, 5), (17, 6, 23, 2)
CACHES = {
    "llada": ("none", "dual", "prefix", "dual:refresh=1", "vicinity:before=2,after=1,warmup=0"),
    "dream": ("none", "dual", "prefix"),
    "sdar": ("none", "block", "dual"),
    "shifted-sdar": ("none", "block"),
    "sdlm": ("next_sequence",),
    "nemotron": ("next_sequence",),
}


def decoded(family: str, spec: str, *, sharp: float = 1.2, seed: int = 0, **options: object) -> Finished:
    given = prompts(LENGTHS, seed=seed)
    canvases = [[*prompt, *[MASK] * count] for prompt, count in zip(given, NEW, strict=True)]
    absolute = family in ("sdar", "shifted-sdar")
    return run(toy(family, sharp=sharp, seed=seed), spec, request(canvases, LENGTHS, absolute=absolute, **options))


SELECTS = (
    "sequential",
    "threshold:tau=0.3",
    "entropy_threshold:tau=1.5",
    "margin+factor",
    "localleap+threshold:tau=0.4",
)
WAYS: tuple[dict[str, float], ...] = ({}, {"temperature": 0.8, "top_p": 0.9}, {"cfg": 1.5})


def test_a_flat_model_costs_no_forward_more() -> None:
    """All drafts are wrong, and the number of forwards is that of plain decoding."""
    plain, free = (decoded("llada", spec, sharp=0.01) for spec in ("sequential", "freedave+sequential"))
    assert free.tokens.tolist() == plain.tokens.tolist()
    assert all(a <= b for a, b in zip(free.nfe, plain.nfe, strict=True))
    assert sum(free.forward_rows) > sum(plain.forward_rows)  # the hypotheses are counted


@pytest.mark.parametrize(
    "spec",
    [
        "freedave+sequential@dual",
        "freedave:subset=true+threshold:tau=0.3",
        "freedave:graph=0-1-0.1-0b+sequential@dual",
        "freedave:width=2,drafts=5+threshold:tau=0.3",
        "freedave+threshold:tau=0.3@next_sequence",
    ],
)
@pytest.mark.parametrize("temperature", [0.0, 0.8])
@pytest.mark.covers(1)
def test_a_row_alone_is_the_row_in_a_ragged_batch(spec: str, temperature: float) -> None:
    model = toy("sdlm" if "next_sequence" in spec else "llada", sharp=1.2)
    fill_alone(model, spec, prompts(LENGTHS), NEW, temperature=temperature)


def test_steps_that_one_forward_confirms_have_its_number() -> None:
    got = decoded("llada", "freedave+sequential")
    for row, count in enumerate(NEW):
        when = got.trace.commit_step[row]
        assert sorted(set(when[when >= 0].tolist())) == list(range(got.nfe[row]))
        assert (when >= 0).sum() == count
        clock = got.trace.clocks[row]
        assert list(clock) == sorted(clock)


def test_a_subset_keeps_everything_that_the_row_has() -> None:
    """The row commits 5 and 6; hypothesis 1 has the 5 and hypothesis 2 the 6, and both are subsets of that."""
    now = torch.tensor([[[9, 9], [5, 9], [9, 6]]])
    step = torch.tensor([[[5, 6], [5, 6], [5, 6]]])
    moves = FreeDave(subset=True)._follows(now, step, torch.tensor([[0, 1, 1]]), 9)
    assert moves[0].tolist() == [[True, True, True], [False, True, False], [False, False, True]]


def test_a_part_of_a_step_is_a_draft_too_with_subset() -> None:
    """With a threshold a step commits more than a draft; accepting drafts that are a part of a step saves forwards."""
    exact, subset = (decoded("llada", f"freedave{more}+threshold:tau=0.25") for more in ("", ":subset=true"))
    assert sum(subset.nfe) <= sum(exact.nfe)
    assert registry.resolve("freedave:subset=true+threshold", "masked").exact == "relaxed"
    assert registry.resolve("freedave+sequential", "masked").exact == "greedy"


REFUSED = {
    "freedave+klass": "klass depends on every forward",
    "freedave+credit+threshold": "credit depends on every forward",
    "freedave+fixed:steps=4": "fixed depends on every forward",
    "freedave+threshold:fall=0.02": "threshold counts them",
    "freedave+threshold@dkv": "with dkv these depend on every forward",
    "freedave+threshold@dual:refresh=4": "with dual these depend",
    "freedave+edit+threshold": "edit acts between them",
}


@pytest.mark.parametrize("spec", REFUSED)
def test_what_cannot_go_with_hypotheses_is_refused_with_the_reason(spec: str) -> None:
    with pytest.raises(SpecError, match=REFUSED[spec]):
        fill(toy("llada"), spec, prompts((3,)), 8)


def test_logprobs_are_refused() -> None:
    model = Model(recorded("llada"))
    with pytest.raises(SpecError, match="logprobs need a single one"):
        model.generate(input_ids=[[5, 6, 7]], sampler="freedave+sequential", max_new_tokens=8, logprobs=1)


# --- sets of drafts ---

SETS = (
    "drafts=5,width=2",
    "drafts=7,width=3",
    "graph=0-1-0.1-0b-0.1.2-0_1-0.1b",
    "graph=0-2-0.2-2.1-0.1.2.3-0.1.2-0.1",
)


@pytest.mark.parametrize(("family", "cache"), [(family, cache) for family in CACHES for cache in CACHES[family]])
def test_every_set_of_drafts_keeps_every_token(family: str, cache: str) -> None:
    """Greedy, sampled and guided by turns, with nested drafts and one of the sets, in fewer forwards."""
    fewer, turn = 0, list(CACHES).index(family) + CACHES[family].index(cache)
    for at, drafts in ((0, "drafts=3"), (1 + turn, SETS[turn % len(SETS)])):
        select, options = SELECTS[(at + turn) % len(SELECTS)], WAYS[(at + turn) % len(WAYS)]
        plain, free = (
            decoded(family, f"{head}{select}+eos@{cache}", seed=at, stop_ids=(EOS,), **options)
            for head in ("", f"freedave:{drafts}+")
        )
        assert free.tokens.tolist() == plain.tokens.tolist(), (drafts, select, options)
        assert free.reasons == plain.reasons
        assert (free.trace.commit_step == -2).tolist() == (plain.trace.commit_step == -2).tolist()
        assert all(a <= b for a, b in zip(free.nfe, plain.nfe, strict=True))
        fewer += sum(plain.nfe) - sum(free.nfe)
    assert fewer > 0


def test_a_tree_of_one_token_is_the_nested_drafts() -> None:
    assert tree_tokens(3, 1) == ((0,), (0, 0), (0, 0, 0))
    assert tree_tokens(5, 2) == ((0,), (1,), (0, 0), (0, 1), (0, 0, 0))
    nested, graph = (decoded("llada", f"freedave:{more}+sequential") for more in ("drafts=3", "graph=0-0.1-0.1.2"))
    assert graph.tokens.tolist() == nested.tokens.tolist()
    assert (graph.nfe, graph.forward_rows) == (nested.nfe, nested.forward_rows)


def test_a_tree_branches_at_the_surest_of_the_positions_that_the_step_commits() -> None:
    """The select takes the middle one, which is not the surest: there stands the second likeliest token."""
    rule, found = FreeDave(drafts=3, width=2), proposal("confidence")
    assert rule.depths == (0, 1, 1, 2)
    which = torch.zeros_like(found.eligible)
    which[0, 1] = True
    drafted = rule.draft(1, np.array([2]), Choice(which, found.tokens), found)
    second = found.evidence.logits[0, 1].argsort(descending=True)[1]
    assert (drafted.tokens != found.tokens)[0].nonzero()[:, 0].tolist() == [1]
    assert drafted.tokens[0, 1] == second


def naive_graph(name: str, prompt: list[int], new: int, size: int, graph: str) -> tuple[list[int], int, int]:
    """freedave with a graph for one row at temperature 0, in plain Python: tokens, forwards, and rows of forwards."""
    model = Model(recorded(name))
    mask, shift = model.language_model.decoding_config.mask_id, model.language_model.decoding_config.shift

    def predict(tokens: list[int]) -> list[tuple[float, list[int]]]:
        logits = model.logits(torch.tensor([tokens]))[0].double()
        logits[:, mask] = -torch.inf
        pairs = [(float(p.max()), p.argsort(descending=True).tolist()) for p in logits.softmax(-1)]
        return pairs[:1] + pairs[:-1] if shift else pairs

    def masks(tokens: list[int]) -> list[int]:
        first = tokens.index(mask, len(prompt))
        begin = len(prompt) + (first - len(prompt)) // size * size
        return [at for at in range(begin, min(begin + size, len(tokens))) if tokens[at] == mask]

    tokens, count, asked = [*prompt, *[mask] * new], 0, 0
    past: tuple[int, list[tuple[float, list[int]]]] | None = None
    while mask in tokens[len(prompt) :]:
        block = (tokens.index(mask, len(prompt)) - len(prompt)) // size
        drafts = [(0, list(tokens))]
        if past is not None and past[0] == block:
            ranked = sorted(masks(tokens), key=lambda at: (-past[1][at][0], at))
            for node in graph.split("-"):
                state = list(tokens)
                ranks = [
                    (int(rank.rstrip("bc")), "abc".index(rank[-1]) if rank[-1] in "bc" else 0)
                    for rank in node.replace("_", ".").split(".")
                ]
                if all(rank < len(ranked) for rank, _ in ranks):
                    for rank, other in ranks:
                        state[ranked[rank]] = past[1][ranked[rank]][1][other]
                    if mask in state:
                        drafts.append((node.count(".") + 1, state))
        predictions = [predict(state) for _, state in drafts]
        depth, current = 0, 0
        while True:
            after, pairs = list(drafts[current][1]), predictions[current]
            best = max(masks(after), key=lambda at: (pairs[at][0], -at))
            after[best] = pairs[best][1][0]
            following = [at for at, (steps, state) in enumerate(drafts) if steps == depth + 1 and state == after]
            if not following:
                break
            depth, current = depth + 1, following[0]
        past = ((masks(drafts[current][1])[0] - len(prompt)) // size, predictions[current])
        tokens, count, asked = after, count + 1, asked + len(drafts)
    return tokens, count, asked


NAIVE = {  # the states that each set of drafts has, as a graph
    "drafts=3": "0-0.1-0.1.2",
    "drafts=5,width=2": "0-0b-0.1-0.1b-0.1.2",
    "graph=0-1-0.1-0b": "0-1-0.1-0b",
    "graph=0-1-2-0.1-0.2-1.2-0.1.2": "0-1-2-0.1-0.2-1.2-0.1.2",
}


@pytest.mark.parametrize("name", ["llada", "dream"])
@pytest.mark.parametrize("drafts", NAIVE)
@pytest.mark.covers(1)
def test_drafts_are_their_naive_version_step_by_step(name: str, drafts: str) -> None:
    model = Model(recorded(name))
    drawn = np.random.RandomState(7)
    given = [drawn.randint(3, model.language_model.vocab_size - 10, length).tolist() for length in (5, 9, 3)]
    result = model.generate(
        input_ids=given, sampler=f"freedave:{drafts}+sequential", max_new_tokens=9, block_length=6, stop_ids=[]
    )
    for row, prompt in enumerate(given):
        tokens, count, asked = naive_graph(name, prompt, 9, 6, NAIVE[drafts])
        assert result.sequences[row, : len(tokens)].tolist() == tokens
        assert (result.nfe[row], result.forward_rows[row]) == (count, asked)


def a_state_is_reached_over_either_order() -> None:
    """Scores fall from left to right, and the sampler commits the second position first."""
    graph = "0-1-0.1"
    nodes = read_nodes(graph)
    assert nodes == ((((0, 0),),), (((1, 0),),), (((0, 0),), ((1, 0),)))
    assert follows(nodes[2], nodes[0])
    assert follows(nodes[2], nodes[1])
    assert not follows(read_nodes("0-0.1-0.1.2")[2], nodes[0])  # a step is between them
    assert text_of(read_nodes("1.0-0_2b-1")) == "0_2b-1-1.0"
    assert graph_of("0-1.0-1").commits[:, 3].tolist() == [[[1, 0]], [[0, 0]]]
    assert graph_of("0-0.1").commits[:, 2].tolist() == [[[0, 0]], [[0, 0]]]  # of what is left, again the surest
    assert tree_tokens(5, 2) == ((0,), (1,), (0, 0), (0, 1), (0, 0, 0)), "costs of 1, 2, 2, 3, 3"
    whole = ((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0))
    assert tree_tokens(7, 3) == whole, "the third token costs as much as three steps, of which the deepest come first"
    assert tree_tokens(6, 3) == tuple(node for node in whole if node != (2,))
    assert (graph_of("0-2-0.2").depths, graph_of("0-2-0.2").needs) == ((0, 1, 1, 2), (0, 1, 3, 3))


def a_draft_without_one_of_its_positions_is_none() -> None:
    """Ranks 0 and 6 of the seven open positions are 4 and 3; there is no rank 7."""
    found = proposal("confidence")
    choice = Choice(torch.zeros_like(found.eligible), found.tokens)
    for ranks, expected in (([0, 6], [3, 4]), ([0, 7], []), ([0, -1], [4])):
        commits = np.array([[[rank, 0] for rank in ranks]])
        assert of_ranks(commits, choice, found).which[0].nonzero()[:, 0].tolist() == expected


def test_a_graph_from_a_file(tmp_path: Path) -> None:
    file = tmp_path / "graph"
    file.write_text("0-1-\n0.1\n")
    assert registry.resolve(f"freedave:graph={file}+sequential", "masked").branch == FreeDave(graph="0-1-0.1")
    file.write_text("nothing")
    with pytest.raises(SpecError, match="contains no draft graph"):
        FreeDave(graph=str(file))


WRONG = {
    "freedave:graph=missing.txt": "neither a draft graph nor a file",
    "freedave:graph=0-0.1.2": "the node 0.1.2 is never reached",
    "freedave:graph=0-1-0.1-1.0": "two nodes for the state 1.0",
    "freedave:graph=0-0.0": "commits a position twice",
    "freedave:graph=0,width=2": "width and graph cannot be combined",
    "freedave:width=0": "width must be at least 1",
}


@pytest.mark.parametrize("spec", WRONG)
def test_drafts_that_cannot_be_are_refused(spec: str) -> None:
    with pytest.raises(SpecError, match=WRONG[spec]):
        registry.resolve(f"{spec}+sequential", "masked")


def the_graph_that_counts_choose_by_hand() -> None:
    """{0} 10, {1} 6, {0,1} 5, {1,2} 4: 10; then {0,1} 5 + 10 and not {1} 6; then {1} 6 + 5, a parent of {0,1}."""

    def state(*ranks: int) -> tuple[int, frozenset[tuple[int, int]]]:
        return len(ranks), frozenset((rank, 0) for rank in ranks)

    counts = {state(0): 10, state(1): 6, state(0, 1): 5, state(1, 2): 4, state(2): 3, state(3, 4): 9}
    assert draft_graph(counts, 1) == "0"
    assert draft_graph(counts, 2) == "0-0.1"
    assert draft_graph(counts, 3) == "0-1-0.1"
    assert draft_graph(counts, 4) == "0-1-0.1-1.2"
    assert draft_graph(counts, 2, parents=False) == "0-1"
    assert draft_graph(counts, 4, parents=False) == "0-1-0.1-1.2"
    assert draft_graph(counts, 9) == "0-1-2-0.1-1.2"  # nothing leads to {3, 4}
    # 1 leads to {0, 1}, which counts it once more: 2 * 3 are more than the 5 of 2.
    assert draft_graph({state(0): 10, state(0, 1): 9, state(1): 3, state(2): 5}, 3) == "0-1-0.1"
    with pytest.raises(SpecError, match="needs drafts >= 1 and counted states"):
        draft_graph({}, 3)


def test_observing_changes_no_token_and_counts_what_follows() -> None:
    counter = StepCounts(steps=2, positions=4, tokens=2)
    observed = replace(registry.resolve("sequential", "masked"), branch=counter)
    plain = decoded("llada", "sequential")
    given = prompts(LENGTHS)
    canvases = [[*prompt, *[MASK] * count] for prompt, count in zip(given, NEW, strict=True)]
    *_, end = decode(toy("llada", sharp=1.2), observed, request(canvases, LENGTHS))
    assert end.tokens.tolist() == plain.tokens.tolist()  # type: ignore[union-attr]
    assert end.nfe == plain.nfe  # type: ignore[union-attr]
    first = sum(count for (steps, _), count in counter.counts.items() if steps == 1)
    second = sum(count for (steps, _), count in counter.counts.items() if steps == 2)
    assert 0 < second < first < sum(NEW)
    assert max(steps for steps, _ in counter.counts) == 2
    assert all(len(committed) == steps for steps, committed in counter.counts)


def each_row_takes_the_token_of_its_own_rank() -> None:
    """The third likeliest at the second position of a row of two, and the second one at the first position."""
    logits = torch.tensor([[0.0] * 5, [0.1, 0.5, 0.3, 0.9, 0.2], [0.5, 0.1, 0.3, 0.2, 0.0], [0.0] * 5])
    evidence = SimpleNamespace(distribution=SimpleNamespace(logits_at=lambda at: logits[at]))
    found: Any = SimpleNamespace(evidence=evidence)
    at = torch.tensor([[False, True], [True, False]])
    tokens = other_tokens(torch.full((2, 2), 4), at, np.array([2, 1]), found)
    assert tokens.tolist() == [[4, 2], [2, 4]]


def two_tokens_of_one_step_are_no_state_two_steps_later() -> None:
    """Draws go by the step, so that a row which skipped one would draw others."""
    for seed in range(3):
        plain, free = (
            decoded("llada", f"{head}threshold:tau=0.3", seed=seed, temperature=0.8)
            for head in ("", "freedave:graph=0-0.1+")
        )
        assert free.tokens.tolist() == plain.tokens.tolist()


def test_graphs_by_hand() -> None:
    the_graph_that_counts_choose_by_hand()
    each_row_takes_the_token_of_its_own_rank()
    two_tokens_of_one_step_are_no_state_two_steps_later()
    a_state_is_reached_over_either_order()
    a_draft_without_one_of_its_positions_is_none()


@pytest.mark.slow  # seconds for 24 answers; the tests above have each rule
@pytest.mark.seeds("arXiv:2509.18085")
def test_a_counted_graph_takes_fewer_forwards_than_nested_drafts_of_as_many_rows() -> None:
    test_graphs_by_hand()
    test_observing_changes_no_token_and_counts_what_follows()
    test_every_set_of_drafts_keeps_every_token("sdar", "none")
    test_drafts_are_their_naive_version_step_by_step("dream", "graph=0-1-0.1-0b")
    model, task = pardec.load("tiny-llada", device="cpu", dtype="float32"), pardec.task("arithmetic")
    given = [problem.prompt for problem in task.problems(n=12)]
    counter, more = StepCounts(), {"max_new_tokens": 24}
    model.generate(given[:6], sampler=replace(registry.resolve("sequential", "masked"), branch=counter), **more)
    graph = draft_graph(counter.counts, 10)
    plain, nested, drafted = (
        model.generate(given[6:], sampler=f"{head}sequential", **more)
        for head in ("", "freedave:drafts=10+", f"freedave:graph={graph}+")
    )
    assert plain.sequences.tolist() == nested.sequences.tolist() == drafted.sequences.tolist()
    assert sum(drafted.nfe) < sum(nested.nfe) < sum(plain.nfe) / 2


def test_the_script_prints_a_graph_that_freedave_reads(capsys: pytest.CaptureFixture[str]) -> None:
    main(["tiny-llada", "--task=arithmetic", "--problems=3", "--batch=2", "--drafts=3", "--tokens=10", "--own"])
    printed = capsys.readouterr()
    assert len(read_nodes(printed.out.strip())) == 3
    assert "times after 1 steps: 0\n" in printed.err
    with pytest.raises(SystemExit, match="has drafts already"):
        main(["tiny-llada", "--task=arithmetic", "--problems=1", "-s", "freedave+sequential"])


def test_hypotheses_keep_to_what_the_tokens_of_a_schema_allow_beside_each_other() -> None:
    model = pardec.load("tiny-dream", device="cpu")
    schemas: tuple[dict[str, Any], ...] = (
        {"enum": ["red", "blue", 3]},
        {"type": "array", "items": {"type": "boolean"}, "minItems": 1, "maxItems": 2},
        {"type": "string", "pattern": "[0-9]{2,6}"},
    )
    for schema, temperature in product(schemas, (0.0, 1.3)):
        asked: dict[str, Any] = {"response_format": schema, "max_new_tokens": 16, "temperature": temperature, "seed": 3}
        got = model.generate(["Tom has 8 cups.", "a"], sampler="freedave+sequential", **asked)
        assert got.parsed is not None
        if not temperature:
            assert got.tokens == model.generate(["Tom has 8 cups.", "a"], sampler="sequential", **asked).tokens
