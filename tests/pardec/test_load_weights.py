"""Weights replaced between requests: running requests stop, and nothing computed from the old weights is used again."""

from __future__ import annotations

import copy
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import pardec
from pardec.models.errors import ModelError, SpecError
from pardec.models.load import load
from pardec.models.loading.update import load_weights
from pardec.samplers.speculative.draft.layerskip import shared_search
from tests.models import llamagen_files
from tests.models.adapters import pairs, write_adapter
from tests.models.toys import llama_config, llama_folder, llama_tensors, write_checkpoint
from tests.models.traced import captured

IDS = torch.arange(5, 13)[None]
OTHER = llama_tensors(llama_config(), seed=8)


@pytest.fixture
def base(tmp_path: Path) -> Path:
    return llama_folder(tmp_path / "base")


@pytest.fixture
def fresh(tmp_path: Path) -> pardec.Model:
    return pardec.load(write_checkpoint(tmp_path / "other", llama_config(), OTHER), device="cpu")


def test_a_request_under_way_raises_at_its_next_step(base: Path, fresh: pardec.Model) -> None:
    model = pardec.load(base, device="cpu")
    arguments: dict[str, Any] = {"input_ids": IDS, "max_new_tokens": 8, "stop_ids": []}
    events = model.stream(**arguments)
    for _ in range(3):
        next(events)
    model.load_weights(OTHER)
    with pytest.raises(ModelError, match=r"were replaced after this request was prepared \(version 0, now 1\)"):
        next(events)
    assert model.generate(**arguments).tokens == fresh.generate(**arguments).tokens


def test_a_callback_that_replaces_weights_ends_its_request(base: Path) -> None:
    model = pardec.load(base, device="cpu")
    with pytest.raises(ModelError, match="were replaced"):
        model.generate(input_ids=IDS, max_new_tokens=8, stop_ids=[], callback=lambda event: model.load_weights(OTHER))


def test_a_refused_call_leaves_requests_under_way_alone(base: Path) -> None:
    model = pardec.load(base, device="cpu")
    arguments: dict[str, Any] = {"input_ids": IDS, "max_new_tokens": 8, "stop_ids": []}
    expected = model.generate(**arguments).tokens
    events = model.stream(**arguments)
    next(events)
    with pytest.raises(ModelError, match="missing"):
        model.load_weights({})
    *_, end = events
    assert end.tokens[0, IDS.shape[1] :].tolist() == expected[0]  # type: ignore[union-attr]


def test_a_batch_that_is_served_raises_and_the_next_uses_the_new_weights(base: Path, fresh: pardec.Model) -> None:
    model = pardec.load(base, device="cpu")
    prompts = [{"input_ids": IDS[0, : 3 + index], "max_new_tokens": 2 + 3 * index} for index in range(4)]
    rows = model.serve_batch(prompts, batch_size=2, stop_ids=[])
    next(rows)
    model.load_weights(OTHER)
    with pytest.raises(ModelError, match="were replaced"):
        list(rows)
    ours, theirs = (
        {row.index: row.tokens for row in each.serve_batch(prompts, batch_size=2, stop_ids=[])}
        for each in (model, fresh)
    )
    assert ours == theirs


def test_the_conditions_of_an_image_prepared_before_are_not_used(tmp_path: Path) -> None:
    file = llamagen_files.write(tmp_path, llamagen_files.tensors(), llamagen_files.ARGUMENTS)
    model = pardec.load(file, device="cpu")
    call = model.prepare(label=[1])
    model.load_weights(file)
    with pytest.raises(ModelError, match="were replaced after this request was prepared"):
        list(model.run(call))


def test_captured_forwards_read_the_new_weights(base: Path, fresh: pardec.Model) -> None:
    """A captured graph reads the memory of the weights that it was made with: new ones have graphs of their own."""
    model = pardec.Model(captured(load(base, device="cpu")))
    arguments: dict[str, Any] = {"input_ids": IDS, "max_new_tokens": 8, "stop_ids": []}
    for _ in range(2):  # the second time, every shape has come before
        model.generate(**arguments)
    runner: Any = model.language_model.decoder
    model.load_weights(OTHER)
    before = runner.counts + runner.step_counts
    for _ in range(2):
        assert model.generate(**arguments).tokens == fresh.generate(**arguments).tokens
    after = runner.counts + runner.step_counts
    assert {how for how, count in after.items() if count > before[how]} >= {"recorded", "replayed"}


