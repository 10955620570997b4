"""On a GPU: every method decodes as on a CPU, captured or not, and every kind of drafter trains.

PARDEC_TEST_DEVICE=cpu runs these tests without a GPU, to see that they are in order; captured forwards are left out
then. `-m short` chooses the tests that `scripts/gpu_queue` runs within a minute.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

import pardec
from pardec.models.continuous.contracts import ContinuousModel
from pardec.models.errors import ModelError, SpecError
from pardec.models.plan import Plan
from pardec.models.scales.contracts import ScaleModel
from pardec.samplers import registry
from pardec.training.networks import KINDS
from pardec.training.run import Plan as TrainingPlan
from pardec.training.run import prepare

DEVICE = os.environ.get("PARDEC_TEST_DEVICE", "cuda")
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(DEVICE == "cuda" and not torch.cuda.is_available(), reason="needs a GPU"),
]
CAPTURES = pytest.mark.skipif(DEVICE != "cuda", reason="CUDA graphs need a GPU")
GOLDEN = Path(__file__).parent / "golden"

PROMPTS = {
    "tiny-dream": ["Tom has 18 cups. He loses 4. How many cups does Tom have now?", "sort: d a c b"],
    "tiny-llama": ["Tom has 18 cups. He loses 4. How many cups does Tom have now?", "sort: d a c b"],
}
PROMPTS["tiny-llada"] = PROMPTS["tiny-nemotron"] = PROMPTS["tiny-dream"]
EAGLE = "eagle:name=tiny-llama-eagle,k=3"
NAMES = {
    **{
        kind: f"{kind}:name=tiny-llama-{kind}"
        for kind in ("medusa", "hydra", "eagle", "dflash", "kangaroo", "mtp", "prompts")
    },
    **{kind: f"{kind}:name=tiny-llama-draft" for kind in ("model", "pearl", "triforce", "sorted")},
    "diffusion": "diffusion:name=tiny-dream",
    "auto": f'auto:model="{EAGLE}",copy="lookup:k=7",measured=false',
    "idlm": "idlm:k=3,mask=4",
    "linearspec": "linearspec:k=3,mask=4",
}
OTHERS = (
    ("tiny-llama", f"{EAGLE}+beam:beams=4,nodes=6"),
    *(("tiny-llada", spec) for spec in ("threshold", "threshold@dual")),
    ("tiny-nemotron", "threshold@causal"),
    ("tiny-nemotron", "contiguous@next_sequence"),
)
SHORT = {
    *(("tiny-llama", spec) for spec in ("sequential", "lookup", EAGLE, f"{EAGLE}+beam:beams=4,nodes=6")),
    *(("tiny-llada", spec) for spec in ("threshold", "threshold@dual")),
    ("tiny-dream", "credit"),
    ("tiny-dream", "threshold@dkv"),
}
IMAGES = {"c2i_tiny": "llamagen/checkpoint/c2i_tiny.pt", "mar": "mar/checkpoint", "var": "var/checkpoint/var_plain.pth"}
# On an H100 they took other numbers of forwards: they compare confidences that differ in the last bit alone.
TIES = ("spacing", "saber")


def specs() -> list[tuple[str, str]]:
    """Model and spec: each method of masked models on Dream, each of autoregressive ones on Llama."""
    chosen = []
    for card in registry.cards():
        if card.family == "masked":
            chosen.append(("tiny-dream", f"threshold@{card.name}" if card.stage == "cache" else card.name))
        elif card.stage == "draft":
            chosen.append(("tiny-llama", NAMES.get(card.name, card.name)))
        elif card.family == "ar" and card.stage != "texts":
            chosen.append(("tiny-llama", f"{EAGLE}{'@' if card.stage == 'cache' else '+'}{card.name}"))
    return [*chosen, *OTHERS]


def marked(pairs: list[tuple[str, str]]) -> list[Any]:
    """The pairs as parameters; those of `SHORT` are marked."""
    return [pytest.param(*pair, marks=[pytest.mark.short] if pair in SHORT else []) for pair in pairs]


@pytest.mark.parametrize(("name", "spec"), marked(specs()), ids=lambda value: str(value))
def test_tokens_are_those_of_a_cpu(name: str, spec: str) -> None:
    host = pardec.load(name, device="cpu", dtype="float32")
    options = {"sampler": spec, "max_new_tokens": 32}
    try:
        expected = host.generate(PROMPTS[name], **options)
    except (ModelError, SpecError, ValueError, TypeError) as error:
        pytest.skip(f"not alone, or not for this model: {error}")
    result = pardec.load(name, device=DEVICE, dtype="float32").generate(PROMPTS[name], **options)
    assert [list(row) for row in result.tokens] == [list(row) for row in expected.tokens]
    if spec in TIES and list(result.nfe) != list(expected.nfe):
        pytest.xfail(f"{result.nfe} forwards, and {expected.nfe} on a CPU")
    assert list(result.nfe) == list(expected.nfe)


def image_model(name: str, device: str, dtype: str, **options: Any) -> pardec.Model:
    """A small checkpoint in the authors' format. VAR's tokenizer lies beside it."""
    if name != "mar":
        pytest.importorskip("diffusers", reason="its autoencoders are diffusers'")
    if name == "var":
        options["decoder"] = GOLDEN / "var/checkpoint/vae.pth"
    return pardec.load(GOLDEN / IMAGES[name], device=device, dtype=dtype, **options)


@pytest.mark.short
@pytest.mark.parametrize("name", IMAGES)
def test_images_are_those_of_a_cpu(name: str) -> None:
    """Codes are equal; vectors of random weights differ by float32's rounding over 25 steps (0.5% at most)."""
    options: dict[str, Any] = {"label": [1, 2], "seed": 3}
    expected = image_model(name, "cpu", "float32").generate(**options)
    result = image_model(name, DEVICE, "float32").generate(**options)
    assert list(result.nfe) == list(expected.nfe)
    if expected.latents is None:
        assert [list(row) for row in result.tokens] == [list(row) for row in expected.tokens]
    else:
        for found, wanted in zip(result.latents, expected.latents, strict=True):
            torch.testing.assert_close(torch.as_tensor(found), torch.as_tensor(wanted), atol=2e-3, rtol=1e-2)


