"""pardec in diffusers' pipeline and scheduler, and diffusers' schedulers in pardec's loop, compared pairwise."""

from __future__ import annotations

import inspect
import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import BlockRefinementScheduler, DDIMScheduler, EntropyBoundScheduler, LLaDA2Pipeline
from diffusers.callbacks import PipelineCallback
from diffusers.pipelines.llada2 import LLaDA2PipelineOutput
from torch import Tensor, nn

import pardec
from pardec.interop.diffusers import PardecPipeline, PardecScheduler, policy
from pardec.models.errors import ModelError, SpecError, UnknownNameError
from pardec.models.model import LanguageModel
from pardec.models.plan import Plan
from pardec.samplers import registry
from pardec.samplers.masked.canvas import Canvas
from pardec.samplers.masked.contracts import Evidence, MaskedSampler, Proposal
from pardec.samplers.ops.distribution import DenseDistribution
from pardec.samplers.ops.rank import top
from tests.samplers import toys

TEXTS = ["Tom has 18 cups. He loses 4. How many cups does Tom have now?", "Ann has 3 cups."]


class Theirs(nn.Module):
    """A pardec model with the calling convention of the models that LLaDA2Pipeline takes."""

    dtype, device = torch.float32, torch.device("cpu")

    def __init__(self, model: LanguageModel) -> None:
        super().__init__()
        self.model, self.calls = model, 0

    def forward(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor) -> Any:
        self.calls += 1
        logits = self.model.forward(Plan.full(input_ids, self.model.visible())).logits().clone()
        logits[..., toys.MASK] = -1e9  # diffusers' scheduler would commit the mask token where it is the likeliest
        return SimpleNamespace(logits=logits)


def theirs(model: LanguageModel, scheduler: Any) -> tuple[LLaDA2Pipeline, Theirs]:
    network = Theirs(model)
    return LLaDA2Pipeline(model=network, scheduler=scheduler), network


def ours(model: pardec.Model, scheduler: Any = None) -> PardecPipeline:
    return PardecPipeline(model=model, scheduler=scheduler)


# --- the pipeline against Model.generate ---


@pytest.mark.parametrize("name", ["tiny-dream", "tiny-llada"])
@pytest.mark.parametrize("sampler", ["threshold", "threshold:tau=0.7+eos@dual", "factor@prefix"])
@pytest.mark.covers(1)
def test_the_pipeline_gives_the_text_of_generate(name: str, sampler: str) -> None:
    pipeline = PardecPipeline.from_pretrained(name, device="cpu")
    out = pipeline(TEXTS, gen_length=24, block_length=8, sampler=sampler)
    expected = pipeline.model.generate(TEXTS, sampler=sampler, max_new_tokens=24, block_length=8)
    assert isinstance(out, LLaDA2PipelineOutput)
    assert out.texts == expected.text
    assert out.sequences.shape == (2, 24)
    for row, tokens in enumerate(expected.tokens):
        assert out.sequences[row, : len(tokens)].tolist() == tokens
    assert pipeline.result.tokens == expected.tokens
    assert (
        pipeline.result.nfe
        == pipeline.model.generate(TEXTS, sampler=pipeline.result.spec, max_new_tokens=24, block_length=8).nfe
    )


def test_the_call_has_the_arguments_of_theirs_and_their_defaults() -> None:
    one = inspect.signature(inspect.unwrap(LLaDA2Pipeline.__call__)).parameters
    other = inspect.signature(inspect.unwrap(PardecPipeline.__call__)).parameters
    assert list(other) == [*one, "sampler"]
    assert {name: other[name].default for name in one} == {name: one[name].default for name in one}
    assert PardecPipeline._callback_tensor_inputs == LLaDA2Pipeline._callback_tensor_inputs


