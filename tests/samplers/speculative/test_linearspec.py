"""Drafts of the target's own masks: by hand, compared with a plain version without a cache, and refusals."""

from __future__ import annotations

import shutil
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import pardec
from pardec.models.caches.kv_cache import KVCache
from pardec.models.errors import ModelError, SpecError
from pardec.models.files.sources import DRAFT_ADAPTER
from pardec.models.load import load
from pardec.models.model import BlockDenoising, LanguageModel
from pardec.models.plan import Hidden, Plan, Visible
from pardec.requests import preflight
from pardec.samplers import registry
from pardec.samplers.rng import JoinableSource
from pardec.samplers.speculative.contracts import Draft
from pardec.samplers.speculative.draft.linearspec import MaskedBlocks
from pardec.samplers.speculative.loop import VerifyLoop
from pardec.tasks import task
from tests.grids import chequered
from tests.models import adapters
from tests.models.families.test_nemotron import MASK, logits, published
from tests.samplers.ar_toys import plain_greedy, request, rows, run, toy_ar
from tests.samplers.draft_model_checks import committed_slots_suffice
from tests.samplers.fake_draft_model import NEW, RAGGED, Pausing, apart, greedy, path, target
from tests.samplers.joint_distributions import WORLDS, measure
from tests.samplers.masked import test_bound, test_causal, test_cumulative

SHAPES = ("chain", "template:widths=3-2-1", "dyspec:nodes=8,children=3", "beam:beams=3,nodes=8")


def spec(k: int = 4, more: str = "", *, mask: int = 2, shift: int = 0) -> str:
    return f"linearspec:k={k},mask={mask},shift={shift}{more}"


# --- by hand ---


class Counting:
    """Predicts t + 1 after t; in a block of masks after t, the tokens are t + 1, t + 2, t + 3, and then 0."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.blocks = inner, list[tuple[list[list[int]], list[list[int]]]]()

    def __call__(self, plan: Plan, cache: KVCache | None = None) -> Hidden:
        block = plan.visible.kind == "mask"
        ahead = torch.arange(plan.width)
        said = torch.where(ahead <= 3, plan.tokens[:, :1] + ahead, 0) if block else plan.tokens + 1
        if block:
            self.blocks.append((plan.tokens.tolist(), plan.positions.tolist()))
        states = torch.nn.functional.one_hot(said % 20, 20).float() * 9
        return Hidden(plan, states, head=lambda flat: flat)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def by_hand() -> None:
    """Five masks after [1, 2]: 3, given by the prompt's forward, then drafts 4 5 6 0 0; three are accepted."""
    toy = toy_ar(0, 20)
    model = replace(toy, decoder=Counting(toy.decoder))  # type: ignore[arg-type]
    done = run(model, spec(5, mask=19), [[1, 2]], 10)
    assert rows(done) == [[1, 2, *range(3, 13)]]
    # 3 | 4 5 6 and 7 | 8 9 10 and 11 | and the last one, for which nothing is drafted: the round's own token is it.
    assert done.trace.drafted == ((0, 5, 4, 0),)
    assert done.trace.accepted == ((0, 3, 3, 0),)
    assert (done.nfe, done.draft_forwards) == ((4,), (2,))
    blocks = model.decoder.blocks  # type: ignore[attr-defined]
    assert blocks == [([[3, *[19] * 5]], [[2, 3, 4, 5, 6, 7]]), ([[7, *[19] * 4]], [[6, 7, 8, 9, 10]])]


# --- blocks of one token ---