@torch.inference_mode()
def outputs(model: pardec.Model) -> list[torch.Tensor]:
    """Logits of a whole forward and of one that reads a cache; states of MAR; logits of all maps of VAR."""
    network = model.network
    if isinstance(network, ScaleModel):
        transformer = network.transformer
        labels = torch.tensor([1, 2], device=network.device)
        maps = torch.randn(
            2, network.quantizer.scales.tokens - 1, network.quantizer.channels, generator=torch.manual_seed(0)
        )
        states = transformer.states(
            labels, maps.to(labels.device), transformer.new_cache(2), first=0, last=len(network.quantizer.scales) - 1
        )
        return [transformer.read(states, labels)]
    if isinstance(network, ContinuousModel):
        backbone = network.backbone
        size = network.head.size
        tokens = torch.randn(2, backbone.tokens, size, generator=torch.manual_seed(0)).to(network.device, network.dtype)
        known = torch.arange(backbone.tokens, device=network.device).repeat(2, 1) % 2 == 0
        states, place, _ = backbone.network.encode(tokens, known, torch.tensor([1, 2], device=network.device))
        return [backbone.network.decode(states, place)]
    top = min(network.vocab_size, 200)
    ids = torch.randint(5, top, (2, 24), generator=torch.manual_seed(0)).to(network.device)
    whole = network.forward(Plan.full(ids, network.visible())).logits()
    cache = network.new_cache(2, 24)
    network.forward(Plan.full(ids, network.visible()), cache)
    window = torch.arange(8, 16, device=network.device).repeat(2, 1)
    lengths = torch.full((2,), 24, device=network.device)
    plan = Plan(ids[:, 8:16], window, window, network.visible(), lengths, window - 8, uniform=24, span=(8, 16))
    return [whole, network.forward(plan, cache).logits()]


@pytest.mark.short
@pytest.mark.parametrize("name", ["tiny-llada", "tiny-dream", "tiny-llama", *IMAGES])
def test_bfloat16_logits_are_near_those_of_float32(name: str) -> None:
    """By the norm of the difference; bfloat16 keeps 8 bits, and errors of a few layers add up."""

    def made(device: str, dtype: str) -> list[torch.Tensor]:
        model = image_model(name, device, dtype) if name in IMAGES else pardec.load(name, device=device, dtype=dtype)
        return [values.float().cpu() for values in outputs(model)]

    for found, expected in zip(made(DEVICE, "bfloat16"), made("cpu", "float32"), strict=True):
        assert found.isfinite().all()
        assert (found - expected).norm() < 0.03 * expected.norm()