def test_every_form_of_prompt_gives_the_same_sequences(dream: pardec.Model) -> None:
    pipeline, how = ours(dream), {"gen_length": 12, "block_length": 4, "sampler": "threshold"}
    expected = pipeline(TEXTS, **how).sequences
    talks = [[{"role": "user", "content": text}] for text in TEXTS]
    ids = dream.tokenizer(TEXTS, padding=True, return_tensors="pt", padding_side="left")
    right = dream.tokenizer(TEXTS, padding=True, return_tensors="pt", padding_side="right")
    for options in (
        {"messages": talks},
        {"prompt": TEXTS, "use_chat_template": False},
        {"input_ids": ids["input_ids"], "attention_mask": ids["attention_mask"]},
        {"input_ids": right["input_ids"], "attention_mask": right["attention_mask"]},
    ):
        assert torch.equal(pipeline(**options, **how).sequences, expected)
    alone = torch.tensor(dream.tokenizer(TEXTS[1])["input_ids"])
    for options in ({"input_ids": alone}, {"prompt": TEXTS[1]}, {"messages": talks[1]}):
        assert torch.equal(pipeline(**options, **how).sequences, expected[1:])


def test_output_forms_and_end_tokens(dream: pardec.Model) -> None:
    pipeline, how = ours(dream), {"gen_length": 16, "block_length": 16, "sampler": "threshold"}
    out = pipeline(TEXTS[1], **how)
    sequences, texts = pipeline(TEXTS[1], return_dict=False, **how)
    assert torch.equal(sequences, out.sequences)
    assert texts == out.texts
    assert pipeline(TEXTS[1], output_type="seq", **how).texts is None
    end = int(out.sequences[0, 3])
    first = out.sequences[0].tolist().index(end)
    early = pipeline(TEXTS[1], eos_token_id=end, **how)
    assert pipeline.result.tokens[0] == out.sequences[0, : first + 1].tolist()
    assert early.texts[0] == dream.text(out.sequences[0, : first + 1].tolist())
    assert "+eos" in pipeline.result.spec
    pipeline(TEXTS[1], eos_early_stop=False, **how)
    assert "eos" not in pipeline.result.spec
    assert pipeline.result.finish == ["length"]


def test_a_generator_seeds_the_draws(dream: pardec.Model) -> None:
    pipeline, how = ours(dream), {"gen_length": 12, "block_length": 12, "temperature": 3.0, "sampler": "threshold"}

    def render(seed: int, **more: Any) -> Tensor:
        return pipeline(TEXTS[1], generator=torch.Generator().manual_seed(seed), **how | more).sequences

    assert torch.equal(render(1), render(1))
    assert not torch.equal(render(1), render(2))
    greedy = pipeline(TEXTS[1], **how | {"temperature": 0.0}).sequences
    assert torch.equal(render(1, sampling_method="greedy"), greedy)
    assert torch.equal(render(1, top_k=1), greedy)


