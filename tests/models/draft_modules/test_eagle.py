"""EAGLE folders of every layout, written independently of the loader, against the formulas in float64; refusals."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from pardec.models.draft_modules.eagle_check import agreement
from pardec.models.draft_modules.load import load_draft_module
from pardec.models.errors import ModelError
from pardec.models.layers.rope import Rope
from pardec.models.model import LanguageModel
from pardec.models.plan import Plan, Visible
from tests.reference import naive_eagle
from tests.reference.eagle_folders import write
from tests.samplers.ar_toys import toy_ar

VOCAB = 40
TOKENS = [3, 17, 39, 0, 8, 8, 21]


def without(name: str) -> Any:
    return lambda tensors, config: tensors.pop(name)


def without_key(name: str) -> Any:
    return lambda tensors, config: config.pop(name)


EVERY: dict[str, tuple[str, dict[str, Any]]] = {
    "EAGLE-1": ("eagle", {"embedding": True}),
    "EAGLE-1 without a bias": ("eagle", {"bias": False, "qkv_bias": True}),
    "EAGLE-1, two layers, grouped heads, another base": (
        "eagle",
        {"layers": 2, "heads": 4, "kv_heads": 2, "rope_theta": 5e5, "rms_norm_eps": 1e-2},
    ),
    "EAGLE-1 of the speculators library": ("old", {}),
    "EAGLE-1 of the speculators library without a bias": ("old", {"bias": False, "embedding": True}),
    "FSPAD": ("fspad", {}),
    "Dovetail": ("gated", {}),
    "Dovetail, two layers": ("gated", {"layers": 2}),
    "EAGLE-3": ("eagle3", {"draft": 15}),
    "EAGLE-3 of the whole vocabulary": ("eagle3", {"embedding": True}),
    "EAGLE-3 with the target's head": ("eagle3", {"draft": 15, "tie_word_embeddings": True}),
    "EAGLE-3 with all of the target's head": ("eagle3", {"tie_word_embeddings": True}),
    "EAGLE-3 without a head": ("eagle3", {"tie_word_embeddings": True, "change": without_key("tie_word_embeddings")}),
    "EAGLE-3 of ids that only d2t counts": ("eagle3", {"draft": 15, "change": without_key("draft_vocab_size")}),
    "EAGLE-3 with biases, grouped heads, and an epsilon": (
        "eagle3",
        {"draft": 20, "attention_bias": True, "heads": 4, "kv_heads": 1, "rms_norm_eps": 1e-2, "rope_theta": 1e6},
    ),
    "EAGLE-3 with its own width": (
        "eagle3",
        {"draft": 20, "width": 24, "target_hidden_size": 16, "embedding": True, "head_dim": 10},
    ),
    "SpecForge with fc_norm": ("eagle3", {"draft": 20, "fc_norm": True, "norm_output": True}),
    "speculators": ("speculators", {"draft": 15, "embedding": True}),
    "speculators, norm before the residual": ("speculators", {"draft": 15, "norm_before_residual": True}),
    "speculators, norm before fc": ("speculators", {"norm_before_fc": True, "norm_before_residual": True}),
    "speculators, norms of each state, output fed back normed": (
        "speculators",
        {"draft": 15, "fc_norm": True, "norm_output": True},
    ),
    "speculators, three layers": ("speculators", {"draft": 15, "layers": 3, "norm_output": True}),
    "speculators, all layers slide": (
        "speculators",
        {"draft": 15, "layers": 2, "layer_types": ["sliding_attention"] * 2, "sliding_window": 3, "window": 3},
    ),
    "speculators, Qwen3 that slides": (
        "speculators",
        {"draft": 15, "qk_norm": True, "use_sliding_window": True, "layer_types": ["sliding_attention"]}
        | {"sliding_window": 2, "window": 2},
    ),
    "speculators, a window that no layer has": ("speculators", {"draft": 15, "sliding_window": 3}),
    "speculators, Qwen3 with a window that is off": (
        "speculators",
        {"draft": 15, "qk_norm": True, "use_sliding_window": False, "sliding_window": 3},
    ),
    "EAGLE-3, whose authors know no window": (
        "eagle3",
        {"draft": 15, "sliding_window": 3, "layer_types": ["sliding_attention"]},
    ),
    "speculators, Qwen3": ("speculators", {"draft": 15, "qk_norm": True, "head_dim": 6, "heads": 4, "kv_heads": 2}),
}


@contextmanager
def doubles() -> Iterator[None]:
    """Makes rotary embeddings float64; pardec computes them in float32 whatever the type."""

    def angles(self: Rope, positions: Tensor) -> tuple[Tensor, Tensor]:
        angle = positions[..., None].double() * self.frequencies.double()
        cos, sin = angle.cos(), angle.sin()
        return torch.cat((cos, cos), -1).unsqueeze(-2), torch.cat((-sin, sin), -1).unsqueeze(-2)

    def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        return x * cos + x.roll(x.shape[-1] // 2, -1) * sin

    with patch.object(Rope, "_angles", angles), patch("pardec.models.kernels.ops.apply_rotary", rotate):
        yield


def target(layers: int = 8, dtype: torch.dtype = torch.float64, width: int = 16) -> LanguageModel:
    return toy_ar(2, VOCAB, layers=layers, width=width, dtype=dtype)


def hidden(model: LanguageModel, module: Any, tokens: list[int]) -> Tensor:
    """[T, S]: the states of the target that the module reads."""
    plan = Plan.full(torch.tensor([tokens]), model.visible())
    result: Tensor = module.states.of(model.forward(replace(plan, hidden=module.states.layers)))[0]
    return result


def drafted(module: Any, tokens: list[int], features: Tensor) -> tuple[Tensor, Tensor]:
    """States and logits after pairs: those of `features` [P, E] are fed in one pass, the others one by one."""
    cache, count = module.new_cache(1, len(tokens)), len(features)
    states, logits = [], []
    for start in [0, *range(count, len(tokens))]:
        stop = count if start == 0 else start + 1
        soft = features if start == 0 else states[-1][-1:]
        slots = torch.arange(start, stop)[None]
        order, lengths = torch.arange(stop - start)[None], torch.tensor([stop])
        plan = Plan(torch.tensor([tokens[start:stop]]), slots, slots, Visible.causal(), lengths, order, soft=soft[None])
        with torch.inference_mode():
            output = module.run(plan, cache)
        states.append(module.fed_back(output.states)[0])
        logits.append(output.logits()[0])
    return torch.cat(states), torch.cat(logits)


def same_rope(module: Any, flat: dict[str, Any]) -> None:
    """Sets the drafter's rotary frequencies to the config's in float64, after checking that they agree in float32."""
    dim = module.layers_config.head_dim
    exact = flat.get("rope_theta", 1e4) ** (-torch.arange(0, dim, 2, dtype=torch.float64) / dim)
    torch.testing.assert_close(module.rope.frequencies.double(), exact, rtol=1e-6, atol=0)
    module.rope.frequencies = exact


@pytest.mark.parametrize("name", EVERY)
def test_every_layout_is_its_formula(name: str, tmp_path: Path) -> None:
    layout, flags = EVERY[name]
    tensors, flat = write(tmp_path, layout, vocab=VOCAB, **flags)
    model = target()
    with doubles():
        module = load_draft_module(tmp_path, model, kind="eagle")
        same_rope(module, flat)
        known = hidden(model, module, TOKENS[:5])
        fused = module.fuse(known)
        third = layout in ("eagle3", "speculators")
        if third:
            epsilon = flat.get("rms_norm_eps", 1e-6)
            torch.testing.assert_close(fused, naive_eagle.fuse(tensors, known, flat, epsilon), rtol=1e-10, atol=1e-10)
            assert module.states.layers == (1, 3, 4)
        else:
            assert module.states.normed
            torch.testing.assert_close(fused, known, rtol=0, atol=0)
        states, logits = drafted(module, TOKENS[1:], fused[:4])
    own = layout in ("eagle3", "speculators") and "embed_tokens.weight" in tensors
    embedding = tensors["embed_tokens.weight"] if own else model.decoder.embedding
    flags = {**flat, **flags, "norm_output": flags.get("norm_output") and layout == "speculators"}
    expected, heads = naive_eagle.draft(tensors, embedding, TOKENS[1:], fused[:4], flat, flags)
    torch.testing.assert_close(states, expected, rtol=1e-10, atol=1e-10)
    head = tensors.get("lm_head.weight")
    ids = torch.arange(len(tensors["d2t"])) + tensors["d2t"] if "d2t" in tensors else torch.arange(VOCAB)
    wanted = torch.full((len(states), VOCAB), -torch.inf, dtype=torch.float64)
    wanted[:, ids] = heads @ (model.decoder.head.weight[ids] if head is None else head).T
    torch.testing.assert_close(logits, wanted.float(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("pickled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_files_are_read_in_the_targets_type(pickled: bool, dtype: torch.dtype, tmp_path: Path) -> None:
    tensors, _ = write(tmp_path, "eagle3", vocab=VOCAB, draft=15, dtype=torch.float16, pickled=pickled)
    module: Any = load_draft_module(tmp_path, target(dtype=dtype))
    assert {weight.dtype for weight in module.parameters()} == {dtype}
    half = {name: tensor.half().to(dtype) for name, tensor in tensors.items()}
    assert torch.equal(module.head, half["lm_head.weight"])
    q, k, v = (half[f"midlayer.self_attn.{part}_proj.weight"] for part in "qkv")
    assert torch.equal(module.first.qkv_weight, torch.cat((q, k, v)))
    assert module.vocabulary.tolist() == (torch.arange(15) + tensors["d2t"]).tolist()


def test_what_loading_decided_is_said(tmp_path: Path) -> None:
    write(tmp_path, "speculators", vocab=VOCAB, draft=15, eagle_aux_hidden_state_layer_ids=[2, 4, 5])
    module = load_draft_module(tmp_path, target())
    assert module.about == (
        "EAGLE-3, speculators layout, 1 layer(s) of width 16",
        "reads the outputs of layers 1, 3, 4: top-level ids 2-4-5 are the default inputs",
        "drafts 15 of 40 ids",
    )
    assert load_draft_module(tmp_path, target(), taps="0-2-6").states.layers == (0, 2, 6)


def test_embeddings_and_heads_of_the_target_are_no_parameters_of_the_drafter(tmp_path: Path) -> None:
    model = target()
    tensors, _ = write(tmp_path / "a", "eagle3", vocab=VOCAB, draft=15, tie_word_embeddings=True)
    module = load_draft_module(tmp_path / "a", model)
    own = sum(tensor.numel() for tensor in tensors.values() if tensor.is_floating_point())
    assert (module.parameter_count, module.parameters_read) == (own, own + 15 * 16)

    def same(tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
        tensors["embed_tokens.weight"] = model.decoder.embedding.clone()

    tensors, _ = write(tmp_path / "b", "eagle3", vocab=VOCAB, draft=15, change=same)
    module = load_draft_module(tmp_path / "b", model)
    assert module.parameter_count == sum(each.numel() for each in tensors.values() if each.is_floating_point())
    assert "embed_tokens is the target's: shared" in module.about


@pytest.mark.parametrize("layout", ["eagle", "eagle3"])
def test_a_drafter_reads_the_embedding_as_stored_of_a_target_that_scales_it(layout: str, tmp_path: Path) -> None:
    model = replace(target(), embedding_scale=4.0)
    write(tmp_path, layout, vocab=VOCAB)
    module: Any = load_draft_module(tmp_path, model)
    assert torch.equal(module.embed(torch.tensor(TOKENS)), model.decoder.embedding[TOKENS])


def test_a_copy_of_the_embedding_is_not_read(tmp_path: Path) -> None:
    def damaged(tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
        tensors["embed_tokens.weight"] = torch.full((VOCAB, 16), torch.nan)

    write(tmp_path, "eagle", vocab=VOCAB, change=damaged)
    load_draft_module(tmp_path, target())


# --- refusals ---


def with_tensor(name: str, *shape: int) -> Any:
    return lambda tensors, config: tensors.update({name: torch.zeros(shape)})


def with_values(name: str, value: Any) -> Any:
    return lambda tensors, config: tensors.update({name: value(tensors)})


def in_gptq(tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
    tensors["fc.qweight"] = tensors.pop("fc.weight").int()
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}


def moved(tensors: dict[str, Tensor]) -> Tensor:
    offsets = tensors["d2t"].clone()
    offsets[2] += 1
    return offsets


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "another width": ("eagle3", {"width": 24, "target": 24, "draft": 15}, "reads states of width 24; those of toy"),
    "another width of EAGLE-1": ("eagle", {"width": 24}, "reads states of width 24"),
    "its own width without embeddings": (
        "eagle3",
        {"width": 24, "target_hidden_size": 16, "draft": 15},
        "has width 24 and toy 16, and no embed_tokens of its own",
    ),
    "its own width without a head": (
        "eagle3",
        {"width": 24, "target_hidden_size": 16, "draft": 15, "embedding": True, "tie_word_embeddings": True},
        "has width 24 and no lm_head.weight; the head of toy has 16 columns",
    ),
    "another vocabulary": ("eagle", {"vocab": 60}, "is for a vocabulary of 60 ids; toy has 40"),
    "no d2t": ("eagle3", {"draft": 15, "change": without("d2t")}, "lacks d2t, which says which 15 of 40 ids"),
    "d2t against t2d": ("eagle3", {"draft": 15, "change": with_values("d2t", moved)}, "disagree on 2 ids"),
    "t2d against d2t": (
        "eagle3",
        {"draft": 15, "change": with_values("t2d", lambda t: ~t["t2d"])},
        "d2t and t2d of .* disagree on",
    ),
    "d2t out of range": (
        "eagle3",
        {"draft": 15, "change": with_values("d2t", lambda t: t["d2t"] + 20)},
        "d2t of .* names .* ids that are none of toy's",
    ),
    "d2t that repeats": (
        "eagle3",
        {"draft": 15, "change": with_values("d2t", lambda t: -torch.arange(15))},
        "names 14 ids twice",
    ),
    "d2t of another length": (
        "eagle3",
        {"draft": 15, "change": with_values("d2t", lambda t: t["d2t"][:9])},
        "d2t of .* has 9 entries, but its head has 15 rows",
    ),
    "a head of another length": (
        "eagle3",
        {"draft": 15, "change": with_tensor("lm_head.weight", 14, 16)},
        "has 14 rows and its config says draft_vocab_size=15",
    ),
    "no head": ("eagle3", {"draft": 15, "change": without("lm_head.weight")}, "lacks lm_head.weight"),
    "a missing tensor": (
        "eagle3",
        {"draft": 15, "change": without("midlayer.mlp.up_proj.weight")},
        "1 missing: midlayer.mlp.up_proj.weight",
    ),
    "an unknown tensor": ("eagle", {"change": with_tensor("extra.weight", 3)}, "1 not known: extra.weight"),
    "a misshapen tensor": (
        "eagle",
        {"change": with_tensor("layers.0.self_attn.o_proj.weight", 16, 18)},
        r"1 of the wrong shape: layers.0.self_attn.o_proj.weight \[16, 18\] instead of \[16, 16\]",
    ),
    "HASS with norms": (
        "eagle",
        {"change": with_tensor("embedding_layernorm.weight", 16)},
        r"this variant of HASS \(layernorms\) is not supported",
    ),
    "a norm before the first layer": (
        "eagle",
        {"change": with_tensor("layers.0.input_layernorm.weight", 16)},
        "the first layer of an EAGLE has no norm before it",
    ),
    "fc_norm without its tensors": (
        "speculators",
        {"draft": 15, "change": lambda tensors, config: config.update(fc_norm=True)},
        "has fc_norm=True, and its file lacks fc_norm.0.weight",
    ),
    "tensors of fc_norm without the flag": (
        "speculators",
        {"draft": 15, "fc_norm": True, "change": lambda tensors, config: config.update(fc_norm=False)},
        "has fc_norm=False, and its file has fc_norm.0.weight",
    ),
    "tensors of fc_norm in SpecForge's layout, and a flag that says no": (
        "eagle3",
        {"draft": 15, "fc_norm": True, "change": lambda tensors, config: config.update(fc_norm=False)},
        "has fc_norm=False, and its file has fc_norm.0.weight",
    ),
    "layers with and without a window": (
        "speculators",
        {"draft": 15, "layers": 2, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 3},
        "names layers with and without a window",
    ),
    "layers of another model": (
        "speculators",
        {
            "draft": 15,
            "change": lambda tensors, config: config["transformer_layer_config"].update(
                model_type="mistral", sliding_window=3
            ),
        },
        "the layers of .* are those of 'mistral'",
    ),
    "heads that are rotated in part": (
        "speculators",
        {"draft": 15, "rope_scaling": {"rope_type": "default", "partial_rotary_factor": 0.5}},
        "has partial_rotary_factor=0.5, which is not supported",
    ),
    "another method": (
        "speculators",
        {"draft": 15, "change": lambda tensors, config: config.update(speculators_model_type="jetspec")},
        "another method: its config has speculators_model_type='jetspec'",
    ),
    "four bits": ("eagle3", {"draft": 15, "change": in_gptq}, "is quantized by 'gptq', which is not supported"),
    "both norms": ("speculators", {"draft": 15, "fc_norm": True, "norm_before_fc": True}, "both fc_norm and input_n"),
    "a weight that is not finite": (
        "eagle",
        {"change": with_values("fc.weight", lambda t: t["fc.weight"] / 0)},
        "cannot draft: its weight fc_weight holds NaN or infinity",
    ),
    "no sizes in the config": (
        "eagle",
        {"change": lambda tensors, config: config.pop("hidden_size")},
        "lacks hidden_size",
    ),
    "another number of taps": (
        "eagle3",
        {"draft": 15, "states": 2},
        "reads 2 states, and taps names 3 layers",
    ),
    "no third state": (
        "eagle3",
        {"draft": 15, "eagle_config": {"use_aux_hidden_state": False}},
        "use_aux_hidden_state is false",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_loaded_is_refused_by_name(name: str, tmp_path: Path) -> None:
    layout, flags, message = REFUSED[name]
    write(tmp_path, layout, **{"vocab": VOCAB, **flags})
    with pytest.raises(ModelError, match=message) as error:
        load_draft_module(tmp_path, target())
    assert "\n" not in str(error.value)


def test_folders_of_other_kinds_are_not_taken_for_eagle(tmp_path: Path) -> None:
    write(tmp_path, "speculators", vocab=VOCAB, draft=15, change=with_tensor("mask_hidden", 1, 1, 48))
    with pytest.raises(ModelError):
        load_draft_module(tmp_path, target(), kind="eagle")


def test_a_pickle_with_code_is_refused(tmp_path: Path) -> None:
    write(tmp_path, "eagle", vocab=VOCAB, pickled=True)
    torch.save({"fc.weight": print}, tmp_path / "pytorch_model.bin")
    with pytest.raises(ModelError, match="cannot be read as a dictionary of tensors"):
        load_draft_module(tmp_path, target())


# --- which of two readings drafts better ---


def test_the_better_reading_of_the_ids_is_named(tmp_path: Path) -> None:
    """The module's head repeats the last layer's state, so it is right only if that state is among the taps."""
    model = target()
    norm, head = model.decoder.norm.weight, model.decoder.head.weight

    def copying(tensors: dict[str, Tensor], config: dict[str, Any]) -> None:
        fc = torch.zeros(16, 48, dtype=torch.float64)
        fc[:, 32:] = torch.eye(16)  # the third state alone
        zero = {name for name in tensors if "o_proj" in name or "down_proj" in name}
        tensors |= {name: torch.zeros_like(tensors[name]) for name in zero}
        tensors |= {"fc.weight": fc, "norm.weight": norm.clone(), "lm_head.weight": head.clone()}

    ids = {"eagle_aux_hidden_state_layer_ids": [1, 3, 7]}
    write(tmp_path / "a", "speculators", vocab=VOCAB, change=copying, **ids)
    module: Any = load_draft_module(tmp_path / "a", model)
    assert (module.states.layers, module.taps.others) == ((0, 2, 6), (1, 3, 7))
    text = torch.randint(VOCAB, (1, 256), generator=torch.Generator().manual_seed(0))
    plan = Plan.full(text, model.visible())
    once = model.forward(plan).logits().argmax(-1)
    # The pair of token i + 1 has the state at i, whose prediction is token i + 1: a head that repeats it is right
    # where the target says the same twice.
    share = float((once[:, :-1] == once[:, 1:]).float().mean())
    found = agreement(module, text)
    assert found.other_share == pytest.approx(share, abs=1e-9)
    assert found.layers == (0, 2, 6)
    assert (found.warning is None) == (found.other_share < found.share + 0.05)
    worse = replace(found, share=0.5, other_share=0.56)
    assert worse.warning is not None
    assert "try taps=1-3-7" in worse.warning
    assert replace(worse, other_share=0.54).warning is None
    write(tmp_path / "b", "eagle", vocab=VOCAB)
    first: Any = load_draft_module(tmp_path / "b", model)
    assert agreement(first, text).warning is None
