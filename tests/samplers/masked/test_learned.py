"""`learned` with handmade filters from every source of filters, and with the embedded filter."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import pardec
from pardec.models.errors import SpecError
from pardec.samplers import registry
from pardec.samplers.ops.learned_filters import FILTERS, WEIGHTS, Filter, filter_info, filter_names, load_filter
from tests.samplers.eight_tokens import LAWS, MASK, TOKENS
from tests.samplers.toys import fill, prompts, request, run, same, table, toy

THRESHOLD = """
import torch

seen = []

class Sure(torch.nn.Module):
    def forward(self, confidences):
        seen.append(confidences)
        return 100 * (confidences - 0.9)

def make():
    return Sure()

def nothing():
    return None
"""


def written(folder: Path, made: Filter) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    save_file(made.state_dict(), folder / WEIGHTS)
    return folder


def by_hand(folder: Path, inner: torch.Tensor, bias: float) -> Path:
    """The filter with logits 100 (inner @ confidences + bias)."""
    made = Filter(len(inner), len(inner))
    with torch.no_grad():
        made.hidden.weight.copy_(inner)
        made.hidden.bias.zero_()
        made.out.weight.copy_(100 * torch.eye(len(inner)))
        made.out.bias.fill_(100 * bias)
    return written(folder, made)


@pytest.fixture
def above(tmp_path: Path) -> Path:
    """The filter that accepts confidences above .9, like a threshold."""
    return by_hand(tmp_path / "above", torch.eye(8), -0.9)


def steps_of(spec: str, block: int = 8) -> list[int]:
    got = run(table(LAWS), spec, request([[MASK] * 8], [0], block_length=block))
    assert got.tokens[0].tolist() == list(TOKENS)
    return got.trace.commit_step[0].tolist()  # type: ignore[no-any-return]


def test_eight_tokens_by_hand(above: Path) -> None:
    assert steps_of(f'learned:filter="{above}",tau=0.5') == [0, 2, 0, 4, 0, 1, 0, 3]
    assert steps_of(f'learned:filter="{above}",tau=0.6') == [0, 3, 0, 5, 0, 2, 1, 4]  # .901: sigmoid(.1) = .525
    assert steps_of(f'learned:filter="{above}",tau=1') == [1, 5, 2, 7, 0, 4, 3, 6]


def test_the_filter_sees_the_whole_block_and_one_where_nothing_is_open(tmp_path: Path) -> None:
    """A position is final if the one before it is above .98: .99 lets .85 pass, and then committed ones do."""
    left = by_hand(tmp_path, torch.eye(8).roll(1, 0) * (torch.arange(8) > 0)[:, None], -0.98)
    assert steps_of(f'learned:filter="{left}",tau=0.5') == [4, 5, 6, 7, 3, 0, 1, 2]


def test_a_shorter_block_is_filled_up_with_ones_and_a_longer_one_refused(tmp_path: Path, above: Path) -> None:
    assert steps_of(f'learned:filter="{above}",tau=0.5', block=4) == [0, 1, 0, 2, 3, 4, 3, 5]
    last = by_hand(tmp_path / "last", torch.eye(8)[[7] * 8], -0.9)  # everything is final if the last input is above .9
    assert steps_of(f'learned:filter="{last}",tau=0.5', block=4) == [0] * 4 + [1] * 4
    with pytest.raises(SpecError, match="is for blocks of 8, not of 9"):
        run(table(LAWS), f'learned:filter="{above}"', request([[MASK] * 9], [0], block_length=9))


def test_a_function_of_a_file_makes_the_filter(tmp_path: Path, above: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(THRESHOLD)
    spec = f'learned:filter="{file}:make",tau=0.5'
    assert steps_of(spec) == [0, 2, 0, 4, 0, 1, 0, 3]
    assert steps_of(spec, block=4) == [0, 1, 0, 2, 3, 4, 3, 5]  # for blocks of any length
    assert str(registry.resolve(spec).spec) == str(registry.resolve(str(registry.resolve(spec).spec)).spec)


def test_a_filter_that_never_speaks_up_is_sequential(tmp_path: Path) -> None:
    silent = by_hand(tmp_path, torch.zeros(4, 4), -1.0)
    model, given = toy("dream", sharp=1.2), prompts((4, 7, 2))
    one, other = (fill(model, spec, given, (9, 5, 11)) for spec in ("sequential", f'learned:filter="{silent}",tau=0.5'))
    assert all(same(one, row, other, row) for row in range(3))


def test_bad_parameters(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(THRESHOLD)
    for spec, says in (
        ("learned:filter=tiny-draem", r"unknown filter 'tiny-draem' \(did you mean 'tiny-dream'\?\)"),
        (f'learned:filter="{tmp_path}"', "unknown filter"),
        ('learned:filter="~nosuch/filter"', "unknown filter"),
        ('learned:filter="~nosuch/mine.py:make"', "there is no file ~nosuch/mine.py"),
        (f'learned:filter="{tmp_path}/other.py:make"', "there is no file .*other.py"),
    ):
        with pytest.raises(SpecError, match=says):
            registry.resolve(spec)
    for spec, says in (
        (f'learned:filter="{file}:other"', "other of .*mine.py does not exist"),
        (f'learned:filter="{file}:nothing"', "nothing of .*mine.py gives a NoneType, not a torch.nn.Module"),
    ):
        with pytest.raises(SpecError, match=says):
            steps_of(spec)


@pytest.mark.parametrize("weights", [None, {"hidden.weight": torch.zeros(4, 4)}, {"hidden.weight": torch.zeros(4)}])
def test_weights_that_are_no_filter_are_refused_by_name(
    weights: dict[str, torch.Tensor] | None, tmp_path: Path
) -> None:
    if weights is None:
        (tmp_path / WEIGHTS).write_bytes(b"not a checkpoint")
    else:
        save_file(weights, tmp_path / WEIGHTS)
    with pytest.raises(SpecError, match=f"{WEIGHTS} holds no filter"):
        load_filter(str(tmp_path))


# --- what ships ---


@pytest.mark.parametrize("name", filter_names())
def test_an_embedded_filter_is_what_its_card_says(name: str) -> None:
    card = json.loads((FILTERS / name / "card.json").read_text())
    made = load_filter(name)
    assert card["name"] == name
    assert card["block_length"] == made.block_length == 32
    assert card["parameters"] == sum(weight.numel() for weight in made.parameters()) < 2500
    assert set(card["accuracy"]) == {"arithmetic", "lists", "records"}


@pytest.mark.parametrize("name", filter_names())
def test_an_embedded_filter_names_its_model(name: str) -> None:
    card, told = json.loads((FILTERS / name / "card.json").read_text()), filter_info(name)
    assert (told.model, told.tau) == (card["recipe"]["model"], card["tau"])
    assert told.model == name, "what is left open takes the filter of the model's name"


def test_a_filter_of_another_model_is_refused_unless_forced(tmp_path: Path) -> None:
    dream, llada = (pardec.load(name, device="cpu") for name in ("tiny-dream", "tiny-llada"))
    spec = str(dream.prepare("a", sampler="learned").sampler.spec)
    assert "learned:filter=tiny-dream,tau=0.995,force=false" in spec
    with pytest.raises(SpecError, match="the filter 'tiny-dream' was trained on tiny-dream, not on tiny-llada"):
        llada.generate("a", sampler="learned:filter=tiny-dream", max_new_tokens=2)
    forced = llada.generate("a", sampler="learned:filter=tiny-dream,force=true", max_new_tokens=2)
    assert "learned:filter=tiny-dream,tau=0.995,force=true" in forced.spec
    folder = by_hand(tmp_path / "mine", torch.eye(32), -0.9)  # it names no model, so that nothing can be compared
    assert "tau=0.97" in llada.generate("a", sampler=f'learned:filter="{folder}"', max_new_tokens=2).spec
    save_file(load_filter(str(folder)).state_dict(), folder / WEIGHTS, {"model": "tiny-llada", "tau": "0.6"})
    assert "tau=0.6" in llada.generate("a", sampler=f'learned:filter="{folder}"', max_new_tokens=2).spec
    with pytest.raises(SpecError, match="was trained on tiny-llada, not on tiny-dream"):
        dream.prepare("a", sampler=f'learned:filter="{folder}"')


def test_a_model_without_a_filter_says_so() -> None:
    with pytest.raises(SpecError, match="no embedded filter for the model 'toy'"):
        fill(toy("dream"), "learned", prompts((4,)), 4)


def test_the_default_filter_answers_held_out_problems_in_few_forwards() -> None:
    model, task = pardec.load("tiny-dream", device="cpu", dtype="float32"), pardec.task("lists")
    problems = task.problems(n=10)
    right = []
    for sampler in ("sequential+eos", "learned+eos"):
        result = model.generate([p.prompt for p in problems], sampler=sampler, max_new_tokens=32)
        scored = zip(problems, result.text or [], strict=True)
        right.append(sum(task.score(problem, text) == 1 for problem, text in scored))
    assert right[1] >= right[0] - 1
    assert max(result.nfe) <= 8
