"""DFlash, DFlash 2 and DSpark: parity with a plain module in float64, layouts and configs as published, refusals."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pardec.models.draft_modules.contracts import DraftFiles
from pardec.models.draft_modules.dflash import DFlashModule
from pardec.models.draft_modules.dflash_files import read_layout
from pardec.models.draft_modules.load import load_draft_module, recognise
from pardec.models.errors import ModelError
from pardec.models.files.weights import Published
from pardec.models.plan import Plan, Visible
from tests.models.draft_modules.dflash_writer import MASK, write
from tests.reference import eagle_folders
from tests.reference.naive_dflash import NaiveDFlash
from tests.samplers.ar_toys import toy_ar

VARIANTS: dict[str, dict[str, Any]] = {
    "nested config": {},
    "config at the top": {"nested": False},
    "one layer": {"layers": 1},
    "no grouped heads": {"heads": 2, "kv_heads": 2},
    "head of another width": {"dim": 4},
    "no norm of heads": {"qk_norm": False},
    "sliding layers": {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6},
    "all layers slide": {"layer_types": ["sliding_attention"] * 2, "sliding_window": 3},
    "scaled": {"input_embedding_scale": 1.7, "output_multiplier": 0.6, "final_logit_softcapping": 2.0},
    "reduced, the target's head": {"reduced": (4, 0, 2)},
    "reduced, its own head": {"reduced": (1, 3), "own_head": True},
    "its own head": {"own_head": True},
    "embedding tapped": {"taps": (-1, 3)},
    "DFlash 2": {"selected": 3},
    "DFlash 2, all layers slide both ways": {"selected": 2, "layer_types": ["sliding_attention"] * 2}
    | {"sliding_window": 6, "is_causal": False, "group": 8},
    "vanilla": {"markov": "vanilla"},
    "vanilla, reduced": {"markov": "vanilla", "reduced": (3, 1, 0)},
    "gated": {"markov": "gated", "confidence": "token"},
    "rnn": {"markov": "rnn", "confidence": "token"},
    "confidence of states": {"markov": "vanilla", "confidence": "state"},
    "confidence alone": {"confidence": "state"},
}
CONTEXTS = (7, 0, 3)


def loaded(folder: Path, **options: Any) -> tuple[DFlashModule, NaiveDFlash]:
    target = toy_ar(0, 5, 3.0, layers=4, dtype=torch.float64)
    tensors, config = write(folder, **options)
    stack: Any = target.decoder
    module = load_draft_module(folder, target, kind="dflash")
    assert isinstance(module, DFlashModule)
    return module, NaiveDFlash(tensors, config, stack.embed.weight, stack.head.weight)


def plan(first: list[int], counts: list[int], tokens: torch.Tensor | None = None) -> Plan:
    width = max(counts)
    order = torch.arange(width)
    slots = torch.where(order < torch.tensor(counts)[:, None], torch.tensor(first)[:, None] + order, -1)
    lengths = torch.tensor(first) + torch.tensor(counts)
    return Plan(slots if tokens is None else tokens, slots, slots, Visible.bidirectional(), lengths, slots)


@pytest.fixture
def rotation_in_float64() -> Iterator[None]:
    """Makes rotary embeddings float64; pardec's are float32 in any dtype, which would hide differences below 1e-7."""

    def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
        half = x.shape[-1] // 2
        return x * cos + torch.cat((x[..., half:], x[..., :half]), -1) * sin

    with patch("pardec.models.kernels.ops.apply_rotary", rotated):
        yield


