"""`idlm`: masks after a draft, in the forward that verifies it, predict the next draft."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import pardec
from pardec.models.draft_modules.idlm import Gate, GatedAdapter
from pardec.models.errors import ModelError, SpecError
from pardec.models.model import BlockDenoising
from pardec.samplers import registry
from pardec.samplers.speculative.draft.idlm import Idlm
from tests.models import adapters
from tests.models.families.test_families import published, rewrite
from tests.reference import naive_idlm as naive
from tests.samplers.ar_toys import plain_greedy, request, rows, run, toy_ar

MASK = 4
SMALL_MASK = 7


class Gated:
    """A transformers model whose linear layers add the products of an adapter at the last positions alone."""

    def __init__(self, model: Any, halves: dict[str, Tensor], scale: float) -> None:
        self.model, self.last = model, 0  # at so many positions it is on
        for name, module in model.named_modules():
            if (stem := f"base_model.model.{name}.lora_") + "A.weight" in halves:
                a, b = (halves[stem + f"{half}.weight"] for half in "AB")
                module.register_forward_hook(partial(self.add, scale * b, a))

    def add(self, b: Tensor, a: Tensor, module: Any, inputs: tuple[Tensor], output: Tensor) -> Tensor:
        more = torch.zeros_like(output)
        for at in range(output.shape[1] - self.last, output.shape[1]):
            more[:, at] = inputs[0][:, at] @ a.t() @ b.t()
        return output + more

    @torch.no_grad()
    def likeliest(self, tokens: list[int], masks: int = 0) -> list[int]:
        """The likeliest token after each of `tokens` and of so many masks after them."""
        self.last = masks
        result: list[int] = self.model(torch.tensor([[*tokens, *[SMALL_MASK] * masks]])).logits[0].argmax(-1).tolist()
        return result


def naive_gated(gated: Gated, prompt: list[int], new: int, k: int) -> tuple[list[int], list[int]]:
    """Tokens, and how many drafted ones each forward after the prompt's accepted; all is computed anew each time."""
    text, end, drafted, accepted = list(prompt), len(prompt) + new, list[int](), list[int]()
    text.append(gated.likeliest(text)[-1])
    while (left := end - len(text)) > 0:
        drafted = drafted[: left - 1]
        masks = min(k, max(left - len(drafted) - 2, 0))
        after = gated.likeliest([*text, *drafted], masks)[len(text) - 1 :]
        count = next((at for at, token in enumerate(drafted) if token != after[at]), len(drafted))
        text += [*drafted[:count], after[count]]
        accepted.append(count)
        drafted = after[len(drafted) + 1 :] if count == len(drafted) else []
    return text, accepted


@pytest.fixture
def adapted(tmp_path: Path) -> tuple[Path, Path, Gated]:
    """A small Qwen3, an adapter of all its linear layers, and both in transformers."""
    shape = {"num_key_value_heads": 2, "head_dim": 16, "vocab_size": SMALL_MASK + 1}
    reference = published("Qwen3", tmp_path / "base", **shape)
    modules = [name for name, module in reference.named_modules() if isinstance(module, torch.nn.Linear)]
    modules.remove("lm_head")
    tensors = {f"{name}.weight": reference.get_submodule(name).weight.detach() for name in modules}
    halves = adapters.pairs(tensors, modules, rank=4)
    return tmp_path / "base", adapters.write_adapter(tmp_path / "lora", halves, r=4), Gated(reference, halves, 6 / 4)


