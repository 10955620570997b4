"""Captions are encoded singly, once, truncated if too long, and cleaned as the published checkpoints require."""

from __future__ import annotations

import sys
import warnings
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor
from transformers import BertConfig, BertModel, PreTrainedTokenizerFast, T5Config, T5EncoderModel

from pardec.models.errors import ModelError
from pardec.models.files.sources import Source
from pardec.models.images import captions
from pardec.models.images.captions import TextEncoder, cleaner
from pardec.models.images.contracts import Condition, ImagingParts
from pardec.models.images.llamagen import Captions, LlamaGenImaging, _encoder

WORDS = [
    "<pad>", "</s>", "<unk>", "a", "small", "large", "red", "green", "blue", "circle", "square", "triangle", "on",
    "grey", "left", "of", "above",
]  # fmt: skip
SIZES = {"vocab_size": len(WORDS), "num_hidden_layers": 2, "num_layers": 2}
LINES = ["a red circle", "a small red circle left of a large blue square on grey", "a green triangle above a circle"]


def library(kind: str) -> Any:
    torch.manual_seed(0)
    if kind == "t5":
        return T5EncoderModel(T5Config(**SIZES, d_model=24, d_kv=6, d_ff=32, num_heads=4)).eval()
    sizes = {"hidden_size": 24, "num_attention_heads": 4, "intermediate_size": 32, "max_position_embeddings": 20}
    return BertModel(BertConfig(**SIZES, **sizes, pad_token_id=0), add_pooling_layer=False).eval()


def written(kind: str, folder: Path) -> Any:
    tokens = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    tokens.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if kind == "t5":  # a caption ends in a token of its own; Bert's here has none
        tokens.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    names = {"pad_token": "<pad>", "eos_token": "</s>", "unk_token": "<unk>"}
    PreTrainedTokenizerFast(tokenizer_object=tokens, model_max_length=16, **names).save_pretrained(folder)
    model = library(kind)
    model.save_pretrained(folder)
    return model


@pytest.fixture(scope="module", params=["t5", "bert"])
def encoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    folder = tmp_path_factory.mktemp(request.param)
    return written(request.param, folder), folder


def reader(folder: Path, **settings: Any) -> TextEncoder:
    given = {"most": 16, "device": torch.device("cpu"), "dtype": torch.float32, "offline": True}
    return TextEncoder(str(folder), **given | settings)


def ids(caption: str, model: Any) -> Tensor:
    known = [WORDS.index(word) for word in caption.split()]
    return torch.tensor([[*known, 1] if isinstance(model, T5EncoderModel) else known])


def counted(made: TextEncoder, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A list that receives every caption encoded from now on."""
    seen: list[str] = []
    whole = made._encode
    monkeypatch.setattr(made, "_encode", lambda text: (seen.append(text), whole(text))[1])
    return seen


def test_features_are_those_of_the_encoder_and_the_same_in_any_batch(encoder: tuple[Any, Path]) -> None:
    model, folder = encoder
    together = reader(folder)(LINES)
    for line, features in zip(LINES, together, strict=True):
        own = ids(line, model)
        with torch.no_grad():
            expected = model(input_ids=own).last_hidden_state[0]
        assert features.shape == (own.shape[1], 24)
        torch.testing.assert_close(features, expected, rtol=1e-5, atol=1e-6)
        assert torch.equal(reader(folder)([line])[0], features)
        assert torch.equal(reader(folder)([LINES[2], line, LINES[1]])[1], features)


def test_a_caption_is_encoded_once_and_only_the_last_are_kept(
    encoder: tuple[Any, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    _, folder = encoder
    monkeypatch.setattr(captions, "_CACHED", 2)
    made = reader(folder)
    seen = counted(made, monkeypatch)
    first = made([LINES[0], LINES[1], LINES[0]])
    assert seen == LINES[:2]
    assert first[0] is first[2]
    made([LINES[0]])  # is now newer than the second
    made([LINES[2]])
    assert seen == LINES
    made([LINES[0], LINES[2]])
    assert seen == LINES
    made([LINES[1]])
    assert seen == [*LINES, LINES[1]]
    assert len(made._cache) == 2
    many = made([*LINES, *LINES])  # more than are kept, in one call
    assert all(torch.equal(many[row], many[row + 3]) for row in range(3))


def test_a_long_caption_is_cut_and_named_once(encoder: tuple[Any, Path]) -> None:
    model, folder = encoder
    made = reader(folder, most=5)
    long = "a small red circle left of a large blue square"
    with pytest.warns(UserWarning, match=r"the caption 'a small red circle left.* has 1[01] tokens and the model"):
        features = made([long])[0]
    kept = long.split()[: 4 if isinstance(model, T5EncoderModel) else 5]  # the token that ends a caption stays
    with torch.no_grad():
        expected = model(input_ids=ids(" ".join(kept), model)).last_hidden_state[0]
    torch.testing.assert_close(features, expected, rtol=1e-5, atol=1e-6)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made([f"{long} on grey", "a red circle"])
        reader(folder, most=5)(["a red circle"])


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    written("bert", tmp_path)
    with pytest.raises(ModelError, match="finds no token in '  '") as error:
        reader(tmp_path)(["  "])
    assert error.value.hint
    with pytest.raises(ModelError, match="the text encoder .*nothing-here cannot be loaded"):
        reader(tmp_path / "nothing-here")(["a red circle"])


def test_an_encoder_whose_vocabulary_is_missing_is_refused(tmp_path: Path) -> None:
    """T5's class in transformers makes up one of 105 tokens."""
    written("t5", tmp_path)
    (tmp_path / "tokenizer.json").unlink()
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "T5Tokenizer"}')
    with pytest.raises(ModelError, match="cannot be loaded: there is no spiece.model or tokenizer.json"):
        reader(tmp_path)(["a red circle"])


