"""States of later positions made inside the stack: whole forwards, and nodes that stay untouched."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from pardec.models.decoder import DecoderLayer
from pardec.models.draft_modules.load import load_draft_module
from pardec.models.errors import ModelError, SpecError
from pardec.models.model import LanguageModel
from pardec.samplers import registry
from pardec.samplers.speculative.contracts import Draft
from pardec.samplers.speculative.forward import VerifyForward
from tests.grids import chequered
from tests.reference.naive_queries import pseudo_logits
from tests.samplers.ar_toys import plain_greedy, rows, run, toy_ar
from tests.samplers.draft_model_checks import committed_slots_suffice
from tests.samplers.drafter_checks import cyclic
from tests.samplers.fake_draft_model import NEW, RAGGED, apart, path, target
from tests.samplers.fake_draft_model import distribution as whole
from tests.samplers.module_files import learned, random, transfer, write

SHAPES = ("chain", "template:widths=3-2-1", "dyspec:nodes=8,children=3", "beam:beams=3,nodes=8")
LAYERS = ((0, 1, 2), (1, 2), (2,))


@pytest.mark.parametrize(("layers", "shape", "temperature"), chequered(LAYERS, SHAPES, [0.0, 1.0]))
@pytest.mark.covers(1)
def test_what_is_learned_is_what_whole_forwards_of_each_text_give(
    layers: tuple[int, ...], shape: str, temperature: float, tmp_path: Path
) -> None:
    folder = transfer(tmp_path / "t", target(), layers)
    maps = [random(target().width, target().width, seed=j, scale=0.4) for j in range(len(layers))]
    for carry in ("", ",carry=1-0-3"):
        with learned() as seen:
            done = run(target(), f"transfer:name={folder}{carry}+{shape}", RAGGED, NEW, temperature=temperature)
        assert {len(raw) for _, raw in seen} >= {0, len(layers)} - ({len(layers)} if carry else set())
        assert max(map(max, done.trace.accepted)) >= 1
        for text, raw in seen:
            for mine, naive in zip(raw, pseudo_logits(target(), text, layers, maps), strict=False):
                assert apart(mine, naive) < 5e-5


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("layers", LAYERS)
@pytest.mark.covers(1)
def test_the_target_s_distributions_are_bitwise_those_without_the_queries(
    shape: str, layers: tuple[int, ...], tmp_path: Path
) -> None:
    """In float64, in every round; and they equal those of whole forwards."""
    model = toy_ar(0, 5, 3.0, layers=4, dtype=torch.float64)
    spec = f"transfer:name={transfer(tmp_path / 't', model, layers)}+{shape}"
    verify, compared, errors = VerifyForward.verify, list[bool](), list[float]()

    def verified(self: VerifyForward, draft: Draft) -> Any:
        plain = verify(self, replace(draft, queries=None))[0]
        del self.fed[-1]
        raw, states = verify(self, draft)
        for row, size in enumerate(draft.sizes):
            compared.append(bool((raw[row, :size] == plain[row, :size]).all()))
            for node in range(size):
                text = [*self.text.row(row).tolist(), *path(draft, row, node)]
                errors.append(apart(raw[row, node], whole(model, text)))
        return raw, states

    with patch.object(VerifyForward, "verify", verified):
        done = run(model, spec, RAGGED, NEW)
    assert rows(done) == [plain_greedy(model, prompt, count) for prompt, count in zip(RAGGED, NEW, strict=True)]
    assert len(compared) > 30
    assert all(compared)
    assert max(errors) < 1e-6


@pytest.mark.parametrize("shape", SHAPES)
def test_slots_after_the_committed_tokens_are_never_read(shape: str, tmp_path: Path) -> None:
    """The lower layers write no K/V for probe nodes: those slots hold K/V of earlier rounds."""
    spec = f"transfer:name={transfer(tmp_path / 't', target(), (1, 2))}+{shape}"
    committed_slots_suffice(spec)


def test_each_query_runs_the_layers_after_its_own_only(tmp_path: Path) -> None:
    queries: Counter[int] = Counter()
    forward = DecoderLayer.forward

    def watched(self: DecoderLayer, h: Tensor, step, index: int, picked=None):  # type: ignore[no-untyped-def]
        queries[index] += len(h)
        return forward(self, h, step, index, picked)

    prompt = [1, 0, 2, 2]
    with patch.object(DecoderLayer, "forward", watched):
        done = run(target(), f"transfer:name={transfer(tmp_path / 't', target(), (0, 2))},k=2", [prompt], 14)
    nodes = [1 + drafted for drafted in done.trace.drafted[0][1:]]
    fed = [len(each) for each in done.trace.fed[0][1:]]
    assert queries[0] == len(prompt) + sum(nodes)
    assert queries[3] == len(prompt) + sum(fed) == done.tokens_fed[0]
    assert queries[0] < queries[1] == queries[2] < queries[3]


def test_maps_that_move_along_a_circle_draft_what_a_model_that_counts_says(tmp_path: Path) -> None:
    """States are embeddings here; a map from the embedding of x to that of x + j always rightly drafts x + j + 1."""
    model = cyclic()
    table = model.decoder.embedding
    step = torch.linalg.pinv(table) @ table.roll(-1, 0)  # a row x times this is row x + 1
    maps = {"transfer.0.weight": step.T.contiguous()}
    folder = write(tmp_path / "t", maps, {"model_type": "hidden_transfer", "layers": [0]})
    done = run(model, f"transfer:name={folder}", [[2, 3]], 8)
    assert rows(done) == [[2, 3, 4, 5, 6, 0, 1, 2, 3, 4]]
    # The prompt gives 4, and a round without a draft 5; then each round drafts one token after its first.
    assert done.trace.drafted[0] == (0, 0, 1, 1, 1)
    assert done.trace.accepted[0] == (0, 0, 1, 1, 1)


# --- files ---


@pytest.mark.parametrize(
    ("layers", "error"),
    [
        ((0, 3), "ascend within 0..2 for toy"),
        ((1, 1), "ascend within 0..2 for toy"),
        ((2, 1), "ascend within 0..2 for toy"),
    ],
)
def test_layers_that_leave_nothing_to_run_are_refused(layers: tuple[int, ...], error: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=error):
        load_draft_module(transfer(tmp_path / "t", target(), layers), target())


def test_files_that_do_not_fit_are_refused_by_name(tmp_path: Path) -> None:
    wide: LanguageModel = toy_ar(0, 5, width=24, layers=4)
    with pytest.raises(ModelError, match=r"transfer.0.weight \[16, 16\]; the width of toy is 24"):
        load_draft_module(transfer(tmp_path / "t", target()), wide)
    config = {"model_type": "hidden_transfer", "layers": [1]}
    maps = {f"transfer.{j}.weight": random(16, 16) for j in (0, 2)}
    with pytest.raises(ModelError, match=r"3 maps and layers=\[1\]"):
        load_draft_module(write(tmp_path / "u", maps, config), target())
    with pytest.raises(ModelError, match="lacks transfer.1.weight"):
        load_draft_module(write(tmp_path / "v", maps, config | {"layers": [0, 1, 2]}), target())
    with pytest.raises(ModelError, match="of kind transfer, not prompts"):
        load_draft_module(transfer(tmp_path / "t", target()), target(), kind="prompts")


def test_a_drafter_without_a_name_is_refused() -> None:
    with pytest.raises(SpecError, match="transfer: name is missing"):
        registry.resolve("transfer:k=3", "ar")
