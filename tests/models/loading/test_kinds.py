"""Facts derived from a model's config alone equal those of the loaded model."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import pardec
from pardec.models.errors import ArgumentError, ModelError, SpecError, UnknownModelError
from pardec.models.files import arguments
from pardec.models.files.catalog import embedded_names
from pardec.models.loading.kinds import kind_of
from pardec.models.parallel import placement


@pytest.mark.parametrize("name", embedded_names())
def test_the_kind_is_what_the_loaded_model_is(name: str) -> None:
    told, model = kind_of(name), pardec.load(name, device="cpu")
    imaging = model.imaging
    assert (told.name, told.family) == (model.name, model.family)
    assert told.draws == (None if imaging is None else imaging.kind)
    if told.classes is not None:
        assert told.classes == imaging.classes
    if imaging is None:
        network = model.language_model
        assert (told.positions, told.block) == (network.max_positions, network.decoding_config.block)


def test_of_what_is_not_here_nothing_is_told() -> None:
    assert kind_of("owner/name") is None
    with pytest.raises(UnknownModelError):
        kind_of("nobodys")


def test_a_block_causal_model_tells_its_block(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "sdar", "max_position_embeddings": 64}))
    told = kind_of(tmp_path)
    assert (told.family, told.block, told.positions) == ("masked", 4, 64)
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "Fast_dLLM_Qwen", "bd_size": 16}))
    told = kind_of(tmp_path)
    assert (told.family, told.block) == ("masked", 16)


def test_a_config_of_wrong_types_is_left_to_the_loading(tmp_path: Path) -> None:
    for config in ({"model_type": "llama", "max_position_embeddings": "x"}, {"model_type": "sdar", "block_size": [3]}):
        (tmp_path / "config.json").write_text(json.dumps(config))
        told = kind_of(tmp_path)
        assert told.positions is None


def test_misuse_is_both_a_model_error_and_a_spec_error() -> None:
    for wrong in ({"device": "gpu"}, {"dtype": "int3"}, {"quantize": "int2"}, {"device": "cuda:99"}, {"mask_id": 999}):
        with pytest.raises(ArgumentError) as caught:
            pardec.load("tiny-dream", **wrong)  # type: ignore[arg-type]
        assert isinstance(caught.value, ModelError)
        assert isinstance(caught.value, SpecError)
        assert caught.value.hint


def test_the_words_are_those_that_torch_and_loading_know() -> None:
    assert set(arguments.DTYPES) == set(placement.DTYPES)
    for kind in arguments.DEVICES:
        assert torch.device(kind).type == kind
    for word in arguments.QUANTIZE:
        arguments.check(quantize=word)