@pytest.mark.parametrize("sampler", ["eagle:name=tiny-llama-eagle", "dflash:name=tiny-llama-dflash"])
def test_draft_modules_are_bound_again_to_the_new_head(sampler: str, tmp_path: Path) -> None:
    model = pardec.load("tiny-llama", device="cpu")
    assert model.path is not None
    new = {name: value * 1.25 for name, value in load_file(model.path / "model.safetensors").items()}
    arguments: dict[str, Any] = {"prompt": "Tom has 3 cups.", "max_new_tokens": 12, "sampler": sampler}
    model.generate(**arguments)
    first = next(iter(model.language_model.draft_modules.values()))
    model.load_weights(new)
    config = json.loads((model.path / "config.json").read_text())
    other = pardec.Model(load(write_checkpoint(tmp_path / "new", config, new), device="cpu"))
    ids = torch.tensor([model.tokenizer(arguments.pop("prompt"))["input_ids"]])
    ours, theirs = (each.generate(input_ids=ids, **arguments) for each in (model, other))
    assert (ours.tokens, ours.nfe) == (theirs.tokens, theirs.nfe)
    assert next(iter(model.language_model.draft_modules.values())) is not first


def test_a_search_for_layers_to_skip_begins_again(base: Path) -> None:
    model = load(base, device="cpu")
    first = shared_search(model, 0.5, 8)
    assert shared_search(model, 0.5, 8) is first
    load_weights(model, OTHER)
    assert shared_search(model, 0.5, 8) is not first


def test_results_and_descriptions_tell_the_version(base: Path) -> None:
    model = pardec.load(base, device="cpu")
    assert "weights_version" not in model.generate(input_ids=IDS, max_new_tokens=2).environment
    model.load_weights(OTHER)
    model.load_weights(base)
    assert model.generate(input_ids=IDS, max_new_tokens=2).environment["weights_version"] == "2"
    assert repr(model).endswith("weights version 2>")


def test_the_command_merges_an_adapter_and_records_it(cli: Callable[..., Any], tmp_path: Path) -> None:
    model = pardec.load("tiny-llama", device="cpu")
    assert model.path is not None
    modules = [f"model.layers.{layer}.self_attn.q_proj" for layer in (0, 1)]
    tuned = write_adapter(tmp_path / "tuned", pairs(load_file(model.path / "model.safetensors"), modules))
    prompt = ("generate", "tiny-llama", "-p", "Tom has 3 cups.", "-n", "12", "--device", "cpu", "--json")
    code, out, _ = cli(*prompt, "--adapter", tuned)
    assert code == 0
    ours = pardec.load("tiny-llama", device="cpu", adapter=tuned).generate("Tom has 3 cups.", max_new_tokens=12)
    document = json.loads(out)
    assert document["model"] == ours.model == "tiny-llama+tuned"
    assert document["rows"][0]["tokens"] == ours.tokens[0]
    assert ours.tokens != model.generate("Tom has 3 cups.", max_new_tokens=12).tokens
    code, _, err = cli(*prompt, "--adapter", tmp_path)
    assert code != 0
    assert "is no adapter: it has no adapter_config.json" in err


def test_a_comparison_takes_an_adapter(tmp_path: Path) -> None:
    model = pardec.load("tiny-llama", device="cpu")
    assert model.path is not None
    modules = ["model.layers.0.self_attn.q_proj"]
    tuned = write_adapter(tmp_path / "tuned", pairs(load_file(model.path / "model.safetensors"), modules))
    arguments: dict[str, Any] = {"limit": 1, "references": False, "max_new_tokens": 4, "replays": 0}
    for more in ({}, {"adapter": str(tuned)}):
        table = pardec.compare("tiny-llama", "arithmetic", "sequential", device="cpu", **arguments, **more)
        assert table.run.config.get("adapter") == more.get("adapter")


def test_rows_of_a_comparison_are_not_resumed_with_other_weights(tmp_path: Path) -> None:
    model = pardec.load("tiny-llama", device="cpu")
    assert model.path is not None
    arguments: dict[str, Any] = {"limit": 1, "references": False, "max_new_tokens": 4, "replays": 0, "out": tmp_path}
    pardec.compare(model, "arithmetic", "sequential", **arguments)
    model.load_weights(model.path)
    with pytest.raises(SpecError, match="weights_version"):
        pardec.compare(model, "arithmetic", "sequential", resume=True, **arguments)


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))], ids=["copy", "pickle"]
)
def test_a_copy_of_a_used_model_has_its_own_weights(
    base: Path, fresh: pardec.Model, copied: Callable[[pardec.Model], pardec.Model]
) -> None:
    arguments: dict[str, Any] = {"input_ids": IDS, "max_new_tokens": 8, "stop_ids": []}
    model = pardec.load(base, device="cpu")
    tokens = model.generate(**arguments).tokens
    other = copied(model)
    assert other.generate(**arguments).tokens == tokens
    other.load_weights(OTHER)
    assert other.generate(**arguments).tokens == fresh.generate(**arguments).tokens != tokens
    assert model.generate(**arguments).tokens == tokens
