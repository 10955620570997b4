"""Medusa's heads from every published layout, compared with the formula in float64; wrong files; refusals."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from pardec.models.draft_modules import contracts
from pardec.models.draft_modules.load import load_draft_module
from pardec.models.errors import ModelError
from pardec.models.load import load
from pardec.models.model import LanguageModel
from tests.reference import naive_heads
from tests.reference.head_folders import CONFIGS, medusa, renamed, untrained, values, write
from tests.samplers.ar_toys import toy_ar

VOCAB = 40
FILES = {
    "v0.1, pickled": ("v0.1", "medusa_lm_head.pt"),
    "v0.1": ("v0.1", "medusa_lm_head.safetensors"),
    "v1.0": ("v1.0", "model.safetensors"),
    "v1.0, pickled": ("v1.0", "pytorch_model.bin"),
    "vLLM": ("vllm", "model.safetensors"),
    "vLLM, with a prefix": ("vllm-prefix", "model.safetensors"),
}


def target(dtype: torch.dtype = torch.float64, vocab: int = VOCAB) -> LanguageModel:
    return toy_ar(2, vocab, dtype=dtype)


def folder(path: Path, tensors: dict[str, Tensor], layout: str = "v0.1", **config: Any) -> Path:
    file = FILES.get(layout, (layout, "medusa_lm_head.pt" if layout == "v0.1" else "model.safetensors"))[1]
    settings = CONFIGS["vllm" if layout.startswith("vllm") else layout] | config
    return write(path, renamed(tensors, layout), settings, file)


def exact(module: Any, states: Tensor) -> Tensor:
    """[N, J, Vd]: the logits of the heads, computed in the target's type."""
    return torch.stack([head(states) for head in module.heads], 1)


def expected(tensors: dict[str, Tensor], states: Tensor) -> Tensor:
    return torch.stack([torch.stack(naive_heads.medusa(tensors, h)) for h in states])


STATES = values(4, 16, seed=5, scale=1.0)


@pytest.mark.parametrize("blocks", [1, 2])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", FILES)
def test_every_layout_is_the_formula(name: str, bias: bool, blocks: int, tmp_path: Path) -> None:
    layout, file = FILES[name]
    tensors = medusa(blocks=blocks, bias=bias)
    config = CONFIGS["vllm" if layout.startswith("vllm") else layout]
    module: Any = load_draft_module(write(tmp_path, renamed(tensors, layout), config, file), target(), kind="medusa")
    assert (module.kind, module.depth, module.shared) == ("medusa", 3, False)
    torch.testing.assert_close(exact(module, STATES), expected(tensors, STATES), rtol=1e-10, atol=1e-10)
    logits = module.logits(STATES, range(1, 3))
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, expected(tensors, STATES)[:, 1:].float(), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_heads_are_read_in_the_targets_type(dtype: torch.dtype, tmp_path: Path) -> None:
    tensors = {name: tensor.half() for name, tensor in medusa().items()}
    module: Any = load_draft_module(folder(tmp_path, tensors), target(dtype))
    assert {weight.dtype for weight in module.parameters()} == {dtype}
    assert torch.equal(module.heads[1].blocks[0].bias, tensors["1.0.linear.bias"].to(dtype))


# --- what files get wrong ---


def test_heads_are_counted_in_the_file(tmp_path: Path) -> None:
    module = load_draft_module(folder(tmp_path, medusa(heads=5), medusa_num_heads=2), target())
    assert module.depth == 5
    assert module.about == ("5 heads of 1 block; the config says 2 heads",)
    with pytest.warns(UserWarning, match="has 3 heads of 1 block, and the config says 5 heads"):
        load_draft_module(folder(tmp_path / "few", medusa(heads=3), medusa_num_heads=5), target())


@pytest.mark.parametrize("rows", [VOCAB + 1, VOCAB - 2])
def test_a_padded_vocabulary_is_cut_or_filled_up(rows: int, tmp_path: Path) -> None:
    tensors = medusa(vocab=rows)
    module: Any = load_draft_module(folder(tmp_path, tensors), target())
    logits, true = module.logits(STATES, range(3)), expected(tensors, STATES).float()
    assert logits.shape == (4, 3, VOCAB)
    torch.testing.assert_close(logits[..., :rows], true[..., :VOCAB], rtol=1e-6, atol=1e-6)
    assert (logits[..., rows:] == -torch.inf).all()
    assert f"{rows} rows of logits" in module.about[-1]


