"""The planned memory compared with the memory that a decode takes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch.profiler import ProfilerActivity, profile

import pardec
from pardec.cli import run as pardec_command
from pardec.cli.plan import size
from pardec.memory_plan import MemoryPlan, break_even, plan, speedup
from pardec.models.decoder import Decoder, DecoderConfig
from pardec.models.errors import ModelError, SpecError
from pardec.models.model import DecodingConfig, LanguageModel
from pardec.requests import draft_models
from pardec.samplers import registry
from pardec.samplers.masked.loop import MaskedLoop
from pardec.samplers.speculative.loop import VerifyLoop
from tests.models.traced import captured
from tests.samplers.ar_toys import prompts, request
from tests.samplers.module_files import random_modules

VOCAB = 600


def toy(mask_id: int | None = None) -> LanguageModel:
    """A random model whose MLP is three times as wide as its states; with `mask_id`, a masked one."""
    shape = {"width": 64, "layers": 4, "heads": 4, "kv_heads": 2, "head_dim": 16, "mlp_width": 192, "norm_eps": 1e-6}
    decoder = Decoder(DecoderConfig(vocab=VOCAB, frequencies=tuple(0.1**at for at in range(8)), **shape))  # type: ignore[arg-type]
    drawn = torch.Generator().manual_seed(0)
    for weight in decoder.parameters():
        if weight.dim() > 1:
            weight.data.normal_(0, 0.2, generator=drawn)
    decoder.eval().requires_grad_(False)
    facts = {"path": None, "device": torch.device("cpu"), "dtype": torch.float32, "family": "toy"}
    config = DecodingConfig(mask_id, (), 0, None, 1, "causal" if mask_id is None else "bidirectional")
    return LanguageModel(decoder, config, {}, None, "toy", vocab_size=VOCAB, layers=4, width=64, **facts)


def measured(work: Callable[[], None]) -> int:
    """The peak number of bytes that torch allocated during `work`."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as record:
        work()
    events = [event for event in record.profiler.kineto_results.events() if event.name() == "[memory]"]  # type: ignore[union-attr]
    held = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):
        held += event.nbytes()
        most = max(most, held)
    return most


@pytest.mark.seeds("arXiv:2506.01986")
def test_the_plan_is_within_a_tenth_of_the_measured_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target's weights are left out, since they would hide the rest; every draft is accepted."""
    what_fits_is_the_largest_that_does()
    when_drafting_pays()
    each_part_by_hand(monkeypatch)
    model, drafter = toy(), toy()
    monkeypatch.setattr(draft_models, "language_model", lambda name, device, dtype: drafter)
    given = pardec.Model(model)
    for spec, batch, prompt, new in (
        ("sequential", 6, 60, 150),
        ("sequential@kivi:bits=4", 2, 200, 4),
        ("sequential@retrieval:budget=64", 6, 60, 150),
        ("sequential@cake:budget=64", 6, 60, 150),
        ("model:name=toy,k=8", 8, 40, 20),
        ("model:name=toy,k=5+beam:nodes=30,beams=6", 4, 50, 8),
    ):
        expected = plan(given, spec, batch=batch, prompt=prompt, new=new)
        assert expected.logits == batch * expected.nodes * VOCAB * 4, "float32, after every node"
        sampler = registry.resolve(spec, "ar")
        asked = request(prompts([prompt] * batch, vocab=VOCAB), new, share_prompt=False)
        asked = replace(asked, draft_model=draft_models.for_text(sampler, model))

        def decode(sampler=sampler, asked=asked) -> None:
            loop = VerifyLoop(model, sampler, asked)
            for _ in range(3):  # later rounds take no more
                loop.round()
            loop.close()

        weights = expected.parts["weights"] + expected.parts["drafter_weights"]  # loaded before
        assert expected.peak - weights == pytest.approx(measured(decode), rel=0.1), spec
    cut = plan(given, "model:name=toy,k=8", batch=8, prompt=40, new=20, memory=expected.peak, acceptance=0.9)
    assert cut.largest_k < 8, "the budget is that of fewer rows"
    assert (cut.speedup, cut.speedup_within) == (speedup(8, 1.0, 0.9), speedup(cut.largest_k, 1.0, 0.9))


