"""Prompt tokens: greedy decoding's tokens, distributions as of whole forwards, isolated vectors, layouts, errors."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor

from pardec.models.draft_modules.load import load_draft_module
from pardec.models.errors import ModelError, SpecError
from pardec.models.model import LanguageModel
from pardec.samplers import registry
from pardec.samplers.speculative.accept.greedy import follow
from pardec.samplers.speculative.contracts import Draft, ProbeLayout
from pardec.samplers.speculative.draft.probe_drafter import ProbeState
from pardec.samplers.speculative.forward import VerifyForward
from pardec.samplers.speculative.probe_nodes import after_every, extended
from tests.grids import chequered
from tests.reference.naive_queries import prompt_logits
from tests.samplers.ar_toys import plain_greedy, rows, run, toy_ar
from tests.samplers.draft_model_checks import committed_slots_suffice, keeps_greedy
from tests.samplers.drafter_checks import cyclic
from tests.samplers.fake_draft_model import NEW, RAGGED, apart, path, target
from tests.samplers.fake_draft_model import distribution as whole
from tests.samplers.module_files import learned, prompts, random

SHAPES = ("chain", "template:widths=3-2-1", "dyspec:nodes=8,children=3", "beam:beams=3,nodes=8")
CARRIES = ("", ",carry=3-1-2", ",carry=0-2-0-1", ",carry=3-2.0.1-1.3")
LAYOUTS: tuple[dict[str, Any], ...] = (
    {},
    {"each": 2},
    {"each": 3, "vt_attention_type": "ensemble"},
    {"vt_attention_type": "encoder"},
)


@pytest.mark.parametrize(("carry", "shape"), zip(CARRIES, SHAPES, strict=True))
def test_greedy_decoding_is_kept_in_a_ragged_batch_and_alone(carry: str, shape: str, tmp_path: Path) -> None:
    done, alone = keeps_greedy(f"prompts:name={prompts(tmp_path / 'p', target())},k=3{carry}+{shape}")
    if shape != "dyspec:nodes=8,children=3":  # where rounding chooses nodes of 1e-8
        assert alone.tokens_fed[0] == done.tokens_fed[0]


@pytest.mark.parametrize(("layout", "shape", "temperature"), chequered(LAYOUTS, SHAPES, [0.0, 1.0], count=3))
@pytest.mark.covers(1)
def test_what_is_learned_is_what_whole_forwards_of_the_text_and_the_vectors_give(
    layout: dict[str, Any], shape: str, temperature: float, tmp_path: Path
) -> None:
    folder, each = prompts(tmp_path / "p", target(), **layout), layout.get("each", 1)
    vectors = random(3 * each, target().width)
    attention = layout.get("vt_attention_type", "decoder")
    for carry in CARRIES[:2]:
        with learned() as seen:
            done = run(target(), f"prompts:name={folder}{carry}+{shape}", RAGGED, NEW, temperature=temperature)
        assert {len(raw) for _, raw in seen} >= {0, 3}
        assert max(map(max, done.trace.accepted)) >= 1
        for text, raw in seen:
            expected = prompt_logits(target(), text, vectors, each, "ensemble" if attention == "encoder" else attention)
            if attention == "encoder":  # each vector is alone
                expected = torch.cat([_alone(text, vectors, step) for step in range(3)])
            for mine, naive in zip(raw, expected, strict=False):
                assert apart(mine, naive) < 5e-5


def _alone(text: list[int], vectors: Tensor, step: int) -> Tensor:
    """[1, V]: logits after the vector of this step, which attends to no other vector."""
    with_gap = torch.zeros_like(vectors)
    with_gap[step] = vectors[step]
    from pardec.models.plan import Plan, Visible

    size = len(text)
    slots = torch.arange(size + 1)[None]
    plan = Plan(
        torch.tensor([[*text, -1]]),
        torch.tensor([[*range(size), size + step]]),
        slots,
        Visible.causal(),
        torch.tensor([size + 1]),
        slots,
        soft=torch.cat((torch.zeros(size, vectors.shape[1]), vectors[step : step + 1]))[None],
    )
    return target().decoder(plan).logits()[0, -1:]


@pytest.mark.parametrize("shape", SHAPES)
def test_every_distribution_of_the_target_is_that_of_a_whole_forward(shape: str, tmp_path: Path) -> None:
    verify, errors = VerifyForward.verify, []

    def verified(self: VerifyForward, draft: Draft) -> Any:
        raw, states = verify(self, draft)
        assert raw.shape[1] == draft.width
        for row, size in enumerate(draft.sizes):
            for node in range(size):
                text = [*self.text.row(row).tolist(), *path(draft, row, node)]
                errors.append(apart(raw[row, node], whole(self.model, text)))
        return raw, states

    with patch.object(VerifyForward, "verify", verified):
        run(target(), f"prompts:name={prompts(tmp_path / 'p', target())}+{shape}", RAGGED, NEW, temperature=1.0)
    assert len(errors) > 60
    assert max(errors) < 5e-5


@pytest.mark.parametrize("shape", SHAPES)
def test_no_node_sees_a_vector(shape: str, tmp_path: Path) -> None:
    """Vectors a million times as long change no logits after nodes, and not the draft either."""
    model = toy_ar(0, 5, 3.0, layers=4, dtype=torch.float64)
    spec = f"prompts:name={prompts(tmp_path / 'p', model)}+{shape}"
    verify, differences = VerifyForward.verify, []

    def verified(self: VerifyForward, draft: Draft) -> Any:
        assert draft.queries is not None
        vectors = draft.queries.inputs
        assert vectors is not None
        other = replace(draft, queries=replace(draft.queries, inputs=vectors.flip(0) * 1e6))
        plain = verify(self, replace(draft, queries=None))[0]
        without = verify(self, other)[0]
        del self.fed[-2:]
        raw, states = verify(self, draft)
        real = torch.arange(draft.width) < torch.from_numpy(draft.sizes)[:, None]
        differences.append(float((raw - without)[real].abs().max()))
        assert torch.allclose(raw[real].double(), plain[real].double(), rtol=0, atol=1e-6)
        return raw, states

    with patch.object(VerifyForward, "verify", verified):
        done = run(model, spec, RAGGED, NEW)
    assert differences
    assert max(differences) == 0
    assert rows(done) == [plain_greedy(model, prompt, count) for prompt, count in zip(RAGGED, NEW, strict=True)]


@pytest.mark.parametrize("shape", SHAPES)
def test_slots_after_the_committed_tokens_are_never_read(shape: str, tmp_path: Path) -> None:
    spec = f"prompts:name={prompts(tmp_path / 'p', target())}+{shape}"
    committed_slots_suffice(spec)


def test_vectors_that_are_embeddings_of_a_model_that_counts(tmp_path: Path) -> None:
    """A model that predicts x + 1 after x: the vectors of 3, 4 and 5 draft 4, 5 and 6, which are right after a 3."""
    model = cyclic()
    folder = prompts(tmp_path / "p", model)
    module = load_draft_module(folder, model)
    module.vectors.copy_(model.decoder.embedding[[3, 4, 5]])
    with patch("pardec.requests.draft_models.draft_module", lambda wanted, target: module):
        done = run(model, f"prompts:name={folder}", [[5, 6], [0]], [9, 8])
    assert rows(done) == [[5, 6, *range(7), 0, 1], [0, *range(1, 7), 0, 1]]
    # The prompt gives 0; 1, 2 and 3 come one by one, and after 3 the vectors draft 4, 5, 6, which the target follows.
    assert done.trace.accepted[0] == (0, 0, 0, 0, 3, 0)
    assert done.trace.drafted[0] == (0, 0, 3, 3, 3, 0)
    assert done.trace.accepted[1] == (0, 0, 0, 3, 0)
    # A node and 3 vectors; 4 nodes and 3, 3, 3, 2 vectors, since 7 tokens are left; 4 nodes and 3, 3, 2, 1 vectors.
    assert [len(fed) for fed in done.trace.fed[0]][:4] == [2, 4, 15, 13]


# --- where the queries stand ---


def test_queries_are_numbered_row_by_row_without_a_gap() -> None:
    draft = Draft(torch.tensor([[7, 8, 9], [5, 0, 0]]), np.array([3, 1]), np.array([10, 4]))
    queries = after_every(draft, ProbeLayout.single(2), np.array([99, 99]))
    assert queries.index.tolist() == [[[3, 4, 5], [6, 7, 8]], [[1, -1, -1], [2, -1, -1]]]
    assert queries.counts.tolist() == [[3, 3], [1, 1]]
    whole = extended(replace(draft, queries=queries))
    assert whole.sizes.tolist() == [9, 3]
    assert whole.tokens[0].tolist() == [7, 8, 9, *[-1] * 6]
    assert whole.tokens[1, :3].tolist() == [5, -1, -1]
    assert whole.parent[0].tolist() == [-1, 0, 1, 0, 1, 2, 3, 4, 5]
    assert whole.parent[1, :3].tolist() == [-1, 0, 1]
    assert whole.depth[0].tolist() == [0, 1, 2, 1, 2, 3, 2, 3, 4]
    assert whole.depth[1, :3].tolist() == [0, 1, 2]


def test_fewer_queries_after_deeper_nodes_and_where_a_row_ends() -> None:
    draft = Draft(torch.tensor([[7, 8, 9], [5, 6, 0]]), np.array([3, 2]), np.array([10, 4]))
    queries = after_every(draft, ProbeLayout.single(3), np.array([99, 3]), ((2,), (1,), (3,)))
    assert queries.index.tolist() == [[[3, 4, 5], [6, -1, 7], [-1, -1, 8]], [[2, 3, -1], [4, -1, -1], [-1, -1, -1]]]
    assert queries.counts.tolist() == [[3, 2, 1], [2, 1, 0]]
    near = after_every(draft, ProbeLayout.single(3), np.array([5, 2]))
    assert near.counts.tolist() == [[3, 3, 2], [1, 0, 0]]


def test_vectors_of_one_step_stand_at_one_position(tmp_path: Path) -> None:
    draft = Draft(torch.tensor([[7]]), np.array([1]), np.array([0]))
    module: Any = load_draft_module(prompts(tmp_path / "a", target(), 2, 2, vt_attention_type="ensemble"), target())
    whole = extended(replace(draft, queries=after_every(draft, ProbeLayout(module.step, module.above), np.array([9]))))
    assert whole.depth.tolist() == [[0, 1, 1, 2, 2]]
    assert whole.parent.tolist() == [[-1, 0, 0, 1, 2]]
    module = load_draft_module(prompts(tmp_path / "b", target(), 2, 2), target())
    whole = extended(replace(draft, queries=after_every(draft, ProbeLayout(module.step, module.above), np.array([9]))))
    assert whole.parent.tolist() == [[-1, 0, 1, 2, 3]]


# --- rows that leave and join ---


def test_rows_join_what_is_remembered() -> None:
    mine, other = (ProbeState.__new__(ProbeState) for _ in range(2))
    mine.states, mine.known = torch.zeros(3, 2, 4), np.array([0, 0, 1])
    other.states, other.known = torch.arange(8.0).view(1, 2, 4), np.array([2])
    mine.put(np.array([1]), other)
    assert mine.known.tolist() == [0, 2, 1]
    assert mine.states[1].tolist() == other.states[0].tolist()
    mine.keep(np.array([1, 2]))
    assert mine.known.tolist() == [2, 1]
    assert mine.states[0].tolist() == other.states[0].tolist()


# --- files ---


def test_weights_of_an_ensemble_weigh_its_logits(tmp_path: Path) -> None:
    folder = prompts(tmp_path / "p", target(), 2, 3, vt_attention_type="ensemble", aggregation_type="weighted")
    with pytest.raises(ModelError, match="lacks weighting_layers.0.weight"):
        load_draft_module(folder, target())
    from safetensors.torch import load_file, save_file

    file = folder / "adapter_model.safetensors"
    weights = random(2, 3, seed=5)
    save_file({**load_file(file), **{f"weighting_layers.{i}.weight": weights[i : i + 1] for i in range(2)}}, file)
    module: Any = load_draft_module(folder, target())
    states = random(4, 6, target().width)
    each = target().decoder.unembed(states.flatten(0, 1)).view(4, 2, 3, -1)
    expected = sum(each[:, :, i] * weights[:, i, None] for i in range(3))
    assert torch.allclose(module.logits(states), expected, atol=1e-5)


def test_pickled_files_load_too(tmp_path: Path) -> None:
    folder = prompts(tmp_path / "p", target())
    (folder / "adapter_model.safetensors").unlink()
    torch.save({"prompt_embeddings": random(3, target().width)}, folder / "adapter_model.bin")
    module: Any = load_draft_module(folder, target())
    assert module.vectors.tolist() == random(3, target().width).tolist()


@pytest.mark.parametrize(
    ("config", "error"),
    [
        ({"steps": 2, "num_special_tokens": 3}, r"prompt_embeddings has shape \[2, 16\]; 3 steps of 1"),
        ({"use_prefix_tuning": True}, "use_prefix_tuning=True"),
        ({"num_exits": 2}, "num_exits=2"),
        ({"each": 2, "vt_attention_type": "encoder"}, "which see each other"),
        ({"aggregation_type": "adaptive_weighted"}, "aggregation_type='adaptive_weighted'"),
    ],
)
def test_what_cannot_run_is_refused_by_name(config: dict[str, Any], error: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=error):
        load_draft_module(prompts(tmp_path / "p", target(), **config), target())


def test_vectors_of_another_width_are_refused(tmp_path: Path) -> None:
    wide: LanguageModel = toy_ar(0, 5, width=24)
    with pytest.raises(ModelError, match=r"prompt_embeddings has shape \[3, 16\].*\[3, 24\]"):
        load_draft_module(prompts(tmp_path / "p", target()), wide)


@pytest.mark.parametrize("carry", ["4", "3--1", "x", "-1", "3..1", "3-.1", "3.4"])
def test_a_carry_that_is_no_list_of_steps_is_refused(carry: str) -> None:
    with pytest.raises(SpecError, match="prompts: carry lists whole numbers up to k=3"):
        registry.resolve(f'prompts:name=p,carry="{carry}"', "ar")


def test_a_drafter_without_a_name_is_refused() -> None:
    with pytest.raises(SpecError, match="prompts: name is missing"):
        registry.resolve("prompts:k=3", "ar")


def test_follow_is_of_the_nodes_alone() -> None:
    """The acceptance gets a draft without probe nodes: its path can only end at a node."""
    draft = Draft(torch.tensor([[7, 8]]), np.array([2]), np.array([0]))
    draft = replace(draft, queries=after_every(draft, ProbeLayout.single(2), np.array([9])))
    assert follow(draft, torch.tensor([[8, 1]])).path.tolist() == [[0, 1]]