@pytest.mark.usefixtures("rotation_in_float64")
@pytest.mark.parametrize("variant", VARIANTS)
@torch.inference_mode()
def test_a_block_equals_the_plain_module_s(variant: str, tmp_path: Path) -> None:
    """Rows with contexts of unequal length, written in two parts into a cache whose other slots hold NaN."""
    module, naive = loaded(tmp_path, **VARIANTS[variant])
    width = len(module.states.layers) * 16
    drawn = torch.Generator().manual_seed(3)
    states = [torch.randn(count, width, generator=drawn, dtype=torch.float64) for count in CONTEXTS]
    cache = module.new_cache(len(CONTEXTS), 9)
    for tensor in (*cache.k, *cache.v):
        tensor.fill_(torch.nan)
    early = [count // 2 for count in CONTEXTS]
    for first, counts in (([0, 0, 0], early), (early, [c - e for c, e in zip(CONTEXTS, early, strict=True)])):
        padded = torch.zeros(len(CONTEXTS), max(counts), width, dtype=torch.float64)
        for row, (start, count) in enumerate(zip(first, counts, strict=True)):
            padded[row, :count] = states[row][start : start + count]
        module.remember(module.fuse(padded), plan(first, counts), cache)
    block = module.block_size
    tokens = torch.full((len(CONTEXTS), block), MASK)
    tokens[:, 0] = torch.tensor([1, 2, 0])
    depth, skipped = module.layout.depth, 0 if module.layout.from_anchor else 1
    for count in (depth, 1):
        found = module.run(plan(list(CONTEXTS), [block] * 3, tokens), cache, count)
        for row in range(len(CONTEXTS)):
            expected = naive.block(states[row], int(tokens[row, 0]), MASK, block)[skipped : skipped + count]
            assert (found[row] - expected).abs().max() < 1e-10
            assert (module.logits(found[row]) - naive.logits(expected)).abs().max() < 1e-10
    if naive.ids is not None:
        whole = module.over_vocabulary(module.logits(found))
        others = sorted(set(range(5)) - set(naive.ids.tolist()))
        assert (whole[..., others] == -torch.inf).all()
        assert (whole[..., naive.ids].double() - module.logits(found)).abs().max() < 1e-6


@pytest.mark.parametrize(
    "variant", [name for name, options in VARIANTS.items() if {"markov", "confidence"} & set(options)]
)
@torch.inference_mode()
def test_a_path_through_the_markov_head_equals_the_plain_one_s(variant: str, tmp_path: Path) -> None:
    module, naive = loaded(tmp_path, **VARIANTS[variant])
    states = torch.randn(4, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    path, memory = [2, 4, 0, 3], None
    if module.transition is None:
        estimate = module.estimate(states, None)
        weight, bias = naive.tensors["confidence_head.proj.weight"][0], naive.tensors["confidence_head.proj.bias"]
        assert estimate is not None
        assert (estimate - (states @ weight + bias).sigmoid()).abs().max() < 1e-6  # estimates are float32
        return
    rows, estimates = naive.walk(states, path)
    for step, token in enumerate(path):
        embedded = module.transition.embed(torch.tensor([[token]]))
        bias, memory = module.transition(embedded, states[None, step : step + 1], memory)
        assert (module.logits(states[step]) + bias[0, 0] - rows[step]).abs().max() < 1e-10
        if len(estimates):
            estimate = module.estimate(states[None, step : step + 1], embedded)
            assert estimate is not None
            assert (estimate[0, 0] - estimates[step]).abs() < 1e-6


def test_half_precision_files_take_the_target_s_type(tmp_path: Path) -> None:
    target = toy_ar(0, 5, 3.0, layers=4)
    write(tmp_path, dtype=torch.bfloat16, reduced=(0, 1))
    module = load_draft_module(tmp_path, target)
    assert {weight.dtype for weight in module.parameters()} == {torch.float32}
    assert module.vocabulary is not None
    assert module.vocabulary.tolist() == [0, 1]


def test_copies_of_the_target_s_matrices_are_shared(tmp_path: Path) -> None:
    target: Any = toy_ar(0, 5, 3.0, layers=4)
    write(tmp_path, markov="vanilla", dtype=torch.float32)
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["embed_tokens.weight"] = target.decoder.embed.weight.contiguous()
    tensors["lm_head.weight"] = target.decoder.head.weight.contiguous()
    save_file(tensors, tmp_path / "model.safetensors")
    module: Any = load_draft_module(tmp_path, target)
    assert module.embedding is None
    assert module.head is None
    assert [line for line in module.about if "shared" in line] == [
        "embed_tokens is the target's: shared",
        "lm_head is the target's: shared",
    ]


# --- what configs say ---

PUBLISHED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "z-lab/Qwen3-4B-DFlash": (
        {"block_size": 16, "num_target_layers": 36, "num_hidden_layers": 5, "hidden_size": 2560}
        | {"dflash_config": {"mask_token_id": 151669, "target_layer_ids": [1, 9, 17, 25, 33]}},
        {"block": 16, "mask": 151669, "taps": (1, 9, 17, 25, 33), "depth": 15, "style": "DFlash"},
    ),
    "older, nothing named": (
        {"block_size": 16, "num_target_layers": 36, "num_hidden_layers": 5, "mask_token_id": 151669},
        {"block": 16, "taps": (1, 9, 17, 25, 33), "depth": 15},
    ),
    "z-lab/Qwen3.5-35B-A3B-DFlash": (
        {"num_hidden_layers": 6, "layers": 40, "sliding_window": 4096, "max_window_layers": 6}
        | {"layer_types": ["sliding_attention"] * 5 + ["full_attention"]}
        | {
            "dflash_config": {
                "block_size": 16,
                "mask_token_id": 248077,
                "target_layer_ids": [1, 6, 11, 16, 22, 27, 32, 37],
            }
        },
        {"block": 16, "taps": (1, 6, 11, 16, 22, 27, 32, 37), "causal": (True,) * 5 + (False,)},
    ),
    "deepseek-ai Qwen3-4B DSpark": (
        {"block_size": 7, "num_hidden_layers": 5, "target_layer_ids": [1, 9, 17, 25, 33], "mask_token_id": 151669}
        | {"markov_rank": 256, "markov_head_type": "vanilla", "enable_confidence_head": True}
        | {"confidence_head_with_markov": True, "num_anchors": 512, "attention_bias": False, "spark": True},
        {"block": 7, "taps": (1, 9, 17, 25, 33), "depth": 7, "transition": "vanilla", "rank": 256, "style": "DSpark"},
    ),
    "z-lab/dflash, its fixture of a DFlash 2": (
        {"num_hidden_layers": 5, "layers": 52, "sliding_window": 2048, "is_causal": False, "use_sliding_window": True}
        | {"layer_types": ["sliding_attention"] * 5, "max_window_layers": 5, "architectures": ["DFlash2DraftModel"]}
        | {
            "dflash_config": {
                "block_size": 16,
                "conv_group_size": 16,
                "conv_kernel_size": 2,
                "final_logit_softcapping": 20.0,
                "mask_token_id": 201818,
                "output_multiplier": 0.19611613513818404,
                "selector_rank": 256,
                "selector_top_k": 16,
                "target_layer_ids": [1, 13, 25, 37, 49],
            }
        },
        {"style": "DFlash 2", "block": 16, "depth": 15, "taps": (1, 13, 25, 37, 49), "causal": (False,) * 5}
        | {"selected": 16, "rank": 256, "conv_taps": 2, "conv_group": 16, "cap": 20.0, "transition": "selector"},
    ),
    "DSpark in a DFlash config": (
        {"num_hidden_layers": 2, "layers": 4, "spark": True, "block_size": 4}
        | {
            "dflash_config": {
                "mask_token_id": 127,
                "target_layer_ids": [1, 2],
                "markov_rank": 256,
                "markov_head_type": "gated",
                "sample_from_anchor": False,
            }
        },
        {"depth": 3, "transition": "gated", "from_anchor": False, "taps": (1, 2)},
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configs_say(name: str) -> None:
    config, expected = PUBLISHED[name]
    config = {"model_type": "qwen3", "hidden_size": 2560, "num_attention_heads": 32, "num_key_value_heads": 8} | config
    config |= {"head_dim": 128, "intermediate_size": 9728, "vocab_size": 248320, "rms_norm_eps": 1e-6}
    layers, spark = config.pop("layers", 36), config.pop("spark", False)
    names = {f"layers.{i}.self_attn.q_proj.weight": (4096, 2560) for i in range(config["num_hidden_layers"])}
    names |= {"fc.weight": (2560, 2560 * len(expected["taps"])), "hidden_norm.weight": (2560,)}
    names |= {"markov_head.markov_w1.weight": (248320, 256)} if spark else {}
    published = {key: Published(Path("model.safetensors"), shape, torch.bfloat16) for key, shape in names.items()}
    files = DraftFiles(name, Path(), config, published)
    assert recognise(files).name == "dflash"
    found = read_layout(files, layers)
    assert {key: getattr(found, key) for key in expected} == expected


# --- refusals ---


def refusal(folder: Path, target: Any = None, **options: Any) -> str:
    with pytest.raises(ModelError) as error:
        load_draft_module(folder, target or toy_ar(0, 5, 3.0, layers=4), **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_what_does_not_fit_the_target_is_refused(tmp_path: Path) -> None:
    write(tmp_path)
    assert "reads 3 states of width 16; those of toy have 24" in refusal(
        tmp_path, toy_ar(0, 5, 3.0, layers=4, width=24)
    )
    assert "for a vocabulary of 5 ids; toy has 7" in refusal(tmp_path, toy_ar(0, 7, 3.0, layers=4))
    assert "reads layers 0, 2, 3 and the target has 0..1" in refusal(tmp_path, toy_ar(0, 5, 3.0, layers=2))


def changed(folder: Path, change: dict[str, Any], drop: tuple[str, ...] = ()) -> Path:
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps({key: value for key, value in (config | change).items() if key not in drop}))
    return folder


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dflash_config": {"target_layer_ids": [0, 2, 3]}}, "lacks mask_token_id"),
        ({"block_size": 1}, "block_size of .* at least 2, got 1"),
        ({"hidden_size": None}, "lacks hidden_size"),
        (
            {"is_causal": False, "layer_types": ["sliding_attention"] * 2, "sliding_window": 4},
            "window below its block",
        ),
        (
            {"dflash_config": {"mask_token_id": 5, "target_layer_ids": [0, 2, 3]}},
            "mask_token_id 5 of .* its 5 embeddings",
        ),
        (
            {"dflash_config": {"mask_token_id": 4}, "aux_hidden_state_layer_ids": [1, 3]},
            "as outputs of layers and others as inputs",
        ),
        ({"speculators_model_type": "xpress"}, "another method: its config has speculators_model_type='xpress'"),
        ({"sample_from_anchor": "false"}, "sample_from_anchor is 'false', and true or false is needed"),
        ({"partial_rotary_factor": 0.5}, "has partial_rotary_factor=0.5, which is not supported"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "has partial_rotary_factor=0.5"),
        ({"use_gemma_norm": True}, "has use_gemma_norm=True, which is not supported"),
        (
            {"dflash_config": {"mask_token_id": 4, "target_layer_ids": [0, 2, 3], "attention_value_scale": 0.7}},
            "has attention_value_scale=0.7, which is not supported",
        ),
    ],
)
def test_configs_that_say_nothing_usable(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    write(tmp_path)
    assert re.search(message, refusal(changed(tmp_path, change)))


def test_rotations_by_type_of_layer_are_the_sliding_layers(tmp_path: Path) -> None:
    """As the speculators library reads configs that were made for targets with two rotations."""
    slides, sees = ({"rope_type": "default", "rope_theta": theta} for theta in (300.0, 9e4))
    write(tmp_path / "a", **SLIDES, rope_parameters=slides)
    write(tmp_path / "b", **SLIDES, rope_parameters={"sliding_attention": slides, "full_attention": sees})
    one, other = (load_draft_module(tmp_path / name, toy_ar(0, 5, 3.0, layers=4), kind="dflash") for name in "ab")
    assert isinstance(one, DFlashModule)
    assert isinstance(other, DFlashModule)
    assert one.layout.config == other.layout.config


def test_layer_ids_of_the_speculators_library_are_inputs(tmp_path: Path) -> None:
    """Its converter adds one to z-lab's ids, which are outputs of layers."""
    write(tmp_path)
    ids = {"dflash_config": {"mask_token_id": MASK}, "aux_hidden_state_layer_ids": [1, 3, 4]}
    changed(tmp_path, {"speculators_model_type": "dflash", **ids})
    for options, taps in (({}, (0, 2, 3)), ({"taps": "1-2-3"}, (1, 2, 3))):
        module = load_draft_module(tmp_path, toy_ar(0, 5, 3.0, layers=4), kind="dflash", **options)
        assert module.states.layers == taps


def test_dspark_keys_may_be_nested(tmp_path: Path) -> None:
    """As SpecForge writes them, beside dflash_config."""
    _, config = write(tmp_path, markov="gated", confidence="token")
    before = load_draft_module(tmp_path, toy_ar(0, 5, 3.0, layers=4), kind="dflash")
    nested = {key: config[key] for key in ("markov_rank", "markov_head_type", "enable_confidence_head")}
    changed(tmp_path, {"dspark_config": nested}, tuple(nested))
    module = load_draft_module(tmp_path, toy_ar(0, 5, 3.0, layers=4), kind="dflash")
    assert isinstance(module, DFlashModule)
    assert isinstance(before, DFlashModule)
    assert module.layout == before.layout
    assert module.layout.transition == "gated"


@pytest.mark.parametrize(
    ("name", "options", "needed"),
    [
        ("embed_tokens.weight", {"markov": "vanilla"}, "has 3 rows, and 5 ids need one each"),
        ("lm_head.weight", {"own_head": True}, "has 3 rows, and 5 ids need one each"),
        ("markov_head.markov_w1.weight", {"markov": "vanilla"}, "has 3 rows, and 5 ids need one each"),
        ("markov_head.markov_w2.weight", {"markov": "vanilla"}, "has 3 rows, and 5 ids need one each"),
        ("markov_head.markov_w2.weight", {"markov": "vanilla", "reduced": (3, 0)}, "has 1 rows, and 2 ids need one"),
        ("confidence_head.proj.weight", {"confidence": "state"}, r"is \[2, 16\]; it needs one row of 16 numbers"),
    ],
)
def test_dflash_tables_of_other_ids_are_refused(
    name: str, options: dict[str, Any], needed: str, tmp_path: Path
) -> None:
    tensors, _ = write(tmp_path, **options)
    whole = tensors[name]
    cut = whole.repeat(2, 1) if len(whole) == 1 else whole[: len(whole) - (1 if len(whole) == 2 else 2)]
    save_file({**tensors, name: cut.clone()}, tmp_path / "model.safetensors")
    assert re.search(f"{re.escape(name)} of .* {needed}", refusal(tmp_path))


SPECULATORS = {"architectures": ["DFlash2DraftModel"], "speculators_model_type": "dflash2", "draft_vocab_size": 5}
SLIDES = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6}


@pytest.mark.parametrize(
    ("change", "causal"),
    [
        ({"sliding_window_non_causal": True}, (False, False)),
        ({"sliding_window_non_causal": False}, (True, False)),
        ({"speculators_model_type": "dflash"}, (True, False)),
        ({"speculators_model_type": "dflash2"}, (False, False)),
        ({"is_causal": False, "sliding_window_non_causal": True}, (False, False)),
        ({"is_causal": True}, (True, True)),
        ({"layer_types": None, "use_sliding_window": True, "max_window_layers": 1}, (False, True)),
    ],
)
def test_dflash_sliding_layers_see_the_block_as_the_config_says(
    change: dict[str, Any], causal: tuple[bool, ...], tmp_path: Path
) -> None:
    write(tmp_path, selected=3, **SLIDES)
    module = load_draft_module(changed(tmp_path, change), toy_ar(0, 5, 3.0, layers=4), kind="dflash")
    assert isinstance(module, DFlashModule)
    assert module.layout.causal == causal


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"is_causal": True, "sliding_window_non_causal": True}, "contradict each other"),
        ({"sliding_window_non_causal": "yes"}, "sliding_window_non_causal of .* must be true or false, got 'yes'"),
        ({"draft_vocab_size": 6}, "draft_vocab_size of .* must lie in 1..5, its vocabulary, got 6"),
        ({"draft_vocab_size": 4}, "with a Markov head, a confidence head or a reduced vocabulary"),
    ],
)
def test_dflash_settings_that_cannot_be(change: dict[str, Any], message: str, tmp_path: Path) -> None:
    write(tmp_path, selected=3, **SLIDES)
    assert re.search(message, refusal(changed(tmp_path, change)))