@pytest.mark.seeds("arXiv:2603.25702")
def test_a_block_model_verifies_itself_at_block_length_1_in_less_than_0_6_of_the_forwards(
    checkpoint: tuple[Path, Any],
) -> None:
    """The exact form of self-verification: always verified, and only what is accepted, and one token, is committed."""
    by_hand()
    test_every_round_is_the_rules(3, checkpoint)
    for shift in (0, 1):
        test_every_draft_is_of_one_forward_over_the_whole_text("chain", shift)
    assert registry.resolve("linearspec:mask=2", "ar").draft.denoising(target()).shift == 0
    prompts = [one.prompt for one in task("arithmetic").problems(split="heldout", n=12, seed=3)]
    masked = pardec.load("tiny-nemotron", device="cpu")
    single = masked.generate(prompts, sampler="threshold+eos@causal", block_length=1, max_new_tokens=48)
    causal = pardec.load("tiny-nemotron", device="cpu", attention="causal")
    done = causal.generate(prompts, sampler="linearspec:k=7", max_new_tokens=48)
    assert done.tokens == single.tokens
    assert done.draft_forwards is not None
    assert sum(done.nfe) + sum(done.draft_forwards) < 0.6 * sum(single.nfe)


# --- against the rule ---


@torch.no_grad()
def block_logits(drafter: Any, reference: Any, text: list[int], block: list[int]) -> Tensor:
    """Logits of a block that attends to itself and, through the K/V of `reference`, to the causal text before it."""
    past = reference(torch.tensor([text]), use_cache=True).past_key_values
    seen = torch.zeros(1, 1, len(block), len(text) + len(block))
    found: Tensor = drafter(torch.tensor([block]), past_key_values=past, attention_mask=seen).logits[0]
    return found


def naive(reference: Any, prompt: list[int], count: int, k: int, drafter: Any = None) -> tuple[list[int], list[int]]:
    """Drafts and verifies with whole forwards of transformers' Llama under two masks; the text, and accepted counts."""
    text, accepted = list(prompt), list[int]()
    end = len(prompt) + count
    causal = logits(reference, text, begin=len(text), forbidden=())
    text.append(int(causal[-1].argmax()))
    while len(text) < end:
        masks = min(k, end - len(text) - 1)
        begin = len(text) - 1
        block = [text[-1], *[MASK] * masks]
        drafts = block_logits(drafter or reference, reference, text[:begin], block)[1:].argmax(-1).tolist()
        verified = logits(reference, text + drafts, begin=len(text) + masks, forbidden=())[begin:].argmax(-1).tolist()
        right = 0
        while right < masks and drafts[right] == verified[right]:
            right += 1
        text += verified[: right + 1]
        accepted.append(right)
    return text, accepted


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("nemotron")
    return folder, published(folder)


@pytest.mark.parametrize("k", [1, 9])
def test_every_round_is_the_rules(k: int, checkpoint: tuple[Path, Any]) -> None:
    folder, reference = checkpoint
    model = pardec.load(folder, device="cpu", attention="causal")
    generator = torch.Generator().manual_seed(k)
    prompts = [torch.randint(3, 59, (n,), generator=generator).tolist() for n in (9, 4, 13, 1, 6, 21)]
    arguments: dict[str, Any] = {"sampler": f"linearspec:k={k}", "max_new_tokens": 17, "stop_ids": []}
    together = model.generate(input_ids=prompts, **arguments)
    plain = model.generate(input_ids=prompts, **arguments | {"sampler": "sequential"})
    for row, prompt in enumerate(prompts):
        expected, accepted = naive(reference, prompt, 17, k)
        alone = model.generate(input_ids=[prompt], **arguments)
        for done, at in ((alone, 0), (together, row)):
            assert done.sequences[at, : len(expected)].tolist() == expected
            assert list(done.trace.accepted[at][1:]) == accepted
        assert plain.sequences[row, : len(expected)].tolist() == expected


@pytest.fixture
def adapted(checkpoint: tuple[Path, Any], tmp_path: Path) -> tuple[Path, Any]:
    """A copy of the checkpoint with its own LoRA, and the reference with that LoRA merged."""
    folder = tmp_path / "adapted"
    shutil.copytree(checkpoint[0], folder)
    drafter = deepcopy(checkpoint[1])
    modules = [f"encoder.layers.{layer}.self_attn.o_proj" for layer in range(2)]
    tensors = load_file(folder / "model.safetensors")
    halves = adapters.pairs(tensors, modules)
    adapters.write_adapter(folder / DRAFT_ADAPTER, halves, target_modules=["o_proj"])
    merged = adapters.naive(tensors, halves, modules)
    with torch.no_grad():
        for layer, module in zip(drafter.model.layers, modules, strict=True):
            layer.self_attn.o_proj.weight.copy_(merged[f"{module}.weight"])
    return folder, drafter


