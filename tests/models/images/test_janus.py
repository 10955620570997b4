"""Janus through transformers: its logits, its own greedy image loop, its prompts and its pixels."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from transformers import (
    JanusConfig,
    JanusForConditionalGeneration,
    JanusProcessor,
    JanusVisionConfig,
    JanusVQVAEConfig,
    LlamaConfig,
    PreTrainedTokenizerFast,
)
from transformers.models.janus.image_processing_pil_janus import JanusImageProcessorPil

import pardec
from pardec.models.errors import ModelError, SpecError
from pardec.models.images.contracts import Condition
from pardec.models.images.janus import JanusImaging
from pardec.models.load import load
from pardec.models.plan import Plan, Visible
from tests.models.adapters import naive, pairs, write_adapter
from tests.models.toys import ask, rewrite

SPECIAL = ["<unk>", "<pad>", "<s>", "</s>", "<boi>", "<eoi>", "<image>"]
WORDS = [*SPECIAL, *["User", "Assistant", ":", "a", "red", "blue", "circle", "square", "left", "of", "on", "grey"]]
PAD, BOS, BOI = 1, 2, 4
TEMPLATE = (
    "{% for message in messages %}User : {{ message['content'][0]['text'] }} {% endfor %}"
    "{% if add_generation_prompt %}Assistant :{% endif %}"
)
CAPTIONS = ["a red circle", "a blue square left of a red circle on grey"]
CODES, SIDE, WIDTH = 48, 3, 32


def processor() -> Any:
    tokens = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokens.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokens.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", BOS)])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=tokens,
        unk_token="<unk>",
        pad_token="<pad>",
        bos_token="<s>",
        eos_token="</s>",
        extra_special_tokens={"image_token": "<image>", "boi_token": "<boi>", "eoi_token": "<eoi>"},
    )
    pictures = JanusImageProcessorPil(image_mean=[0.5] * 3, image_std=[0.5] * 3)  # as the published ones
    return JanusProcessor(pictures, tokenizer, chat_template=TEMPLATE, num_image_tokens=SIDE**2)


def config() -> Any:
    text = {"vocab_size": len(WORDS), "hidden_size": WIDTH, "intermediate_size": 48, "num_hidden_layers": 2}
    text |= {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 64}
    vision = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "patch_size": 4}
    vq = {"embed_dim": 4, "num_embeddings": CODES, "latent_channels": 32, "base_channels": 32, "num_res_blocks": 1}
    return JanusConfig(
        text_config=LlamaConfig(**text, bos_token_id=BOS, eos_token_id=3, pad_token_id=PAD),
        vision_config=JanusVisionConfig(**vision, image_size=4 * SIDE, projection_dim=WIDTH, num_image_tokens=SIDE**2),
        vq_config=JanusVQVAEConfig(
            **vq, channel_multiplier=[1, 1, 1], projection_dim=WIDTH, image_token_embed_dim=WIDTH
        ),
        image_token_id=6,
    )


@pytest.fixture(scope="module")
def library() -> Any:
    """A random model of transformers, with transformers' own attention."""
    torch.manual_seed(0)
    model = JanusForConditionalGeneration(config()).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.add_(torch.randn_like(parameter) * 0.3)
    settings = model.generation_config
    settings.pad_token_id, settings.bos_token_id, settings.eos_token_id = PAD, BOS, 3
    settings.generation_kwargs = {"boi_token_id": BOI}
    return model


