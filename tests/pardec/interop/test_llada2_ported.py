"""PardecPipeline with a network of the caller: its calls are LLaDA2Pipeline's, and what it takes beyond them."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers import BlockRefinementScheduler, LLaDA2Pipeline
from diffusers.callbacks import PipelineCallback
from torch import Tensor, nn

import pardec
from pardec.interop.diffusers import PardecPipeline, PardecScheduler
from pardec.models.errors import SpecError
from tests.samplers import toys

VOCAB, MASK, END = 32, 31, 2
Rule = Callable[[Tensor, Tensor], None]


class Network(nn.Module):
    """Predicts token p mod 30 at position p, later ones more confidently, unless `rule` differs; records its inputs."""

    dtype, device = torch.float32, torch.device("cpu")

    def __init__(self, rule: Rule | None = None) -> None:
        super().__init__()
        self.rule = rule
        self.seen: list[tuple[Tensor, Tensor]] = []

    def forward(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor) -> Any:
        self.seen.append((input_ids.clone(), attention_mask.clone()))
        logits = torch.zeros(*input_ids.shape, VOCAB)
        place = torch.arange(input_ids.shape[1])
        logits[:, place, place % (VOCAB - 2)] = 1 + place / 10
        if self.rule is not None:
            self.rule(input_ids, logits)
        return SimpleNamespace(logits=logits)


class Words:
    """A tokenizer whose ids are word lengths, and which decodes a row to its number of tokens."""

    eos_token_id: int | None = None
    mask_token_id = MASK

    def __call__(self, text: Any, padding: bool = False, **more: Any) -> dict[str, Tensor]:
        rows = [[len(word) for word in each.split()] for each in ([text] if isinstance(text, str) else text)]
        width = max(map(len, rows))
        ids = torch.tensor([row + [0] * (width - len(row)) for row in rows])
        return {"input_ids": ids, "attention_mask": torch.tensor([[1] * len(r) + [0] * (width - len(r)) for r in rows])}

    def batch_decode(self, rows: Any, **more: Any) -> list[str]:
        return [f"{len(row)} tokens" for row in rows]


class Chats(Words):
    """`Words` with a chat template, which begins with a 9."""

    chat_template = "there is one"

    def apply_chat_template(self, talk: Any, **more: Any) -> dict[str, Tensor]:
        talks = talk if isinstance(talk[0], list) else [talk]
        assert more["padding"] if talks is talk else "padding" not in more
        made = self([f"{'x' * 9} " + each[0]["content"] for each in talks], padding=True)
        assert more["return_tensors"] == "pt"
        return made


def pipe(tokenizer: Any = None, rule: Rule | None = None) -> PardecPipeline:
    made = PardecPipeline(model=Network(rule), scheduler=BlockRefinementScheduler(), tokenizer=tokenizer).to("cpu")
    made.set_progress_bar_config(disable=True)
    return made


FOUR = torch.tensor([[5, 6, 7, 8]])


def call(**changed: Any) -> dict[str, Any]:
    """The arguments of a call; its threshold above 1 is never passed, so each step commits its share."""
    usual = {"input_ids": FOUR, "use_chat_template": False, "gen_length": 16, "block_length": 8}
    usual |= {"num_inference_steps": 4, "threshold": 2.0, "eos_early_stop": False, "mask_token_id": MASK}
    return usual | changed


# --- the same call of diffusers' own pipeline ---

TALK = [{"role": "user", "content": "a bc"}]
PADDED = torch.tensor([[10, 11, 12, 0], [20, 0, 0, 0]])
TEXT: dict[str, Any] = {"input_ids": None, "output_type": "text", "mask_token_id": None}  # the tokenizer names the mask
SAME: dict[str, tuple[Any, dict[str, Any]]] = {
    "a batch": (None, {"input_ids": torch.tensor([[5, 6, 7, 8], [1, 2, 3, 4]]), "gen_length": 24}),
    "one row": (None, {"input_ids": FOUR[0], "output_type": "seq"}),
    "ids alone": (Words(), {"output_type": "seq", "return_dict": False}),
    "no prompt": (None, {"input_ids": torch.empty(1, 0, dtype=torch.int64), "gen_length": 8, "num_inference_steps": 8}),
    "a mask, and a tail": (None, {"input_ids": PADDED, "attention_mask": (PADDED > 0).long(), "gen_length": 3}),
    "a text": (Words(), {**TEXT, "prompt": "a bc def"}),
    "texts": (Words(), {**TEXT, "prompt": ["a bc def", "gh"]}),
    "a text as a chat": (Chats(), {**TEXT, "use_chat_template": True, "prompt": "a bc"}),
    "a chat": (Chats(), {**TEXT, "messages": TALK}),
}


@pytest.mark.parametrize("what", SAME)
def test_a_call_is_that_of_diffusers_pipeline(what: str) -> None:
    """Rows, texts, what the network and the callback are given, and what the pipeline says of itself afterwards."""
    tokenizer, changed = SAME[what]
    seen: list[Any] = []
    for kind in (LLaDA2Pipeline, PardecPipeline):
        made = kind(model=Network(), scheduler=BlockRefinementScheduler(), tokenizer=tokenizer)
        steps: list[Any] = []

        def callback(pipeline: Any, *step: Any, made: Any = made, steps: list[Any] = steps) -> dict[str, Tensor]:
            assert pipeline is made
            steps.append([*step[:2], {name: value.tolist() for name, value in step[2].items() if value is not None}])
            return {}

        names = LLaDA2Pipeline._callback_tensor_inputs
        out = made(**call(**changed), callback_on_step_end=callback, callback_on_step_end_tensor_inputs=names)
        sequences, texts = out if isinstance(out, tuple) else (out.sequences, out.texts)
        fed = [(ids.tolist(), mask.tolist()) for ids, mask in made.model.seen]
        seen.append((type(out), sequences.tolist(), texts, fed, steps, made.num_timesteps, made.mask_token_id))
    assert seen[0] == seen[1]
    if what == "a batch":
        assert seen[1][1] == [[place % 30 for place in range(4, 28)]] * 2
    if what == "a text":
        assert seen[1][2] == ["16 tokens"]


@pytest.mark.parametrize(
    ("tokenizer", "arguments"),
    [
        (None, {"input_ids": None, "prompt": "hello"}),
        (Words(), {"input_ids": None, "prompt": "hello", "messages": TALK}),
        (Words(), {"input_ids": None}),
        (None, {"output_type": "invalid"}),
    ],
)
def test_what_diffusers_pipeline_refuses_is_a_value_error(tokenizer: Any, arguments: dict[str, Any]) -> None:
    made = pipe(tokenizer)
    for kind in (made, LLaDA2Pipeline(model=made.model, scheduler=made.scheduler, tokenizer=tokenizer)):
        with pytest.raises(ValueError):  # noqa: PT011
            kind(**call(**arguments))


def test_lists_of_chats_are_padded() -> None:
    for arguments in ({"prompt": ["a bc", "d"]}, {"messages": [TALK, [{"role": "user", "content": "d"}]]}):
        made = pipe(Chats())
        made(**call(input_ids=None, use_chat_template=True, **arguments))
        assert made.model.seen[0][0][:, :3].tolist() == [[9, 1, 2], [9, 1, 0]]


def test_a_callback_may_return_nothing() -> None:
    steps: list[int] = []
    pipe()(**call(gen_length=8), callback_on_step_end=lambda pipeline, step, *more: steps.append(step))
    assert steps == list(range(len(steps)))


class Replacing(PipelineCallback):
    """Writes a token into the first open position of the first step."""

    tensor_inputs = ("block_x",)

    def callback_fn(self, pipeline: Any, step: int, timestep: int, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        block = tensors["block_x"].clone()
        if step == 0:
            block[:, 4] = 29
        return {"block_x": block}


def test_a_callback_may_put_tokens_in() -> None:
    out = pipe()(**call(gen_length=4, editing_threshold=None), callback_on_step_end=Replacing())
    assert out.sequences[0].tolist() == [29, 5, 6, 7]


def test_an_end_token_at_the_first_generated_position_ends_the_row() -> None:
    for kind in (BlockRefinementScheduler, PardecScheduler):
        finished = kind.check_eos_finished(
            cur_x=torch.tensor([[10, END, 99]]), sampled_tokens=torch.tensor([[0, END]]),
            final_transfer=torch.tensor([[False, True]]), finished=torch.tensor([False]), eos_token_id=END,
            mask_token_id=99, prompt_length=1,
        )  # fmt: skip
        assert finished.tolist() == [True]


def test_a_row_that_has_ended_is_left_alone() -> None:
    """Row 0 predicts 5, 5, the end token and then 7; row 1 always predicts 6."""

    def rule(ids: Tensor, logits: Tensor) -> None:
        early = ids.shape[1] <= 3
        logits[0, :, 5 if early else 7] = 10
        logits[1, :, 6] = 10
        if early:
            logits[0, 2, END] = 20

    asked = call(input_ids=torch.tensor([[10], [20]]), gen_length=5, block_length=3, num_inference_steps=3)
    asked |= {"eos_token_id": END, "eos_early_stop": True, "output_type": "seq"}
    out = pipe(rule=rule)(**asked)
    # Its end token comes before the 5, and diffusers asks about end tokens in the step that commits them alone.
    assert out.sequences.tolist() == [[5, END, 7, 7, 7], [6] * 5]
    made = pipe(rule=rule)
    made.scheduler = PardecScheduler()
    assert torch.equal(made(**asked).sequences, out.sequences)
    made.scheduler = PardecScheduler("threshold:tau=1")  # a spec ends rows as pardec's loop does
    assert made(**{**asked, "threshold": 0.7}).sequences.tolist() == [[5, END, MASK, MASK, MASK], [6] * 5]


def test_how_bars_are_shown_stays_as_it_was_set() -> None:
    made = pipe()
    before = dict(made._progress_bar_config)
    made(**call(gen_length=8, num_inference_steps=2))
    assert made._progress_bar_config == before == {"disable": True}


# --- what else a pipeline is ---


def test_it_is_one_of_diffusers_pipelines_and_saves_what_it_is_made_of(tmp_path: Any) -> None:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    shape = {"vocab_size": VOCAB, "hidden_size": 8, "intermediate_size": 8, "num_hidden_layers": 1}
    network = Qwen2ForCausalLM(Qwen2Config(**shape, num_attention_heads=1, num_key_value_heads=1)).eval()
    made = PardecPipeline(network, BlockRefinementScheduler(threshold=0.6))
    assert isinstance(made, LLaDA2Pipeline)
    assert made.device == torch.device("cpu")
    assert made.dtype == torch.float32
    made.save_pretrained(tmp_path)
    theirs = LLaDA2Pipeline.from_pretrained(tmp_path)
    assert theirs.scheduler.config.threshold == 0.6
    asked = call(output_type="seq")
    assert torch.equal(theirs(**asked).sequences, made(**asked).sequences)
    made.tokenizer = pardec.load("tiny-dream", device="cpu").tokenizer
    made.save_pretrained(tmp_path / "whole")
    assert (tmp_path / "whole" / "tokenizer").is_dir()
    assert made.to(torch.bfloat16).model.dtype == torch.bfloat16
    assert made.result is None


@pytest.mark.parametrize("model", ["theirs", "ours"])
def test_a_spec_decodes_a_network_of_the_callers_too(model: str) -> None:
    toy = toys.toy("sdar", sharp=1.0)
    ids = torch.tensor(toys.prompts([5], seed=1))

    class Toy(Network):
        def forward(self, input_ids: Tensor, attention_mask: Tensor, position_ids: Tensor) -> Any:
            logits = pardec.Model(toy).logits(input_ids).clone()
            logits[..., toys.MASK] = -1e9
            return SimpleNamespace(logits=logits)

    made = PardecPipeline(model=Toy() if model == "theirs" else pardec.Model(toy))
    how = {"input_ids": ids, "gen_length": 11, "mask_token_id": toys.MASK, "eos_early_stop": False, "block_length": 4}
    out = made(**how, sampler="margin+threshold:tau=0.3")
    expected = toys.fill(toy, "margin+threshold:tau=0.3", ids.tolist(), 11)
    assert out.sequences.tolist() == expected.tokens[:, 5:].tolist()
    made.scheduler = PardecScheduler("margin+threshold:tau=0.3", block_length=4)
    assert torch.equal(made(**how).sequences, out.sequences)


def test_what_a_network_of_the_callers_cannot_have_is_refused() -> None:
    from diffusers import EntropyBoundScheduler

    from pardec.samplers import registry

    made = PardecPipeline(model=Network())
    for sampler, says in (
        ("threshold@dual", "needs the cache"),
        (registry.resolve("threshold"), "resolved sampler"),
        ("treshold", "unknown sampler"),
    ):
        with pytest.raises((SpecError, LookupError), match=says):
            made(**call(sampler=sampler))
    with pytest.raises(SpecError, match="threshold=2.0"):
        made(**call(sampler="threshold"))
    with pytest.raises(SpecError, match="mask_token_id is missing"):
        made(**call(mask_token_id=None))
    with pytest.raises(SpecError, match="EntropyBoundScheduler"):
        PardecPipeline(model=Network(), scheduler=EntropyBoundScheduler())(**call())
    with pytest.raises(SpecError, match="got Linear"):
        PardecPipeline(model=nn.Linear(2, 2))


def test_a_padded_batch_of_texts_with_a_pardec_model() -> None:
    """Lists with a chat template, which diffusers refuses, are padded like diffusers' own lists."""
    dream = pardec.load("tiny-dream", device="cpu")
    toy = toys.toy("sdar", vocab=dream.language_model.vocab_size + 1, sharp=1.0)
    made = PardecPipeline(model=pardec.Model(toy), tokenizer=dream.tokenizer)
    texts = ["Tom has 3 cups.", "Ann has 18 cups. She finds 4."]
    encoded = dream.tokenizer(texts, padding=True, return_tensors="pt", return_token_type_ids=False)
    how = {"gen_length": 6, "output_type": "seq", "eos_token_id": 0}
    arguments = made(texts, use_chat_template=False, **how).sequences
    assert torch.equal(arguments, made(**encoded, **how).sequences)
    assert made("", use_chat_template=False, **how).sequences.shape == (1, 6)