def assert_on_at_masks_alone(adapted: tuple[Path, Path, Gated], k: int) -> None:
    """Text and accepted tokens are those of the plain version, in a batch and alone."""
    folder, lora, gated = adapted
    model = pardec.load(folder, device="cpu", dtype="float32")
    generator = torch.Generator().manual_seed(2)
    prompts = [torch.randint(3, SMALL_MASK, (size,), generator=generator).tolist() for size in (9, 2, 5)]
    arguments: dict[str, Any] = {"max_new_tokens": 19, "stop_ids": []}
    spec = f"idlm:mask={SMALL_MASK},k={k}"
    plain, drafted, without = (
        model.generate(input_ids=prompts, sampler=one, **arguments)
        for one in ("sequential", f"{spec},adapter={lora}", spec)
    )
    assert plain.tokens == drafted.tokens == without.tokens
    each = []
    for row, prompt in enumerate(prompts):
        text, accepted = naive_gated(gated, prompt, 19, k)
        alone = model.generate(input_ids=[prompt], sampler=f"{spec},adapter={lora}", **arguments)
        assert drafted.sequences[row, : len(text)].tolist() == alone.sequences[0].tolist() == text
        assert list(drafted.trace.accepted[row][1:]) == list(alone.trace.accepted[0][1:]) == accepted
        each += accepted
    assert 0 < sum(each) < k * len(each)
    assert drafted.trace.accepted != without.trace.accepted
    again = model.generate(input_ids=prompts, sampler="sequential", **arguments)
    assert again.tokens == plain.tokens  # and off when another sampler runs
    change_config(lora, mask_token_id=SMALL_MASK)  # read anew below another name
    named = model.generate(
        input_ids=prompts, sampler=f"idlm:name={lora.rename(lora.with_name('own'))},k={k}", **arguments
    )
    assert (named.tokens, named.trace.accepted) == (drafted.tokens, drafted.trace.accepted)


@pytest.mark.parametrize("k", [1, 3, 5])
@pytest.mark.seeds("arXiv:2604.11035")
def test_tokens_and_forwards_are_those_of_whole_forwards(adapted: tuple[Path, Path, Gated], k: int) -> None:
    """The plain version feeds the whole text, the draft and the masks at every forward, without a cache.

    So does that of an adapter, which applies at mask positions only.
    """
    the_spec_s_mask_wins_over_the_lora_s_and_that_over_the_checkpoint_s()
    the_adapter_is_on_where_there_is_no_token()
    assert Idlm(k=k).most_queries(1 + k, request([[1]], 1)) == k, "room for a mask per drafted token"
    taken, begun = 0, 0
    for seed in range(4):
        model, prompt = toy_ar(seed, sharp=0.3), [1, 2, 3]
        tokens, accepted, fed = naive.decode(model, prompt, 24, MASK, k)
        got = run(model, f"idlm:mask={MASK},k={k}", [prompt], 24)
        assert rows(got) == [tokens]
        assert got.nfe == (1 + len(accepted),)
        assert got.tokens_fed == (fed,)
        taken, begun = taken + sum(accepted), begun + accepted.count(0)
    assert taken, "no draft was ever accepted: the test shows nothing"
    assert begun > 6, "no draft was ever refused: the test shows nothing"
    assert_on_at_masks_alone(adapted, k)


def the_adapter_is_on_where_there_is_no_token() -> None:
    seen: list[list[list[bool]]] = []
    gate = Gate(torch.zeros(0, 1, dtype=torch.bool))

    class Stack:
        layers = ()

        def __call__(self, plan: Any, cache: None) -> None:
            seen.append(gate.on.tolist())

    plan: Any = SimpleNamespace(tokens=torch.tensor([[0, 3, -1], [2, -1, -1]]))
    GatedAdapter("lora", Stack(), gate, {}).run(plan, None)  # type: ignore[arg-type]
    assert seen == [[[False], [False], [True], [False], [True], [True]]]


def the_spec_s_mask_wins_over_the_lora_s_and_that_over_the_checkpoint_s() -> None:
    model = toy_ar()
    model = replace(model, decoding_config=replace(model.decoding_config, denoising=BlockDenoising(3, 0)))
    lora: Any = SimpleNamespace(mask_id=1)
    assert [Idlm().mask_id(model), Idlm().mask_id(model, lora), Idlm(mask=2).mask_id(model, lora)] == [3, 1, 2]


def change_config(lora: Path, **changes: object) -> None:
    file = lora / "adapter_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))


def test_greedy_text_is_kept_in_a_ragged_batch() -> None:
    model, texts, new = toy_ar(3, sharp=0.3), [[1, 2, 3], [2], [3, 3, 1, 0, 2]], (11, 17, 5)
    done = run(model, f"idlm:mask={MASK},k=3", texts, new)
    assert rows(done) == [plain_greedy(model, text, count) for text, count in zip(texts, new, strict=True)]


