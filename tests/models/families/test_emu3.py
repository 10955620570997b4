"""Emu3's published layouts: tensor names, vocabularies and image tokenizers; files that are refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import Emu3ImageProcessor

from pardec.models.errors import ModelError
from pardec.models.images.emu3 import RANKS, VISION, from_ranks
from pardec.models.load import load
from pardec.models.loading.kinds import kind_of
from pardec.models.model import LanguageModel
from pardec.models.plan import Plan
from tests.models.chameleon_files import change_tensors
from tests.models.emu3_files import CODES, processor, write_authors, write_library
from tests.models.toys import rewrite

TEXT = "the red cat, aed"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Any]:
    folder = tmp_path_factory.mktemp("emu3") / "library"
    return folder, write_library(folder)


@pytest.fixture
def copied(library: tuple[Path, Any], tmp_path: Path) -> tuple[Path, Any]:
    folder = tmp_path / "copy"
    folder.mkdir()
    for file in library[0].iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder, library[1]


def same(model: LanguageModel, library: Any) -> None:
    """Asserts that logits and pixels equal transformers'."""
    ids = torch.randint(0, model.vocab_size, (2, 30), generator=torch.Generator().manual_seed(1))
    with torch.inference_mode():
        own = model.forward(Plan.full(ids, model.visible())).logits()
        assert torch.allclose(own, library(input_ids=ids).logits, atol=2e-4, rtol=1e-4)
    codes = torch.randint(0, CODES, (1, 3, 2), generator=torch.Generator().manual_seed(2))
    assert torch.allclose(model.imaging.decode(codes), library.model.vqmodel.decode(codes), atol=1e-4)


def test_the_layout_of_transformers(library: tuple[Path, Any]) -> None:
    model = load(library[0], device="cpu")
    same(model, library[1])
    assert (model.family, model.max_positions) == ("emu3", 600)
    imaging = model.imaging
    assert torch.equal(imaging.codebook, library[1].model.vqmodel.quantize.embedding.weight)  # type: ignore[arg-type]
    kind = kind_of(library[0])
    assert (kind.family, kind.draws) == ("ar", "text")


def test_biases_have_the_names_of_their_layout(tmp_path: Path) -> None:
    library = write_library(tmp_path, attention_bias=True, mlp_bias=True)
    same(load(tmp_path, device="cpu"), library)


@pytest.mark.parametrize("grid", [(2, 2), (3, 5), (10, 1)])
def test_prompts_are_those_of_the_processor(library: tuple[Path, Any], grid: tuple[int, int]) -> None:
    imaging = load(library[0], device="cpu").imaging.resized(8 * grid[0], 8 * grid[1])
    theirs = processor(library[0])(
        text=TEXT, return_for_image_generation=True, ratio=f"{grid[1]}:{grid[0]}", image_area=64 * grid[0] * grid[1]
    )
    assert theirs["image_sizes"] == [list(grid)]
    assert imaging.prompt(TEXT).tolist() == theirs["input_ids"][0]


def test_the_names_of_a_state_dict(copied: tuple[Path, Any]) -> None:
    """A file with the names of the state dict, which differ from those that transformers writes (its names before
    4.52).
    """

    def rename(name: str) -> str:
        if name == "text_model.lm_head.weight":
            return "lm_head.weight"
        return "model." + name.replace("text_model.model.", "text_model.", 1)

    change_tensors(copied[0], rename)
    assert set(load_file(copied[0] / "model.safetensors")) == set(copied[1].state_dict())
    same(load(copied[0], device="cpu"), copied[1])


