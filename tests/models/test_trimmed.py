"""Heads trimmed to some ids: the remaining logits, excluded ids, and the sources of id lists."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from pardec.models.errors import ModelError
from pardec.models.load import load
from pardec.models.plan import Hidden, Plan, Visible
from pardec.models.trimmed import ORDER, bytes_read, frequent_ids, parameters_read, read_ids, trimmed
from tests.samplers.ar_toys import toy_ar


def test_the_ids_that_are_left_have_the_logits_of_the_whole_head_and_no_others_have_any() -> None:
    model = toy_ar(3, 11, dtype=torch.float64)
    ids = [7, 0, 4]
    plan = Plan.full(torch.tensor([[1, 5, 9, 2]]), Visible.causal())
    whole, cut = model.forward(plan).logits(), trimmed(model, ids).forward(plan).logits()
    assert torch.allclose(cut[..., ids], whole[..., ids], rtol=0, atol=1e-6)
    others = [token for token in range(11) if token not in ids]
    assert (cut[..., others] == -torch.inf).all()
    assert model.forward(plan).logits().isfinite().all(), "the model itself keeps its head"
    less = trimmed(model, ids)
    stack: Any = model.decoder
    with torch.no_grad():
        stack.head.weight.mul_(2)
    stack.weights_version += 1  # as where weights are replaced
    assert torch.allclose(less.forward(plan).logits()[..., ids], 2 * whole[..., ids], rtol=0, atol=1e-6)
    assert less.decoder.subset.ids.tolist() == [0, 4, 7]  # type: ignore[attr-defined]
    stack.config = replace(stack.config, logit_cap=0.5)  # as Gemma's: cap tanh(z / cap), of every row
    capped = 0.5 * (2 * whole[..., ids] / 0.5).tanh()
    assert torch.allclose(less.forward(plan).logits()[..., ids], capped, rtol=0, atol=1e-6)


def test_only_the_rows_that_are_left_are_multiplied() -> None:
    model = load("tiny-llama", dtype="float32")
    ids = list(range(0, model.vocab_size, 4))
    cut = trimmed(model, ids)
    hidden: Hidden = cut.forward(Plan.full(torch.tensor([[1, 2, 3]]), Visible.causal()))
    shapes: list[tuple[int, ...]] = []
    head = cut.decoder.head  # type: ignore[attr-defined]
    head.register_forward_hook(lambda module, given, out: shapes.append(tuple(out.shape)))
    head(hidden.states[0])
    assert shapes == [(3, len(ids))]
    assert parameters_read(model) == model.parameters
    assert parameters_read(cut) == model.parameters - (model.vocab_size - len(ids)) * model.width
    assert f"head of {len(ids)} of {model.vocab_size} ids" in cut.describe()


def test_a_table_that_is_the_head_too_is_read_whole() -> None:
    """12 layers' weights are all read; of a table of its own only the rows of a few tokens are."""
    for tied in (False, True):
        model = toy_ar(3, 11)
        stack: Any = model.decoder
        if tied:
            stack.head.weight = stack.embed.weight
        table = 4 * 11 * model.width
        whole = 4 * sum(weight.numel() for weight in stack.parameters())
        assert bytes_read(model) == whole - (0 if tied else table)
        assert bytes_read(trimmed(model, [1, 2])) == (whole if tied else whole - table) - 4 * 9 * model.width


@pytest.mark.parametrize(
    ("ids", "error"), [([], "none at all"), ([3, 11, -1], r"not in 0..10: 11, -1"), ([3, 4, 3], "listed twice: 3")]
)
def test_ids_that_cannot_be_are_refused(ids: list[int], error: str) -> None:
    with pytest.raises(ModelError, match=error):
        trimmed(toy_ar(3, 11), ids)


def test_a_quantized_head_is_refused() -> None:
    with pytest.raises(ModelError, match="the head of toy cannot be cut"):
        trimmed(replace(toy_ar(3, 11), quantized="int8"), [1])


def test_lists_in_files_and_the_first_ids_of_the_one_beside_a_checkpoint(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text("[4, 2, 9]")
    save_file({"ids": torch.tensor([4, 2])}, tmp_path / "mine.safetensors")
    (tmp_path / ORDER).write_text(json.dumps([5, 1, 0, 3]))
    assert read_ids(str(tmp_path / "mine.json"), None) == [4, 2, 9]
    assert read_ids(str(tmp_path / "mine.safetensors"), None) == [4, 2]
    assert read_ids("3", tmp_path) == [5, 1, 0]
    for source, error in (
        ("5", r"outside 1..4"),
        ("0", r"outside 1..4"),
        (str(tmp_path / "no.json"), "cannot be read"),
    ):
        with pytest.raises(ModelError, match=error):
            read_ids(source, tmp_path)
    with pytest.raises(ModelError, match=f"vocab=3 needs {ORDER}"):
        read_ids("3", None)
    (tmp_path / "mine.json").write_text('{"a": 1}')
    with pytest.raises(ModelError, match="no list of ids"):
        read_ids(str(tmp_path / "mine.json"), None)


def test_the_commonest_ids_of_texts() -> None:
    texts = [[1, 1, 1, 6], [6, 2], [4, 4]]
    assert frequent_ids(texts) == [1, 4, 6, 2]
    assert frequent_ids(texts, always=[9, 4], most=3) == [9, 4, 1]
    assert frequent_ids([], always=[9]) == [9]
