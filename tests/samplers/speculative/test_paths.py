"""Trees of fixed paths: their nodes, their samples, refusals; and the search for the best tree."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations, product

import numpy as np
import pytest
import torch

from pardec import load
from pardec.models.errors import SpecError
from pardec.samplers import registry
from pardec.samplers.speculative.shape.beam import Beam
from pardec.samplers.speculative.shape.paths import Paths
from pardec.samplers.speculative.shape.paths_tree import TREES, tree_text
from pardec.samplers.speculative.shape.siblings import likeliest
from pardec.samplers.speculative.shape.template import Template
from scripts.prompt_tree import accepted, best_paths, value
from tests.samplers.ar_toys import run
from tests.samplers.fake_draft_model import FakeDraftModel, grown, named, near, nodes, target, written

TREE = "0-1-2-0.0-0.1-1.0-0.0.0-1.0.0-1.0.1"
RANKS = [(0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (1, 0, 0), (1, 0, 1)]


@pytest.fixture(autouse=True)
def toy() -> Iterator[None]:
    with named(near=near()):
        yield


def ranked(draft_model: FakeDraftModel, row: int, ranks: tuple[int, ...]) -> tuple[int, ...]:
    """The tokens of a node by rank."""
    tokens: list[int] = []
    for rank in ranks:
        tokens.append(int(np.argsort(-draft_model.logits(row, tokens), kind="stable")[rank]))
    return tuple(tokens)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_a_node_is_the_child_of_its_rank(temperature: float) -> None:
    """Sorted by length, then by ranks; each row up to its budget; only nodes with children are expanded."""
    draft_model = FakeDraftModel(written([[1, 2], [3], [4], [5, 5]]))
    draft = grown(Paths(TREE, top=temperature > 0), draft_model, [5, 2, 0, 1], temperature=temperature)
    assert draft.q is None
    assert draft.sizes.tolist() == [10, 7, 1, 4]
    for row, size in enumerate(draft.sizes):
        assert nodes(draft, row) == [ranked(draft_model, row, ranks) for ranks in RANKS[: size - 1]]
        assert draft.tested[row].sum() == size - 1
    assert draft_model.calls[0] == [[0], [0], [-1], [0]]
    assert draft_model.calls[1] == [[1, 2], [1, 2], [-1, -1], [-1, -1]]
    assert draft_model.calls[2] == [[4, 6], [-1, -1], [-1, -1], [-1, -1]]


@pytest.mark.parametrize("accept", ["speculative", "kseq"])
def test_with_equal_widths_it_draws_what_template_draws(accept: str) -> None:
    """Noise is keyed by the parent's index in the tree, which is the same in both."""
    text = written([[1, 2], [3], [4, 4]])
    paths = [ranks for depth in (1, 2, 3) for ranks in product(*(range(width) for width in (3, 2, 1)[:depth]))]
    ours, theirs = (
        grown(shape, FakeDraftModel(text, vocab=5), [3, 2, 3], seed=4, temperature=1.0, accept=accept)
        for shape in (Paths(tree_text(paths)), Template("3-2-1"))
    )
    assert torch.equal(ours.tokens, theirs.tokens)
    assert torch.equal(ours.parent, theirs.parent)
    assert (ours.sizes == theirs.sizes).all()
    assert torch.equal(ours.tested, theirs.tested)
    assert ours.q is not None
    assert theirs.q is not None
    torch.testing.assert_close(ours.q[:, 1:], theirs.q[:, 1:])


def test_ranks_that_a_distribution_does_not_have_are_never_tested() -> None:
    draft_model = FakeDraftModel(written([[row, 1] for row in range(8)]), vocab=4, least=0.5)
    for temperature in (0.0, 1.0):
        draft = grown(Paths("0-1-2-3-4-0.0-3.0-4.0"), draft_model, [2] * 8, temperature=temperature)
        for row in range(8):
            possible = int(np.isfinite(draft_model.logits(row, [])).sum())
            assert draft.tested[row, 1:6].tolist() == [rank < possible for rank in range(5)]
            for node in (6, 7, 8):
                parent = int(draft.parent[row, node])
                assert not draft.tested[row, node] or bool(draft.tested[row, parent])


def test_one_distribution_for_a_level_is_read_once() -> None:
    """Heads that read only the target's state give a view without copies."""
    logits = torch.randn(2, 1, 9, generator=torch.Generator().manual_seed(0))
    for count in (3, 12):
        for ours, theirs in zip(
            likeliest(logits.expand(-1, 4, -1), count), likeliest(logits.repeat(1, 4, 1), count), strict=True
        ):
            assert torch.equal(ours, theirs)
            assert ours.shape == (2, 4, count)


# --- published trees ---


def test_published_trees_have_as_many_paths_as_published() -> None:
    sizes = {name: len(tree) for name, tree in TREES.items()}
    assert sizes.pop("eagle_mc_sim_7b_63") == 25
    assert set(sizes.values()) == {63}
    assert {"mc_sim_7b_63", "vicuna_7b_stage2", "vicuna_13b_stage2", "vicuna_33b_stage2", "zephyr_stage2"} <= set(sizes)


@pytest.mark.parametrize("name", TREES)
def test_published_trees_are_trees(name: str) -> None:
    """Trees given by name equal their paths written out, so parents and lower siblings are present."""
    assert Paths(tree_text(TREES[name])).nodes == Paths(name).nodes == TREES[name]
    assert [len(TREES[name]) + 1, 11] == [Paths(name).width(9), Paths(name).width(1)] or name.startswith("eagle")