def test_the_layout_of_the_authors(tmp_path: Path) -> None:
    folder, vision = tmp_path / "gen", tmp_path / "vision"
    library = write_authors(folder, vision)
    bare = load(folder, device="cpu")
    assert not bare.imaging.can_decode
    with pytest.raises(ModelError, match="gen has no image tokenizer"):
        bare.imaging.decode(torch.zeros(1, 2, 2, dtype=torch.int64))
    assert bare.imaging.layout.grid == (2, 2)  # of image_area in its config
    model = load(folder, device="cpu", decoder=str(vision))
    same(model, library)
    write_library(tmp_path / "library")
    other = load(tmp_path / "library", device="cpu").imaging
    assert torch.equal(model.imaging.prompt(TEXT), other.prompt(TEXT))
    assert torch.equal(model.imaging.words.ids, other.words.ids)
    assert model.imaging.words.tokens == other.words.tokens


def test_the_authors_tokenizer_merges_by_rank(tmp_path: Path) -> None:
    write_authors(tmp_path / "gen", tmp_path / "vision")
    tokenizer = from_ranks(tmp_path / "gen")
    assert tokenizer.convert_ids_to_tokens(tokenizer("the red")["input_ids"]) == ["the", "Ġ", "re", "d"]
    tiktoken = pytest.importorskip("tiktoken")
    from pardec.models.images.emu3 import SPLIT, ranks

    own = tiktoken.Encoding("emu3", pat_str=SPLIT, mergeable_ranks=ranks(tmp_path / "gen" / RANKS), special_tokens={})
    for text in (TEXT, "It's 12 o'clock\n\n  naïve — 你好 aed  reed", "e\u0301"):
        import unicodedata

        assert tokenizer(text, add_special_tokens=False)["input_ids"] == own.encode(unicodedata.normalize("NFC", text))


def test_pixels_are_in_the_range_of_the_processor(copied: tuple[Path, Any]) -> None:
    codes = torch.randint(0, CODES, (1, 2, 2), generator=torch.Generator().manual_seed(2))
    plain = load(copied[0], device="cpu").imaging.decode(codes)
    image = {"image_processor_type": "Emu3ImageProcessor", "image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.3, 0.5]}
    (copied[0] / "preprocessor_config.json").write_text(json.dumps(image))
    other = load(copied[0], device="cpu").imaging.decode(codes)
    mean, deviation = (torch.tensor(image[name])[:, None, None] for name in ("image_mean", "image_std"))
    assert torch.allclose((other + 1) / 2, plain * deviation + mean, atol=1e-6)


def test_the_range_may_be_stated_where_newer_processors_are_saved(copied: tuple[Path, Any]) -> None:
    codes = torch.randint(0, CODES, (1, 2, 2), generator=torch.Generator().manual_seed(2))
    old, new = copied[0] / "preprocessor_config.json", copied[0] / "processor_config.json"
    old.write_text(json.dumps({"image_processor_type": "Emu3ImageProcessor"}))  # all its class's own
    expected = load(copied[0], device="cpu").imaging.decode(codes)
    old.unlink()
    plain = load(copied[0], device="cpu").imaging.decode(codes)
    saved = Emu3ImageProcessor()
    inner = {name: getattr(saved, name) for name in ("image_mean", "image_std", "rescale_factor", "do_normalize")}
    rewrite(copied[0], "processor_config.json", image_processor=inner)
    assert torch.equal(load(copied[0], device="cpu").imaging.decode(codes), expected)
    assert not torch.equal(plain, expected)
    new.write_text(json.dumps({"image_processor": inner | {"do_normalize": False}}))
    with pytest.raises(ModelError, match="do_normalize=False is not supported"):
        load(copied[0], device="cpu")


def test_new_weights_reach_the_prompts(copied: tuple[Path, Any]) -> None:
    import pardec

    model = pardec.load(copied[0], device="cpu")
    before = model.generate("it", size=(16, 16), cfg=2.0)
    write_library(copied[0].parent / "other", seed=9)
    model.load_weights(copied[0].parent / "other")
    after = model.generate("it", size=(16, 16), cfg=2.0)
    expected = pardec.load(copied[0].parent / "other", device="cpu").generate("it", size=(16, 16), cfg=2.0)
    assert after.tokens == expected.tokens != before.tokens


# --- what is refused ---


def refused(folder: Path, match: str, **options: Any) -> None:
    with pytest.raises(ModelError, match=match):
        load(folder, device="cpu", **options)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("text_model.model.layers.1.mlp.up_proj.weight", "1 missing: text_model.model.layers.1.mlp.up_proj.weight"),
        ("text_model.lm_head.weight", "1 missing: text_model.lm_head.weight"),
        ("vqmodel.decoder.conv_in.weight", "the image tokenizer of copy: 1 of .* missing: decoder.conv_in.weight"),
        ("vqmodel.quantize.embedding.weight", "1 of .* missing: quantize.embedding.weight"),
    ],
)
def test_a_missing_tensor(copied: tuple[Path, Any], name: str, said: str) -> None:
    change_tensors(copied[0], lambda each: None if each == name else each)
    refused(copied[0], said)