@pytest.mark.parametrize("dtype", ["bfloat16"])
def test_the_adapter_that_comes_with_the_model_is_on_while_it_drafts(
    dtype: str, checkpoint: tuple[Path, Any], adapted: tuple[Path, Any]
) -> None:
    folder, drafter = adapted
    model = pardec.load(folder, device="cpu", attention="causal", dtype=dtype)
    before = {name: weight.clone() for name, weight in model.language_model.decoder.state_dict().items()}
    arguments: dict[str, Any] = {"max_new_tokens": 17, "stop_ids": []}
    prompts = [[5, 9, 33, 12], [7], [20, 21, 22, 23, 24, 25, 26]]
    plain = model.generate(input_ids=prompts, sampler="sequential", **arguments)
    other, own, without = (
        model.generate(input_ids=prompts, sampler=f"linearspec:k=5{more}", **arguments)
        for more in (f",adapter={folder / DRAFT_ADAPTER}", "", ",adapter=no")
    )
    assert plain.tokens == own.tokens == without.tokens == other.tokens
    assert own.trace.accepted == other.trace.accepted
    after = model.language_model.decoder.state_dict()
    assert all(torch.equal(weight, after[name]) for name, weight in before.items())
    if dtype == "float32":
        for row, prompt in enumerate(prompts):
            for result, reference in ((own, drafter), (without, None)):
                text, accepted = naive(checkpoint[1], prompt, 17, 5, reference)
                assert result.sequences[row, : len(text)].tolist() == text
                assert list(result.trace.accepted[row][1:]) == accepted


def test_an_adapter_of_other_tensors_is_refused(adapted: tuple[Path, Any], tmp_path: Path) -> None:
    folder, _ = adapted
    tensors = load_file(folder / "model.safetensors")
    halves = adapters.pairs(tensors, ["encoder.layers.0.self_attn.q_proj"])
    file = adapters.write_adapter(tmp_path / "wrong", halves)
    model = pardec.load(folder, device="cpu", attention="causal")
    for named, message in ((file, "changes encoder.layers.0.self_attn.q_proj.weight"), (tmp_path, "no adapter")):
        with pytest.raises(ModelError, match=message):
            model.generate(input_ids=[[5, 6]], sampler=f"linearspec:adapter={named}", max_new_tokens=4)
    quantized = pardec.Model(replace(model.language_model, quantized="int8"))
    with pytest.raises(ModelError, match="is quantized and cannot use the adapter linear_spec_lora"):
        quantized.generate(input_ids=[[5, 6]], sampler="linearspec", max_new_tokens=4)
    quantized.generate(input_ids=[[5, 6]], sampler="linearspec:adapter=no", max_new_tokens=4)


def right(model: LanguageModel, text: list[int], masks: int, *, mask: int, shift: int) -> Tensor:
    """[masks, V]: logits of the block after `text` in one forward without a cache."""
    whole = torch.tensor([text + [mask] * masks])
    at = torch.arange(whole.shape[1])
    visible = (at <= at[:, None]) | (at[:, None] >= len(text) - 1)
    found = model.forward(Plan.full(whole, Visible.mask(visible[None]))).logits()[0]
    return found[len(text) - shift : len(text) - shift + masks]