@pytest.fixture(scope="module")
def folder(library: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("janus")
    library.save_pretrained(path)
    processor().save_pretrained(path)
    return path


@pytest.fixture(scope="module")
def model(folder: Path) -> pardec.Model:
    return pardec.load(folder, device="cpu")


def prompts(captions: list[str]) -> Any:
    """The processor's inputs for transformers, padded on the left."""
    made = processor()
    said = [[{"role": "user", "content": [{"type": "text", "text": caption}]}] for caption in captions]
    texts = [made.apply_chat_template(one, add_generation_prompt=True) for one in said]
    return made(text=texts, generation_mode="image", return_tensors="pt", padding=True)


def drawn(library: Any, captions: list[str], scale: float) -> list[list[int]]:
    """The image codes of transformers' own greedy loop."""
    return library.generate(
        **prompts(captions), generation_mode="image", do_sample=False, guidance_scale=scale
    ).tolist()


def logits(library: Any, states: Tensor) -> Tensor:
    inner = library.model
    with torch.no_grad():
        return inner.generation_head(inner.language_model(inputs_embeds=states, use_cache=False).last_hidden_state)


def test_the_loaded_model_speaks_of_codes_alone(model: pardec.Model) -> None:
    stack, imaging = model.language_model, model.language_model.imaging
    assert (stack.vocab_size, stack.layers, stack.width) == (CODES, 2, WIDTH)
    assert (stack.max_positions, stack.limit) == (64, None)
    assert (stack.tokenizer, stack.decoding_config.eos_ids, stack.decoding_config.masked) == (None, (), False)
    assert (imaging.kind, imaging.classes, imaging.layout.grid, imaging.can_decode) == ("text", 0, (SIDE, SIDE), True)
    assert dict(imaging.defaults) == {"temperature": 1.0, "cfg": 5.0}
    assert stack.embed(torch.eye(CODES)).shape == (CODES, WIDTH)


def test_the_logits_are_those_of_the_library(model: pardec.Model, library: Any) -> None:
    stack = model.language_model
    codes = torch.randint(0, CODES, (2, 9), generator=torch.Generator().manual_seed(1))
    own = library.prepare_embeddings_for_image_generation(codes)
    close = {"rtol": 1e-4, "atol": 2e-5}
    torch.testing.assert_close(
        stack.forward(Plan.full(codes, Visible.causal())).logits(), logits(library, own), **close
    )
    states = torch.randn(2, 5, WIDTH, generator=torch.Generator().manual_seed(2))
    expected = logits(library, torch.cat((states, own), 1))
    cache, order = stack.new_cache(2, 14), torch.arange(14).expand(2, -1)
    soft = torch.cat((states, torch.zeros_like(own[:, :2])), 1)
    tokens = torch.cat((torch.full((2, 5), -1), codes[:, :2]), 1)  # a row of -1 is the soft state and nothing else
    parts = [
        ask(tokens, order[:, :7], Visible.causal(), torch.tensor([7, 7]), soft=soft),
        ask(codes[:, 2:], order[:, 7:], Visible.causal(), torch.tensor([14, 14])),
    ]
    with torch.inference_mode():
        made = torch.cat([stack.run(plan, cache).logits() for plan in parts], 1)
    torch.testing.assert_close(made, expected, **close)


def test_nothing_said_is_padding_between_the_first_token_and_the_beginning_of_the_picture(
    model: pardec.Model, library: Any
) -> None:
    prefix = model.language_model.imaging.prefix([Condition(text=caption) for caption in CAPTIONS])
    ids = ["<s>", "User", ":", "a", "red", "circle", "Assistant", ":", "<boi>"]
    table = library.get_input_embeddings()
    assert torch.equal(prefix.cond[0], table(torch.tensor([WORDS.index(word) for word in ids])))
    assert torch.equal(prefix.uncond[0], table(torch.tensor([BOS, *[PAD] * 7, BOI])))
    assert prefix.lengths == [9, 16]


def test_greedy_decoding_is_the_librarys_own_image_loop(model: pardec.Model, library: Any) -> None:
    alone, together = drawn(library, CAPTIONS[:1], 5.0), drawn(library, CAPTIONS, 5.0)
    assert len({*together[0], *together[1]}) > 3  # or the test would say little
    assert alone[0] == together[0] != together[1]
    for sampler in ("sequential", "sjd:window=5", "jacobi:window=5", "recycling"):
        result = model.generate(CAPTIONS, sampler=sampler, cfg=5.0)
        assert result.tokens == together, sampler
        assert (sum(result.nfe) < 2 * SIDE**2) == (sampler != "sequential")
        assert model.generate(CAPTIONS[0], sampler=sampler, cfg=5.0).tokens == alone, sampler
    less = drawn(library, CAPTIONS, 1.5)
    assert model.generate(CAPTIONS, cfg=1.5).tokens == less != together


def test_without_guidance_the_likeliest_code_behind_the_caption_is_taken(model: pardec.Model, library: Any) -> None:
    states = library.get_input_embeddings()(prompts(CAPTIONS[:1])["input_ids"]).detach()
    expected: list[int] = []
    for _ in range(SIDE**2):
        expected.append(int(logits(library, states)[0, -1].argmax()))
        fed = library.prepare_embeddings_for_image_generation(torch.tensor([expected[-1:]])).detach()
        states = torch.cat((states, fed), 1)
    assert model.generate(CAPTIONS[0]).tokens == [expected]


@pytest.mark.parametrize("sampler", ["sequential", "sjd:window=5"])
def test_a_sampled_row_alone_is_the_row_in_a_batch(model: pardec.Model, sampler: str) -> None:
    settings = {"sampler": sampler, "cfg": 3.0, "temperature": 1.0, "top_k": 20}
    both = model.generate(CAPTIONS, seed=[7, 8], **settings)
    for row, caption in enumerate(CAPTIONS):
        assert model.generate(caption, seed=[7 + row], **settings).tokens == both.tokens[row : row + 1]
    twice = model.generate(CAPTIONS[0], num_images=2, seed=[7, 9], **settings)
    assert twice.tokens[0] == both.tokens[0] != twice.tokens[1]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("sampler", ["sequential", "sjd:window=5", "jacobi:window=5", "recycling"])
def test_cells_with_one_allowed_code_hold_it(model: pardec.Model, sampler: str, temperature: float) -> None:
    forced = {0: [40], 3: [7], 4: [7], 8: [2]}
    made = model.generate(CAPTIONS, sampler=sampler, temperature=temperature, cfg=2.0, allowed=forced)
    for row in made.tokens:
        assert [row[cell] for cell in forced] == [40, 7, 7, 2]


def test_pixels_are_the_librarys(model: pardec.Model, library: Any) -> None:
    codes = torch.randint(0, CODES, (2, SIDE, SIDE), generator=torch.Generator().manual_seed(3))
    imaging = model.language_model.imaging
    pixels = imaging.decode(codes)
    with torch.no_grad():
        own = library.decode_image_tokens(codes.flatten(1))
    torch.testing.assert_close(pixels, own.permute(0, 3, 1, 2), rtol=1e-4, atol=1e-5)
    result = model.generate(CAPTIONS[0], cfg=5.0)
    with torch.no_grad():
        own = library.decode_image_tokens(torch.tensor(result.tokens))
    shown = processor().postprocess(list(own.permute(0, 3, 1, 2)), return_tensors="PIL.Image.Image")["pixel_values"][0]
    gap = np.asarray(shown).astype(int) - np.asarray(result.images[0])
    assert set(np.unique(gap)) <= {-1, 0}  # the library cuts off fractions where pardec rounds
    rows = library.model.vqmodel.quantize.embedding.weight[5]
    torch.testing.assert_close(imaging.codebook[5], rows / rows.norm())


def test_what_it_cannot_draw_is_refused(model: pardec.Model) -> None:
    imaging = model.language_model.imaging
    for condition, message in (
        (Condition(text=" "), "row 0 has no caption"),
        (Condition(), "row 0 has no caption"),
        (Condition(label=3), "row 0 has a label, and .* takes captions"),
        (Condition(features=torch.zeros(2, WIDTH)), "own text embedding"),
    ):
        with pytest.raises(ModelError, match=message) as error:
            imaging.prefix([condition])
        assert error.value.hint
    for prompt, more, message in (
        ("", {}, "caption 0 is empty"),
        (None, {"label": 3}, "draws captions and has no classes"),
        (None, {"input_ids": torch.ones(1, 3, dtype=torch.int64)}, "input_ids is for text"),
        (CAPTIONS[0], {"template": "a <mask>"}, "template is for text"),
        (CAPTIONS[0], {"allowed": {0: ["red"]}}, "without a tokenizer"),
    ):
        with pytest.raises(SpecError, match=message):
            model.generate(prompt, **more)


def test_folders_and_arguments_that_cannot_work_are_refused(folder: Path, tmp_path: Path) -> None:
    for name, value in (("device_map", "auto"), ("mask_id", 3), ("decoder", "tiny-vq"), ("text_encoder", "t5")):
        with pytest.raises(ModelError, match=f"device_map is for text models|{name}={value} was given"):
            load(folder, **{name: value})

    def copy(without: str) -> Path:
        made = tmp_path / without.strip("*")
        shutil.copytree(folder, made)
        for file in made.glob(without):
            file.unlink()
        return made

    with pytest.raises(ModelError, match="has no usable processor") as error:
        load(copy("*token*"), device="cpu")
    assert error.value.hint
    with pytest.raises(ModelError, match="has no usable processor"):
        load(copy("processor_config.json"), device="cpu")
    with pytest.raises(ModelError, match="has no chat template"):
        load(copy("chat_template.jinja"), device="cpu")
    made_up = rewrite(copy("tokenizer.json"), "tokenizer_config.json", tokenizer_class="LlamaTokenizer")
    with pytest.raises(ModelError, match="no usable processor: there is no tokenizer.model or tokenizer.json"):
        load(made_up, device="cpu")  # this class makes up a vocabulary


def test_a_grid_that_its_tokenizer_does_not_decode_is_refused(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library.model.vision_model.config, "num_image_tokens", 12)
    with pytest.raises(ModelError, match="mine has 12 tokens per image, and its image tokenizer decodes 3x3"):
        JanusImaging(library, processor(), "mine")


def test_a_checkpoint_that_names_no_padding_is_refused(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = processor()
    monkeypatch.setattr(library.generation_config, "pad_token_id", None)
    assert JanusImaging(library, made, "mine").pad == PAD  # of the tokenizer
    made.tokenizer.pad_token = None
    with pytest.raises(ModelError, match="mine names no padding token"):
        JanusImaging(library, made, "mine")


def test_a_padding_outside_the_vocabulary_is_refused(library: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(library.generation_config, "pad_token_id", len(WORDS))
    with pytest.raises(ModelError, match=f"pad_token_id of mine is {len(WORDS)}"):
        JanusImaging(library, processor(), "mine")


@pytest.mark.parametrize(("scale", "cfg"), [(None, 5.0), (0, None), (1, None), (2.5, 2.5)])
def test_guidance_is_the_checkpoints(
    scale: float | None, cfg: float | None, library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library.generation_config, "guidance_scale", scale)
    assert JanusImaging(library, processor(), "mine").defaults["cfg"] == cfg


def test_a_checkpoint_that_does_not_sample_draws_the_likeliest_codes(
    library: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pardec.requests.images import with_defaults

    monkeypatch.setattr(library.generation_config, "do_sample", False)
    assert with_defaults(JanusImaging(library, processor(), "mine"), {}) == {"temperature": 0.0, "cfg": 5.0}


@pytest.mark.parametrize("key", ["typical_p", "eta_cutoff", "repetition_penalty"])
def test_other_sampling_keys_of_a_checkpoint_are_refused(key: str, folder: Path, tmp_path: Path) -> None:
    copy = rewrite(shutil.copytree(folder, tmp_path / "copy"), "generation_config.json", **{key: 0.5})
    with pytest.raises(ModelError, match=f"copy sets {key} to 0.5"):
        pardec.load(copy, device="cpu").generate("it")


def test_pixels_are_in_the_range_of_the_processor(library: Any) -> None:
    codes, made = torch.arange(9).view(1, 3, 3), processor()
    made.image_processor.image_mean, made.image_processor.image_std = [0.4, 0.5, 0.6], [0.2, 0.3, 0.5]
    with torch.inference_mode():
        pixels = JanusImaging(library, made, "mine").decode(codes)
        expected = made.postprocess(list(library.model.vqmodel.decode(codes.flatten(1))), return_tensors="pt")
    bytes_ = ((pixels + 1) / 2 * 255).clip(0, 255).to(torch.uint8).int()
    assert (bytes_ - expected["pixel_values"].int()).abs().max() <= 1


def test_an_adapter_of_the_language_model_is_merged(folder: Path, tmp_path: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    modules = [f"model.language_model.layers.{layer}.self_attn.{part}_proj" for layer in (0, 1) for part in "qv"]
    modules += ["model.generation_head.proj_out"]
    halves = pairs(tensors, modules)
    merged = shutil.copytree(folder, tmp_path / "merged")
    save_file(naive(tensors, halves, modules), merged / "model.safetensors", metadata={"format": "pt"})
    ours = pardec.load(folder, device="cpu", adapter=write_adapter(tmp_path / "tuned", halves))
    expected, ids = pardec.load(merged, device="cpu"), torch.arange(9)[None]
    torch.testing.assert_close(ours.logits(ids), expected.logits(ids), atol=1e-5, rtol=1e-5)
    one, other = (each.generate(CAPTIONS[0], temperature=0.0) for each in (ours, expected))
    assert one.tokens == other.tokens
    assert one.model == f"{folder.name}+tuned"


def test_new_weights_are_those_of_the_codes_inputs_too(folder: Path, tmp_path: Path) -> None:
    new = {name: value.flip(0) for name, value in load_file(folder / "model.safetensors").items()}
    changed = shutil.copytree(folder, tmp_path / "changed")
    save_file(new, changed / "model.safetensors", metadata={"format": "pt"})
    fresh, ids = pardec.load(changed, device="cpu"), torch.arange(9)[None]
    for weights in (new, changed):
        model = pardec.load(folder, device="cpu")
        stack: Any = model.language_model.decoder
        memory = [weight.data_ptr() for weight in (*stack.parameters(), stack.embedding)]
        before = model.logits(ids)
        model.load_weights(weights)
        assert torch.equal(model.logits(ids), fresh.logits(ids))
        assert not torch.equal(model.logits(ids), before)
        assert torch.equal(stack.embedding, fresh.language_model.decoder.embedding)
        assert [weight.data_ptr() for weight in (*stack.parameters(), stack.embedding)] == memory
        one, other = (each.generate(CAPTIONS[0], temperature=0.0) for each in (model, fresh))
        assert one.tokens == other.tokens
