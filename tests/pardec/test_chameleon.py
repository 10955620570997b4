"""Images of Chameleon and Lumina-mGPT follow transformers' logits, in any batch and size; only codes are sampled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pardec
from pardec.models.errors import ArgumentError, ModelError
from pardec.models.images.captioned import generation_defaults
from pardec.models.images.chameleon import ROW_END, ChameleonImaging
from pardec.models.images.vqgan import load_vqgan
from pardec.models.loading.kinds import kind_of
from pardec.models.loading.recognition import describe
from tests.models.chameleon_files import (
    CODE_IDS,
    CODES,
    VOCABULARY,
    change_tensors,
    logits,
    vqgan,
    write,
    write_vqgan,
)
from tests.pardec.joint_image_law import check_joint_law

CAPTIONS = ("a red cat", "the dog under a tree", "it")
KINDS = ("chameleon", "chameleon-large", "lumina")


class Both:
    """A checkpoint loaded by pardec and by transformers."""

    def __init__(self, folder: Path, kind: str, **options: Any) -> None:
        self.kind, self.drawn = kind, dict[tuple[str, float], list[int]]()
        self.library = write(folder, lumina=kind == "lumina", behind=kind == "chameleon-large", **options)
        self.model = pardec.load(folder, device="cpu")

    @property
    def imaging(self) -> ChameleonImaging:
        imaging = self.model.imaging
        assert isinstance(imaging, ChameleonImaging)
        return imaging

    def allowed(self, rows: int, columns: int) -> list[list[int]]:
        """The ids allowed at each position of an image, written independently of the layout."""
        ends = [[VOCABULARY[ROW_END]]] if self.kind == "lumina" else []
        return ([CODE_IDS] * columns + ends) * rows + [[VOCABULARY["<eoss>"]]]

    def prompts(self, caption: str) -> tuple[list[int], list[int]]:
        """The prompts with and without the caption, written independently of the image interface."""
        word = {"<unk>": VOCABULARY["<unk>"]}
        ids = [VOCABULARY.get(each, word["<unk>"]) for each in caption.split()]
        start, turn = VOCABULARY["<racm3:break>"], VOCABULARY["<reserved08706>"]
        if self.kind != "lumina":
            return [1, *ids, turn, start], [1, start]
        named = ["Generate", "an", "image", "of", "32x32", "according", "to", "the", "following", "prompt:"]
        grid = VOCABULARY["<reserved08801>"]
        text = [VOCABULARY.get(each, word["<unk>"]) for each in named]
        return [1, *text, *ids, turn, start, grid, grid], [start, grid, grid]

    def loop(self, caption: str, cfg: float) -> list[int]:
        """Greedy decoding of one image, token by token."""
        if (caption, cfg) in self.drawn:
            return self.drawn[caption, cfg]
        cond, uncond = (torch.tensor([ids]) for ids in self.prompts(caption))
        image: list[int] = []
        for options in self.allowed(2, 2):
            more = torch.tensor([image], dtype=torch.int64)
            scores = [logits(self.library, torch.cat((ids, more), 1))[0, -1] for ids in (cond, uncond)]
            guided = scores[1] + cfg * (scores[0] - scores[1])
            image.append(options[int(guided[options].argmax())])
        self.drawn[caption, cfg] = image
        return image


@pytest.fixture(scope="module", params=KINDS)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Both:
    return Both(tmp_path_factory.mktemp("chameleon") / request.param, request.param)


def test_logits_are_those_of_transformers(both: Both) -> None:
    ids = torch.randint(0, len(VOCABULARY), (3, 40), generator=torch.Generator().manual_seed(0))
    assert torch.allclose(both.model.logits(ids), logits(both.library, ids), atol=1e-4)


@pytest.mark.parametrize("cfg", [1.0, 3.0])
@pytest.mark.parametrize("sampler", ["sequential", "jacobi:window=3", "sjd:window=3", "lookup", "recycling"])
@pytest.mark.covers(1)
def test_greedy_images_are_those_of_transformers_logits(both: Both, sampler: str, cfg: float) -> None:
    expected = [both.loop(caption, cfg) for caption in CAPTIONS]
    assert len({tuple(tokens) for tokens in expected}) > 1
    result = both.model.generate(list(CAPTIONS), cfg=cfg, sampler=sampler)
    assert result.tokens == expected
    for caption, tokens in zip(CAPTIONS, expected, strict=True):
        assert both.model.generate(caption, cfg=cfg, sampler=sampler).tokens == [tokens]


@pytest.mark.parametrize(
    "sampler",
    [
        "sequential",
        "jacobi:window=4",
        "sjd:window=4",
        "sjd:window=4+gsd",
        "sjd:window=4+lantern:k=3",
        "zipar",
        "seeded_jacobi",
    ],
)
@pytest.mark.covers(1)
def test_every_sampler_keeps_to_the_grammar(both: Both, sampler: str) -> None:
    result = both.model.generate(list(CAPTIONS), cfg=2.0, temperature=1.0, sampler=sampler)
    sets, forced = both.allowed(2, 2), 3 if both.kind == "lumina" else 1
    for row, tokens in enumerate(result.tokens):
        assert all(token in options for token, options in zip(tokens, sets, strict=True))
        assert sum(result.trace.forced[row]) == forced
        assert sum(result.trace.gained[row]) == 4
        assert sum(result.trace.accepted[row]) <= min(sum(result.trace.drafted[row]), 4)
    assert [image.size for image in result.images] == [(32, 32)] * 3


def test_codes_are_decoded_in_the_order_of_the_vocabulary(both: Both) -> None:
    result = both.model.generate(CAPTIONS[0], cfg=2.0)
    tokens = [token for token in result.tokens[0] if token in CODE_IDS]
    codes = torch.tensor([CODE_IDS.index(token) for token in tokens]).view(1, 2, 2)
    from pardec.models.images.vq import to_images

    assert (np.asarray(result.images[0]) == to_images(vqgan().decode(codes))[0]).all()


def test_sizes_are_lumina_s_alone(both: Both) -> None:
    if both.kind != "lumina":
        with pytest.raises(ArgumentError, match="draws images of 32 by 32"):
            both.model.generate("it", size=(32, 64))
        return
    result = both.model.generate("it", size=(32, 64), cfg=2.0, temperature=1.0, sampler="sjd:window=5")
    assert len(result.tokens[0]) == 2 * (4 + 1) + 1
    assert result.images[0].size == (64, 32)
    prompt = both.imaging.resized(64, 32)
    start, high, wide = (VOCABULARY[name] for name in ("<racm3:break>", "<reserved08802>", "<reserved08801>"))
    assert prompt.unconditional() == [start, high, wide]
    for size, match in (((40, 32), "multiples of 32 pixels"), ((32, 32 * 5), "up to 128")):
        with pytest.raises(ArgumentError, match=match):
            both.model.generate("it", size=size)


def test_a_negative_prompt_takes_the_place_of_no_caption(both: Both) -> None:
    away = both.model.generate("it", cfg=3.0, negative_prompt="a red cat")
    same = both.model.generate("it", cfg=3.0, negative_prompt="it")
    assert same.tokens == both.model.generate("it", cfg=1.0).tokens
    assert away.tokens != same.tokens


@pytest.mark.parametrize("kind", [pytest.param("chameleon", marks=pytest.mark.slow), "lumina"])
def test_the_joint_law_of_sjd_is_that_of_transformers_logits(tmp_path: Path, kind: str) -> None:
    """Images of 2x2 cells, with probabilities from transformers' logits of both prompts."""
    small = Both(tmp_path / kind, kind, sharp=0.2)
    check_joint_law(
        small.model,
        lambda ids: logits(small.library, ids),
        small.prompts("it"), small.allowed(2, 2), CODE_IDS[:3], ["sjd:window=4"], 600,
    )  # fmt: skip


