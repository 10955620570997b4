"""Trees of a fixed shape: their nodes, sampling of siblings, and the distribution of each given earlier ones."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
import torch

from pardec.models.errors import SpecError
from pardec.samplers import registry
from pardec.samplers.speculative.shape.siblings import conditional_distributions
from pardec.samplers.speculative.shape.template import Template
from tests.samplers.ar_toys import g_test
from tests.samplers.fake_draft_model import FakeDraftModel, grown, nodes, written


def test_at_temperature_0_children_are_the_likeliest_tokens_in_order() -> None:
    text = written([[1, 2], [3], [4]])
    draft_model = FakeDraftModel(text)
    draft = grown(Template("3-2-1"), draft_model, [5, 1, 0])
    assert draft.sizes.tolist() == [1 + 3 + 6 + 6, 4, 1]
    assert draft.q is None
    assert draft.deepest == 3
    for row in (0, 1):
        paths = nodes(draft, row)
        by_parent: dict[tuple[int, ...], list[int]] = {}
        for path in paths:
            by_parent.setdefault(path[:-1], []).append(path[-1])
        for parent, children in by_parent.items():
            best = np.argsort(-draft_model.logits(row, parent))[: (3, 2, 1)[len(parent)]]
            assert children == best.tolist()
    assert [len(call[0]) for call in draft_model.calls] == [1, 3, 6]  # one call a level, and none for the last


def test_siblings_are_drawn_one_after_the_other_without_replacement() -> None:
    rows = 3000
    draft_model = FakeDraftModel(written([[1, 2]] * rows), vocab=4, sharp=1.0)
    draft = grown(Template("2"), draft_model, [3] * rows, temperature=1.0)
    distribution = torch.from_numpy(draft_model.logits(0, [])).float().softmax(-1).numpy().astype(float)
    truth = np.zeros((4, 4))
    for first, second in permutations(range(4), 2):
        truth[first, second] = distribution[first] * distribution[second] / (1 - distribution[first])
    seen = np.zeros((4, 4), dtype=int)
    for pair, times in Counter(map(tuple, draft.tokens[:, 1:].tolist())).items():
        seen[pair] = times
    assert g_test(seen, truth) < 4
    assert draft.q is not None
    for row in range(20):
        left = distribution.copy()
        for node in (1, 2):
            np.testing.assert_allclose(draft.q[row, node], left / left.sum(), atol=1e-6)
            left[int(draft.tokens[row, node])] = 0


def test_nodes_are_drawn_independently_of_those_of_other_levels_and_parents() -> None:
    """Of a flat distribution of 4 tokens: a node and its child, and children of two siblings."""
    rows = 3000
    flat = np.full(16, 1 / 16)
    draft = grown(
        Template("2-1"), FakeDraftModel(written([[1, 2]] * rows), vocab=4, sharp=0.0), [2] * rows, temperature=1.0
    )
    assert draft.parent[0].tolist() == [-1, 0, 0, 1, 2]
    for one, other in ((1, 3), (2, 4), (3, 4)):
        seen = np.bincount(draft.tokens[:, one] * 4 + draft.tokens[:, other], minlength=16)
        assert g_test(seen, flat) < 4


def test_an_acceptance_may_ask_for_independent_siblings() -> None:
    rows = 3000
    draft_model = FakeDraftModel(written([[1, 2]] * rows), vocab=4, sharp=1.0)
    draft = grown(Template("2"), draft_model, [1] * rows, temperature=1.0, accept="kseq")
    distribution = torch.from_numpy(draft_model.logits(0, [])).float().softmax(-1)
    seen = np.bincount(draft.tokens[:, 1] * 4 + draft.tokens[:, 2], minlength=16)
    assert g_test(seen, torch.outer(distribution, distribution).flatten().numpy().astype(float)) < 4
    assert draft.q is not None
    torch.testing.assert_close(draft.q[0, 1:], distribution.expand(2, -1))


def test_where_the_distribution_has_fewer_tokens_than_children_are_due_the_rest_is_never_tested() -> None:
    text = written([[row, row % 4] for row in range(12)])
    draft_model = FakeDraftModel(text, vocab=4, least=0.5)
    draft = grown(Template("6-2"), draft_model, [2] * 12, temperature=1.0)
    assert draft.q is not None
    short = 0
    for row in range(12):
        for node in range(1, int(draft.sizes[row])):
            parent = int(draft.parent[row, node])
            mass = float(draft.q[row, node].sum())
            if bool(draft.tested[row, node]):
                assert mass == pytest.approx(1, abs=1e-5)
                assert float(draft.q[row, node, draft.tokens[row, node]]) > 0
                assert parent == 0 or bool(draft.tested[row, parent])
            else:
                short += 1
    assert short > 12


def test_the_distribution_of_a_sibling_leaves_out_its_earlier_siblings_only() -> None:
    tokens = torch.tensor([[9, 1, 2, 0, 1]])
    parent = torch.tensor([[-1, 0, 0, 0, 1]])  # 1, 2, 3 are siblings; 4 is a child of 1 with 1's token
    distribution = torch.tensor([0.1, 0.4, 0.3, 0.2] * 5 + [0.0] * 30).view(1, 5, 10)[:, :, :4].contiguous()
    distribution[:] = torch.tensor([0.1, 0.4, 0.3, 0.2])
    found = conditional_distributions(tokens.clamp(max=3), parent, distribution, replacement=False)
    torch.testing.assert_close(found[0, 1], torch.tensor([0.1, 0.4, 0.3, 0.2]))
    torch.testing.assert_close(found[0, 2], torch.tensor([0.1, 0.0, 0.3, 0.2]) / 0.6)
    torch.testing.assert_close(found[0, 3], torch.tensor([0.1, 0.0, 0.0, 0.2]) / 0.3)
    torch.testing.assert_close(found[0, 4], torch.tensor([0.1, 0.4, 0.3, 0.2]))


def test_k_cuts_the_template() -> None:
    assert [Template("3-2-1").width(k) for k in (1, 2, 3, 9)] == [4, 10, 16, 16]
    assert Template().width(5) == 12


@pytest.mark.parametrize("widths", ["", "3-", "0-2", "a", "3,2", "-1", "2--1", "65537", "9" * 5000, "²"])
def test_widths_that_are_none_are_refused(widths: str) -> None:
    with pytest.raises(SpecError, match="template: widths must be whole numbers above 0"):
        Template(widths)


@pytest.mark.parametrize(
    "spec",
    [
        "model:name=a+template:widths=65536",
        "model:name=a+template:widths=16-16-16",
        "model:name=a+template:widths=65536-65536-65536-65536",  # 2 ** 64
        "model:name=a,k=60+dyspec:nodes=65536",
        "model:name=a+beam:nodes=65536",
        "earlyexit+template:widths=4097",
        "layerskip+beam:beams=65536",
        "recycling:k=1024,tree=1024-65536",
    ],
)
def test_a_tree_that_no_forward_takes_is_refused_when_it_is_named(spec: str) -> None:
    with pytest.raises(SpecError, match="nodes at once, and the limit is 4096") as caught:
        registry.resolve(spec, "ar")
    assert caught.value.hint


@pytest.mark.parametrize("spec", ["template:widths=4096", "template:widths=2-2-2-2-2-65536", "dyspec:nodes=768"])
def test_a_tree_that_the_depth_cuts_may_be_named(spec: str) -> None:
    assert registry.resolve(f"model:name=a,k=5+{spec}", "ar").shape is not None


def test_a_shape_needs_a_drafting_model() -> None:
    with pytest.raises(SpecError, match="'template' needs a drafter with a model, and 'lookup' has none"):
        registry.resolve("lookup+template", "ar")
