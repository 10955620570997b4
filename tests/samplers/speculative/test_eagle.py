"""EAGLE drafting: states as in one pass over a whole row, rows that skip rounds, the distribution."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

import pardec
from pardec.models.draft_modules.contracts import ModuleName
from pardec.models.errors import ModelError, SpecError
from pardec.models.kernels.cpu import int8
from pardec.models.model import LanguageModel
from pardec.models.plan import Plan
from pardec.requests import draft_models
from pardec.samplers import registry
from pardec.samplers.speculative.contracts import Draft
from pardec.samplers.speculative.draft.eagle_state import PairState
from tests.grids import chequered
from tests.models.draft_modules.test_eagle import doubles, same_rope
from tests.models.test_fused_layers import packed
from tests.reference import naive_eagle
from tests.reference.eagle_folders import write
from tests.samplers.ar_toys import counted, g_test, joint, rows, run, toy_ar
from tests.samplers.draft_model_checks import fed_slots_suffice
from tests.samplers.fake_draft_model import NEW, RAGGED, Pausing, compared_states, greedy, target
from tests.samplers.module_files import random_module

LOAD = draft_models.draft_module
SHAPES = ("chain", "template:widths=3-2-1", "dyspec:nodes=8,children=3", "beam:beams=3,nodes=8")
LAYOUTS: dict[str, tuple[str, dict[str, Any]]] = {
    "EAGLE-1": ("eagle", {}),
    "FSPAD": ("fspad", {}),
    "EAGLE-3": ("eagle3", {"draft": 4, "tie_word_embeddings": True}),
    "EAGLE-3 of two layers, output fed back normed": ("speculators", {"layers": 2, "norm_output": True, "draft": 4}),
}


@pytest.fixture(autouse=True)
def toys(monkeypatch: pytest.MonkeyPatch) -> None:
    """`eagle:name=toy` drafts with a random module; folders are loaded."""
    made = cache(lambda model: random_module("eagle", model))
    monkeypatch.setattr(
        draft_models, "draft_module", lambda name, model: made(model) if name.name == "toy" else LOAD(name, model)
    )


def folder(at: Path, name: str, layers: int = 4, **more: Any) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """A drafter of the toys, which reads the first three layers."""
    layout, flags = LAYOUTS[name]
    ids = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
    return write(
        at, layout, vocab=5, change=lambda tensors, config: config.update(eagle_config=ids), **{**flags, **more}
    )


@contextmanager
def compared(tensors: dict[str, Tensor], flat: dict[str, Any], name: str) -> Iterator[list[float]]:
    """Compares the state after every drafted node with one pass over its whole text, in float64."""
    flags = {**flat, "norm_output": flat.get("norm_output") and LAYOUTS[name][0] == "speculators"}

    features: dict[tuple[int, ...], Tensor] = {}  # the nodes of a round share their text

    def truth(state: PairState, text: list[int], drafted: list[int]) -> Tensor:
        model = state.context.model
        if tuple(text) not in features:
            plan = Plan.full(torch.tensor([text]), model.visible())
            hidden = model.forward(replace(plan, hidden=state.model.states.layers))
            features[tuple(text)] = state.model.fuse(state.model.states.of(hidden))[0, :-1]
        tokens, given = [*text, *drafted][1:], features[tuple(text)]
        return naive_eagle.draft(tensors, model.decoder.embedding, tokens, given, flat, flags)[0][-1]

    with compared_states(truth) as errors:
        yield errors


@pytest.mark.parametrize(("name", "shape"), chequered(LAYOUTS, [*SHAPES, "pausing", "pausing trees"], count=3))
@pytest.mark.covers(1)
def test_states_are_those_of_one_pass_over_the_whole_row(name: str, shape: str, tmp_path: Path) -> None:
    """After any history: accepted nodes have the target's states, drafted ones the drafter's, and rows catch up."""
    tensors, flat = folder(tmp_path, name)
    model = toy_ar(0, 5, 3.0, layers=4, dtype=torch.float64)
    form = {"pausing": "chain", "pausing trees": SHAPES[1]}.get(shape, shape)
    made = registry.resolve(f"eagle:name={tmp_path},k=4+{form}", "ar", sampling=True)
    if "pausing" in shape:
        made = replace(made, length=Pausing())
    with doubles():
        same_rope(draft_models.draft_module(ModuleName("eagle", str(tmp_path)), model), flat)
        with compared(tensors, flat, name) as errors:
            done = run(model, made, RAGGED, NEW, temperature=4.0)
            together = len(errors)
            run(model, made, RAGGED[:1], 9, temperature=4.0)
    assert max(errors) < 1e-9
    assert together > 50
    assert len(errors) > together
    assert sum(map(sum, done.trace.accepted)) > 3
    assert len({sum(row) for row in done.trace.accepted}) > 1


def test_slots_after_what_a_row_has_fed_are_never_read() -> None:
    fed_slots_suffice(PairState, [f"eagle:name=toy,k=4+{shape}" for shape in SHAPES])


def test_a_tree_of_top_tokens_keeps_the_targets_distribution() -> None:
    draws, options, spec = 4000, {"temperature": 0.8, "top_k": 3}, "eagle:name=toy,k=3+beam:beams=2,nodes=5,raw=true"
    done = run(target(), spec, [[1, 3]] * draws, 4, seeds=range(draws), **options)  # type: ignore[arg-type]
    assert g_test(counted(done, 2, 4, 5), joint(target(), [1, 3], 4, **options)) < 4  # type: ignore[arg-type]


def test_tokens_off_the_list_of_the_drafter_are_never_drafted(tmp_path: Path) -> None:
    tensors, _ = folder(tmp_path, "EAGLE-3")
    drafted: set[int] = set()
    propose = PairState.draft

    def noted(self: PairState, *arguments: Any) -> Draft:
        draft = propose(self, *arguments)
        for row, size in enumerate(draft.sizes):
            drafted.update(draft.tokens[row, 1:size].tolist())
        return draft

    with patch.object(PairState, "draft", noted):
        run(target(), f"eagle:name={tmp_path},k=4+{SHAPES[1]}", RAGGED, NEW, temperature=2.0)
    assert drafted <= set((torch.arange(4) + tensors["d2t"]).tolist())
    assert len(drafted) > 1


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("more", [{}, {"temperature": 2.0, "seeds": [5, 6, 7, 8]}], ids=["greedy", "drawn"])
@pytest.mark.covers(1)
def test_a_row_also_drafts_the_ids_of_its_prompt_and_of_no_other_row(
    shape: str, more: dict[str, Any], tmp_path: Path
) -> None:
    tensors, _ = folder(tmp_path, "EAGLE-3", draft=2)
    known = set((torch.arange(2) + tensors["d2t"]).tolist())
    drafted: dict[int, set[int]] = {}
    propose = PairState.draft

    def noted(self: PairState, *arguments: Any) -> Draft:
        draft = propose(self, *arguments)
        for row, tokens, tested in zip(self.context.text.rows.tolist(), draft.tokens, draft.tested, strict=True):
            drafted.setdefault(row, set()).update(tokens[tested].tolist())
        return draft

    spec = f"eagle:name={tmp_path},k=3,prompt_ids=true+{shape}"
    with patch.object(PairState, "draft", noted):
        done = run(target(), spec, RAGGED, NEW, **more)
    assert any(ids - known for ids in drafted.values())
    for row, prompt in enumerate(RAGGED):
        assert drafted[row] <= known | set(prompt)
        own = more and more | {"seeds": [5 + row]}
        alone = run(target(), spec, [prompt], NEW[row], **own)
        assert (rows(alone)[0], alone.trace.drafted[0]) == (rows(done)[row], done.trace.drafted[row])
    if not more:
        assert rows(done) == greedy()


def test_ids_of_the_prompt_keep_the_distribution(tmp_path: Path) -> None:
    folder(tmp_path, "EAGLE-3", draft=2)
    draws, options = 4000, {"temperature": 0.8, "top_k": 3}
    spec = f"eagle:name={tmp_path},k=3,prompt_ids=true+template:widths=2-1-1"
    done = run(target(), spec, [[1, 3]] * draws, 4, seeds=range(draws), **options)  # type: ignore[arg-type]
    assert g_test(counted(done, 2, 4, 5), joint(target(), [1, 3], 4, **options)) < 4  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "more", "reason"),
    [("EAGLE-1", {}, "drafts all of them"), ("EAGLE-3", {"tie_word_embeddings": False}, "has its own head")],
)
def test_a_head_without_rows_for_other_ids_drafts_none(
    name: str, more: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    folder(tmp_path, name, **more)
    with pytest.raises(ModelError, match=reason):
        run(target(), f"eagle:name={tmp_path},prompt_ids=true", [[1, 2]], 5)


def test_tiny_llama_is_drafted_for_by_a_random_folder(tmp_path: Path) -> None:
    """The embedded model, six prompts of unequal length, and one forward of the module per drafted token."""
    import pardec

    write(
        tmp_path,
        "eagle3",
        width=192,
        target=192,
        vocab=361,
        draft=200,
        heads=6,
        kv_heads=2,
        inner=256,
        dtype=torch.float32,
        tie_word_embeddings=True,
        eagle_config={"eagle_aux_hidden_state_layer_ids": [0, 1, 2]},
    )
    model = pardec.load("tiny-llama", dtype="float32", device="cpu")
    generator = torch.Generator().manual_seed(0)
    given = [torch.randint(5, 360, (size,), generator=generator).tolist() for size in (3, 17, 1, 40, 8, 25)]
    plain = model.generate(input_ids=given, sampler="sequential", max_new_tokens=16)
    for spec in (f"eagle:name={tmp_path},k=2", f"eagle:name={tmp_path},k=2,prompt_ids=true"):
        made = model.generate(input_ids=given, sampler=spec, max_new_tokens=16)
        assert [row.tolist() for row in made.sequences] == [row.tolist() for row in plain.sequences]


# --- what is refused ---


def test_a_drafter_without_a_name_is_refused_when_the_spec_is_read() -> None:
    with pytest.raises(SpecError, match="eagle: name is missing; it names the draft module"):
        registry.resolve("eagle:k=3", "ar")


def test_a_module_for_another_target_is_refused_before_the_first_forward(tmp_path: Path) -> None:
    write(tmp_path, "eagle", vocab=60)
    with patch.object(LanguageModel, "run") as forward, pytest.raises(ModelError, match="vocabulary of 60 ids"):
        run(target(), f"eagle:name={tmp_path}", [[1, 2]], 5)
    assert not forward.called


def test_other_layers_can_be_tapped(tmp_path: Path) -> None:
    folder(tmp_path, "EAGLE-3")
    made = registry.resolve(f"eagle:name={tmp_path},taps=1-2-3", "ar")
    module = draft_models.for_text(made, target())
    assert module is not None
    assert module.states.layers == (1, 2, 3)  # type: ignore[union-attr]
    with pytest.raises(ModelError, match="taps=1-2-9 names outputs of layers 1-2-9; the target has layers 0..3"):
        draft_models.for_text(registry.resolve(f"eagle:name={tmp_path},taps=1-2-9", "ar"), target())


def test_states_that_are_not_finite_are_named(tmp_path: Path) -> None:
    """A drafter whose states overflow ends in an error that names the drafter, not the target."""
    folder(tmp_path, "EAGLE-1")
    module: Any = draft_models.draft_module(ModuleName("eagle", str(tmp_path)), target())
    with patch.object(module, "fuse", lambda states: states * torch.inf), pytest.raises(ModelError) as error:
        run(target(), f"eagle:name={tmp_path},k=2", [[1, 2]], 5)
    assert str(error.value).startswith("the draft module ")


PROBLEMS = ["Tom has 18 cups. He loses 4. How many has he?", "5 6 7 8 9", "add 3 4", "Hugo has 55 apples."]
PACKED = "eagle:name=tiny-llama-eagle,k=3,quantize=int8"


@pytest.fixture
def packed_llama(in_c: None) -> Any:
    """The embedded model with a packed head, with which its drafter drafts, too."""
    if not int8.runs():
        pytest.skip("the processor does not multiply bytes")
    model = pardec.load("tiny-llama", device="cpu")
    head = model.language_model.decoder.head
    head.weight = nn.Parameter(packed(head.weight.data, "panels"), requires_grad=False)
    return model


@contextmanager
def chains_noted(*, allowed: bool = True) -> Iterator[tuple[list[Any], list[bool]]]:
    """The drafts, and for each time that a chain is wanted in one call, whether it was drafted so."""
    drafts: list[Any] = []
    calls: list[bool] = []
    draft, chain = PairState.draft, PairState.greedy_chain

    def noted(self: PairState, *arguments: Any) -> Draft:
        made = draft(self, *arguments)
        highest = None if made.highest is None else float(made.highest)
        drafts.append((made.tokens.tolist(), made.sizes.tolist(), made.base.tolist(), made.forwards, highest))
        return made

    def compared(self: PairState, count: int) -> Tensor | None:
        found = chain(self, count) if allowed else None
        calls.append(found is not None)
        return found

    with patch.object(PairState, "draft", noted), patch.object(PairState, "greedy_chain", compared):
        yield drafts, calls


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
def test_chains_in_one_call_are_those_of_single_forwards_in_any_batch(rows: int, packed_llama: Any) -> None:
    """Rows end at different lengths: the last one is alone, and drafts in one call from there on."""
    results = []
    for allowed in (True, False):
        with chains_noted(allowed=allowed) as (drafts, calls):
            done = packed_llama.generate(PROBLEMS[:rows], sampler=PACKED, max_new_tokens=40)
        results.append((done.tokens, drafts))
        assert any(calls) == allowed
    assert results[0] == results[1]


@pytest.mark.parametrize(
    ("spec", "options"),
    [
        ("", {"temperature": 1.0}),
        ("", {"repetition_penalty": 1.3}),
        ("", {"top_k": 5}),
        ("", {"min_new_tokens": 9}),
        ("+unsure", {}),
        ("+beam:beams=2,nodes=5", {}),
    ],
)
def test_chains_are_not_drafted_in_one_call_where_more_is_asked(
    spec: str, options: dict[str, Any], packed_llama: Any
) -> None:
    with chains_noted() as (drafts, calls):
        packed_llama.generate(PROBLEMS[0], sampler=PACKED + spec, max_new_tokens=12, **options)
    assert len(drafts) > 1
    assert not any(calls)
