from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

import pardec
from pardec.models.errors import CapacityError, ModelError
from pardec.models.hf import attention
from pardec.models.hf.causal_lm import HFAdapter
from pardec.models.load import load
from pardec.models.plan import Plan, Visible
from tests.models.toys import SMALL, ask, library_model, rewrite

BASE = {**SMALL, "pad_token_id": 0}
GPT2 = {
    "vocab_size": 61, "n_embd": 48, "n_layer": 2, "n_head": 4, "n_positions": 24, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
RUN: dict[str, tuple[str, dict[str, Any], int | None]] = {
    "partial rotation, parallel blocks": ("GPTNeoX", BASE | {"rotary_pct": 0.25}, None),
    "another query scale": ("Granite", BASE | {"attention_multiplier": 0.5}, None),
    "phi": ("Phi", BASE, None),
    "sliding window": ("Starcoder2", BASE | {"num_key_value_heads": 2, "sliding_window": 20}, 20),
    "learned positions": ("GPT2", GPT2, 24),
    "scaled logits": ("Granite", BASE | {"logits_scaling": 3.0}, None),
    "experts": ("Mixtral", BASE | {"num_key_value_heads": 2, "num_local_experts": 4}, None),
    "an activation the native stack lacks": ("Llama", BASE | {"hidden_act": "relu"}, None),
    "a rotary scaling the native stack lacks": (
        "Llama",
        BASE | {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}},
        64,
    ),
}
REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "alibi": ("Bloom", {"vocab_size": 61, "hidden_size": 48, "n_layer": 2, "n_head": 4}, "AttentionInterface"),
    "state space": ("Mamba", {"vocab_size": 61, "hidden_size": 48, "num_hidden_layers": 2}, "layers of kind"),
    "keys wider than values": ("DeepseekV3", BASE | {"num_key_value_heads": 4}, "keys and values differ in size"),
    "an encoder": ("Bert", BASE, "its logits with .* differ"),
}


def published(kind: str, settings: dict[str, Any], folder: Any) -> Any:
    model = library_model(getattr(transformers, f"{kind}Config")(**settings))
    model.save_pretrained(folder)
    return model