def test_what_is_known_before_loading(tmp_path: Path) -> None:
    write(tmp_path / "anole")
    known = kind_of(tmp_path / "anole")
    assert (known.family, known.draws) == ("ar", "text")
    assert str(describe(tmp_path / "anole")["family"]).startswith("chameleon")


def test_the_authors_defaults(both: Both) -> None:
    from pardec.requests.images import with_defaults

    own = {"temperature": 1.0, "top_k": 2000, "cfg": 3.0}
    theirs = {"temperature": 0.7, "top_p": 0.9, "cfg": 3.0}
    assert with_defaults(both.imaging, {}) == (own if both.kind == "lumina" else theirs)


def test_what_cannot_be_loaded_is_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path / "a")
    change_tensors(tmp_path / "a", lambda name: None if name.endswith("0.self_attn.q_norm.bias") else name)
    with pytest.raises(ModelError, match="q_norm.bias"):
        pardec.load(tmp_path / "a")
    write(tmp_path / "b")
    config = json.loads((tmp_path / "b" / "config.json").read_text())
    for changes, match in (
        ({"num_hidden_layers": 3}, "layers.2"),
        ({"vocabulary_map": {"<s>": 1}}, "vocabulary of b lacks the tokens <racm3:break>"),
        ({"vocabulary_map": {**VOCABULARY, "IMGIMGJZ": 50}}, "7 codes of images, up to 9"),
        ({"image_seq_length": 5}, "5 codes per image"),
        ({"image_seq_length": 0}, "0 codes per image"),
        ({"image_seq_length": -4}, "-4 codes per image"),
        ({"vocabulary_map": {**VOCABULARY, "<eoss>": 3}}, "other ids than its vocabulary_map"),
    ):
        (tmp_path / "b" / "config.json").write_text(json.dumps({**config, **changes}))
        with pytest.raises(ModelError, match=match):
            pardec.load(tmp_path / "b")


