"""LongSpec's layer: its logits compared with a plain version, in drafts of any shape, and targets it cannot read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from pardec.models.draft_modules.load import load_draft_module
from pardec.models.draft_modules.longspec import LongSpecModule
from pardec.models.errors import ModelError, SpecError
from pardec.models.model import LanguageModel
from pardec.models.plan import Plan
from pardec.requests import draft_models
from pardec.samplers import registry
from pardec.samplers.speculative import forward_features as shared_prompt
from pardec.samplers.speculative.contracts import Draft
from pardec.samplers.speculative.draft.longspec import LongSpecState
from tests.samplers import module_files
from tests.samplers.ar_toys import rows, run
from tests.samplers.fake_draft_model import NEW, RAGGED, greedy, path, target


def rotated(x: Tensor, positions: Tensor, frequencies: tuple[float, ...]) -> Tensor:
    """x [n, H, D] by complex numbers."""
    half = x.shape[-1] // 2
    angle = positions[:, None].double() * torch.tensor(frequencies, dtype=torch.float64)
    turned = torch.complex(x[..., :half], x[..., half:]) * torch.polar(torch.ones_like(angle), angle)[:, None]
    return torch.cat((turned.real, turned.imag), -1)


def attention(q: Tensor, k: Tensor, v: Tensor, seen: Tensor) -> Tensor:
    """q [n, H, D], k and v [m, K, D], seen [n, m] -> [n, H D]."""
    k, v = (each.repeat_interleave(q.shape[1] // k.shape[1], 1) for each in (k, v))
    scores = torch.einsum("nhd,mhd->hnm", q, k) / q.shape[-1] ** 0.5
    return torch.einsum("hnm,mhd->nhd", scores.masked_fill(~seen, -torch.inf).softmax(-1), v).flatten(1)


def naive(model: LanguageModel, tensors: dict[str, Tensor], text: list[int], base: int, window: int) -> Tensor:
    """Logits [V] after `text`, of which the target has verified the first `base` tokens."""
    stack: Any = model.decoder
    config, size = stack.config, len(text)
    w = {name: tensor.double() for name, tensor in tensors.items()}

    def norm(x: Tensor, name: str) -> Tensor:
        scale = (x.square().mean(-1, keepdim=True) + config.norm_eps).rsqrt()
        return x * scale * w[f"{name}_layernorm.weight"]

    def project(x: Tensor, name: str) -> Tensor:
        bias = w.get(f"{name}.bias")
        return (x @ w[f"{name}.weight"].T + (0 if bias is None else bias)).view(len(x), -1, config.head_dim)

    cache, order = model.new_cache(1, base), torch.arange(base)[None]
    model.run(Plan.full(torch.tensor([text[:base]]), model.visible()), cache)
    assert order.shape[1] == base
    keys, values = cache.k[-1][0, :base].double(), cache.v[-1][0, :base].double()
    positions = torch.arange(size)
    h = stack.embed.weight[torch.tensor(text)].double()
    x = norm(h, "input")
    q, k, v = (project(x, f"self_attn.{part}_proj") for part in "qkv")
    q, k = (rotated(each, positions, config.frequencies) for each in (q, k))
    near = (positions <= positions[:, None]) & (positions > positions[:, None] - window)
    h = h + attention(q, k, v, near) @ w["self_attn.o_proj.weight"].T
    q = rotated(project(norm(h, "post_self_attention"), "cross_attn.q_proj"), positions, config.frequencies)
    h, q = h[-1:], q[-1:]  # the last token reads all that is verified, and is not itself
    h = h + attention(q, keys, values, torch.ones(1, base, dtype=torch.bool)) @ w["cross_attn.o_proj.weight"].T
    x = norm(h, "post_cross_attention")
    inner = torch.nn.functional.silu(x @ w["mlp.gate_proj.weight"].T) * (x @ w["mlp.up_proj.weight"].T)
    h = h + inner @ w["mlp.down_proj.weight"].T
    return (h @ stack.head.weight.double().T)[0]  # type: ignore[no-any-return]


@contextmanager
def compared(tensors: dict[str, Tensor], window: int) -> Iterator[list[float]]:
    """The errors of the logits of every drafted node, compared with the plain version."""
    errors: list[float] = []
    raw = LongSpecState._raw

    def watched(self: LongSpecState, draft: Draft, nodes: Tensor, **more: Any) -> Tensor:
        out = raw(self, draft, nodes, **more)
        for row, column in (nodes >= 0).nonzero().tolist():
            base = int(self.base[row])
            text = [*self.context.text.row(row).tolist(), *path(draft, row, int(nodes[row, column]))]
            expected = naive(self.context.model, tensors, text, base, window)
            errors.append(float((out[row, column] - expected).abs().max()))
        return out

    with patch.object(LongSpecState, "_raw", watched):
        yield errors


@contextmanager
def drafting(folder: Path, model: LanguageModel) -> Iterator[LongSpecModule]:
    module = load_draft_module(folder, model, kind="longspec")
    assert isinstance(module, LongSpecModule)
    with patch.object(draft_models, "draft_module", lambda wanted, target: module):
        yield module


@pytest.mark.parametrize("shape", ["chain", "template:widths=3-2-1", "dyspec:nodes=7,children=2"])
@pytest.mark.parametrize("prompts", [RAGGED, RAGGED[1:2]])
@pytest.mark.covers(1)
def test_every_node_has_the_logits_of_the_plain_version(tmp_path: Path, shape: str, prompts: list[list[int]]) -> None:
    model = target()
    folder = module_files.longspec(tmp_path / "layer", model)
    tensors = load_file(folder / "model.safetensors")
    with drafting(folder, model), compared(tensors, 6) as errors:
        run(model, f"longspec:name=x,k=4+{shape}", prompts, 12, temperature=1.0)
    assert len(errors) > 20
    assert max(errors) < 2e-4


def test_greedy_decoding_is_kept_in_a_ragged_batch_alone_and_after_a_shared_prompt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = target()
    with drafting(module_files.longspec(tmp_path / "layer", model, prefix="glide.", biased=False), model):
        done = run(model, "longspec:name=x,k=3", RAGGED, NEW)
        assert rows(done) == greedy()
        for row, prompt in enumerate(RAGGED[:2]):
            alone = run(model, "longspec:name=x,k=3", [prompt], NEW[row])
            assert alone.trace.accepted[0] == done.trace.accepted[row]
        monkeypatch.setattr(shared_prompt, "LEAST_SLOTS", 0)
        shared, apart = (
            run(model, "longspec:name=x,k=3", [RAGGED[1]] * 3, 14, temperature=1.0, share_prompt=share)
            for share in (True, False)
        )
        assert rows(shared) == rows(apart)
        assert shared.trace.accepted == apart.trace.accepted


def test_its_memory_is_one_layers_and_other_targets_are_refused(tmp_path: Path) -> None:
    model = target()
    folder = module_files.longspec(tmp_path / "layer", model)
    with drafting(folder, model) as module:
        assert len(module.new_cache(1, 5).k) == 1
        assert module.layers_config.window == 6
        assert module.about == ("a layer of width 16, a window of 6, keys of the target's last layer",)
    with pytest.raises(ModelError, match="does not expose"):
        load_draft_module(folder, replace(model, decoder=torch.nn.Identity()))  # type: ignore[arg-type]
    with pytest.raises(SpecError, match="reads the target's keys"):
        registry.resolve("longspec:name=x@streaming", "ar")
    with pytest.raises(SpecError, match="name is missing"):
        registry.resolve("longspec", "ar")


def test_a_file_without_a_window_has_the_published_one(tmp_path: Path) -> None:
    made = module_files.longspec(tmp_path / "no window", target())
    (made / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with drafting(made, target()) as module:
        assert module.layers_config.window == 512