def test_the_callback_is_told_every_step(dream: pardec.Model) -> None:
    pipeline = ours(dream)
    events: list[tuple[int, int]] = []
    built = torch.full((2, 8), -1)

    def callback(pipe: Any, step: int, timestep: int, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        assert pipe is pipeline
        events.append((step, timestep))
        assert tensors["block_x"].shape[0] == 2
        assert not (tensors["transfer_index"] & ~tensors["active_block"]).any()
        assert not tensors["editing_transfer_index"].any()
        assert (tensors["sampled_probs"][tensors["active_block"]] > 0).all()
        built[tensors["transfer_index"]] = tensors["sampled_tokens"][tensors["transfer_index"]]
        return tensors

    names = pipeline._callback_tensor_inputs
    out = pipeline(
        TEXTS, gen_length=8, block_length=8, sampler="fixed:steps=4", eos_early_stop=False,
        callback_on_step_end=callback, callback_on_step_end_tensor_inputs=names,
    )  # fmt: skip
    assert events == [(0, 0), (1, 1), (2, 2), (3, 3)]
    assert torch.equal(built, out.sequences)
    pipeline(
        TEXTS, gen_length=8, block_length=4, sampler="sequential", callback_on_step_end=lambda *a: events.append(a[1:3])
    )
    assert [timestep for _, timestep in events[4:8]] == [0, 1, 2, 3]


class Counted(PipelineCallback):
    tensor_inputs = ("transfer_index", "active_block")

    def callback_fn(self, pipeline: Any, step: int, timestep: int, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        assert set(tensors) == set(self.tensor_inputs)
        pipeline.counted = getattr(pipeline, "counted", 0) + int(tensors["transfer_index"].sum())
        return tensors


def test_a_callback_object_names_its_own_tensors(dream: pardec.Model) -> None:
    pipeline = ours(dream)
    pipeline(TEXTS, gen_length=8, sampler="threshold", eos_early_stop=False, callback_on_step_end=Counted())
    assert pipeline.counted == 16


def test_a_callback_that_changes_tokens_is_refused(dream: pardec.Model) -> None:
    def callback(pipe: Any, step: int, timestep: int, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"block_x": tensors["block_x"] + 1}

    with pytest.raises(SpecError, match="block_x"):
        ours(dream)(TEXTS[1], gen_length=4, sampler="threshold", callback_on_step_end=callback)


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ({"prompt": None}, "one of prompt"),
        ({"messages": [{"role": "user", "content": "x"}]}, "one of prompt"),
        ({"sampler": "threshold", "threshold": 0.8}, "threshold=0.8"),
        ({"sampler": "threshold", "num_inference_steps": 4}, "num_inference_steps=4"),
        ({"sampler": "threshold", "editing_threshold": 0.9}, "editing_threshold=0.9"),
        ({"sampler": "threshold", "max_post_steps": 3}, "max_post_steps=3"),
        ({"sampler": "treshold"}, "did you mean 'threshold'"),
        ({"num_inference_steps": 0}, "num_inference_steps"),
        ({"minimal_topk": 0}, "minimal_topk"),
        ({"gen_length": 0}, "gen_length"),
        ({"gen_length": 2048}, "positions"),
        ({"block_length": 0}, "block_length"),
        ({"temperature": -1.0}, "temperature"),
        ({"sampling_method": "beam"}, "sampling_method"),
        ({"output_type": "np"}, "output_type"),
        ({"mask_token_id": 7}, "mask_token_id=7"),
        ({"attention_mask": torch.ones(1, 4)}, "attention_mask"),
        ({"prompt": None, "input_ids": torch.ones(1, 4)}, "LongTensor"),
        ({"prompt": None, "input_ids": torch.full((1, 3), 9), "attention_mask": torch.tensor([[1, 0, 1]])}, "gap"),
        ({"prompt": None, "input_ids": torch.full((1, 3), 9), "attention_mask": torch.ones(1, 4)}, "input_ids"),
        ({"callback_on_step_end_tensor_inputs": ["logits"]}, "logits"),
        ({"generator": [torch.Generator()]}, "generator must be a torch.Generator, got list"),
        ({"prompt": []}, "prompt must be a text or a list of texts"),
        ({"prompt": 5}, "prompt must be a text or a list of texts"),
        ({"sampler": "lookup"}, "'lookup' is for autoregressive models"),
    ],
)
def test_what_cannot_be_honoured_is_refused(dream: pardec.Model, arguments: dict[str, Any], says: str) -> None:
    with pytest.raises((SpecError, UnknownNameError), match=says):
        ours(dream)(**{"prompt": TEXTS[1], "gen_length": 8, "editing_threshold": None} | arguments)


def test_what_a_pipeline_is_made_of_is_checked(dream: pardec.Model, tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="pardec Model"):
        PardecPipeline(model=nn.Linear(2, 2))
    with pytest.raises(SpecError, match="tiny-llama is no masked text model"):
        PardecPipeline("tiny-llama")
    with pytest.raises(SpecError, match="DDIMScheduler"):
        PardecPipeline(model=dream, scheduler=DDIMScheduler())
    with pytest.raises(SpecError, match="remote code"):
        PardecPipeline.from_pretrained("tiny-dream", trust_remote_code=True)
    with pytest.raises(SpecError, match="variant"):
        PardecPipeline.from_pretrained("tiny-dream", variant="fp16")
    pipeline = PardecPipeline.from_pretrained(
        "tiny-dream", torch_dtype=torch.float32, local_files_only=True, device="cpu"
    )
    assert pipeline.to("cpu", torch.float32) is pipeline
    assert pipeline.device == torch.device("cpu")
    for elsewhere in ("meta", torch.float16):
        with pytest.raises(SpecError, match=", not "):
            pipeline.to(elsewhere)
    with pytest.raises(SpecError, match="takes no push_to_hub"):
        pipeline.save_pretrained(tmp_path, push_to_hub=True)
    there = PardecPipeline.from_pretrained("tiny-dream", device_map="cpu", low_cpu_mem_usage=True)
    assert there.device == torch.device("cpu")