def test_dflash2_of_speculators_drafts_the_whole_vocabulary(tmp_path: Path) -> None:
    """The speculators library always writes draft_vocab_size."""
    write(tmp_path, selected=3)
    module = load_draft_module(changed(tmp_path, SPECULATORS), toy_ar(0, 5, 3.0, layers=4), kind="dflash")
    assert module.vocabulary is None


def test_taps_say_what_a_config_leaves_open(tmp_path: Path) -> None:
    write(tmp_path)
    changed(tmp_path, {"dflash_config": {"mask_token_id": 4}, "aux_hidden_state_layer_ids": [1, 3, 4]})
    module = load_draft_module(tmp_path, toy_ar(0, 5, 3.0, layers=4), taps="0-2-3")
    assert module.states.layers == (0, 2, 3)
    assert "joined by '-'" in refusal(tmp_path, taps="1,2")


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        ("mask_hidden", "is a P-EAGLE, which is not supported"),
        ("layers.0.attention_conv.base_kernel", "is a DFlash 2, and its config lacks selector_top_k"),
        ("candidate_selector.hidden_projection.weight", "is a DFlash 2, and its config lacks selector_top_k"),
        ("draft_adapter.0.weight", "this variant of DFlash is not supported"),
        ("surprise.weight", "1 not known: surprise.weight"),
    ],
)
def test_relatives_and_strange_tensors_are_refused_by_name(tensor: str, message: str, tmp_path: Path) -> None:
    tensors, _ = write(tmp_path)
    save_file(tensors | {tensor: torch.zeros(2, 2)}, tmp_path / "model.safetensors")
    assert message in refusal(tmp_path)


