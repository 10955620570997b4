"""Short trainings of every kind: the loss falls, a resumed run equals an uninterrupted one, published tensor names."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

import pardec
from pardec.models.draft_modules.dflash import DFlashModule
from pardec.models.draft_modules.load import load_draft_module
from pardec.models.errors import ModelError
from pardec.models.plan import Plan as Queries
from pardec.models.plan import Visible
from pardec.training.losses import loss
from pardec.training.networks import KINDS, Options, Target
from pardec.training.run import Plan, Run
from pardec.training.states import States
from pardec.training.texts import Writing, rows, write

TAPS = (0, 1, 2)
SHAPE = {"heads": 2, "rank": 4, "block": 4, "unroll": 2, "mlp_width": 64, "mask_id": 4}
LAYER = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"]
LAYER += ["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj", "post_attention_layernorm", "input_layernorm"]
NAMES = {
    "eagle": {"fc.weight", "norm.weight", "d2t", "t2d", "midlayer.hidden_norm.weight"}
    | {f"midlayer.{name}.weight" for name in LAYER},
    "medusa": {f"{head}.{part}" for head in (0, 1) for part in ("0.linear.weight", "0.linear.bias", "1.weight")},
    "hydra": {
        f"{stem}.{part}"
        for head in (0, 1)
        for stem in (f"hydra_mlp.{head}.0.linear", f"hydra_mlp.{head}.0.res_connection", f"hydra_lm_head.{head}")
        for part in ("weight", "bias")
    },
    "dflash": {"fc.weight", "hidden_norm.weight", "norm.weight", "d2t", "t2d"}
    | {f"layers.0.{name}.weight" for name in [*LAYER, "self_attn.q_norm", "self_attn.k_norm"]},
    "prompts": {"prompt_embeddings"},
    "idlm": {
        f"base_model.model.model.layers.{layer}.{name}.lora_{half}.weight"
        for layer in range(4)
        for name in LAYER[:7]
        for half in "AB"
    },
    "mtp": {f"model.layers.4.{name}.weight" for name in [*LAYER, "enorm", "hnorm", "eh_proj", "shared_head.norm"]},
    "kangaroo": {"norm.weight", "layers.0.input_layernorm.weight"} | {f"layers.0.{name}.weight" for name in LAYER[:4]},
}


@pytest.fixture(scope="module")
def states(model: pardec.Model, tmp_path_factory: pytest.TempPathFactory) -> States:
    folder = tmp_path_factory.mktemp("texts")
    how = Writing(folder / "texts.jsonl", rows=32, batch=32, answer_tokens=16, tasks=("lists",))
    write(model, how)
    states = States(folder / "states", TAPS, model.network)
    states.update({"texts.jsonl": list(rows([how.out]))}, 200)
    return states


def start(kind: str, model: pardec.Model, states: States, folder: Path, name: str = "drafter") -> Run:
    vocab = 120 if kind in ("eagle", "dflash") else None
    shape = Options(**SHAPE, vocab=vocab, ramp=(0.0, 0.5))
    plan = Plan(
        kind, name, folder / "out", folder / name, shape, steps=20, batch=200, rate=3e-3, validation=6, drafts=3
    )
    return Run(Target(model.network), states, plan)


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_falls_a_resumed_run_is_the_whole_one_and_the_export_loads(
    kind: str, model: pardec.Model, states: States, tmp_path: Path
) -> None:
    run = start(kind, model, states, tmp_path)
    batch = states.batch(run.learning[:12])

    def error() -> float:
        with torch.no_grad():
            return float(run.network.loss(batch, loss("fkl"), torch.Generator().manual_seed(0))[0])

    run.network.progress = 1.0
    before = error()
    run.train()
    assert error() < before

    parts = start(kind, model, states, tmp_path, "parts")
    while parts.step < 3:
        parts.take()
    parts.save()
    resumed = start(kind, model, states, tmp_path, "parts")
    assert resumed.step == 3
    resumed.train()
    for name, value in run.average.items():
        assert torch.equal(resumed.average[name], value), name

    network = run.network
    with safe_open(tmp_path / "out" / network.file, "pt") as file:
        assert set(file.keys()) == NAMES[kind]
    card = json.loads((tmp_path / "out" / "card.json").read_text())
    assert card["recipe"]["steps"] == 20
    assert 1 <= card["acceptance"]["length"] <= 4
    assert (tmp_path / "out" / "README.md").read_text().startswith("# parts")
    module = load_draft_module(tmp_path / "out", model.network, kind=kind)
    assert module.kind == kind
    if network.ids is not None:
        assert module.vocabulary.tolist() == network.ids.tolist()


@pytest.mark.parametrize("kind", ["dflash", "prompts", "idlm"])
def test_the_loss_compares_drafts_with_what_the_target_says_of_the_same_token(
    kind: str, model: pardec.Model, states: States, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each pair of a drafted token and the target's is that of a chain: drafts at t are of the tokens from t + 2 on."""
    network = start(kind, model, states, tmp_path).network
    batch, pairs = states.batch(states.texts[:8]), []

    def compare(rows: Tensor, head: Tensor, normed: Tensor, best: Tensor, *more: Any) -> tuple[Tensor, float]:
        drafts = (rows @ head.T).argmax(-1)
        drafts = drafts if network.ids is None else network.ids[drafts]
        pairs.append(set(zip(drafts.tolist(), best.tolist(), strict=True)))
        return torch.zeros(()), 0.0

    monkeypatch.setattr(network, "compare", compare)
    with torch.no_grad():
        network.loss(batch, loss("fkl"), torch.Generator().manual_seed(0))
    chain = network.chain(batch, len(pairs))
    for depth, found in enumerate(pairs):
        best = batch.best[:, 1 + depth :]
        assert found
        assert found <= set(
            zip(chain[:, : best.shape[1], depth].flatten().tolist(), best.flatten().tolist(), strict=True)
        )