@pytest.mark.parametrize("size", ["32", 32.0, 0, 48, True, 160])
def test_an_image_size_without_a_grid_token_is_refused(size: Any, tmp_path: Path) -> None:
    write(tmp_path / "a", lumina=True)
    file = tmp_path / "a" / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"image_size": size}))
    with pytest.raises(ModelError, match="image_size of a is|no token for images of 160 pixels"):
        pardec.load(tmp_path / "a")


@pytest.mark.parametrize(("scale", "cfg"), [(0, None), (1, None), (2, 2)])
def test_guidance_of_the_generation_config(scale: float, cfg: float | None, tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"guidance_scale": scale}))
    assert generation_defaults(tmp_path) == {"cfg": cfg}


@pytest.mark.parametrize(
    ("stated", "drawn"),
    [
        ({"do_sample": False, "temperature": 0.7}, {"temperature": 0.0, "cfg": 3.0}),
        ({"do_sample": True, "min_p": 0.05}, {"temperature": 0.7, "top_p": 0.9, "min_p": 0.05, "cfg": 3.0}),
    ],
)
def test_sampling_keys_of_the_generation_config(stated: dict[str, Any], drawn: dict[str, Any], tmp_path: Path) -> None:
    from pardec.requests.images import with_defaults

    write(tmp_path / "a")
    file = tmp_path / "a" / "generation_config.json"
    file.write_text(json.dumps(stated))
    imaging = pardec.load(tmp_path / "a").language_model.imaging
    assert imaging is not None
    assert with_defaults(imaging, {}) == drawn
    file.write_text(json.dumps({"do_sample": "no"}))
    with pytest.raises(ModelError, match="do_sample is 'no'"):
        generation_defaults(tmp_path / "a")


@pytest.mark.parametrize("by_name", [True, False])
def test_a_comparison_has_the_settings_of_the_generation_config(by_name: bool, tmp_path: Path) -> None:
    from pardec.comparison import preview

    write(tmp_path / "a")
    stated = {"do_sample": False, "temperature": 0.6, "top_k": 5, "top_p": 0.5, "guidance_scale": 2.5}
    (tmp_path / "a" / "generation_config.json").write_text(json.dumps(stated))
    model = str(tmp_path / "a") if by_name else pardec.load(tmp_path / "a")
    [entry] = preview(model, "captions", ["sequential"], limit=1, references=False)["samplers"]
    arguments = {key: value for key, value in entry["arguments"].items() if value is not None}
    assert arguments == {"temperature": 0.0, "cfg": 2.5, "block_align": "prompt"}


def test_image_tokenizers_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a")
    write_vqgan(tmp_path / "vqgan_other.ckpt", **{"quantize.embedding.weight": torch.zeros(CODES + 1, 4)})
    model = pardec.load(tmp_path / "a", decoder=tmp_path / "vqgan_other.ckpt")
    with pytest.raises(ModelError, match=f"has {CODES + 1} codes, but a has {CODES}"):
        model.generate("it")
    with pytest.raises(ModelError, match="no VQGAN"):
        pardec.load(tmp_path / "a", decoder=tmp_path / "absent.ckpt")
    with pytest.raises(ModelError, match="not the weights of a VQGAN with a decoder"):
        load_vqgan(tmp_path / "a" / "model.safetensors")
    (tmp_path / "a" / "vqgan.ckpt").unlink()
    alone = pardec.load(tmp_path / "a")
    assert not alone.imaging.can_decode
    assert alone.generate("it", cfg=2.0).images is None


def test_a_row_of_text_has_no_place(both: Both) -> None:
    for asked, match in (({"label": 3}, "draws captions"), ({"prompt": " "}, "empty|no caption")):
        with pytest.raises(pardec.SpecError, match=match):
            both.model.generate(**asked)


def test_the_command_draws_into_a_file(both: Both, cli: Any, tmp_path: Path) -> None:
    assert both.model.path is not None
    out = tmp_path / "out.png"
    code, _, err = cli("image", both.model.path, "-p", "a red cat", "-s", "sjd", "-o", out, "--quiet")
    assert (code, err) == (0, "")
    assert out.exists()
