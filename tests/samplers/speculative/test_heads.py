"""Heads on the target's last state, Medusa's and Hydra's: greedy decoding, laws as of whole texts, joint laws."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor

from pardec.models.draft_modules.contracts import DraftModule
from pardec.models.draft_modules.load import load_draft_module
from pardec.models.errors import ModelError, SpecError
from pardec.models.load import load
from pardec.models.model import LanguageModel
from pardec.models.plan import Plan
from pardec.requests import draft_models
from pardec.samplers import registry
from pardec.samplers.events import Finished
from pardec.samplers.speculative.accept.typical import Typical
from pardec.samplers.speculative.contracts import Draft
from pardec.samplers.speculative.draft.draft_heads import HeadsState, StaticState
from pardec.samplers.speculative.draft.hydra import HydraState
from tests.grids import chequered
from tests.reference import head_folders, naive_heads
from tests.samplers import ar_toys
from tests.samplers.ar_toys import plain_greedy, rows, toy_ar
from tests.samplers.fake_draft_model import path
from tests.samplers.heldout_answers import answered
from tests.samplers.joint_distributions import WORLDS, measure, small
from tests.samplers.module_files import random_module

SHAPES = {
    "chain": "chain",
    "template": "template:widths=3-2-1",
    "paths": "paths:tree=0-1-2-0.0-0.1-1.0-0.0.0",
    "beam": "beam:beams=3,nodes=8",
    "dyspec": "dyspec:nodes=8,children=3",
}
LENGTHS = ("", "+heuristic", "+unsure:tau=0.6", "+fallback:below=0.5", "+calibrated:h=0.5", "+goodput:c=0.2")
PROMPTS = [[3], [1, 0, 4, 2, 2, 1, 3], [0, 4], [2, 1, 1, 0, 3, 4, 4, 2, 0, 1, 2], [4, 4, 4], [1, 2, 3, 0]]
NEW = [14, 17, 9, 20, 12, 15]
VARIANTS = ("medusa", "shared", "hydra", "plain", "hydra++")


def run(model: LanguageModel, spec: str, *given: Any, draft_model: Any = None, **more: Any) -> Finished:
    """As in `ar_toys`, with this draft module whatever its name."""
    with patch.object(draft_models, "draft_module", lambda wanted, target: draft_model):
        return ar_toys.run(model, spec, *given, **more)


def close(head: Tensor, heads: int = 3) -> head_folders.Tensors:
    """Hydra's heads that predict roughly what the target does, from its state: often right where tokens repeat."""
    width = head.shape[1]
    tensors = head_folders.hydra(width, len(head), heads)
    for index in range(heads):
        stem = f"hydra_mlp.{index}.0"
        tensors[f"{stem}.res_connection.weight"] *= 0.02
        tensors[f"{stem}.res_connection.weight"][:, :width] += torch.eye(width)
        tensors[f"{stem}.linear.weight"] *= 0.1
        tensors[f"hydra_lm_head.{index}.weight"] = head.double() * (1 + index % 2)
    return tensors


def module(variant: str, model: LanguageModel, folder: Path) -> DraftModule:
    """Random heads, some of which lean on the target's own."""
    stack: Any = model.decoder
    width, vocab, head = model.width, model.vocab_size, stack.head.weight.detach()
    if variant in ("medusa", "shared"):
        tensors = head_folders.medusa(width, vocab)
        for index in range(3):
            tensors[f"{index}.1.weight"] = head.double() if variant == "shared" else head.double() * (1 + 0.1 * index)
        return load_draft_module(
            head_folders.write(folder, tensors, head_folders.CONFIGS["v0.1"], "medusa_lm_head.pt"), model
        )
    if variant == "hydra++":
        return random_module("hydra", model)
    tensors = close(head) if variant == "hydra" else head_folders.hydra(width, vocab, grounded=False)
    return load_draft_module(
        head_folders.write(folder, tensors, head_folders.CONFIGS["hydra"], "hydra_lm_head.pt"), model
    )


@cache
def target() -> LanguageModel:
    return toy_ar(0, 5, 3.0, layers=4)