@pytest.mark.parametrize("whole", [False, True])
def test_a_cut_vocabulary_drafts_the_tokens_of_its_map(whole: bool, tmp_path: Path) -> None:
    """A head's last matrix may have the rows of the token map only, or all rows, of which the map's are taken."""
    ids = torch.tensor([7, 0, 39, 12, 3])
    tensors = medusa(vocab=VOCAB if whole else len(ids))
    write(tmp_path, renamed(tensors, "vllm") | {"token_map": ids}, CONFIGS["vllm"], "model.safetensors")
    module: Any = load_draft_module(tmp_path, target())
    logits, true = module.logits(STATES, range(3)), expected(tensors, STATES).float()
    torch.testing.assert_close(logits[..., ids], true[..., ids] if whole else true, rtol=1e-6, atol=1e-6)
    others = [token for token in range(VOCAB) if token not in ids.tolist()]
    assert (logits[..., others] == -torch.inf).all()
    assert module.heads[0].out.weight.shape == (5, 16)


@pytest.mark.parametrize("stem", ["lm_head", "lm_heads.0"])
def test_the_original_head_serves_all(stem: str, tmp_path: Path) -> None:
    tensors = medusa()
    same = {name: tensors["0.1.weight"] if name.endswith(".1.weight") else each for name, each in tensors.items()}
    stored = {name: each for name, each in renamed(tensors, "vllm").items() if "lm_heads" not in name}
    stored[f"{stem}.weight"] = tensors["0.1.weight"]
    if stem == "lm_heads.0":  # those of other heads are not used
        stored["lm_heads.1.weight"] = torch.full_like(tensors["0.1.weight"], torch.nan)
    config = CONFIGS["vllm"] | {"original_lm_head": True}
    module: Any = load_draft_module(write(tmp_path, stored, config, "model.safetensors"), target())
    assert module.shared
    torch.testing.assert_close(exact(module, STATES), expected(same, STATES), rtol=1e-10, atol=1e-10)
    separate = torch.cat([module.logits(STATES, range(head, head + 1)) for head in range(3)], 1)
    torch.testing.assert_close(module.logits(STATES, range(3)), separate, rtol=1e-6, atol=1e-6)
    assert module.parameter_count == sum(each.numel() for each in stored.values() if each.isfinite().all())


def test_logits_are_scaled_as_the_config_says(tmp_path: Path) -> None:
    module: Any = load_draft_module(folder(tmp_path, medusa(), "vllm", logit_scale=0.25), target())
    torch.testing.assert_close(module.logits(STATES, range(3)), expected(medusa(), STATES).float() / 4)


def test_what_is_listed_twice_is_in_memory_once(tmp_path: Path) -> None:
    tensors = medusa(blocks=3)
    for head in range(3):
        for kind in ("weight", "bias"):
            tensors[f"{head}.2.linear.{kind}"] = tensors[f"{head}.1.linear.{kind}"].clone()
    module: Any = load_draft_module(folder(tmp_path, tensors), target())
    assert all(head.blocks[1] is head.blocks[2] for head in module.heads)
    assert module.parameter_count == sum(each.numel() for each in medusa(blocks=2).values())
    torch.testing.assert_close(exact(module, STATES), expected(tensors, STATES), rtol=1e-10, atol=1e-10)


def test_untrained_heads_share_one_matrix(tmp_path: Path) -> None:
    model = target()
    module: Any = load_draft_module(folder(tmp_path, untrained(model.decoder.head.weight)), model)
    assert module.shared
    torch.testing.assert_close(exact(module, STATES)[:, 2], model.decoder.unembed(STATES), rtol=1e-10, atol=1e-10)