@pytest.mark.parametrize("kind", ["eagle", "dflash", None])
@pytest.mark.parametrize("name", [{"speculators_model_type": "peagle"}, {"architectures": ["PEagleDraftModel"]}])
def test_a_parallel_eagle_is_refused_whatever_it_is_taken_for(
    name: dict[str, Any], kind: str | None, tmp_path: Path
) -> None:
    """A P-EAGLE has the tensors of an EAGLE-3, so it would load as one and draft one token after the other."""
    eagle_folders.write(tmp_path, "speculators", vocab=5, draft=5, width=16, target=16)
    assert "is a P-EAGLE, which is not supported" in refusal(changed(tmp_path, name), kind=kind)


def test_a_second_dflash_that_contradicts_itself_is_refused(tmp_path: Path) -> None:
    tensors, config = write(tmp_path, selected=3)
    own = config["dflash_config"]
    assert "does not divide its width" in refusal(changed(tmp_path, {"dflash_config": own | {"conv_group_size": 5}}))
    assert "lacks selector_rank" in refusal(changed(tmp_path, {"dflash_config": own | {"selector_rank": None}}))
    assert "kernel_projection.weight" in refusal(changed(tmp_path, {"dflash_config": own | {"conv_group_size": 8}}))
    changed(tmp_path, {"dflash_config": own})
    head = {"markov_head.markov_w1.weight": torch.zeros(5, 6)}
    save_file(tensors | head, tmp_path / "model.safetensors")
    assert "is a DFlash 2 " in refusal(tmp_path)
    rest = {name: each for name, each in tensors.items() if not name.startswith("candidate_selector.succ")}
    save_file(rest, tmp_path / "model.safetensors")
    assert "candidate_selector.successor_codebook" in refusal(tmp_path)
    plain = {name: each for name, each in tensors.items() if "_conv." not in name and "selector" not in name}
    save_file(plain, tmp_path / "model.safetensors")
    assert "attention_conv.base_kernel" in refusal(tmp_path)  # the config names what the files lack