@pytest.fixture(scope="module", params=VARIANTS)
def drafter(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> DraftModule:
    return module(request.param, target(), tmp_path_factory.mktemp("heads"))


@cache
def truth(new: tuple[int, ...] = tuple(NEW)) -> list[list[int]]:
    return [plain_greedy(target(), prompt, count) for prompt, count in zip(PROMPTS, new, strict=True)]


def spec_of(drafter: DraftModule, more: str = "", k: int = 3) -> str:
    return f"{drafter.kind}:name=toy,k={k}{more}"


# --- greedy decoding ---


@pytest.mark.parametrize(("shape", "length"), chequered(SHAPES, LENGTHS, count=3))
@pytest.mark.covers(1)
def test_greedy_decoding_is_kept_in_a_ragged_batch(shape: str, length: str, drafter: DraftModule) -> None:
    spec = spec_of(drafter, f"+{SHAPES[shape]}{length}")
    assert rows(run(target(), spec, PROMPTS, NEW, draft_model=drafter)) == truth(), spec


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.covers(1)
def test_a_row_alone_takes_the_forwards_that_it_takes_in_a_batch(shape: str, drafter: DraftModule) -> None:
    spec = spec_of(drafter, f"+{SHAPES[shape]}")
    for temperature in (0.0, 1.0):
        seeds = range(6)
        together = run(target(), spec, PROMPTS, NEW, draft_model=drafter, temperature=temperature, seeds=seeds)
        for row in (0, 3):
            more: dict[str, Any] = {"temperature": temperature, "seeds": [row], "draft_model": drafter}
            alone = run(target(), spec, PROMPTS[row : row + 1], NEW[row], **more)
            assert rows(alone)[0] == rows(together)[row]
            assert alone.nfe[0] == together.nfe[row]


@pytest.mark.parametrize("k", [1, 3, 9])
@pytest.mark.covers(1)
def test_k_is_cut_to_the_number_of_heads(k: int, drafter: DraftModule) -> None:
    assert drafter.depth == 3
    done = run(target(), spec_of(drafter, k=k), PROMPTS, NEW, draft_model=drafter)
    assert rows(done) == truth()
    assert max(max(row) for row in done.trace.drafted) == min(k, 3)


@cache
def tiny() -> tuple[LanguageModel, list[list[int]], list[list[int]]]:
    """tiny-llama, ragged prompts, and what it says greedily."""
    model = load("tiny-llama", device="cpu", dtype="float32")
    drawn = np.random.RandomState(0)
    prompts = [drawn.randint(0, model.vocab_size, size).tolist() for size in (3, 17, 1, 9, 24, 6)]
    return model, prompts, rows(run(model, "sequential", prompts, 16))


@pytest.mark.parametrize(("variant", "shape"), chequered(VARIANTS, SHAPES))
@pytest.mark.covers(1)
def test_tiny_llama_says_what_it_says_without_heads(variant: str, shape: str, tmp_path: Path) -> None:
    model, prompts, plain = tiny()
    own = module(variant, model, tmp_path)
    length = ("", "+unsure:tau=0.3", "+calibrated:h=0.5")[(len(variant) + len(shape)) % 3]
    done = run(model, spec_of(own, f"+{SHAPES[shape]}{length}"), prompts, 16, draft_model=own)
    assert rows(done) == plain


# --- what is drafted ---


def counted(text: list[int], prompt: int, k: int) -> tuple[int, int]:
    """Rounds and accepted tokens, where every draft is k times the last token, in a row whose tokens are known."""
    at, rounds, accepted = prompt + 1, 1, 0  # the first round feeds the prompt
    while at < len(text):
        room = min(k, len(text) - at - 1)
        good = 0
        while good < room and text[at + good] == text[at - 1]:
            good += 1
        at, rounds, accepted = at + good + 1, rounds + 1, accepted + good
    return rounds, accepted


def test_untrained_heads_repeat_the_last_token(tmp_path: Path) -> None:
    """After an untrained head is what the target predicted last, the token just committed: counted exactly."""
    model = toy_ar(7, 4, 2.0)
    head = model.decoder.head.weight  # type: ignore[attr-defined]
    tensors = head_folders.untrained(head.detach(), 4)
    own = load_draft_module(
        head_folders.write(tmp_path, tensors, head_folders.CONFIGS["v0.1"], "medusa_lm_head.pt"), model
    )
    prompts = [[at % 4, at // 4 % 4, at // 16] for at in range(64)]
    done = run(model, "medusa:name=own,k=4", prompts, 30, draft_model=own)
    assert rows(done) == rows(run(model, "sequential", prompts, 30))
    expected = [counted(row, 3, 4) for row in rows(done)]
    assert list(done.nfe) == [rounds for rounds, _ in expected]
    assert [sum(row) for row in done.trace.accepted] == [accepted for _, accepted in expected]
    assert len({rounds for rounds, _ in expected}) > 3  # rows repeat themselves, some more than others
    assert min(done.nfe) < 20


def whole_states(model: LanguageModel, text: list[int], own: Any) -> Tensor:
    """[E] what the heads read after a text, in one forward without a cache."""
    states = model.forward(Plan.full(torch.tensor([text]), model.visible())).normed()
    if getattr(own, "prefix", None) is None:
        return states[0, -1]
    order = torch.full(states.shape[:2], -1)
    refined: Tensor = own.prefix(replace(Plan.full(order, model.visible()), soft=states)).normed()[0, -1]
    return refined


@contextmanager
def compared(model: LanguageModel, published: dict[str, Tensor] | None = None) -> Iterator[list[float]]:
    """The greatest errors of the states in each round, and of the logits of each call against the plain version."""
    errors: list[float] = []

    def checked(kind: type[HeadsState]) -> Any:
        forward = kind.forward

        def listened(self: Any, draft: Draft, nodes: Tensor) -> Tensor:
            logits = forward(self, draft, nodes)
            for row in range(len(nodes)):
                text = self.context.text.row(row).tolist()
                known = whole_states(model, text[:-1], self.module)
                errors.append(float((self.states[row] - known).abs().max()))
                for at, node in enumerate(nodes[row].tolist()):
                    if node >= 0 and published is not None:
                        tokens = [text[-1], *path(draft, row, node)]
                        if self.module.kind == "medusa":
                            true = naive_heads.medusa(published, known)[len(tokens) - 1]
                        else:
                            embedded = list(model.decoder.embedding[torch.tensor(tokens)])
                            true = naive_heads.hydra(published, known, embedded)
                        errors.append(float((logits[row, at] - true).abs().max()) / 1e4)  # logits are in float32
            return logits

        return patch.object(kind, "forward", listened)

    with checked(HydraState), checked(StaticState):
        yield errors


@pytest.mark.parametrize(
    ("kind", "shape", "temperature"),
    chequered(["medusa", "hydra", "plain", "hydra++"], SHAPES, [0.0, 1.0], count=3),
)
@pytest.mark.covers(1)
def test_what_heads_read_and_say_is_as_of_the_whole_text(
    kind: str, shape: str, temperature: float, tmp_path: Path
) -> None:
    """After any acceptances, in float64: the states of one forward over the row, and the plain version's logits."""
    model = toy_ar(0, 5, 3.0, layers=4, dtype=torch.float64)
    layer = {"heads": 2, "kv_heads": 1, "head_dim": 8, "inner": 24}
    if kind == "medusa":
        tensors, config, file = head_folders.medusa(vocab=5), head_folders.CONFIGS["v0.1"], "medusa_lm_head.pt"
    else:
        tensors = head_folders.hydra(vocab=5, grounded=kind != "plain", prefix=layer if kind == "hydra++" else None)
        config, file = head_folders.CONFIGS["hydra"], "hydra_lm_head.pt"
    own = load_draft_module(head_folders.write(tmp_path, tensors, config, file), model)
    with compared(model, tensors) as errors:
        spec = spec_of(own, f"+{SHAPES[shape]}")
        done = run(model, spec, PROMPTS, NEW, draft_model=own, temperature=temperature)
    assert max(errors) < 1e-9
    assert len(errors) > 100
    assert sum(map(sum, done.trace.accepted)) > 3


def test_heads_that_read_no_path_count_no_forward(drafter: DraftModule) -> None:
    done = run(target(), spec_of(drafter), PROMPTS, NEW, draft_model=drafter)
    grounded = getattr(drafter, "grounded", False)
    drafted = [max(row) for row in done.trace.drafted]
    assert min(drafted) > 0
    assert (sum(done.draft_forwards) > 0) == grounded


def test_a_matrix_that_heads_share_is_multiplied_once_a_round(tmp_path: Path) -> None:
    own: Any = module("shared", target(), tmp_path)
    assert own.shared
    with patch.object(type(own), "logits", autospec=True, side_effect=type(own).logits) as logits:
        done = run(target(), "medusa:name=own,k=3", PROMPTS[:1], 12, draft_model=own)
    drafted = [count for count in done.trace.drafted[0] if count]
    assert [call.args[2] for call in logits.call_args_list] == [range(min(3, count)) for count in drafted]


# --- laws ---


@pytest.mark.parametrize(
    ("kind", "shape", "accept"),
    chequered(
        ["medusa", "hydra"],
        [name for name in SHAPES if name != "chain"],
        ["speculative", "rrs", "match", "kseq"],
    ),
)
@pytest.mark.covers(1)
def test_draws_have_the_joint_law_of_the_target(kind: str, shape: str, accept: str) -> None:
    """Ragged rows, random weights; chains are among the drafters of test_exact_joint.py."""
    spec = f"{small(kind)}+{small(shape)}+{accept}"
    if shape in ("beam", "dyspec") and accept == "kseq":
        with pytest.raises(SpecError, match="needs independent samples|kseq depends on the number of siblings"):
            registry.resolve(spec, "ar", sampling=True)
        return
    for reading in measure(spec, WORLDS["5 tokens, length 4"], 4000):
        assert reading.z < 4, reading
        assert reading.distance < reading.noise + 4 * reading.spread, reading


@pytest.mark.parametrize("accept", ["speculative", "match"])
def test_the_likeliest_tokens_at_a_temperature_keep_the_law(accept: str) -> None:
    for reading in measure(f"{small('medusa')}+{small('paths')},top=true+{accept}", WORLDS["3 tokens, length 6"], 4000):
        assert reading.z < 4, reading


@pytest.mark.parametrize("shape", ["chain", "paths", "beam"])
@pytest.mark.covers(1)
def test_processors_that_read_the_path_are_kept(shape: str, drafter: DraftModule) -> None:
    """A penalty makes the distributions of a level differ, whatever the heads read."""
    spec = spec_of(drafter, f"+{SHAPES[shape]}")
    more: dict[str, Any] = {"repetition_penalty": 1.7}
    done = run(target(), spec, PROMPTS, NEW, draft_model=drafter, **more)
    assert rows(done) == rows(run(target(), "sequential", PROMPTS, NEW, **more))


# --- errors ---


def test_a_module_is_named_and_is_of_the_drafters_kind() -> None:
    with pytest.raises(SpecError, match="medusa: name is missing"):
        registry.resolve("medusa", "ar")
    with pytest.raises(ModelError, match="the request has no draft module"):
        run(target(), "hydra:name=toy", PROMPTS, NEW, draft_model=target())


@pytest.mark.parametrize("kind", ["medusa", "hydra"])
def test_weights_that_are_not_finite_are_named(kind: str) -> None:
    own: Any = random_module(kind, target())
    own.heads[1].out.weight[2, 3] = torch.nan
    with pytest.raises(ModelError, match="its weight heads.1.out.weight holds NaN or infinity"):
        run(target(), f"{kind}:name=toy,k=3", PROMPTS, NEW, draft_model=own)


@pytest.mark.seeds("arXiv:2401.10774")
def test_trained_heads_keep_greedy_text_and_typical_acceptance_takes_the_likeliest_and_more_under_entropy() -> None:
    _, plain = answered("tiny-llama", "arithmetic", "sequential", 8)
    _, done = answered("tiny-llama", "arithmetic", "medusa:name=tiny-llama-medusa", 8)
    assert done.tokens == plain.tokens
    assert sum(done.nfe) < 0.8 * sum(plain.nfe)
    drawn = np.random.RandomState(0)
    p = torch.from_numpy(np.concatenate([drawn.dirichlet([a] * 12, 50) for a in (0.05, 0.3, 1.0, 5.0, 50.0)]))
    bar = Typical(epsilon=0.3).bar(p[:, None])[:, 0]
    assert (p.amax(-1) >= bar).all()
    scaled = [(p.log() / t).softmax(-1) for t in (0.5, 1.0, 2.0, 8.0)]  # ever more entropy
    sizes = [(each > Typical(epsilon=0.3).bar(each[:, None])[:, 0, None]).sum(-1) for each in scaled]
    assert all((more >= less).double().mean() > 0.98 for less, more in pairwise(sizes))
    assert sizes[-1].sum() > 1.5 * sizes[0].sum()
