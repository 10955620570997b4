"""The text trainer on tiny networks: targets, resuming, published formats."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import average_models
import pytest
import torch
from safetensors.torch import load_file
from text_training import data, networks
from text_training.drills import task_or_drill
from text_training.export import read_weights
from text_training.loop import Run
from tokenizers import Tokenizer
from train_text import options
from transformers import LlamaForCausalLM
from until_done import until_done

import pardec
from pardec.models.errors import ModelError, SpecError
from pardec.models.load import load
from pardec.models.plan import Plan
from pardec.tasks import Generator, task
from pardec.tasks.chains import Chains
from tests.samplers.speculative import test_sorted as exits

ROOT = Path(__file__).resolve().parents[1]

torch.set_num_threads(1)
pytestmark = pytest.mark.usefixtures("without_autocast")
FOLDER = ROOT / "models" / "embedded" / "tokenizer"
TOKENIZER = Tokenizer.from_file(str(FOLDER / "tokenizer.json"))
SHAPE = "hidden_size=32,intermediate_size=48,num_hidden_layers=2,num_attention_heads=2,num_key_value_heads=1"


def made(folder: Path, model: str, steps: int, *more: str, state: str = "state") -> Run:
    where = ["--out", str(folder / model), "--state", str(folder / state / model), "--device", "cpu"]
    size = ["--steps", str(steps), "--batch", "256", "--problems", "1", "--shape", SHAPE]
    return Run(options(["--model", model, *size, *where, *more]))


def test_the_models_train_in_turn_and_export_published_formats(tmp_path: Path) -> None:
    made(tmp_path, "tiny-llama", 2).train()
    llama = str(tmp_path / "tiny-llama")
    made(tmp_path, "tiny-dream", 2, "--init", llama).train()
    dream = str(tmp_path / "tiny-dream")
    run = made(tmp_path, "tiny-llada", 2, "--init", dream, "--teacher", dream)
    run.train()

    ids = torch.tensor([[2, 50, 60, 70]])
    again = LlamaForCausalLM.from_pretrained(llama, dtype=torch.float32)
    assert again.config.rope_parameters["rope_theta"] == networks.ROPE_THETA
    assert again(ids).logits.shape == (1, 4, TOKENIZER.get_vocab_size())

    found = load_file(tmp_path / "tiny-dream" / "model.safetensors")
    assert all(value.dtype is torch.bfloat16 for value in found.values())
    assert {"model.layers.1.self_attn.k_proj.bias", "model.norm.weight", "lm_head.weight"} <= set(found)
    config = json.loads((tmp_path / "tiny-dream" / "config.json").read_text())
    assert (config["model_type"], config["architectures"], config["mask_token_id"]) == ("Dream", ["DreamModel"], 4)

    found = load_file(tmp_path / "tiny-llada" / "model.safetensors")
    assert found["model.transformer.blocks.1.k_proj.weight"].shape == (32, 32)
    assert found["model.transformer.ff_out.weight"].shape == (TOKENIZER.get_vocab_size(), 32)
    read = read_weights(tmp_path / "tiny-llada")
    assert read.keys() == run.model.state_dict().keys()
    made(tmp_path, "tiny-llama-draft", 2, "--teacher", llama).train()
    made(tmp_path, "tiny-llama-bytes", 2).train()
    made(tmp_path, "tiny-nemotron", 2, "--init", str(tmp_path / "tiny-llama-draft")).train()
    for name in networks.OWN:
        card = json.loads((tmp_path / name / "card.json").read_text())
        assert card["recipe"]["steps"] == 2
        assert card["curve"][-1]["step"] == 2
        assert card["name"] == name
        assert (tmp_path / name / "README.md").read_text().startswith(f"# {name}")
    origins = {name: json.loads((tmp_path / name / "card.json").read_text())["recipe"] for name in networks.OWN}
    assert {name: (r["started from"], r["distilled from"]) for name, r in origins.items()} == {
        "tiny-llama": ("random weights", "nothing"),
        "tiny-llama-draft": ("random weights", "tiny-llama"),
        "tiny-llama-bytes": ("random weights", "nothing"),
        "tiny-nemotron": ("tiny-llama-draft", "nothing"),
        "tiny-dream": ("tiny-llama", "nothing"),
        "tiny-llada": ("tiny-dream", "tiny-dream"),
    }


@pytest.mark.usefixtures("with_autocast")
def test_a_second_run_keeps_what_the_card_says_of_the_first(tmp_path: Path) -> None:
    made(tmp_path / "one", "tiny-llama", 2).train()
    made(tmp_path / "two", "tiny-llama", 2, "--init", str(tmp_path / "one" / "tiny-llama")).train()
    card = json.loads((tmp_path / "two" / "tiny-llama" / "card.json").read_text())
    assert card["recipe"]["started from"] == "the run before"
    assert card["recipe"]["run before"]["started from"] == "random weights"
    assert [point["step"] for point in card["curve"]] == [2, 2]


def test_averaged_runs_keep_their_tokenizer_and_are_of_one_shape(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, *more in (("one",), ("two", "--seed", "1"), ("wide", "--shape", SHAPE.replace("32", "48", 1))):
        made(tmp_path / name, "tiny-llama", 1, *more).train()
    one, two, wide = (tmp_path / name / "tiny-llama" for name in ("one", "two", "wide"))
    (one / "tokenizer.json").write_text("{}")
    monkeypatch.setattr(sys, "argv", ["average_models.py", str(one), str(two), "--out", str(tmp_path / "mean")])
    average_models.main()
    assert (tmp_path / "mean" / "tokenizer.json").read_text() == "{}"
    first, second, mean = (load_file(folder / "model.safetensors") for folder in (one, two, tmp_path / "mean"))
    for name, value in mean.items():
        torch.testing.assert_close(
            value.float(), (first[name].float() + second[name].float()) / 2, rtol=0.01, atol=1e-3
        )
    with pytest.raises(SystemExit, match="different tensors"):
        average_models.mean([one, wide])
    with pytest.raises(SystemExit, match=r"none has no model\.safetensors"):
        average_models.mean([one, tmp_path / "none"])


def test_a_run_is_resumed_with_its_own_shape(tmp_path: Path) -> None:
    made(tmp_path, "tiny-llama", 1).save()
    with pytest.raises(ModelError, match="is of a run with shape"):
        made(tmp_path, "tiny-llama", 1, "--shape", SHAPE.replace("32", "48", 1))
    with pytest.raises(SpecError, match="did you mean 'hidden_size'"):
        made(tmp_path, "tiny-llama", 1, "--shape", "hiddensize=32")


@pytest.mark.parametrize("option", ["--init", "--teacher"])
def test_a_folder_that_is_not_there_is_said(option: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"error: No such file or directory: .*none/\S+\ncheck that the path exists"):
        until_done(lambda: made(tmp_path, "tiny-llama", 1, option, str(tmp_path / "none")))


@pytest.mark.parametrize("mix", ["lists", "lists=0", "lists=x", ""])
def test_shares_of_tasks_are_positive_numbers(mix: str, tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        made(tmp_path, "tiny-llama", 1, "--mix", mix)


@pytest.mark.parametrize("model", [pytest.param("tiny-llama", marks=pytest.mark.slow), "tiny-dream"])
def test_a_resumed_run_ends_where_an_unbroken_one_does(tmp_path: Path, model: str) -> None:
    whole = made(tmp_path, model, 6, state="whole")
    whole.train()
    part = made(tmp_path, model, 6, state="parts")
    take = part.take

    def take_then_stop(batch: data.Batch) -> float:
        if part.step == 2:
            part.stop()
        return take(batch)

    part.take = take_then_stop  # type: ignore[method-assign]
    part.train()
    assert part.step == 3
    resumed = made(tmp_path, model, 6, state="parts")
    assert resumed.step == 3
    resumed.train()
    for key, value in whole.average.items():
        torch.testing.assert_close(resumed.average[key], value, rtol=0, atol=0)


@pytest.mark.seeds("arXiv:2407.01955")
def test_one_nested_drafter_serves_two_targets(tmp_path: Path) -> None:
    """Every exit learns. One set of weights drafts for both models, and their texts are those of plain decoding."""
    exits.test_at_the_ends_of_tau_it_is_a_model_of_as_many_layers(0.0)
    exits.test_at_the_ends_of_tau_it_is_a_model_of_as_many_layers(1.0)
    exits.test_every_distribution_is_that_of_a_whole_forward_of_the_exit(0.95, 0.0)
    exits.test_a_layer_runs_once_on_a_token_and_only_if_it_is_needed()
    run = made(tmp_path, "tiny-llama-draft", 60, "--exits", "1-2", "--mix", "arithmetic=1", "--lr", "0.02")
    batch = next(run.batches())
    target = run.targets(batch)

    def losses() -> list[float]:
        with torch.no_grad():
            each = networks.logits_at(run.model, target.inputs, (1, 2))
        wanted = target.weights[:, 1:] > 0
        labels = target.labels[:, 1:][wanted]
        return [float(torch.nn.functional.cross_entropy(logits[:, :-1][wanted], labels)) for logits in each]

    before = losses()
    assert float(run.loss_of(target, batch.prompt)) == pytest.approx(sum(before) / 2, rel=0.2), "one weight each"
    run.index = 0
    run.train()
    assert all(after < 0.7 * first for after, first in zip(losses(), before, strict=True))
    drafter = f"sorted:name={tmp_path / 'tiny-llama-draft'},exits=1-2,tau=0.5,k=4"
    prompts = [problem.prompt for problem in task("arithmetic").problems(split="heldout", n=6, seed=3)]
    for name in ("tiny-llama", "tiny-llama-draft"):
        model = pardec.load(name, device="cpu")
        plain, nested = (model.generate(prompts, sampler=spec, max_new_tokens=24) for spec in ("sequential", drafter))
        assert nested.tokens == plain.tokens
        assert sum(nested.nfe) < sum(plain.nfe), "some drafts are right"


@pytest.mark.parametrize("exits", ["1", "2-1-2", "0-2", "1-3"])
def test_exits_rise_to_the_last_layer(exits: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="must rise to its 2 layers"):
        made(tmp_path, "tiny-llama-draft", 2, "--exits", exits)


def test_masked_targets_hide_only_the_region_and_weigh_only_what_is_hidden() -> None:
    noise = torch.Generator().manual_seed(0)
    for batch in data.chunk(TOKENIZER, 0, 0, True, 2048, 512):
        target = data.masked_targets(batch, noise, 0.5)
        at = torch.arange(batch.ids.shape[1])
        masked = target.inputs == data.MASK
        assert not masked[at < batch.prompt[:, None]].any()
        assert masked.any(1).all()
        assert ((target.weights > 0) == masked).all()
        assert (target.inputs[~masked] == batch.ids[~masked]).all()
        tail = at > batch.end[:, None]
        assert (target.weights * tail).sum(1).max() <= data.TAIL_TOTAL + 1e-4
        assert (batch.ids[tail] == data.EOS).all()
        assert (batch.ids.gather(1, batch.end[:, None]) == data.EOS).all()


@pytest.mark.parametrize("whole", [0.0, 1.0])
def test_visited_states_open_one_block_or_everything(whole: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data, "WHOLE", whole)
    noise = torch.Generator().manual_seed(0)
    further = 0
    for batch in data.chunk(TOKENIZER, 0, 0, True, 2048, 256, {"chains-128": 1.0}):
        target = data.masked_targets(batch, noise, 0.5, lambda ids: torch.rand(ids.shape, generator=noise), 1.0)
        masked = target.inputs == data.MASK
        block = (torch.arange(batch.ids.shape[1]) - batch.prompt[:, None]) // data.BLOCK  # [B, L]
        first = block.masked_fill(~masked, data.MASKED_LENGTHS[-1]).amin(1, keepdim=True)
        several = masked.sum(1, keepdim=True) > 1  # a row of which all was shown has one position hidden anywhere
        further += int((~masked & (block > first) & several).sum())
    assert (further > 0) == bool(whole)


def test_drills_are_asked_for_by_name_and_keep_the_split_of_chains() -> None:
    holders = task_or_drill("holders")
    assert isinstance(holders, Generator)
    for problem in holders.problems("train", 50, 0):
        assert problem.prompt.endswith("Write the list.")
        assert holders.score(problem, problem.answer) == 1.0
    assert all(holders.split_of(str(key)) == Chains().split_of(str(key)) for key in range(50))
    assert task_or_drill("names").problems("train", 1, 0)
    assert task_or_drill("lists") is task("lists")


def test_every_text_task_fits_the_longest_canvas() -> None:
    for name in ("chains", "grids-128", "stories-256"):
        for batch in data.chunk(TOKENIZER, 0, 0, True, 2048, 64, {name: 1.0}):
            assert batch.ids.shape[1] in data.MASKED_LENGTHS
        longest = max(len(TOKENIZER.encode(str(p.prompt)).ids) for p in task(name).problems("train", 300, 0))
        assert longest + task(name).tokens <= data.MASKED_LENGTHS[-1]


def test_causal_targets_weigh_the_answer_and_its_end() -> None:
    batch = data.chunk(TOKENIZER, 0, 0, False, 2048, 512)[0]
    weights = data.causal_targets(batch, 0.1).weights[0]
    start, end = int(batch.prompt[0]), int(batch.end[0])
    assert weights[0] == 0
    assert (weights[start : end + 1] == 1).all()
    assert (weights[end + 1 :] == 0).all()


def test_a_masked_network_sees_both_ways_and_a_causal_one_does_not() -> None:
    small = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1, "num_attention_heads": 2}
    ids = torch.tensor([[2, 50, 60, 70]])
    other = torch.tensor([[2, 50, 60, 71]])
    for name in networks.OWN:
        model = networks.build(name, 100, **small).eval()
        model.set_attn_implementation("eager")
        masked = networks.is_masked(name)
        first, second = (networks.logits_of(model, x, masked)[:, 0] for x in (ids, other))
        assert torch.equal(first, second) != masked


def test_adopting_repeats_kv_heads_as_grouped_queries_use_them() -> None:
    small = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    grouped = networks.build("tiny-llama", 100, **{**small, "num_key_value_heads": 2})
    full = networks.build("tiny-llada", 100, **small)
    networks.adopt(full, grouped.state_dict())
    ids = torch.tensor([[2, 50, 60, 70]])
    torch.testing.assert_close(networks.logits_of(full, ids, False), networks.logits_of(grouped, ids, False))
    with pytest.raises(ValueError, match="cannot start from these weights"):
        networks.adopt(networks.build("tiny-llama", 90, **small), grouped.state_dict())


@pytest.mark.parametrize("name", ["tiny-dream", "tiny-llada"])
def test_training_on_a_cached_prompt_sees_what_a_cached_decode_sees(name: str, tmp_path: Path) -> None:
    """One pass over two copies equals a full forward of the masked row, then one of the generated part alone."""
    run = made(tmp_path, name, 1)
    run.train()
    network = networks.build(name, TOKENIZER.get_vocab_size(), **run.o.shape)
    networks.adopt(network, read_weights(tmp_path / name))
    model, shift = load(tmp_path / name, device="cpu", dtype="float32"), networks.SHIFT[name]
    prompts, length = torch.tensor([4, 7]), 16
    ids = torch.randint(5, 300, (2, length), generator=torch.Generator().manual_seed(0))
    ids[:, 12:] = data.MASK
    found = networks.logits_from_cache(network, ids, prompts, data.MASK, shift)
    for row, prompt in enumerate(prompts.tolist()):
        cache = model.new_cache(1, length)
        masked = ids[row : row + 1].clone()
        masked[:, prompt:] = data.MASK
        model.forward(Plan.full(masked, model.visible()), cache)
        at = torch.arange(prompt - shift, length)[None]
        asked = ids[row : row + 1, prompt - shift :]
        want = torch.arange(at.shape[1])[None]
        plan = Plan(asked, at, at, model.visible(), torch.tensor([length]), want)
        torch.testing.assert_close(
            found[row, prompt - shift :], model.forward(plan, cache).logits()[0], atol=1e-4, rtol=0
        )