@pytest.mark.parametrize(
    ("spec", "batch", "prompt", "new", "temperature"),
    [
        ("threshold@none", 6, 60, 100, 0.0),
        ("threshold@dual", 4, 60, 160, 0.0),
        ("fixed:steps=8@prefix", 3, 200, 64, 1.0),
        ("credit@none", 2, 10, 300, 0.0),
    ],
)
def test_the_plan_of_a_masked_request_is_within_a_tenth(
    spec: str, batch: int, prompt: int, new: int, temperature: float
) -> None:
    model = toy(VOCAB - 1)
    given = pardec.Model(model)
    expected = plan(given, spec, batch=batch, prompt=prompt, new=new, temperature=temperature)
    ids = [[5 + at % 50 for at in range(prompt)]] * batch
    call = given.prepare(input_ids=ids, sampler=spec, max_new_tokens=new, temperature=temperature, stop_ids=[])

    def decode() -> None:
        loop = MaskedLoop(model, call.sampler, call.request)
        for _ in range(3):
            loop.step()
        loop.close()

    assert expected.logits == batch * 32 * VOCAB * 4, "float32, at every position of a block"
    assert expected.peak - expected.parts["weights"] == pytest.approx(measured(decode), rel=0.1)
    budget = expected.peak + expected.parts["weights"] // 50
    fitting = plan(given, spec, batch=1, prompt=prompt, new=new, temperature=temperature, memory=budget)
    assert batch <= fitting.largest_batch
    more = plan(given, spec, batch=fitting.largest_batch + 1, prompt=prompt, new=new, temperature=temperature)
    assert more.peak > budget