@pytest.mark.parametrize(("shape", "shift"), chequered(SHAPES, (0, 1), count=2))
def test_every_draft_is_of_one_forward_over_the_whole_text(shape: str, shift: int) -> None:
    """Holds only if K/V before the block are causal ones, and none of earlier blocks remain."""
    errors: list[float] = []
    forward = MaskedBlocks.forward

    def compared(self: MaskedBlocks, draft: Draft, nodes: Tensor) -> Tensor:
        found, text = forward(self, draft, nodes), self.context.text
        for row in range(len(nodes)):
            masks = min(4, int(text.remaining[row]) - 1)
            for at, node in enumerate(nodes[row].tolist()):
                if node >= 0:
                    with torch.inference_mode():
                        whole = right(target(), text.row(row).tolist(), masks, mask=2, shift=shift)
                    errors.append(apart(found[row, at], whole[len(path(draft, row, node))]))
        return found

    with patch.object(MaskedBlocks, "forward", compared):
        assert rows(run(target(), spec(4, f"+{shape}", shift=shift), RAGGED, NEW)) == greedy()
    assert len(errors) > 50
    assert max(errors) < 5e-5


def test_one_forward_drafts_all_tokens_of_a_round_and_leaves_nothing() -> None:
    done = run(target(), spec(4), RAGGED, NEW)
    drafting = (sum(each > 0 for each in row) for row in done.trace.drafted)
    assert all(
        own <= forwards < nfe for own, forwards, nfe in zip(drafting, done.draft_forwards, done.nfe, strict=True)
    )
    for shape in SHAPES:
        committed_slots_suffice(spec(4, f"+{shape}"))


@pytest.mark.parametrize(
    "kept",
    ["int8", "kivi:group=4,residual=4", "streaming:sink=1,window=6", "lminfinite:sink=1,window=6", "channels:heavy=4"],
)
def test_a_cache_of_the_targets_has_nothing_of_the_masks(kept: str) -> None:
    """Blocks are denoised in slots for drafts; tokens equal those of `sequential` with the same cache."""
    plain, done = (run(target(), f"{sampler}@{kept}", RAGGED, NEW) for sampler in ("sequential", spec(4)))
    assert rows(done) == rows(plain)


def test_rows_that_draft_nothing_for_a_while() -> None:
    made = replace(registry.resolve(spec(4), "ar"), length=Pausing())
    assert rows(run(target(), made, RAGGED, NEW)) == greedy()


def test_a_row_that_joins_goes_on_as_it_would_alone() -> None:
    sampler, given = registry.resolve(spec(4), "ar"), [RAGGED[0], RAGGED[3], RAGGED[1]]

    def loop(rows: slice, new: tuple[int, ...]) -> VerifyLoop:
        return VerifyLoop(target(), sampler, request(given[rows], new, source=JoinableSource([*range(3)][rows])))

    running, later = loop(slice(0, 2), (4, 30)), loop(slice(2, 3), (17,))
    while not (over := running.finished_rows()).any():
        running.round()
    later.round()
    running.put(np.flatnonzero(over), later)
    ended = list[list[int]]()
    while len(running.text):
        running.round()
        ended += [event.tokens.tolist() for event in running.retire()]
    assert sorted(ended) == sorted(plain_greedy(target(), given[at], new) for at, new in ((1, 30), (2, 17)))


@pytest.mark.parametrize("shape", ["dyspec:nodes=6,children=3", "template:widths=3-2-1+rrs"])
def test_draws_of_trees_have_the_joint_distribution_of_the_target(shape: str) -> None:
    for reading in measure(f"linearspec:mask=2,k=3+{shape}", WORLDS["5 tokens, length 4"], 3000):
        assert reading.z < 4, reading