@pytest.mark.parametrize("name", ["tiny-dream", "folder"])
@pytest.mark.parametrize("kind", [PardecScheduler, BlockRefinementScheduler])
def test_what_is_saved_is_loaded_again(name: str, kind: Any, folder: Path, tmp_path: Path) -> None:
    made = kind("factor:f=0.5", block_length=4) if kind is PardecScheduler else kind(block_length=4, threshold=0.4)
    before = PardecPipeline.from_pretrained(folder if name == "folder" else name, scheduler=made, device="cpu")
    before.save_pretrained(tmp_path / "saved")
    after = PardecPipeline.from_pretrained(tmp_path / "saved", device="cpu", torch_dtype=torch.float32)
    assert type(after.scheduler) is kind
    events, again = (
        {name: value for name, value in each.scheduler.config.items() if name[0] != "_"} for each in (before, after)
    )
    assert events == again
    assert (after.mask_token_id, after.eos_token_id) == (before.mask_token_id, before.eos_token_id)
    calls = [pipeline(TEXTS, gen_length=8, temperature=0.0) for pipeline in (before, after)]
    assert torch.equal(calls[0].sequences, calls[1].sequences)
    assert calls[0].texts == calls[1].texts
    source = before.model.language_model.path
    with pytest.raises(SpecError, match="lies in the folder that"):
        before.save_pretrained(source / "inside")


def test_a_saved_pipeline_is_loaded_with_its_scheduler(folder: Path, tmp_path: Path) -> None:
    saved = tmp_path / "pipeline"
    shutil.copytree(folder, saved / "model")
    for scheduler in (PardecScheduler("factor:f=0.5", block_length=4), BlockRefinementScheduler(block_length=8)):
        scheduler.save_pretrained(saved / "scheduler")
        index = {"_class_name": "LLaDA2Pipeline", "scheduler": [type(scheduler).__module__, type(scheduler).__name__]}
        (saved / "model_index.json").write_text(json.dumps(index))
        pipeline = PardecPipeline.from_pretrained(saved, device="cpu")
        assert type(pipeline.scheduler) is type(scheduler)
        assert pipeline.scheduler.config.block_length == scheduler.config.block_length
        assert pipeline.model.config["model_type"] == "Dream"
    shutil.rmtree(saved / "model")
    with pytest.raises(ModelError, match="without a language model"):
        PardecPipeline.from_pretrained(saved, device="cpu")