@pytest.mark.parametrize("case", RUN)
def test_the_logits_are_those_of_the_library(case, tmp_path):
    kind, settings, limit = RUN[case]
    reference = published(kind, settings, tmp_path)
    model = load(tmp_path, device="cpu")
    assert model.family.startswith("transformers ")
    assert model.limit == limit
    assert (
        model.decoding_config.shift,
        model.decoding_config.attention,
        model.decoding_config.mask_id,
        model.decoding_config.eos_ids,
    ) == (1, "causal", None, (2,))
    tokens = torch.randint(3, 61, (3, 18), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = reference(tokens).logits
    close = {"rtol": 1e-4, "atol": 2e-5}
    torch.testing.assert_close(model.forward(Plan.full(tokens, model.visible())).logits(), expected, **close)
    lengths = torch.tensor([14, 9, 1])
    cache = model.new_cache(3, 18)
    out = model.forward(Plan.full(tokens[:, :14], model.visible(), lengths), cache).logits()
    for row, length in enumerate(lengths.tolist()):
        torch.testing.assert_close(out[row, :length], expected[row, :length], **close)
    for step in range(3):
        at = (lengths + step)[:, None]
        found = model.forward(ask(tokens.gather(1, at), at, model.visible(), at[:, 0] + 1), cache).logits()
        torch.testing.assert_close(found[:, 0], expected[range(3), at[:, 0]], **close)


@pytest.mark.parametrize("case", REFUSED)
def test_models_that_would_be_run_wrongly_are_refused_by_name(case, tmp_path):
    kind, settings, message = REFUSED[case]
    published(kind, settings, tmp_path / "mine")
    with pytest.raises(ModelError, match=rf"mine \({kind}\w+\) cannot be run: .*{message}") as error:
        load(tmp_path / "mine", device="cpu")
    assert error.value.hint


@pytest.fixture(scope="module")
def phi(tmp_path_factory):
    folder = tmp_path_factory.mktemp("phi")
    published("Phi", BASE, folder)
    return load(folder, device="cpu")


def test_a_tree_draft_goes_through_the_library_as_well(phi):
    prompt = torch.arange(3, 9)[None]
    nodes, parents = torch.tensor([[10, 11, 12, 13]]), torch.tensor([-1, 0, 0, 2])
    cache = phi.new_cache(1, 12)
    phi.forward(Plan.full(prompt, phi.visible()), cache)
    base = torch.tensor([6])
    slots = base + torch.arange(4)[None]
    positions = base + torch.tensor([[0, 1, 1, 2]])
    out = phi.forward(ask(nodes, positions, Visible.tree(parents, base), base + 4, slots=slots), cache).logits()
    for path in ([0, 1], [0, 2, 3]):
        chain = torch.cat((prompt[0], nodes[0, path]))[None]
        expected = phi.forward(Plan.full(chain, phi.visible())).logits()[0, 6:]
        torch.testing.assert_close(out[0, path], expected, rtol=1e-4, atol=1e-5)


def test_soft_rows_and_taps_work_and_partial_passes_are_refused(phi):
    plan = Plan.full(torch.arange(3, 9)[None], phi.visible())
    out = phi.forward(replace(plan, hidden=(0,)))
    assert out.taps[0].shape == out.states.shape
    table = phi.decoder.model.get_input_embeddings().weight
    soft = table[plan.tokens + 1] - table[plan.tokens]
    moved = phi.forward(replace(plan, soft=soft)).logits()
    torch.testing.assert_close(moved, phi.forward(replace(plan, tokens=plan.tokens + 1)).logits(), rtol=1e-4, atol=1e-5)
    for change in ({"layers": slice(0, 1)}, {"skip": frozenset({(0, "mlp")})}, {"hidden": (1,)}):
        with pytest.raises(ModelError, match="runs through transformers"):
            phi.forward(replace(plan, **change))


def test_missing_and_surplus_tensors_are_named(tmp_path):
    published("Phi", BASE, tmp_path)
    for changes, message in (
        ({"num_hidden_layers": 3}, r"missing: .*model\.layers\.2\."),
        ({"num_hidden_layers": 1}, r"not known: .*model\.layers\.1\."),
        ({"num_hidden_layers": 2, "intermediate_size": 81}, "transformers cannot load"),
    ):
        with pytest.raises(ModelError, match=message):
            load(rewrite(tmp_path, **changes), device="cpu")


def test_layers_for_multi_token_prediction_are_left_out(tmp_path):
    """GLM-4.5 has one after its last layer, with experts of its own; transformers leaves out those of two sizes."""
    settings = {"num_key_value_heads": 2, "head_dim": 12, "n_routed_experts": 4, "num_experts_per_tok": 2}
    reference = published("Glm4Moe", BASE | settings, tmp_path)
    plain = load(tmp_path, device="cpu")
    state = load_file(tmp_path / "model.safetensors")
    last, after = (f"model.layers.{reference.config.num_hidden_layers - each}." for each in (1, 0))
    state |= {name.replace(last, after): tensor.clone() for name, tensor in state.items() if name.startswith(last)}
    state |= {f"{after}eh_proj.weight": torch.ones(48, 96), f"{after}shared_head.norm.weight": torch.ones(48)}
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    plan = Plan.full(torch.arange(3, 27).view(2, 12), Visible.causal())
    assert torch.equal(load(tmp_path, device="cpu").forward(plan).logits(), plain.forward(plan).logits())
    save_file(state | {f"{after[:-2]}9.x": torch.ones(1)}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"1 not known: model\.layers\.9\.x"):
        load(tmp_path, device="cpu")
    save_file(state, tmp_path / "model.safetensors", metadata={"format": "pt"})
    rewrite(tmp_path, num_hidden_layers=reference.config.num_hidden_layers + 1)  # it would be one of the model's
    with pytest.raises(ModelError, match=r"2 not known: .*eh_proj"):
        load(tmp_path, device="cpu")


def test_a_config_that_its_own_class_cannot_run_is_refused(tmp_path):
    published("Qwen2", BASE, tmp_path)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    kinds = ["chunked_attention"] * config["num_hidden_layers"]
    file.write_text(json.dumps(config | {"layer_types": kinds, "attention_chunk_size": 8}))
    with pytest.raises(ModelError, match="its own forward fails: 'chunked_attention'"):
        load(tmp_path, device="cpu")


def test_arguments_of_masked_models_and_long_inputs_are_refused(tmp_path):
    published(*RUN["sliding window"][:2], tmp_path)
    with pytest.raises(ModelError, match="mask_id=4 was given, but .* runs through transformers"):
        load(tmp_path, device="cpu", mask_id=4)
    model = load(tmp_path, device="cpu", dtype="bfloat16")
    assert model.dtype == torch.bfloat16
    with pytest.raises(CapacityError, match="up to 20 positions, and 21"):
        model.new_cache(1, 21)


def test_what_queries_attend_to_is_not_returned(tmp_path):
    published("Granite", BASE | {"attention_multiplier": 0.5}, tmp_path)
    toy = load(tmp_path, device="cpu", dtype="float32")
    plan = replace(Plan.full(torch.tensor([[5, 6, 7]]), Visible.causal()), attention=(0,))
    with pytest.raises(ModelError, match="does not return attention weights"):
        toy.forward(plan)


LLAMA4 = BASE | {
    "num_key_value_heads": 2,
    "head_dim": 12,
    "intermediate_size_mlp": 80,
    "num_local_experts": 2,
    "num_experts_per_tok": 1,
    "moe_layers": [1],
    "attention_chunk_size": 64,
    "no_rope_layers": [1, 0],
    "attn_temperature_tuning": True,
    "attn_scale": 2.0,
}


@pytest.mark.parametrize("floor_scale", [3, 20])
def test_positions_are_those_of_the_text_where_the_library_counts_them_from_its_cache(
    floor_scale, tmp_path, monkeypatch
):
    """Llama 4 scales queries by position; with a floor of 20, the first probe of 12 tokens cannot detect it."""
    reference = published("Llama4Text", LLAMA4 | {"floor_scale": floor_scale}, tmp_path / "mine")
    model = pardec.load(tmp_path / "mine", device="cpu", dtype="float32")
    prompts = [[3, 14, 15, 9, 26, 5, 3], [2, 7, 18]]
    more = {"max_new_tokens": 24, "stop_ids": []}
    for sampler in ("sequential", "lookup"):
        for prompt, tokens in zip(
            prompts, model.generate(input_ids=prompts, sampler=sampler, **more).tokens, strict=True
        ):
            expected = reference.generate(
                torch.tensor([prompt]), max_new_tokens=24, do_sample=False, eos_token_id=None, pad_token_id=0
            )
            assert tokens == expected[0, len(prompt) :].tolist()
    monkeypatch.setattr(attention, "_tempered", lambda module, query, plan: query)
    with pytest.raises(ModelError, match=r"mine \(Llama4\w+\) cannot be run: .*its logits with .* differ"):
        load(tmp_path / "mine", device="cpu")


def test_a_model_that_reads_no_positions_later_on_is_refused(tmp_path, monkeypatch):
    published("Phi", BASE, tmp_path / "mine")
    run = HFAdapter._run

    def from_the_first_block(self, plan, cache):
        return run(self, replace(plan, positions=plan.positions.clamp(max=20)), cache)

    monkeypatch.setattr(HFAdapter, "_run", from_the_first_block)
    with pytest.raises(ModelError, match=r"cannot be run: from position 32 on, .*its logits with .* differ"):
        load(tmp_path / "mine", device="cpu")


@pytest.mark.parametrize(
    ("kind", "stray"),
    [
        ("Phi", {"logit_scale": 0.3, "logits_scaling": 5.0}),
        ("Granite", {"logits_scaling": 3.0, "final_logit_softcapping": 2.0}),
        ("Cohere", {"logit_scale": 0.5, "logits_scaling": 5.0}),
    ],
)
def test_scales_of_logits_that_the_class_does_not_read_are_ignored(kind, stray, tmp_path):
    published(kind, BASE, tmp_path)
    rewrite(tmp_path, **stray)
    reference = transformers.AutoModelForCausalLM.from_pretrained(tmp_path).eval()
    tokens = torch.randint(3, 61, (2, 18), generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = reference(tokens).logits
    model = load(tmp_path, device="cpu")
    torch.testing.assert_close(
        model.forward(Plan.full(tokens, model.visible())).logits(), expected, rtol=1e-4, atol=2e-5
    )