PAPERS = {  # drafted nodes at most, and levels
    "medusa": ("medusa", 63, 4),
    "hydra": ("hydra", 63, 4),
    "eagle": ("eagle", 25, 5),
    "eagle2": ("eagle", 59, 6),
    "eagle3": ("eagle", 59, 8),
}


@pytest.mark.parametrize("name", PAPERS)
def test_a_preset_is_the_tree_of_its_paper(name: str) -> None:
    drafter, nodes, deep = PAPERS[name]
    sampler = registry.resolve(f"preset:{name}:name=FOLDER")
    assert sampler.draft.name == "FOLDER"
    assert (sampler.spec.parts[0].name, sampler.draft.k) == (drafter, deep)
    if isinstance(sampler.shape, Paths):
        assert (len(sampler.shape.nodes), sampler.shape.fixed_depth) == (nodes, deep)
        assert sampler.draft.k == deep
    else:
        assert isinstance(sampler.shape, Beam)
        assert (sampler.shape.beams, sampler.shape.nodes, sampler.shape.raw) == (10, nodes, True)
    assert sampler.exact == ("relaxed" if name == "medusa" else "greedy")


def test_a_preset_of_the_embedded_module_keeps_greedy_decoding() -> None:
    model = load("tiny-llama")
    prompts = ["3+4*2="]
    plain = model.generate(prompts, sampler="sequential", max_new_tokens=24)
    for name in ("eagle", "eagle3", "hydra"):
        result = model.generate(prompts, sampler=f"preset:{name}", max_new_tokens=24)
        assert result.text == plain.text


def test_a_tree_deeper_than_the_heads_is_refused_until_k_cuts_it() -> None:
    model = load("tiny-llama")
    deep = "0-0.0-0.0.0-0.0.0.0-0.0.0.0.0"
    with pytest.raises(SpecError, match="tree is 5 levels deep, and .* drafts 4 tokens") as error:
        model.generate(["1+1="], sampler=f"medusa:name=tiny-llama-medusa,k=5+paths:tree={deep}", max_new_tokens=4)
    assert "k=4" in str(error.value.hint)
    for spec in (f"medusa:name=tiny-llama-medusa,k=4+paths:tree={deep}", "medusa:name=tiny-llama-medusa,k=9+paths"):
        assert model.generate(["1+1="], sampler=spec, max_new_tokens=4).text


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ("0-0.1", "path 0.1 without 0.0"),
        ("0-1-2.0", "path 2.0 without 2"),
        ("0.0", "path 0.0 without 0"),
        ("1", "path 1 without 0"),
        ("0-1-0.0-0", "path 0 twice"),
        ("0-", "paths joined by '-'"),
        ("", "paths joined by '-'"),
        ("0-0.-1", "paths joined by '-'"),
        ("0-65536", "paths joined by '-'"),
        ("mc_sim_7b", "no published tree 'mc_sim_7b' .did you mean 'mc_sim_7b_63'"),
    ],
)
def test_what_is_no_tree_is_refused(tree: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Paths(tree)


def test_the_likeliest_tokens_are_no_independent_samples() -> None:
    with pytest.raises(SpecError, match="needs independent samples"):
        registry.resolve(f"model:name=near+paths:tree={TREE},top=true+kseq", "ar", sampling=True)
    registry.resolve(f"model:name=near+paths:tree={TREE}+kseq", "ar", sampling=True)


# --- the search ---


def trees(rates: list[list[float]], size: int) -> list[tuple[tuple[int, ...], ...]]:
    """Every tree of `size` nodes by enumeration: each node's parent is in the tree."""
    shape = [range(len(level)) for level in rates]
    every = [path for depth in range(1, len(rates) + 1) for path in product(*shape[:depth])]
    return [
        chosen for chosen in combinations(every, size) if all(not path[:-1] or path[:-1] in chosen for path in chosen)
    ]


@pytest.mark.parametrize("seed", range(4))
def test_the_greedy_tree_is_the_best_of_all(seed: int) -> None:
    """A plain version tries every tree."""
    drawn = np.random.RandomState(seed)
    rates = [sorted(drawn.rand(width), reverse=True) for width in ((3, 2, 2), (2, 2, 2), (4, 2), (3, 3))[seed]]
    for size in range(1, 9):
        found = best_paths(rates, size)
        best = max(accepted(rates, tree) for tree in trees(rates, size))
        assert accepted(rates, found) == pytest.approx(best, rel=1e-12)
        assert len(set(found)) == size
        assert Paths(tree_text(found)).nodes == tuple(sorted(found, key=lambda path: (len(path), path)))


def test_the_search_worked_out_by_hand() -> None:
    """0.6 and 0.2 at depth 1, 0.5 and 0.1 after them: 0.6, then 0.3, then 0.2, then 0.1, then 0.06."""
    rates = [[0.6, 0.2], [0.5, 0.1]]
    assert best_paths(rates, 5) == ((0,), (0, 0), (1,), (1, 0), (0, 1))
    assert [value(rates, path) for path in ((0, 0), (1, 1))] == pytest.approx([0.3, 0.02])
    assert len(best_paths(rates, 99)) == 6  # there are no more


def test_a_tree_of_the_search_drafts() -> None:
    tree = tree_text(best_paths([[0.6, 0.2, 0.1], [0.5, 0.2, 0.1], [0.4, 0.1]], 9))
    done = run(target(), f"model:name=near,k=3+paths:tree={tree}", [[1, 2], [0]], 12)
    plain = run(target(), "sequential", [[1, 2], [0]], 12)
    assert (done.tokens == plain.tokens).all()
    assert max(done.nfe) < max(plain.nfe)
