"""Chains that an EAGLE drafts in one call of the kernels in C are those of its forwards, to the last bit."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from pardec.models.caches.kv_cache import KVCache
from pardec.models.draft_modules import eagle, few_pairs
from pardec.models.draft_modules.eagle import EagleModule
from pardec.models.draft_modules.load import load_draft_module
from pardec.models.draft_modules.pair_chain import PairChain
from pardec.models.kernels.cpu import int8
from pardec.models.plan import Plan, Visible
from tests.models.test_fused_layers import SHAPE, packed
from tests.models.toys import VOCAB, ids, model
from tests.reference.eagle_folders import write

pytestmark = pytest.mark.usefixtures("in_c")

SIZES = {"width": 64, "target": 64, "vocab": VOCAB, "heads": 4, "inner": 96, "dtype": torch.float32}
LAYOUTS: dict[str, tuple[str, dict[str, Any]]] = {
    "EAGLE-1": ("eagle", {}),
    "EAGLE-1 with an embedding": ("eagle", {"embedding": True, "bias": False}),
    "EAGLE-3": ("eagle3", {"draft": 15, "qkv_bias": True}),
    "EAGLE-3 with rows of the target's head": ("eagle3", {"draft": 15, "tie_word_embeddings": True}),
    "EAGLE-3 with the target's head": ("eagle3", {"tie_word_embeddings": True, "kv_heads": 2}),
    "Qwen3, norm before the residual": ("speculators", {"draft": 15, "norm_before_residual": True, "qk_norm": True}),
    "output fed back normed": ("speculators", {"norm_output": True, "embedding": True}),
}
KINDS = ("panels", "blocks", "int8 activations", "int8")


def pack(owner: nn.Module, names: tuple[str, ...], kind: str) -> None:
    for name in names:
        weight = getattr(owner, name, None)
        if weight is not None:
            other = int8.quantized(weight.data) if kind == "int8" else packed(weight.data.clone(), kind)
            setattr(owner, name, nn.Parameter(other, requires_grad=False))


def made(folder: Path, layout: str = "EAGLE-3", kind: str = "panels", **more: Any) -> EagleModule:
    target = model(**SHAPE, **more)
    name, flags = LAYOUTS[layout]
    taps = {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]}
    write(folder, name, change=lambda _, config: config.update(eagle_config=taps), **{**SIZES, **flags})
    module = load_draft_module(folder, target)
    assert isinstance(module, EagleModule)
    pack(module.first, ("qkv_weight", "out_weight", "gate_up_weight", "down_weight"), kind)
    pack(module, ("fc_weight", "head"), kind)
    decoder: Any = target.decoder
    pack(decoder.head, ("weight",), kind)
    if "blocks" in kind or "activations" in kind:
        pack(decoder.embed, ("weight",), kind)
    return module


@pytest.fixture(autouse=True)
def by_operations(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forwards of the modules run operation by operation."""
    monkeypatch.setattr(eagle, "few_pairs", lambda *_, **__: None)


def drafted(module: EagleModule, cache: KVCache, tokens: Tensor, states: Tensor, start: int, count: int) -> Any:
    """The tokens and the sum of their logits by the module's own forwards, the fed pairs in one."""
    found, highest, soft = tokens, torch.zeros(()), states[None]
    for step in range(count):
        stop = start + (len(tokens) + step)
        first = stop - soft.shape[1]
        place = torch.arange(first, stop)[None]
        plan = Plan(
            found[None, first - start :], place, place, Visible.causal(), torch.tensor([stop]),
            torch.tensor([[soft.shape[1] - 1]]), soft=soft, narrow=True, uniform=stop, span=(first, stop),
        )  # fmt: skip
        output = module.run(plan, cache)
        logits = output.logits(subset=True)[0, 0]
        column = logits.argmax()
        highest = highest + logits.amax()
        found = torch.cat((found, (column if module.vocabulary is None else module.vocabulary[column])[None]))
        soft = module.fed_back(output.states)[:, -1:]
    return found, highest


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("kind", KINDS)
@torch.inference_mode()
def test_chain_has_the_bits_of_forwards(layout: str, kind: str, tmp_path: Path) -> None:
    """Rounds of several lengths: pairs are fed again after a rollback, and the cache grows."""
    if kind == "int8" and not int8.runs():
        pytest.skip("the processor does not multiply bytes")
    module = made(tmp_path, layout, kind, **({"embedding_scale": 3.0} if layout == "EAGLE-1" else {}))
    ours, theirs = module.new_cache(1, 40), module.new_cache(1, 80)
    tokens, states = ids(1, 90)[0], torch.randn(90, 64, generator=torch.Generator().manual_seed(3))
    for cache in (ours, theirs):
        drafted(module, cache, tokens[:10], states[:10], 0, 1)
    chain = module.chain(ours)
    assert chain is not None
    for fed, stop, count in ((1, 11, 1), (3, 14, 5), (1, 13, 3), (4, 17, 2), (12, 40, 1), (2, 42, 4), (25, 70, 8)):
        if stop == 42:
            ours.grow(80)
        given = tokens[stop - fed : stop], states[stop - fed : stop], stop - fed, count
        found, highest = drafted(module, theirs, *given)
        whole = chain.draft(*given)
        assert whole is not None
        assert torch.equal(whole[0], found)
        assert torch.equal(whole[1], highest)
        for one, other in zip((*ours.k, *ours.v), (*theirs.k, *theirs.v), strict=True):
            assert torch.equal(one[:, stop - fed : stop + count - 1], other[:, stop - fed : stop + count - 1])


