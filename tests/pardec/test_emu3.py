"""Images of Emu3 equal those of transformers' own loop, in any batch and size; only codes are sampled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import pardec
from pardec.images import pngs
from pardec.models.errors import ArgumentError, ModelError, SpecError
from pardec.models.images.emu3 import NEGATIVE, SUFFIX, Emu3Imaging
from pardec.requests.generation_config import IMAGE_FILTERS, IMAGES_REFUSED
from tests.models.emu3_files import CODES, write_library
from tests.pardec.joint_image_law import check_joint_law

CAPTIONS = ("a red cat", "the dog under a tree", "it")
ROW_END, CLOSING = "<|extra_200|>", ("<|extra_201|>", "<|image end|>", "<|extra_204|>")


class Both:
    """A checkpoint loaded by pardec and by transformers."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder, self.library = folder, write_library(folder, **options)
        self.model = pardec.load(folder, device="cpu")
        self.vocabulary = self.library.config.vocabulary_map
        self.drawn = dict[Any, list[int]]()

    @property
    def imaging(self) -> Emu3Imaging:
        imaging = self.model.imaging
        assert isinstance(imaging, Emu3Imaging)
        return imaging

    def allowed(self, rows: int, columns: int) -> list[list[int]]:
        """The ids allowed at each position of an image, written independently of the layout."""
        codes = [self.vocabulary[f"<|visual token {code:06d}|>"] for code in range(CODES)]
        row = [codes] * columns + [[self.vocabulary[ROW_END]]]
        return row * rows + [[self.vocabulary[token]] for token in CLOSING]

    def loop(self, caption: str, size: tuple[int, int], *, cfg: float, negative: str = NEGATIVE) -> list[int]:
        """transformers' generate, greedy, for one image."""
        asked = (caption, size, cfg, negative)
        if asked not in self.drawn:
            self.drawn[asked] = self._loop(*asked)
        return self.drawn[asked]

    def _loop(self, caption: str, size: tuple[int, int], cfg: float, negative: str) -> list[int]:
        grid = size[0] // 8, size[1] // 8
        imaging = self.imaging.resized(*size)
        prompt, away = (imaging.prompt(text)[None] for text in (caption + SUFFIX, negative))
        sets = self.allowed(*grid)
        guided = {"guidance_scale": cfg, "negative_prompt_ids": away} if cfg != 1 else {}
        out = self.library.generate(
            prompt,
            attention_mask=torch.ones_like(prompt),
            do_sample=False,
            max_new_tokens=len(sets),
            eos_token_id=None,
            prefix_allowed_tokens_fn=lambda row, ids: sets[len(ids) - prompt.shape[1]],
            **guided,
        )
        return list(out[0, prompt.shape[1] :].tolist())


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    return Both(tmp_path_factory.mktemp("emu3") / "emu3")