def test_the_scheduler_is_saved_and_loaded_with_a_pipeline_of_theirs(tmp_path: Path) -> None:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    shape = {"vocab_size": 20, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    network = Qwen2ForCausalLM(Qwen2Config(**shape, num_attention_heads=1, num_key_value_heads=1))
    LLaDA2Pipeline(model=network, scheduler=PardecScheduler("factor:f=0.5")).save_pretrained(tmp_path)
    again = LLaDA2Pipeline.from_pretrained(tmp_path)
    assert isinstance(again.scheduler, PardecScheduler)
    assert again.scheduler.config.sampler == "factor:f=0.5"


def test_a_name_will_do_for_the_model() -> None:
    assert PardecPipeline(model="tiny-llada").model.name == "tiny-llada"


# --- the pipeline against diffusers' own: random calls are in test_llada2_calls.py ---


def test_a_block_causal_model_has_its_own_block() -> None:
    pipeline = ours(pardec.Model(toys.toy("sdar")))
    how = {"input_ids": torch.tensor(toys.prompts([4])), "gen_length": 8, "sampler": "sequential"}
    assert torch.equal(pipeline(**how).sequences, pipeline(block_length=toys.BLOCK, **how).sequences)
    with pytest.raises(SpecError, match="block_length=8"):
        pipeline(block_length=8, **how)


# --- the scheduler inside diffusers' own loop ---

SPECS = [
    "sequential",
    "threshold:tau=0.3",
    "factor:f=1.0",
    "fixed",
    "margin+threshold:tau=0.2",
    "entropy+entropy_threshold:tau=1.5",
    "threshold:tau=0.3+edit:tau=0.2",
    "threshold:tau=0.2+edit:tau=0.3,post=2",
]


@pytest.mark.parametrize("spec", SPECS)
@pytest.mark.parametrize(("prompt", "new"), [(4, 12), (6, 10), (5, 7)])
def test_the_scheduler_in_llada2_pipeline_is_pardecs_decode(spec: str, prompt: int, new: int) -> None:
    model = toys.toy("sdar", sharp=1.0)
    ids = toys.prompts([prompt], seed=3)
    pipeline, network = theirs(model, PardecScheduler(spec, block_length=toys.BLOCK))
    out = pipeline(input_ids=torch.tensor(ids), gen_length=new, mask_token_id=toys.MASK, eos_early_stop=False)
    expected = toys.fill(model, spec, ids, new)
    assert out.sequences[0].tolist() == expected.tokens[0, prompt:].tolist()
    assert network.calls == expected.nfe[0]  # and no forward on a block that is complete


def test_the_scheduler_decodes_a_bidirectional_block_and_a_batch() -> None:
    model = toys.toy("llada", sharp=1.0)
    ids = toys.prompts([4, 4, 4], seed=5)
    pipeline, _ = theirs(model, PardecScheduler("threshold:tau=0.4"))
    out = pipeline(
        input_ids=torch.tensor(ids), gen_length=4, block_length=4, mask_token_id=toys.MASK, eos_early_stop=False
    )
    expected = toys.fill(model, "threshold:tau=0.4", ids, 4)
    assert torch.equal(out.sequences, torch.from_numpy(expected.tokens[:, 4:]))


@pytest.mark.parametrize("spec", ["threshold:tau=0.5", "credit+threshold:tau=0.5"])
def test_rows_that_end_early_do_not_disturb_the_others(spec: str) -> None:
    model = toys.biased(toys.toy("sdar", sharp=1.0), toys.EOS, 4.0)
    ids = toys.prompts([4] * 5, seed=2)
    pipeline, _ = theirs(model, PardecScheduler(spec, block_length=4))
    out = pipeline(input_ids=torch.tensor(ids), gen_length=12, mask_token_id=toys.MASK, eos_token_id=toys.EOS)
    expected = toys.fill(model, f"{spec}+eos", ids, 12, stop_ids=(toys.EOS,))
    lengths = set()
    for got, row in zip(out.sequences.tolist(), expected.tokens[:, 4:].tolist(), strict=True):
        end = row.index(toys.EOS) + 1 if toys.EOS in row else len(row)
        assert got[:end] == row[:end]
        lengths.add(end)
    assert len(lengths) > 1


def test_steps_of_the_call_bound_the_steps_of_a_block() -> None:
    model = toys.toy("sdar", sharp=1.0)
    pipeline, network = theirs(model, PardecScheduler("sequential", block_length=4))
    how = {
        "input_ids": torch.tensor(toys.prompts([4])),
        "gen_length": 12,
        "mask_token_id": toys.MASK,
        "eos_early_stop": False,
    }
    out = pipeline(num_inference_steps=2, **how)
    assert network.calls == 6
    assert torch.equal(out.sequences, pipeline(num_inference_steps=2, **how).sequences)  # nothing stays behind


def test_the_scheduler_follows_a_callback_that_rewrites_the_block() -> None:
    model = toys.toy("sdar", sharp=1.0)
    pipeline, _ = theirs(model, PardecScheduler("sequential", block_length=4))

    def put(pipe: Any, step: int, timestep: int, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        block = tensors["block_x"].clone()
        if step == 0:
            block[:, 4:6] = torch.tensor([7, 8])
        return {"block_x": block}

    how = {"gen_length": 4, "mask_token_id": toys.MASK, "eos_early_stop": False, "callback_on_step_end": put}
    out = pipeline(input_ids=torch.tensor(toys.prompts([4])), **how)
    assert out.sequences[0, :2].tolist() == [7, 8]
    assert (out.sequences != toys.MASK).all()


def block_of(seed: int, rows: int = 3, width: int = 6) -> tuple[Tensor, Tensor]:
    """Random logits [B, W, V] and a sample [B, W] of which a part is open."""
    render = torch.Generator().manual_seed(seed)
    logits = torch.randn(rows, width, toys.VOCAB, generator=render) * 3
    sample = torch.randint(0, toys.VOCAB - 3, (rows, width), generator=render)
    open_ones = torch.rand(rows, width, generator=render) < 0.7
    open_ones[:, 0] = True
    return logits, sample.masked_fill(open_ones, toys.MASK)


def test_one_step_by_hand() -> None:
    logits = torch.full((1, 4, 6), -10.0)
    for place, (token, height) in enumerate([(0, 9.0), (1, 0.5), (5, 20.0), (2, 9.0)]):  # 5 is the mask id
        logits[0, place, token] = height
    logits[0, 1, 3] = 0.4
    kept = logits.clone()
    sample = torch.tensor([[5, 5, 5, 1]])
    scheduler = PardecScheduler("threshold:tau=0.9", block_length=4)
    out = scheduler.step(logits, 0, sample, mask_token_id=5)
    assert out.prev_sample.tolist() == [[0, 5, 5, 1]]
    assert out.transfer_index.tolist() == [[True, False, False, False]]
    assert not out.editing_transfer_index.any()
    assert out.sampled_tokens[0, :2].tolist() == [0, 1]
    assert out.sampled_probs[0, 1].item() == pytest.approx(1 / (1 + np.exp(-0.1)), abs=1e-3)
    assert torch.equal(logits, kept)
    assert out.pred_logits is logits
    plain = scheduler.step(logits, 0, sample, mask_token_id=5, return_dict=False)
    assert len(plain) == 6
    assert torch.equal(plain[0], out.prev_sample)
    given_out, values = out.prev_sample, out.prev_sample.clone()
    for _ in range(3):
        out = scheduler.step(logits, 1, out.prev_sample, mask_token_id=5)
    assert (out.prev_sample != 5).all()
    assert torch.equal(given_out, values)
    assert torch.equal(scheduler.step(logits, 4, out.prev_sample, mask_token_id=5).prev_sample, out.prev_sample)


def test_the_scheduler_draws_by_its_generator() -> None:
    logits, sample = block_of(0)
    scheduler = PardecScheduler("sequential", block_length=6)

    def render(seed: int, **more: Any) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        how = {"mask_token_id": toys.MASK, "temperature": 2.0, "generator": generator, **more}
        return scheduler.step(logits, 0, sample, **how).sampled_tokens

    assert torch.equal(render(1), render(1))
    assert not torch.equal(render(1), render(2))
    assert torch.equal(render(1, sampling_method="greedy"), render(2, temperature=0.0))
    assert torch.equal(render(1, top_k=1), render(2, top_p=1e-6))


def test_the_scheduler_serves_a_pipeline_of_ours(dream: pardec.Model) -> None:
    out = ours(dream, PardecScheduler("threshold:tau=0.6+eos", block_length=8))(TEXTS[1], gen_length=16)
    expected = dream.generate(TEXTS[1], sampler="threshold:tau=0.6+eos", max_new_tokens=16, block_length=8)
    assert out.texts == expected.text


def test_the_scheduler_refuses_what_it_cannot_run() -> None:
    for spec, says in (
        ("threshold@dual", "cache"),
        ("wino", "runs the model"),
        ("oracle", "runs the model"),
        ("treshold", "unknown sampler"),
        ("lookup", "for autoregressive models"),
    ):
        with pytest.raises((SpecError, UnknownNameError), match=says):
            PardecScheduler(spec)
    scheduler = PardecScheduler("threshold")
    logits, sample = block_of(0)
    for how, says in (
        ({}, "mask_token_id"),
        ({"mask_token_id": toys.MASK, "threshold": 0.8}, "threshold=0.8"),
        ({"mask_token_id": toys.MASK, "editing_threshold": 0.8}, "editing_threshold=0.8"),
        ({"mask_token_id": toys.MASK, "sampling_method": "beam"}, "sampling_method"),
    ):
        with pytest.raises(SpecError, match=says):
            scheduler.step(logits, 0, sample, **how)
    for steps, block in ((0, 4), (4, 0)):
        with pytest.raises(SpecError, match="at least 1"):
            scheduler.set_timesteps(steps, block_length=block)


# --- diffusers' schedulers as policies ---


def chosen(sampler: MaskedSampler, logits: Tensor, sample: Tensor, at: int = 0) -> tuple[Tensor, Canvas]:
    """The choice [B, W] bool of the logits and select stages of `sampler` at step `at` of a block."""
    width = sample.shape[1]
    canvas = Canvas(list(sample), [0] * len(sample), mask_id=toys.MASK, pad_id=toys.PAD, block_length=width)
    request = toys.request(sample.tolist(), [0] * len(sample), block_length=width)
    evidence = Evidence(DenseDistribution(logits.clone()), canvas.window, canvas.eligible, request)
    states = {id(stage): stage.start(canvas) for stage in sampler.stages if hasattr(stage, "start")}
    for step in range(at + 1):  # the clock of a state begins where the block is entered
        seen = evidence
        for stage in sampler.logits:
            seen = replace(seen, distribution=stage.logits(seen, canvas, states.get(id(stage))))
        proposal: Proposal = sampler.propose.propose(seen, canvas)
        which = sampler.select.select(proposal, canvas, states.get(id(sampler.select)))
        if step < at:
            canvas.step, canvas.block_started = canvas.step + 1, np.zeros(len(canvas), dtype=bool)
    assert isinstance(which, Tensor)
    return which & canvas.eligible, canvas


@pytest.mark.parametrize("at", [0, 1, 3])
@pytest.mark.parametrize("tau", [0.3, 0.7, 2.0])
@pytest.mark.parametrize("steps", [2, 4, 6, 9])
@pytest.mark.covers(2)
def test_block_refinement_is_its_scheduler_and_pardecs_threshold_with_a_floor(at: int, tau: float, steps: int) -> None:
    for seed in range(5):
        logits, sample = block_of(seed)
        logits[..., toys.MASK] = -torch.inf
        scheduler = BlockRefinementScheduler(threshold=tau, block_length=6, num_inference_steps=steps)
        got, canvas = chosen(policy(scheduler), logits, sample, at)
        assert scheduler._transfer_schedule is None  # the caller's object is as it was

        scheduler.set_timesteps(steps, block_length=6)
        expected = scheduler.step(logits, min(at, steps - 1), sample, mask_token_id=toys.MASK).transfer_index
        assert torch.equal(got, expected)

        share = 6 // steps + (min(at, steps - 1) < 6 % steps)
        evidence = Evidence(
            DenseDistribution(logits), canvas.window, canvas.eligible, toys.request(sample.tolist(), [0] * 3)
        )
        threshold = registry.resolve(f"threshold:tau={min(tau, 1.0)}")
        proposal = threshold.propose.propose(evidence, canvas)
        passed = threshold.select.select(proposal, canvas, None)
        assert torch.equal(got, (passed | top(proposal.score, torch.full((3, 1), share))) & canvas.eligible)


@pytest.mark.parametrize("bound", [0.01, 0.5, 2.0])
@pytest.mark.parametrize("at", [0, 3])
def test_entropy_bound_is_its_scheduler_on_the_open_positions(bound: float, at: int) -> None:
    scheduler = EntropyBoundScheduler(entropy_bound=bound, num_inference_steps=5)
    several = 0
    for seed in range(5):
        logits, sample = block_of(seed)
        logits[..., toys.MASK] = -torch.inf
        got, canvas = chosen(policy(scheduler), logits, sample, at)
        for row in range(len(sample)):
            places = canvas.eligible[row]
            out = scheduler.step(logits[row, places][None], at, sample[row, places][None])
            assert torch.equal(got[row, places], out.accepted_index[0])
            several += int(out.accepted_index.sum()) > 1
    assert several or bound < 0.1


def test_entropy_bound_of_pardec_is_the_schedulers_accepted_prefix() -> None:
    for seed in range(5):
        logits, sample = block_of(seed)
        logits[..., toys.MASK] = -torch.inf
        scheduler = EntropyBoundScheduler(entropy_bound=0.7, t_max=1.0, t_min=1.0)
        expected, _ = chosen(policy(scheduler), logits, sample)
        got, _ = chosen(registry.resolve("entropy_bound:gamma=0.7"), logits, sample)
        assert torch.equal(got, expected)


@pytest.mark.parametrize(
    "scheduler", [BlockRefinementScheduler(threshold=0.3), EntropyBoundScheduler(entropy_bound=1.0)]
)
@pytest.mark.parametrize("rest", ["eos", "eos@dual", "margin"])
def test_a_policy_decodes_and_a_row_alone_is_the_row_in_a_batch(
    model: pardec.Model, scheduler: Any, rest: str, tmp_path: Path
) -> None:
    sampler = policy(scheduler, rest)
    assert str(sampler.spec).startswith("margin" if rest == "margin" else "confidence:of=filtered")
    assert sampler.propose == registry.build_method(sampler.spec.parts[0])
    how: dict[str, Any] = {"sampler": sampler, "temperature": 1.0, "max_new_tokens": 12, "block_length": 4}
    before = torch.random.get_rng_state()
    together = model.generate(TEXTS, seed=[5, 6], **how)
    assert torch.equal(torch.random.get_rng_state(), before)
    for row, text in enumerate(TEXTS):
        alone = model.generate(text, seed=[5 + row], **how)
        assert alone.tokens[0] == together.tokens[row]
        assert alone.nfe[0] == together.nfe[row]
    assert type(scheduler).__name__ in together.spec
    assert pardec.Result.load(together.save(tmp_path / "result")).spec == together.spec


def test_a_ready_sampler_is_taken_as_it_is(model: pardec.Model) -> None:
    sampler = registry.resolve("threshold:tau=0.3")
    assert registry.resolve(sampler) is sampler
    one, other = (model.generate(TEXTS[1], sampler=s, max_new_tokens=8) for s in (sampler, "threshold:tau=0.3"))
    assert (one.tokens, one.spec) == (other.tokens, other.spec)


def test_the_entropy_bound_scheduler_serves_the_pipeline(dream: pardec.Model) -> None:
    pipeline = ours(dream, EntropyBoundScheduler(entropy_bound=0.5))
    how: dict[str, Any] = {"gen_length": 16, "block_length": 8}
    out = pipeline(TEXTS[1], **how)
    expected = dream.generate(TEXTS[1], sampler=policy(pipeline.scheduler, steps=16), max_new_tokens=16, block_length=8)
    assert out.texts == expected.text
    with pytest.raises(SpecError, match="threshold=0.9"):
        pipeline(TEXTS[1], threshold=0.9, **how)


def test_a_policy_refuses_what_it_cannot_be() -> None:
    with pytest.raises(SpecError, match="DDIMScheduler"):
        policy(DDIMScheduler())
    with pytest.raises(SpecError, match="names a select"):
        policy(BlockRefinementScheduler(), "fixed+eos")
    with pytest.raises(SpecError, match="edits"):
        policy(BlockRefinementScheduler(editing_threshold=0.5))
    assert policy(BlockRefinementScheduler(editing_threshold=0.5), "edit:tau=0.5+eos").revise
    with pytest.raises(SpecError, match="threshold"):
        policy(EntropyBoundScheduler(), threshold=0.5)


@pytest.mark.parametrize("sampler", [None, "threshold", "threshold:tau=0.7+eos@causal"])
def test_a_causal_prefix_model_needs_no_cache_named(sampler: str | None) -> None:
    model = pardec.Model(toys.toy("nemotron", sharp=1.2))
    pipeline = ours(model)
    ids = [[1, 2, 3], [4, 5, 6]]
    how = {"gen_length": 8, "block_length": 4, "eos_early_stop": False, "mask_token_id": toys.MASK}
    plain = {} if sampler else {"editing_threshold": None, "threshold": 0.9, "num_inference_steps": 8}
    out = pipeline(input_ids=torch.tensor(ids), sampler=sampler, **how, **plain)
    spec = (sampler or "threshold:tau=0.9").replace("+eos", "")
    expected = model.generate(input_ids=ids, sampler=spec, max_new_tokens=8, block_length=4, stop_ids=[])
    assert out.sequences.tolist() == [list(row) for row in expected.tokens]