@CAPTURES
@pytest.mark.parametrize(
    ("name", "spec"),
    marked(
        [
            *(("tiny-llama", spec) for spec in ("sequential", "lookup", EAGLE, f"{EAGLE}+beam:beams=4,nodes=6")),
            *(("tiny-llada", spec) for spec in ("threshold", "threshold@dual", "credit+localleap+threshold@dkv")),
        ]
    ),
)
def test_captured_forwards_decode_the_same(name: str, spec: str) -> None:
    options = {"sampler": spec, "max_new_tokens": 32}
    expected = pardec.load(name, device=DEVICE, dtype="float32", cuda_graphs=False).generate(PROMPTS[name], **options)
    model = pardec.load(name, device=DEVICE, dtype="float32", cuda_graphs=True)
    for _ in range(2):  # the second in the memory of the first
        result = model.generate(PROMPTS[name], **options)
        assert [list(row) for row in result.tokens] == [list(row) for row in expected.tokens]
    runner = model.network.decoder
    if "beam" not in spec:  # selection or verdict, and commit, are in the graph
        assert runner.step_counts["replayed"] > 0, runner.describe()
        assert not [why for why in runner.step_counts if why.startswith("refused")], runner.describe()
    else:
        assert runner.counts["replayed"] > 0, runner.describe()


@CAPTURES
@pytest.mark.short
@pytest.mark.parametrize("name", IMAGES)
def test_captured_images_are_the_same(name: str) -> None:
    options: dict[str, Any] = {"label": [1, 2], "seed": 3, "cfg": 2.0}
    expected = image_model(name, DEVICE, "float32", cuda_graphs=False).generate(**options)
    model = image_model(name, DEVICE, "float32", cuda_graphs=True)
    for _ in range(3):  # shapes of VAR come again in the next request only
        result = model.generate(**options)
        assert [list(row) for row in result.tokens] == [list(row) for row in expected.tokens]
        if expected.latents is not None:
            torch.testing.assert_close(result.latents, expected.latents, atol=1e-4, rtol=1e-3)
    assert " replayed" in result.environment["forwards"], result.environment["forwards"]


def test_what_cannot_be_captured_runs_by_default() -> None:
    spec = 'sparsekv:read="retrieval:budget=8,chunk=2"'
    model = pardec.load("tiny-llama", device=DEVICE, dtype="float32")
    expected = pardec.load("tiny-llama", device="cpu", dtype="float32")
    found, wanted = (
        each.generate(PROMPTS["tiny-llama"], sampler=spec, max_new_tokens=16) for each in (model, expected)
    )
    assert [list(row) for row in found.tokens] == [list(row) for row in wanted.tokens]


@pytest.mark.parametrize("online", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_a_drafter_learns(kind: str, online: bool, tmp_path: Path) -> None:
    model = pardec.load("tiny-llama", device=DEVICE, dtype="bfloat16")
    rows = [(list(range(20, 30 + n % 5)), [40 + (n * 7 + at) % 60 for at in range(12)]) for n in range(12)]
    out, state = tmp_path / "out", tmp_path / "run"
    plan = TrainingPlan(kind, kind, out, state, steps=3, batch=100, validation=2, drafts=2, optimizer="muon")
    options = {"heads": 2, "block": 4, "unroll": 2, "mlp_width": 64, "mask_id": 4, "ramp": (0.0, 0.1)}
    if kind in ("eagle", "dflash"):
        options["vocab"] = 120
    run = prepare(model.network, {"rows": rows}, plan, options, folder=tmp_path, longest=100, online=online)
    before = {name: value.detach().clone() for name, value in run.parameters.items()}
    run.train()
    assert any(not torch.equal(value, before[name]) for name, value in run.parameters.items())
    again = prepare(model.network, {"rows": rows}, plan, options, folder=tmp_path, longest=100, online=online)
    assert again.step == 3
    assert pardec.load("tiny-llama", device=DEVICE).generate(
        PROMPTS["tiny-llama"], sampler=f"{kind}:name={out}", max_new_tokens=8
    )
