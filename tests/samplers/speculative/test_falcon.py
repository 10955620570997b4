"""Blocks of pairs: distributions as in whole passes, one pass per block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pardec.models.draft_modules.contracts import ModuleName
from pardec.models.draft_modules.load import load_draft_module
from pardec.models.errors import ModelError, SpecError
from pardec.models.model import LanguageModel
from pardec.models.plan import Plan
from pardec.requests import draft_models
from pardec.samplers import registry
from pardec.samplers.speculative.contracts import Draft
from pardec.samplers.speculative.draft.falcon import BlockPairState
from tests.grids import chequered
from tests.models.draft_modules.test_eagle import doubles, same_rope
from tests.reference import eagle_folders, naive_falcon
from tests.samplers.ar_toys import rows, run, toy_ar
from tests.samplers.fake_draft_model import NEW, RAGGED, Pausing, apart, path, target
from tests.samplers.module_files import falcon

SHAPES = ("chain", "template:widths=3-2-1", "dyspec:nodes=8,children=3", "beam:beams=3,nodes=8")


@contextmanager
def compared(model: LanguageModel, folder: Path, block: int) -> Iterator[list[float]]:
    """Compares the logits after every node with passes over its whole text."""
    errors: list[float] = []
    forward = BlockPairState.forward
    tensors = {name: tensor.double() for name, tensor in load_file(folder / "model.safetensors").items()}
    config = {"num_attention_heads": 2}
    features: dict[tuple[int, ...], Tensor] = {}

    def truth(text: list[int], drafted: list[int]) -> Tensor:
        if tuple(text) not in features:
            hidden = model.forward(Plan.full(torch.tensor([text]), model.visible()))
            features[tuple(text)] = hidden.normed()[0, :-1]
        states = features[tuple(text)]
        out = naive_falcon.outputs(tensors, model.decoder.embedding, text, states, drafted, config, block)
        logits: Tensor = model.decoder.unembed(out[None])[0]  # type: ignore[attr-defined]
        return logits

    def compared(self: BlockPairState, draft: Draft, nodes: Tensor) -> Tensor:
        logits = forward(self, draft, nodes)
        for row in range(len(nodes)):
            for at, node in enumerate(nodes[row].tolist()):
                if node >= 0:
                    text = self.context.text.row(row).tolist()
                    errors.append(apart(logits[row, at], truth(text, path(draft, row, node))))
        return logits

    with patch.object(BlockPairState, "forward", compared):
        yield errors


@pytest.mark.parametrize(("block", "shape"), chequered([1, 2, 3], [*SHAPES, "pausing"], count=3))
def test_distributions_are_those_of_passes_over_the_whole_row(block: int, shape: str, tmp_path: Path) -> None:
    """After any history: accepted pairs have the target's states, and rows that skipped rounds catch up. In float64."""
    model = toy_ar(0, 5, 3.0, layers=4, dtype=torch.float64)
    folder = falcon(tmp_path / "f", target(), 3)
    form = "chain" if shape == "pausing" else shape.replace("3-2-1", "2-2-1-1-1")
    made = registry.resolve(f"falcon:name={folder},k=5,block={block}+{form}", "ar", sampling=True)
    if shape == "pausing":
        made = replace(made, length=Pausing())
    with doubles(), compared(model, folder, block) as errors:
        same_rope(draft_models.draft_module(ModuleName("falcon", str(folder)), model), {})
        done = run(model, made, RAGGED, NEW, temperature=1.0)
    assert len(errors) > 50
    assert max(errors) < 1e-6  # logits are given in float32
    assert len({sum(row) for row in done.trace.accepted}) > 1


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.covers(1)
def test_blocks_of_one_are_eagle(shape: str, temperature: float, tmp_path: Path) -> None:
    folder = falcon(tmp_path / "f", target())
    eagle_folders.write(tmp_path / "e", "eagle", vocab=5)
    mine, other = (
        run(target(), f"{part}+{shape}", RAGGED, NEW, temperature=temperature)
        for part in (f"falcon:name={folder},k=4,block=1", f"eagle:name={tmp_path / 'e'},k=4")
    )
    assert rows(mine) == rows(other)
    assert mine.trace.accepted == other.trace.accepted
    assert mine.draft_forwards == other.draft_forwards


@pytest.mark.parametrize(("block", "passes"), [(1, 5), (2, 3), (3, 2), (4, 2), (5, 1)])
def test_a_block_is_one_pass(block: int, passes: int, tmp_path: Path) -> None:
    """Chains of five tokens; the last round of 7 new ones has room for fewer."""
    done = run(target(), f"falcon:name={falcon(tmp_path / 'f', target(), 5)},k=5,block={block}", [[1, 2]], 7)
    drafted = done.trace.drafted[0]
    assert done.draft_forwards[0] == sum(-(-count // block) for count in drafted)
    assert drafted[1] == 5
    assert -(-5 // block) == passes


# --- files ---


def test_the_authors_own_files_are_refused_by_name(tmp_path: Path) -> None:
    eagle_folders.write(tmp_path / "f", "eagle", vocab=5)
    file = tmp_path / "f" / "model.safetensors"
    tensors = {name: tensor for name, tensor in load_file(file).items() if not name.startswith("fc.")}
    save_file({**tensors, "lstm.weight_ih_l0": torch.zeros(64, 32)}, file)
    with pytest.raises(ModelError, match=r"lstm.weight_ih_l0: the authors' LSTM, which runs over the batch"):
        load_draft_module(tmp_path / "f", target())


def test_kinds_are_told_apart(tmp_path: Path) -> None:
    eagle_folders.write(tmp_path / "e", "eagle", vocab=5)
    assert load_draft_module(tmp_path / "e", target()).kind == "eagle"
    assert load_draft_module(falcon(tmp_path / "f", target()), target()).kind == "falcon"
    with pytest.raises(ModelError, match="of kind eagle, not falcon"):
        load_draft_module(tmp_path / "e", target(), kind="falcon")


def test_blocks_longer_than_were_trained_are_refused(tmp_path: Path) -> None:
    folder = falcon(tmp_path / "f", target(), 2)
    with pytest.raises(SpecError, match="falcon: block must be at most 2, as trained in .*, got 3"):
        run(target(), f"falcon:name={folder},block=3", [[1, 2]], 4)