def test_logits_are_those_of_transformers(both: Both) -> None:
    ids = torch.randint(0, both.model.language_model.vocab_size, (3, 40), generator=torch.Generator().manual_seed(0))
    assert torch.allclose(both.model.logits(ids), both.library(input_ids=ids).logits, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("cfg", [1.0, 3.0])
@pytest.mark.parametrize("sampler", ["sequential", "jacobi:window=6", "sjd:window=5", "sjd:window=9,init=up", "lookup"])
@pytest.mark.covers(1)
def test_greedy_images_are_those_of_transformers(both: Both, sampler: str, cfg: float) -> None:
    size = (16, 24)
    expected = [both.loop(caption, size, cfg=cfg) for caption in CAPTIONS]
    assert len({tuple(tokens) for tokens in expected}) > 1
    asked: dict[str, Any] = {"size": size, "cfg": cfg, "sampler": sampler}
    result = both.model.generate(list(CAPTIONS), **asked)
    assert result.tokens == expected
    for caption, tokens in zip(CAPTIONS, expected, strict=True):
        assert both.model.generate(caption, **asked).tokens == [tokens]


def naive_zipar(both: Both, caption: str, rows: int, columns: int, lag: int) -> tuple[list[int], int]:
    """Rows in parallel, greedy and guided; each code comes from a forward of transformers over the known cells."""
    imaging = both.imaging.resized(8 * rows, 8 * columns)
    prompts = [imaging.prompt(text) for text in (caption + SUFFIX, NEGATIVE)]
    sets = both.allowed(rows, columns)
    codes, end = torch.tensor(sets[0]), sets[columns][0]

    def likeliest(cells: list[tuple[int, int]]) -> int:
        """The likeliest token after the last of `cells`, each a position and a token."""
        cond, uncond = (
            both.library(
                input_ids=torch.cat((prompt, torch.tensor([token for _, token in cells], dtype=torch.int64)))[None],
                position_ids=torch.tensor([[*range(len(prompt)), *(len(prompt) + at for at, _ in cells)]]),
            ).logits[0, -1]
            for prompt in prompts
        )
        return int(codes[(uncond + 2 * (cond - uncond))[codes].argmax()])

    image: list[list[int]] = [[] for _ in range(rows)]
    forwards, stride = 0, columns + 1
    while len(image[-1]) < columns:
        forwards += 1
        chosen = []
        for row in range(rows):
            begins = row == 0 or len(image[row - 1]) >= lag
            if not begins or len(image[row]) == columns:
                continue
            cells = [(r * stride + c, token) for r in range(row + 1) for c, token in enumerate(image[r])]
            cells += [(r * stride + columns, end) for r in range(row)]
            chosen.append((row, likeliest(sorted(cells))))
        for row, token in chosen:
            image[row].append(token)
    closing = [options[0] for options in sets[-3:]]
    return [token for row in image for token in (*row, end)] + closing, forwards


@pytest.mark.parametrize("lag", [1, 2, 3])
def test_zipar_begins_a_row_behind_the_end_of_the_one_above(both: Both, lag: int) -> None:
    rows, columns = 4, 3
    asked: dict[str, Any] = {"size": (8 * rows, 8 * columns), "cfg": 2.0, "sampler": f"zipar:window={lag}"}
    result = both.model.generate(list(CAPTIONS), **asked)
    for row, caption in enumerate(CAPTIONS):
        tokens, forwards = naive_zipar(both, caption, rows, columns, lag)
        assert result.tokens[row] == tokens
        assert forwards == columns + (rows - 1) * lag
        assert both.model.generate(caption, **asked).tokens == [tokens]
        assert result.nfe[row] == forwards + 1  # the last tells the closing tokens


def test_a_negative_prompt_takes_the_place_of_the_authors(both: Both) -> None:
    size = (16, 16)
    result = both.model.generate(list(CAPTIONS), size=size, cfg=4.0, negative_prompt="a dog", sampler="sjd:window=4")
    expected = [both.loop(caption, size, cfg=4.0, negative="a dog") for caption in CAPTIONS]
    assert result.tokens == expected
    assert len(set(result.prompts)) == 3
    assert expected != [both.loop(caption, size, cfg=4.0) for caption in CAPTIONS]


def test_forced_tokens_are_in_no_figure_of_acceptance(both: Both) -> None:
    """Of eleven tokens in four rows with one code each, seven are forced and committed with the code before them."""
    few = {index: [both.vocabulary["<|visual token 000003|>"]] for index in (0, 2)}
    asked: dict[str, Any] = {"size": (32, 8), "cfg": 2.0, "temperature": 1.0, "sampler": "sjd:window=4"}
    result = both.model.generate(list(CAPTIONS), **asked)
    more = both.model.generate(list(CAPTIONS), allowed=few, **asked)
    for row in range(3):
        assert sum(result.trace.forced[row]) == 7
        assert sum(result.trace.accepted[row]) <= 4
        assert sum(more.trace.forced[row]) == 9  # as is a code that `allowed` leaves alone
        assert sum(more.trace.gained[row]) == 2
        assert sum(more.trace.drafted[row]) < sum(result.trace.drafted[row])


def test_codes_are_decoded_as_transformers_does(both: Both) -> None:
    result = both.model.generate(CAPTIONS[0], size=(16, 24), cfg=2.0)
    tokens = torch.tensor(result.tokens)
    expected = both.library.decode_image_tokens(image_tokens=tokens, height=2, width=3)
    codes = both.imaging.resized(16, 24).layout.codes(tokens)
    assert torch.allclose(both.imaging.decode(codes), expected.float(), atol=1e-4)
    from pardec.models.images.vq import to_images

    assert (np.asarray(result.images[0]) == to_images(expected)[0]).all()


@pytest.mark.slow
def test_the_joint_law_of_sjd_is_that_of_transformers_logits(tmp_path: Path) -> None:
    """Images of 2x2 cells, with transformers' logits of both prompts; a grid of another family is in test_chameleon."""
    small = Both(tmp_path / "small", sharp=0.4)
    samplers = ("sjd:window=4", "sjd:window=8", "sjd:window=8,refresh=independent", "sjd:refresh=gumbel")
    prompts = [small.imaging.resized(16, 16).prompt(text).tolist() for text in ("it" + SUFFIX, "a")]
    sets = small.allowed(2, 2)
    check_joint_law(
        small.model,
        lambda ids: small.library(input_ids=ids).logits,
        prompts, sets, sets[0][:3], samplers, 4200, size=(16, 16), negative_prompt="a",
    )  # fmt: skip


def test_the_authors_defaults(both: Both) -> None:
    from pardec.requests.images import with_defaults

    assert with_defaults(both.imaging, {}) == {"temperature": 1.0, "top_k": 2048, "cfg": 3.0}
    assert both.imaging.layout.grid == (2, 2)  # of image_area, in processor_config.json
    result = both.model.generate("it" + SUFFIX, size=(8, 8), cfg=3.0)
    assert result.tokens == both.model.generate("it", size=(8, 8), cfg=3.0).tokens
    assert result.shown == ["it" + SUFFIX]


def test_sizes_are_refused_by_name(both: Both) -> None:
    with pytest.raises(ArgumentError, match=r"size is 20 by 16 pixels, and emu3 draws multiples of 8 pixels") as error:
        both.model.generate("it", size=(20, 16))
    assert error.value.hint == "for example size=(16, 16)"
    with pytest.raises(SpecError, match="emu3 has 600"):
        both.model.generate("it", size=(8 * 40, 8 * 40))


def test_the_command_draws_a_size_that_its_file_records(both: Both, cli: Any, tmp_path: Path) -> None:
    out = tmp_path / "out.png"
    code, _, err = cli("image", both.folder, "-p", "a red cat", "--size", "16x24", "-s", "sjd", "-o", out, "--quiet")
    assert (code, err) == (0, "")
    record = pngs.read(out)
    assert record["size"] == [16, 24]
    again = both.model.generate(**pngs.generate_arguments(record))
    from PIL import Image

    assert Image.open(out).size == (24, 16)
    assert (np.asarray(Image.open(out)) == np.asarray(again.images[0])).all()


def test_a_draft_model_reads_the_same_grid(both: Both, tmp_path: Path) -> None:
    write_library(tmp_path / "draft", seed=5)
    spec = f"model:name={tmp_path / 'draft'},k=3"
    drafted = both.model.generate(list(CAPTIONS), size=(16, 24), cfg=2.0, sampler=spec)
    assert drafted.tokens == both.model.generate(list(CAPTIONS), size=(16, 24), cfg=2.0, sampler="sequential").tokens


def test_the_server_chooses_the_size(both: Both) -> None:
    from pardec.server.limits import Limits
    from pardec.server.request_parser import RequestParser
    from pardec.server.schemas import ImageBody

    reader = RequestParser(both.model, ("emu3",), {}, Limits())
    asked = reader.image(ImageBody.model_validate({"prompt": "it", "size": "24x16"}))  # width by height
    assert (asked.rows[0].request.size, asked.scale) == ((16, 24), 1)


@pytest.mark.parametrize("key", [*IMAGES_REFUSED, *IMAGE_FILTERS])
def test_rules_for_tokens_are_refused_by_name(key: str, both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers' generate, by which the loop of these tests draws, would apply them to the codes."""
    network = both.model.language_model
    values = {"suppress_tokens": [1], "begin_suppress_tokens": [1], "bad_words_ids": [[1]], "dola_layers": "low"}
    monkeypatch.setattr(network, "prepared", {})
    monkeypatch.setattr(network, "generation", {**network.generation, key: values.get(key, 2)})
    with pytest.raises(ModelError, match=f"sets {key} to"):
        both.model.generate(CAPTIONS[0], size=(16, 16))


def test_filters_without_sampling_are_no_rules(both: Both, monkeypatch: pytest.MonkeyPatch) -> None:
    network = both.model.language_model
    monkeypatch.setattr(network, "prepared", {})
    monkeypatch.setattr(network, "generation", {**network.generation, "do_sample": False, "typical_p": 0.9})
    assert both.model.generate(CAPTIONS[0], size=(16, 16)).tokens