@torch.inference_mode()
def test_a_path_through_the_selector_equals_the_plain_one_s(tmp_path: Path) -> None:
    module, naive = loaded(tmp_path, selected=3)
    states = torch.randn(4, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    path = [2, 4, 0, 3]
    rows = naive.chosen(states, path)
    assert module.transition is not None
    for step, token in enumerate(path):
        embedded = module.transition.embed(torch.tensor([[token]]))
        raw, memory = module.transition.scores(
            module.logits(states[None, step : step + 1]), embedded, states[None, step : step + 1]
        )
        assert memory is None
        assert (raw[0, 0].isfinite() == rows[step].isfinite()).all()
        assert raw[0, 0].isfinite().sum() == 3
        known = rows[step].isfinite()
        assert (raw[0, 0][known] - rows[step][known]).abs().max() < 1e-10
    assert module.parameters_read < module.parameter_count + module.vocab_size * module.target.width


@pytest.mark.parametrize("missing", ["norm.weight", "layers.1.mlp.up_proj.weight", "layers.0.self_attn.k_norm.weight"])
def test_a_missing_tensor_is_named(missing: str, tmp_path: Path) -> None:
    write(tmp_path, leave_out=(missing,))
    assert missing in refusal(tmp_path)


@pytest.mark.parametrize("missing", ["markov_head.markov_w1.weight", "markov_head.markov_w2.weight"])
def test_a_matrix_of_the_markov_head_that_is_missing_is_named(missing: str, tmp_path: Path) -> None:
    write(tmp_path, markov="vanilla", confidence="token", leave_out=(missing,))
    assert f"lacks {missing}" in refusal(tmp_path)


def test_vocabularies_that_disagree(tmp_path: Path) -> None:
    tensors, _ = write(tmp_path, reduced=(0, 3))
    file = tmp_path / "model.safetensors"
    save_file(tensors | {"t2d": torch.tensor([True, True, False, False, False])}, file)
    assert "d2t and t2d" in refusal(tmp_path)
    save_file(tensors | {"d2t": torch.tensor([0, 9])}, file)
    assert "names 1 ids that are none of toy's" in refusal(tmp_path)
    save_file({name: each for name, each in tensors.items() if name not in ("d2t", "t2d")}, file)
    assert "lacks d2t" in refusal(tmp_path)
    save_file(tensors | {"lm_head.weight": torch.zeros(3, 16)}, file)
    assert "has 3 rows and its config says draft_vocab_size=2" in refusal(tmp_path)


def test_a_markov_head_of_another_type_is_refused(tmp_path: Path) -> None:
    write(tmp_path, markov="vanilla")
    assert "type 'cond', which is not supported" in refusal(changed(tmp_path, {"markov_head_type": "cond"}))