@pytest.mark.seeds("arXiv:2607.05722")
def test_one_checkpoint_drafts_and_verifies_its_own_text_in_a_quarter_of_the_forwards(
    checkpoint: tuple[Path, Any], adapted: tuple[Path, Any]
) -> None:
    """Both forwards of a round are counted, on word problems of six to fourteen steps. The text is that of
    `sequential`.
    """
    by_hand()
    test_the_checkpoint_says_its_mask_and_the_spec_wins(checkpoint)
    masks_are_filled_in_as_engines_do_by_hand()
    test_every_draft_is_of_one_forward_over_the_whole_text("chain", 0)
    test_the_adapter_that_comes_with_the_model_is_on_while_it_drafts("float32", checkpoint, adapted)
    model = pardec.load("tiny-nemotron", device="cpu", attention="causal")
    problems = task("chains").problems(split="heldout", n=12, seed=7)
    prompts = [problem.prompt for problem in problems]
    plain, done = (
        model.generate(prompts, sampler=spec, max_new_tokens=256) for spec in ("sequential", "linearspec:k=15")
    )
    assert done.tokens == plain.tokens
    assert sum(task("chains").score(*both) for both in zip(problems, done.text, strict=True)) >= 11
    drafting = sum(each > 0 for row in done.trace.drafted for each in row)
    assert sum(done.nfe) + drafting < 0.25 * sum(plain.nfe)


def masks_are_filled_in_as_engines_do_by_hand() -> None:
    """The other half of such a model: which masks of a block are filled in, and what a causal forward stores."""
    for select in (test_bound, test_cumulative):
        for spec in select.STEPS:
            select.test_eight_tokens_by_hand(spec)
    for values in (("tau={},least=1,f=0", (0.5, 0.51)), ("tau=1,least={},f=100", (0.5, 0.51))):
        test_bound.test_a_score_of_just_the_bound_is_enough(*values)
    test_bound.test_a_score_of_just_the_bound_is_enough("tau=1,least=0,f={}", (1.5, 1.49))
    test_cumulative.test_a_product_of_just_tau_is_enough()
    test_causal.test_what_is_computed_by_hand()
    test_causal.test_a_row_without_a_prompt_begins_with_its_first_block()
    test_causal.test_a_block_whose_first_token_is_given_is_begun_by_the_forward_that_stores_the_text_before_it()


# --- what goes together ---


def test_a_command_that_asks_for_a_causal_model_may_name_it() -> None:
    kind = preflight.check("tiny-nemotron", ["linearspec"], {}, {"attention": "causal", "mask_id": 4})
    assert kind is not None
    assert (kind.family, kind.block) == ("ar", None)
    with pytest.raises(SpecError, match="'linearspec' is for autoregressive models"):
        preflight.check("tiny-nemotron", ["linearspec"], {}, {})


def test_the_checkpoint_says_its_mask_and_the_spec_wins(checkpoint: tuple[Path, Any]) -> None:
    model = load(checkpoint[0], device="cpu", attention="causal")
    assert model.decoding_config.denoising == BlockDenoising(MASK, 0)
    assert (model.decoding_config.mask_id, model.decoding_config.masked) == (None, False)
    assert load(checkpoint[0], device="cpu").decoding_config.denoising is None
    drafter: Any = registry.resolve("linearspec:mask=7,shift=1", "ar").draft
    assert drafter.denoising(model) == BlockDenoising(7, 1)
    assert drafter.cost_ratio(model, None) == 1.0


def test_what_is_refused(checkpoint: tuple[Path, Any]) -> None:
    with pytest.raises(SpecError, match="linearspec: toy is loaded as a causal model without a mask token"):
        run(target(), "linearspec", RAGGED, NEW)
    with pytest.raises(SpecError, match="linearspec: mask=5 is not one of the 5 ids of toy"):
        run(target(), "linearspec:mask=5", RAGGED, NEW)
    with pytest.raises(SpecError, match="linearspec"):
        pardec.load(checkpoint[0], device="cpu").generate(input_ids=[[3, 4]], sampler="linearspec", max_new_tokens=4)


def test_drafts_that_are_not_finite_name_the_model() -> None:
    model = toy_ar(0, 5, 3.0, layers=4)
    embedding = dict(model.decoder.named_parameters())["embed.weight"]
    with torch.no_grad():
        embedding[2] = np.inf  # of the mask, which no prompt has here
    with pytest.raises(ModelError, match=r"toy gives logits that are not finite: its weight embed\.weight"):
        run(model, spec(3), [[3, 1]], 9)