def test_only_the_heads_are_read_of_a_whole_checkpoint(tmp_path: Path) -> None:
    tensors = renamed(medusa(), "v1.0") | {"model.embed_tokens.weight": values(VOCAB, 16, seed=9)}
    write(tmp_path, tensors, CONFIGS["v1.0"], "model.safetensors")
    names: list[str] = []
    read = contracts.read

    def noted(published: dict[str, Any], keep: Any) -> None:
        names.extend(published)
        read(published, keep)

    with patch.object(contracts, "read", noted):
        load_draft_module(tmp_path, target())
    assert sorted(names) == sorted(renamed(medusa(), "v1.0"))


def test_a_target_with_heads_inside_loads_and_drafts_for_itself() -> None:
    merged = Path(__file__).parents[2] / "golden" / "heads" / "checkpoint" / "medusa_merged"
    model = load(merged, device="cpu", dtype="float32")
    assert load_draft_module(merged, model).depth == 3


# --- refusals ---


def without(*names: str) -> dict[str, Tensor]:
    return {name: each for name, each in medusa().items() if name not in names}


@pytest.mark.parametrize(
    ("tensors", "layout", "config", "message"),
    [
        (medusa(width=8), "v0.1", {}, r"0\.0\.linear\.weight is \[8, 8\], and toy needs \[16, 16\]"),
        (medusa(vocab=80), "v0.1", {}, r"head 0 predicts 80 tokens, and toy has 40"),
        (without("1.0.linear.weight"), "v0.1", {}, r"lacks 1\.0\.linear\.weight"),
        (without("1.0.linear.weight", "1.0.linear.bias"), "v0.1", {}, r"head 1 has 0 blocks, and head 0 has 1"),
        (without("1.1.weight"), "v0.1", {}, r"heads 1 have no last linear"),
        (without("1.0.linear.weight", "1.0.linear.bias", "1.1.weight"), "v0.1", {}, r"heads 1 have no last linear"),
        (medusa(vocab=10), "vllm", {"vocab_size": 40, "truncated_vocab_size": 10}, r"lacks token_map"),
        ({**medusa(), "2.1.weight": values(40, 8, seed=1)}, "v0.1", {}, r"head 2 has \[40, 8\]"),
        ({**medusa(), "2.1.weight": values(38, 16, seed=1)}, "v0.1", {}, "different numbers of tokens: 38, 40"),
        (without("1.0.linear.bias"), "v0.1", {}, r"lacks 1\.0\.linear\.bias, and other heads have one"),
        ({**medusa(), "extra.weight": values(4, seed=1)}, "v0.1", {}, r"heads do not have: extra\.weight"),
    ],
)
def test_files_that_do_not_fit_are_refused_in_a_line(
    tensors: dict[str, Tensor], layout: str, config: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=message) as refusal:
        load_draft_module(folder(tmp_path, tensors, layout, **config), target())
    assert "\n" not in refusal.value.message


@pytest.mark.parametrize(
    ("ids", "message"),
    [
        ([0, 40, 2], "token_map has id 40, toy has 40 ids"),
        ([0, 4, 4], "names some ids twice"),
        ([0, 4, 2, 3], "head 0 predicts 3 tokens, and toy has 4"),
    ],
)
def test_a_map_of_wrong_tokens_is_refused(tmp_path: Path, ids: list[int], message: str) -> None:
    tensors = renamed(medusa(vocab=3), "vllm") | {"token_map": torch.tensor(ids)}
    write(tmp_path, tensors, CONFIGS["vllm"], "model.safetensors")
    with pytest.raises(ModelError, match=message):
        load_draft_module(tmp_path, target())


def test_code_in_a_pickle_is_not_run(tmp_path: Path) -> None:
    class Harm:
        def __reduce__(self) -> Any:
            return (print, ("run",))

    (tmp_path / "config.json").write_text('{"medusa_num_heads": 1}')
    (tmp_path / "medusa_lm_head.pt").write_bytes(pickle.dumps({"0.0.linear.weight": Harm()}))
    with pytest.raises(ModelError, match="cannot be read as a dictionary of tensors"):
        load_draft_module(tmp_path, target())


def test_other_modules_are_none_of_medusas(tmp_path: Path) -> None:
    folder(tmp_path, medusa())
    with pytest.raises(ModelError, match="is a draft module of kind medusa, not hydra"):
        load_draft_module(tmp_path, target(), kind="hydra")