@pytest.mark.parametrize("kind", KINDS[:-1])
@torch.inference_mode()
def test_layer_of_packed_weights_in_one_go_has_the_bits_of_its_operations(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = made(tmp_path, "Qwen3, norm before the residual", kind)
    states, found = torch.randn(12, 64, generator=torch.Generator().manual_seed(3)), []
    for own in (lambda *_, **__: None, few_pairs.few_pairs):
        cache = module.new_cache(1, 40)
        drafted(module, cache, ids(1, 8)[0], states[:8], 0, 1)
        monkeypatch.setattr(eagle, "few_pairs", own)
        found.append((*drafted(module, cache, ids(1, 12)[0, 8:], states[8:], 8, 3), cache.k[0][:, :14]))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def one(chain: PairChain, start: int = 8, fed: int = 1, count: int = 2) -> tuple[Tensor, Tensor] | None:
    return chain.draft(ids(1, fed)[0], torch.ones(fed, 64), start, count)


@torch.inference_mode()
def test_chain_reads_replaced_weights_and_what_is_not_finite(tmp_path: Path) -> None:
    module = made(tmp_path, "EAGLE-3 with rows of the target's head")
    chain: Any = module.chain(module.new_cache(1, 40))
    drafted(module, chain.cache, ids(1, 8)[0], torch.ones(8, 64), 0, 1)
    before = one(chain)
    assert before is not None
    module.head = nn.Parameter(packed(-module.head.dense, "panels"), requires_grad=False)
    after = one(chain)
    assert after is not None
    expected = drafted(module, chain.cache, ids(1, 1)[0], torch.ones(1, 64), 8, 2)
    assert torch.equal(after[0], expected[0])
    assert not torch.equal(after[0], before[0])
    dense = module.head.dense.clone()
    dense[3, 0] = torch.nan
    module.head = nn.Parameter(packed(dense, "panels"), requires_grad=False)
    broken = one(chain)
    assert broken is not None
    assert broken[1].isnan()


@pytest.mark.parametrize("layout", ["FSPAD", "Dovetail", "two layers"])
def test_chain_is_not_made_for_other_layers(layout: str, tmp_path: Path) -> None:
    name = {"FSPAD": "fspad", "Dovetail": "gated"}.get(layout, "eagle")
    write(tmp_path, name, layers=2 if layout == "two layers" else 1, **SIZES)
    module = load_draft_module(tmp_path, model(**SHAPE))
    assert module.chain(module.new_cache(1, 20)) is None


def test_chain_is_not_made_for_further_ids_a_capped_head_or_other_caches(tmp_path: Path) -> None:
    module = made(tmp_path, "EAGLE-3 with rows of the target's head")
    cache = module.new_cache(1, 20)
    assert module.chain(cache) is not None
    assert module.with_ids([torch.arange(VOCAB).numpy()]).chain(cache) is None
    assert module.chain(KVCache(layers=1, batch=1, capacity=20, kv_heads=4, head_dim=16, shared=4)) is None
    decoder: Any = module.target.decoder
    decoder.config = replace(decoder.config, logit_cap=5.0)
    assert module.chain(cache) is None


@torch.inference_mode()
def test_chain_does_not_run_where_forwards_do_more(tmp_path: Path) -> None:
    module = made(tmp_path)
    chain: Any = module.chain(module.new_cache(1, 40))
    assert one(chain) is not None
    assert one(chain, start=0) is None, "a text's first pairs"
    assert one(chain, fed=33, start=1) is None, "many pairs"
    assert one(chain, start=39) is None, "the cache is full"
    assert one(module.chain(module.new_cache(2, 40))) is None, "two rows"
    with torch.inference_mode(False):
        assert one(chain) is None, "gradients are on"
    with FlopCounterMode(display=False):
        assert one(chain) is None, "operations are followed"
    for owner, name in ((module, "head"), (module.first, "down_weight")):
        kept = getattr(owner, name)
        setattr(owner, name, nn.Parameter(kept.dense.clone(), requires_grad=False))
        module.first.__dict__.pop("in_c", None)
        assert one(chain) is None, f"{name} is not packed"
        setattr(owner, name, kept)
        module.first.__dict__.pop("in_c", None)
    assert one(chain) is not None