@pytest.fixture
def cleaning() -> Any:
    cleaner.cache_clear()
    yield
    cleaner.cache_clear()


def test_without_its_packages_cleaning_lowers_the_case_and_says_so_once(
    cleaning: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(captions, "find_spec", lambda name: None if name == "ftfy" else object())
    written("t5", tmp_path)
    made = reader(tmp_path, clean=True)
    with pytest.warns(UserWarning, match="cleaning them needs ftfy .*clean_captions"):
        said = made(["  A RED circle ", LINES[0]])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        made(["a BLUE circle"])
        reader(tmp_path, clean=True)(["a BLUE circle"])
    assert said[0] is said[1]
    assert torch.equal(said[0], reader(tmp_path)([LINES[0]])[0])
    assert not torch.equal(said[0], reader(tmp_path)(["A RED circle"])[0])  # as it is where nothing cleans it


def test_captions_are_cleaned_twice_where_the_packages_are(cleaning: None, monkeypatch: pytest.MonkeyPatch) -> None:
    class PixArtAlphaPipeline:
        ends = "!"

        def _clean_caption(self, caption: str) -> str:
            return caption.lower() + self.ends

    monkeypatch.setattr(captions, "find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "diffusers", SimpleNamespace(PixArtAlphaPipeline=PixArtAlphaPipeline))
    assert cleaner()("A cat") == "a cat!!"


@pytest.mark.slow
def test_diffusers_still_has_what_cleans_them() -> None:
    from diffusers import PixArtAlphaPipeline

    assert callable(PixArtAlphaPipeline._clean_caption)
    assert PixArtAlphaPipeline.bad_punct_regex


@pytest.mark.parametrize(
    ("caption", "expected"),
    [
        ("  A RED Circle ", "a red circle"),
        ("a cat on a mat https://example.com", "a cat on a mat"),
        ("caf&eacute; &amp; <person>", "café person"),
        ("a 猫 cat by @someone", "a cat by"),
        ("“noir” – a film", '"noir" - a film'),
        ("a red+circle%20here", "a red circle here"),
    ],
)
def test_a_caption_is_cleaned_as_the_checkpoints_were_trained(cleaning: None, caption: str, expected: str) -> None:
    pytest.importorskip("ftfy")
    pytest.importorskip("bs4")
    assert cleaner()(caption) == expected


@pytest.mark.parametrize(
    ("config", "features", "cleans"),
    [({}, 2048, True), ({"clean_captions": False}, 2048, False), ({}, 24, False), ({"clean_captions": True}, 24, True)],
)
def test_only_published_checkpoints_clean_unless_the_config_says_so(
    config: dict[str, Any], features: int, cleans: bool, tmp_path: Path
) -> None:
    source = Source("mine", tmp_path, tmp_path)
    parts = ImagingParts(source, config, {}, torch.device("cpu"), torch.float32, None, str(tmp_path), True, 8)
    made = _encoder(parts, Captions(16, features, 8))
    assert (made.clean, made.most) == (cleans, 16)


def test_the_input_states_of_a_caption_are_the_same_in_any_batch(tmp_path: Path) -> None:
    written("t5", tmp_path)
    imaging = LlamaGenImaging(Captions(16, 24, 8).eval().requires_grad_(False), 4, encode=reader(tmp_path))
    alone = imaging.prefix([Condition(text=LINES[1])])
    both = imaging.prefix([Condition(text=LINES[0]), Condition(text=LINES[1])])
    assert both.lengths == [4, 13]  # the last is the token that ends a caption
    assert torch.equal(alone.cond[0], both.cond[1])


def test_a_word_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    held = Tokenizer(models.WordLevel({"<pad>": 0, "a": 1, "red": 2, "circle": 3}))
    held.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=held, pad_token="<pad>").save_pretrained(tmp_path)
    shape = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 8}
    BertModel(BertConfig(vocab_size=4, max_position_embeddings=8, **shape)).save_pretrained(tmp_path)
    reader = TextEncoder(str(tmp_path), most=8, device=torch.device("cpu"), dtype=torch.float32, offline=True)
    assert reader(["a red circle"])[0].shape == (3, 8)
    with pytest.raises(ModelError, match="does not know the word 'rde' in 'a rde circle' .did you mean 'red'"):
        reader(["a rde circle"])