@pytest.mark.parametrize(("kind", "layer"), [("dflash", 3), ("mtp", 3), ("kangaroo", 1)])
def test_a_layer_begins_as_one_of_the_target(
    kind: str, layer: int, model: pardec.Model, states: States, tmp_path: Path
) -> None:
    run = start(kind, model, states, tmp_path)
    own: Any = run.network.layers[0] if kind == "dflash" else run.network
    for name in "qkv":
        assert torch.equal(getattr(own, name), run.target.layer(layer)[f"{name}_proj"]), name


def test_a_state_that_lacks_a_part_is_refused(model: pardec.Model, states: States, tmp_path: Path) -> None:
    run = start("medusa", model, states, tmp_path)
    run.save()
    file = run.state / "state.pt"
    stored = torch.load(file, weights_only=True)
    del stored["optimizers"]
    torch.save(stored, file)
    with pytest.raises(ModelError, match="written by another version: it has no optimizers"):
        start("medusa", model, states, tmp_path)


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("kind", "hydra"),
        ("optimizer", "muon"),
        ("weight_decay", 0.5),
        ("init", "other"),
        ("heads", 1),
        ("start", "random"),
    ],
)
def test_a_run_is_resumed_with_its_own_options(
    option: str, value: Any, model: pardec.Model, states: States, tmp_path: Path
) -> None:
    run = start("medusa", model, states, tmp_path)
    run.save()
    file = run.state / "state.pt"
    stored = torch.load(file, weights_only=True)
    before = getattr(run.plan if hasattr(run.plan, option) else run.plan.network, option)
    name = option.replace("weight_decay", "weight decay")
    stored["settings"][name] = str(value)
    torch.save(stored, file)
    with pytest.raises(ModelError, match=f"is of a run with {name} {value}, and this one asks for {before}"):
        start("medusa", model, states, tmp_path)


def test_the_commonest_ids_are_drafted_and_the_end_token_is_one(
    model: pardec.Model, states: States, tmp_path: Path
) -> None:
    ids = start("eagle", model, states, tmp_path).network.ids
    assert len(ids) == 120
    assert set(model.network.decoding_config.eos_ids) <= set(ids.tolist())
    counts = states.counts(model.network.vocab_size)
    rest = [int(count) for at, count in enumerate(counts) if at not in set(ids.tolist())]
    assert max(rest) <= min(int(counts[at]) for at in ids.tolist() if at not in (3,))


def test_a_dflash_of_a_target_that_scales_embeddings_trains_as_it_drafts(
    model: pardec.Model, states: States, tmp_path: Path
) -> None:
    target = replace(model.network, embedding_scale=4.0)
    network = KINDS["dflash"](Target(target), Options(**SHAPE))
    config, tensors = network.export()
    save_file(
        {name: tensor.detach().float().clone() for name, tensor in tensors.items()}, tmp_path / "model.safetensors"
    )
    (tmp_path / "config.json").write_text(json.dumps(config))
    module = load_draft_module(tmp_path, target, kind="dflash")
    assert isinstance(module, DFlashModule)
    batch, anchor = states.batch(states.texts[:1]), 3
    with torch.inference_mode():
        trained = network._blocks(batch, torch.tensor([[anchor]]))[0, 0, 1:]
        cache, context = module.new_cache(1, anchor), batch.taps[:, :anchor].flatten(2)
        place = torch.arange(anchor)[None]
        module.remember(
            module.fuse(context),
            Queries(place, place, place, Visible.bidirectional(), torch.tensor([anchor]), place),
            cache,
        )
        order = torch.arange(4)[None]
        tokens = torch.tensor([[int(batch.ids[0, anchor]), *[SHAPE["mask_id"]] * 3]])
        slots = order + anchor
        drafted = module.run(
            Queries(tokens, slots, slots, Visible.bidirectional(), torch.tensor([anchor + 4]), order), cache, 3
        )[0]
    torch.testing.assert_close(drafted.float(), trained.float(), rtol=0.02, atol=0.03)