def test_a_folder_in_the_layout_of_sdar_gives_the_greedy_text_of_qwen3(tmp_path: Path) -> None:
    reference = published("Qwen3", tmp_path, num_key_value_heads=2)
    rewrite(tmp_path, model_type="sdar", architectures=["SDARForCausalLM"], mask_token_id=60)
    model = pardec.load(tmp_path, device="cpu", dtype="float32", attention="causal")
    text = [5, 9, 3, 7]
    done = model.generate(input_ids=[text], max_new_tokens=16, stop_ids=[], sampler="idlm:mask=60")
    with torch.no_grad():  # each token is the likeliest after those before it
        expected = reference(torch.tensor([text + done.tokens[0]])).logits[0, 3:-1].argmax(-1)
    assert done.tokens[0] == expected.tolist()


def test_what_has_no_mask_or_drafts_trees_is_refused() -> None:
    with pytest.raises(SpecError, match="idlm: toy is loaded as a causal model without a mask token"):
        run(toy_ar(), "idlm", [[1, 2]], 4)
    with pytest.raises(SpecError, match="idlm: mask=9 is not one of the 5 ids of toy"):
        run(toy_ar(), "idlm:mask=9", [[1, 2]], 4)
    with pytest.raises(SpecError, match="idlm drafts a chain, and beam drafts trees"):
        registry.resolve("idlm:mask=4+beam")


def test_an_adapter_of_anything_but_the_layers_matrices_is_refused(adapted: tuple[Path, Path, Gated]) -> None:
    folder, lora, _ = adapted
    model = pardec.load(folder, device="cpu", dtype="float32")
    weights = load_file(lora / "adapter_model.safetensors")
    head = {
        f"base_model.model.lm_head.lora_{half}.weight": torch.ones(4, 48) if half == "A" else torch.ones(8, 4)
        for half in "AB"
    }
    adapters.write_adapter(lora, weights | head, r=4)
    with pytest.raises(ModelError, match="lora changes lm_head.weight, which cannot be changed at mask positions only"):
        model.generate(input_ids=[[3, 4]], sampler=f"idlm:mask=7,adapter={lora}", max_new_tokens=4)


def test_an_adapter_of_masks_is_not_merged_and_its_mask_is_an_id(adapted: tuple[Path, Path, Gated]) -> None:
    folder, lora, _ = adapted
    change_config(lora, mask_token_id=SMALL_MASK)
    with pytest.raises(ModelError, match="lora applies at mask positions only .mask_token_id.; merged"):
        pardec.load(folder, device="cpu", adapter=lora)
    model = pardec.load(folder, device="cpu", dtype="float32")
    for wrong in (SMALL_MASK + 1, -1):
        change_config(lora, mask_token_id=wrong)
        with pytest.raises(ModelError, match=f"lora has mask_token_id={wrong}, which is none of the 8 ids"):
            model.generate(input_ids=[[3, 4]], sampler=f"idlm:name={lora}", max_new_tokens=4)
    with pytest.raises(SpecError, match="name and adapter both name the LoRA"):
        registry.resolve(f"idlm:name={lora},adapter={lora}")


def test_tiny_llama_drafts_with_its_own_lora_up_to_a_stride_a_forward() -> None:
    """Greedy text is that of `sequential`; drawn text is that of the uniforms, whatever is drafted."""
    model, problems = pardec.load("tiny-llama", device="cpu"), pardec.task("arithmetic").problems(n=8)
    prompts = [problem.prompt for problem in problems]
    plain, drafted = (model.generate(prompts, sampler=spec) for spec in ("sequential", "idlm:name=tiny-llama-idlm"))
    assert drafted.tokens == plain.tokens
    each = [len(tokens) / count for tokens, count in zip(drafted.tokens, drafted.nfe, strict=True)]
    assert all(2 < gain <= 4 for gain in each), each
    bare = model.generate(prompts, sampler="idlm:mask=4")
    assert bare.tokens == plain.tokens
    assert sum(drafted.nfe) < 0.6 * sum(bare.nfe)  # the masks' predictions are what the LoRA teaches
