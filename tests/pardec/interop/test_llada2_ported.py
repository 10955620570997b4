"""The assertions of diffusers' 17 tests of LLaDA2Pipeline, on PardecPipeline with a network of the caller.

Written anew. Five of them call `_prepare_input_ids`, which is private and inherited: what it gives is asserted here by
what the network is given and by what a call refuses, and then of the method itself.
"""

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


# --- shapes and outputs ---


def test_a_batch_is_filled() -> None:
    ids = torch.tensor([[5, 6, 7, 8], [1, 2, 3, 4]])
    out = pipe()(**call(input_ids=ids, gen_length=24, num_inference_steps=8, output_type="seq"))
    assert out.sequences.shape == (2, 24)
    assert (out.sequences != MASK).all()
    assert out.sequences[0].tolist() == [place % 30 for place in range(4, 28)]


def test_a_tuple_is_returned_where_it_is_asked_for() -> None:
    sequences, texts = pipe()(**call(output_type="seq", return_dict=False))
    assert sequences.shape == (1, 16)
    assert texts is None


@pytest.mark.parametrize("output_type", ["seq", "text"])
def test_there_is_no_text_where_none_is_asked_for_or_no_tokenizer_is_there(output_type: str) -> None:
    out = pipe()(**call(output_type=output_type))
    assert out.sequences.shape == (1, 16)
    assert out.texts is None
    assert pipe(Words())(**call(output_type="seq")).texts is None


def test_a_tokenizer_makes_the_text_and_names_the_mask_token() -> None:
    made = pipe(Words())
    asked = call(output_type="text")
    del asked["mask_token_id"]
    assert made(**asked).texts == ["16 tokens"]
    assert made.mask_token_id == MASK


def test_another_output_type_is_a_value_error() -> None:
    with pytest.raises(ValueError, match="output_type"):
        pipe()(**call(output_type="invalid"))


# --- prompts ---


@pytest.mark.parametrize("ids", [FOUR, FOUR[0]])
def test_ids_of_one_row_may_lack_the_batch(ids: Tensor) -> None:
    made = pipe()
    assert made(**call(input_ids=ids)).sequences.shape == (1, 16)
    first, mask = made.model.seen[0]
    assert torch.equal(first[:, :4], FOUR)
    assert (mask[:, :4] == 1).all()
    how = {"use_chat_template": False, "add_generation_prompt": False, "chat_template_kwargs": None}
    prepared, mask = made._prepare_input_ids(prompt=None, messages=None, input_ids=ids, **how)
    assert torch.equal(prepared, FOUR)
    assert torch.equal(mask, torch.ones_like(FOUR))


@pytest.mark.parametrize(
    ("tokenizer", "arguments"),
    [
        (None, {"prompt": "hello"}),
        (Words(), {"prompt": "hello", "messages": [{"role": "user", "content": "block_end"}]}),
        (Words(), {}),
    ],
)
def test_no_tokenizer_two_prompts_and_none_are_value_errors(tokenizer: Any, arguments: dict[str, Any]) -> None:
    made = pipe()
    made.tokenizer = tokenizer
    with pytest.raises(ValueError):  # noqa: PT011
        made(**call(input_ids=None, **arguments))
    how = {"use_chat_template": False, "add_generation_prompt": False, "chat_template_kwargs": None}
    with pytest.raises(ValueError):  # noqa: PT011
        made._prepare_input_ids(**{"prompt": None, "messages": None, "input_ids": None, **arguments}, **how)


def test_text_is_encoded_and_padded_by_the_tokenizer() -> None:
    made = pipe(Words())
    made(**call(input_ids=None, prompt=["a bc def", "gh"]))
    first, mask = made.model.seen[0]
    assert first[:, :3].tolist() == [[1, 2, 3], [2, 0, 0]]
    assert mask[:, :4].tolist() == [[1, 1, 1, 1], [1, 0, 0, 1]]


def test_chats_and_lists_of_chats() -> None:
    talk = [{"role": "user", "content": "a bc"}]
    for arguments, rows in (
        ({"prompt": "a bc"}, [[9, 1, 2]]),
        ({"messages": talk}, [[9, 1, 2]]),
        ({"prompt": ["a bc", "d"]}, [[9, 1, 2], [9, 1, 0]]),
        ({"messages": [talk, [{"role": "user", "content": "d"}]]}, [[9, 1, 2], [9, 1, 0]]),
    ):
        made = pipe(Chats())
        made(**call(input_ids=None, use_chat_template=True, **arguments))
        assert made.model.seen[0][0][:, :3].tolist() == rows


# --- what diffusers mended once ---


def test_the_mask_reaches_the_network_and_hides_padding_and_the_tail() -> None:
    made = pipe()
    made(
        **call(
            input_ids=torch.tensor([[10, 11, 12, 0], [20, 0, 0, 0]]),
            attention_mask=torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0]]),
            gen_length=3,
            block_length=4,
            num_inference_steps=2,
        )
    )
    assert made.model.seen[0][1].tolist() == [[1, 1, 1, 0, 1, 1, 1, 0], [1, 0, 0, 0, 1, 1, 1, 0]]


def test_an_empty_prompt_and_a_block_length_of_the_call() -> None:
    committed: list[int] = []

    def callback(pipeline: Any, step: int, timestep: int, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        committed.append(int(tensors["transfer_index"].sum()))
        return {}

    names = ["transfer_index"]
    asked = call(input_ids=torch.empty(1, 0, dtype=torch.int64), gen_length=8, num_inference_steps=8)
    made = pipe()
    made(**asked, callback_on_step_end=callback, callback_on_step_end_tensor_inputs=names)
    assert committed[:8] == [1] * 8
    assert made.num_timesteps == 8


def test_a_callback_is_given_every_tensor_that_is_promised_and_may_return_nothing() -> None:
    made, calls = pipe(), []

    def callback(pipeline: Any, step: int, timestep: int, tensors: dict[str, Tensor]) -> None:
        assert pipeline is made
        calls.append((step, timestep, set(tensors)))

    names = made._callback_tensor_inputs
    made(**call(gen_length=8), callback_on_step_end=callback, callback_on_step_end_tensor_inputs=names)
    assert (
        {each for *_, arguments in calls for each in arguments}
        == set(names)
        == set(LLaDA2Pipeline._callback_tensor_inputs)
    )
    assert [step for step, *_ in calls] == list(range(len(calls)))


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
    made.set_progress_bar_config(disable=True)
    assert isinstance(made, LLaDA2Pipeline)
    assert made.device == torch.device("cpu")
    assert made.dtype == torch.float32
    made.save_pretrained(tmp_path)
    theirs = LLaDA2Pipeline.from_pretrained(tmp_path)
    theirs.set_progress_bar_config(disable=True)
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
    made.set_progress_bar_config(disable=True)
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
    made.set_progress_bar_config(disable=True)
    texts = ["Tom has 3 cups.", "Ann has 18 cups. She finds 4."]
    encoded = dream.tokenizer(texts, padding=True, return_tensors="pt", return_token_type_ids=False)
    how = {"gen_length": 6, "output_type": "seq", "eos_token_id": 0}
    arguments = made(texts, use_chat_template=False, **how).sequences
    assert torch.equal(arguments, made(**encoded, **how).sequences)
    assert made("", use_chat_template=False, **how).sequences.shape == (1, 6)