def what_fits_is_the_largest_that_does() -> None:
    given = pardec.Model(toy())

    def planned(batch: int = 2, k: int = 12, memory: int | None = None) -> MemoryPlan:
        return plan(
            given, f"earlyexit:layers=1,k={k}+beam:nodes=40,beams=4", batch=batch, prompt=30, new=30, memory=memory
        )

    budget = planned(batch=5).peak
    found = planned(memory=budget)
    assert found.fits
    assert found.largest_batch is not None
    assert planned(batch=found.largest_batch).peak <= budget < planned(batch=found.largest_batch + 1).peak
    tight = planned(batch=6, memory=(planned(batch=6, k=5).peak + planned(batch=6, k=6).peak) // 2)
    assert not tight.fits
    assert tight.largest_k == 5
    assert planned(memory=given.language_model.weight_bytes).largest_batch == 0
    ample = planned(memory=1 << 40)
    assert (ample.largest_k, ample.largest_tree) == (12, 40), "no more than the spec drafts"
    assert tight.least <= planned(batch=6, k=2).peak


def each_part_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """8 rows of 60 tokens, drafts of 9 nodes, a scratch slot; 4 layers with 2 heads of 16 numbers of 4 bytes."""
    monkeypatch.setattr(draft_models, "language_model", lambda name, device, dtype: toy())
    given, slot = pardec.Model(toy()), 2 * 4 * 2 * 16 * 4
    parts = plan(given, "model:name=toy,k=8", batch=8, prompt=40, new=20).parts
    assert parts["drafter_kv"] == parts["kv"] + parts["scratch"] == 8 * (60 + 8 + 1) * slot
    window = plan(given, "sequential@streaming:sink=4,window=28", batch=8, prompt=40, new=20).parts
    assert window["kv"] == 8 * (4 + 28 + 1) * slot, "of any length of text"
    states = {"del:k=3,exits=1-3": 2, "medusa:name=toy,k=3": 1, "hydra:name=toy,k=3": 1}  # 64 wide, after 4 nodes
    for spec, count in states.items():
        with random_modules():
            read = plan(given, spec, batch=8, prompt=4, new=4)
        assert read.taps == 8 * 4 * count * 64 * 4
        # The logits, and of a path's logits a copy and the softmax.
        assert read.parts["round_work"] == 3 * 8 * 4 * VOCAB * 4 + read.taps
        own = read.parts["kv"] + read.parts["scratch"]  # a Hydra++ has K/V of one layer, the others have none
        assert read.parts["drafter_kv"] == (own // 4 if "hydra" in spec else 0)
        # Of a long prompt the states are read at every token.
        with random_modules():
            long, none = (plan(given, each, batch=8, prompt=400, new=4) for each in (spec, "sequential"))
        assert long.parts["prompt_work"] - none.parts["prompt_work"] == 8 * 400 * count * 64 * 4


def when_drafting_pays() -> None:
    assert speedup(3, 0.1, 0.5) == pytest.approx((1 + 0.5 + 0.25 + 0.125) / 1.3)
    assert break_even(1, 0.25) == pytest.approx(0.25)
    assert break_even(4, 0) == pytest.approx(0, abs=1e-6)
    assert break_even(3, 2) == pytest.approx(1)


def test_sizes_and_what_cannot_be_planned() -> None:
    assert [size(text) for text in ("3GB", "512 MiB", "1.5k", "70")] == [3 * 10**9, 2**29, 1500, 70]
    for text in ("GB", "3XB", "3iB", "-1"):
        with pytest.raises(SpecError, match="size in bytes"):
            size(text)
    given = pardec.Model(toy())
    for wrong in ({"batch": 0}, {"prompt": -1}, {"memory": 0}, {"acceptance": 2.0}):
        with pytest.raises(SpecError):
            plan(given, "lookup", **{"prompt": 4, "new": 4, **wrong})  # type: ignore[arg-type]
    for name in ("tiny-llamagen", "tiny-mar"):
        with pytest.raises(ModelError, match="makes images: only memory of text models is planned"):
            plan(name, prompt=4, new=4, device="cpu")
    masked = pardec.Model(toy(VOCAB - 1))
    with pytest.raises(SpecError, match="drafts nothing"):
        plan(masked, "threshold", prompt=4, new=4, acceptance=0.5)
    for spec, keeps in (
        ("dapd", "attention maps"),
        ("threshold@spa", "outputs of layers"),
        ("wino", "copies of the block"),
        ("lopa+threshold", "rows of drafts"),
    ):
        with pytest.raises(SpecError, match=f"is not planned: it keeps {keeps}"):
            plan(masked, spec, prompt=4, new=4)


def test_the_command_prints_lines_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plan", "tiny-llama", "-s", "lookup:k=6@int8", "--memory", "20MB", "--batch", "2", "--device", "cpu"]
    assert pardec_command(command) == 0
    text = capsys.readouterr().out
    assert "peak" in text
    assert "it fits 20 MB" in text
    assert pardec_command([*command, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["nodes"] == 7
    assert document["peak"] == sum(document["parts"].values()) - min(
        document["parts"]["prompt_work"], document["parts"]["round_work"]
    )


def test_the_command_plans_a_masked_model(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["plan", "tiny-dream", "-s", "threshold@dual", "--memory", "20MB", "--batch", "2", "--device", "cpu"]
    assert pardec_command(command) == 0
    text = capsys.readouterr().out
    assert "2 rows of 128 + 64 tokens, blocks of 32 positions" in text
    assert "it fits 20 MB" in text


def test_graphs_have_memory_of_their_own() -> None:
    """Memory of captured forwards and the rounding of caches are part of the plan, and absent without graphs."""
    model = pardec.load("tiny-llama", device="cpu")
    bare = plan(model, "lookup:k=3", batch=3, prompt=100, new=60)
    assert "graphs" not in bare.parts
    sizes = plan(pardec.Model(captured(model.language_model)), "lookup:k=3", batch=3, prompt=100, new=60)
    slot = bare.parts["kv"] // (3 * (160 + 1))
    assert sizes.parts["kv"] == slot * 4 * (256 + 1)
    assert sizes.parts["graphs"] > 0
    assert sizes.peak - bare.peak == sizes.parts["graphs"] + (
        sizes.parts["kv"] + sizes.parts["scratch"] - bare.parts["kv"] - bare.parts["scratch"]
    )
    wide = plan(pardec.Model(captured(model.language_model)), "lookup:k=3", batch=600, prompt=100, new=60)
    assert "graphs" not in wide.parts  # more queries than are captured