@pytest.mark.parametrize(
    ("part", "changes", "said"),
    [
        ("text_config", {"num_hidden_layers": 3}, "missing: text_model.model.layers.2."),
        ("text_config", {"num_hidden_layers": 1}, "not known: text_model.model.layers.1."),
        ("vq_config", {"embed_dim": 8}, r"has shape .*, expected"),
        ("", {"vocabulary_map": None}, "copy does not say which ids are codes of images"),
        ("vocabulary_map", {"<|image end|>": None}, r"the vocabulary of copy lacks the tokens <\|image end\|>"),
        ("vocabulary_map", {"<|visual token 000002|>": None}, "has 5 codes of images, up to 5"),
        ("vocabulary_map", {"<|image start|>": 5}, r"the tokenizer of copy gives <\|image start\|> other ids"),
        (
            "vocabulary_map",
            {f"<|visual token {CODES - 1:06d}|>": None},
            f"has {CODES - 1} codes of images, but its image tokenizer has {CODES}",
        ),
    ],
)
def test_a_config_that_does_not_fit_the_files(
    copied: tuple[Path, Any], part: str, changes: dict[str, Any], said: str
) -> None:
    """Keys that are None are left out."""
    file = copied[0] / "config.json"
    config = json.loads(file.read_text())
    held = config[part] if part else config
    for key, value in changes.items():
        held.pop(key)
        if value is not None:
            held[key] = value
    file.write_text(json.dumps(config))
    refused(copied[0], said)


def test_ranks_with_a_gap_and_a_missing_list(tmp_path: Path) -> None:
    write_authors(tmp_path / "gen", tmp_path / "vision")
    ranks = (tmp_path / "gen" / RANKS).read_text().splitlines()
    (tmp_path / "gen" / RANKS).write_text("\n".join(ranks[:100] + ranks[101:]))
    refused(tmp_path / "gen", "the ranks in .* have a gap")
    (tmp_path / "gen" / RANKS).write_text("\n".join(ranks))
    (tmp_path / "gen" / VISION).unlink()
    refused(tmp_path / "gen", f"{VISION} cannot be read")


def test_an_image_tokenizer_that_lacks_a_tensor(tmp_path: Path) -> None:
    write_authors(tmp_path / "gen", tmp_path / "vision")
    file = tmp_path / "vision" / "model.safetensors"
    tensors = load_file(file)
    del tensors["decoder.mid.attn_1.q.weight"]
    save_file(tensors, file)
    refused(
        tmp_path / "gen", "1 of .* missing: decoder.middle_block.attn_1.q_proj.weight", decoder=str(tmp_path / "vision")
    )


def test_a_folder_without_a_tokenizer_draws_no_captions(copied: tuple[Path, Any]) -> None:
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (copied[0] / name).unlink()
    with pytest.raises(ModelError, match="copy has no tokenizer"):
        load(copied[0], device="cpu").imaging.prompt("it")
