"""NextStep-1's backbone with its cache, compared with transformers' decoder without a cache."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from pardec.models.continuous.contracts import Backbone, ContinuousModel, States
from pardec.models.cuda_graphs.runner import GraphRunner
from pardec.models.errors import ArgumentError
from pardec.models.images.contracts import Condition
from pardec.models.load import load_continuous
from tests.models import nextstep_files as files
from tests.models.traced import Traced
from tests.reference import naive_nextstep as naive

TOKENS, SIZE = 9, 16
CAPTIONS = ("a red house", "two", "")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> ContinuousModel:
    return load_continuous(files.write(tmp_path_factory.mktemp("nextstep") / "model"))


@pytest.fixture(scope="module")
def library() -> tuple[object, dict[str, Tensor]]:
    return files.library_model(), files.tensors()


def started(model: ContinuousModel, captions: tuple[str, ...] = CAPTIONS, *, guided: bool = True) -> Backbone:
    conditions = [Condition(text=text, negative="blurry") for text in captions]
    return model.backbone.start(conditions, size=None, guided=guided)


def call(backbone: Backbone, latents: Tensor, spans: list[tuple[int, int]], *, guided: bool = True) -> States:
    """States of tokens start .. stop - 1 of each row; the tokens before `stop` - 1 are known."""
    index = torch.arange(TOKENS)
    starts, stops = (torch.tensor(each)[:, None] for each in zip(*spans, strict=True))
    wanted, known = (index >= starts) & (index < stops), index < stops - 1
    scale = torch.full((len(spans),), 2.0) if guided else None
    return backbone.states(latents, known, torch.arange(len(spans)), wanted, scale)


@torch.no_grad()
def plain(
    model: ContinuousModel, library: tuple[object, dict[str, Tensor]], latents: Tensor, spans: list[tuple[int, int]]
) -> tuple[Tensor, Tensor]:
    """The conditions, with and without the caption, computed by transformers' decoder over the whole row."""
    network, weights = library
    head, prompts = model.backbone.head, model.backbone.prompts.ids  # type: ignore[attr-defined]
    both: list[list[Tensor]] = [[], []]
    for row, (start, stop) in enumerate(spans):
        for half, prompt in zip(both, prompts(Condition(text=CAPTIONS[row], negative="blurry"), (3, 3)), strict=True):
            outputs = naive.states(network, weights, prompt, latents[row, : max(stop - 1, 0)])
            half.append(head.cond_embed(outputs[start:stop]))
    return torch.cat(both[0]), torch.cat(both[1])


SPANS: list[list[tuple[int, int]]] = [
    [(0, 1), (0, 1), (0, 1)],  # right after the prompts: nothing is fed
    [(0, 4), (0, 1), (0, 9)],  # windows
    [(2, 5), (1, 2), (0, 0)],  # rows at tokens of their own; nothing of one row
    [(8, 9), (3, 6), (5, 6)],
]


@pytest.mark.parametrize("spans", SPANS)
def test_states_are_those_of_transformers_decoder(
    model: ContinuousModel, library: tuple[object, dict[str, Tensor]], spans: list[tuple[int, int]]
) -> None:
    latents = torch.randn(3, TOKENS, SIZE, generator=torch.Generator().manual_seed(3))
    states = call(started(model), latents, spans)
    cond, uncond = plain(model, library, latents, spans)
    assert states.uncond is not None
    torch.testing.assert_close(states.cond, cond, atol=2e-4, rtol=2e-4)
    torch.testing.assert_close(states.uncond, uncond, atol=2e-4, rtol=2e-4)
    alone = call(started(model, guided=False), latents, spans, guided=False)
    torch.testing.assert_close(alone.cond, cond, atol=2e-4, rtol=2e-4)
    assert alone.uncond is None


def test_any_sequence_of_calls_gives_what_no_cache_gives(model: ContinuousModel) -> None:
    """Calls with changed drafts, spans anywhere in the image and of any width, with and without guidance."""
    generator = torch.Generator().manual_seed(7)
    backbone, latents = started(model), torch.randn(3, TOKENS, SIZE, generator=generator)
    for step in range(25):
        spans = []
        for _ in range(3):
            start = int(torch.randint(0, TOKENS, (1,), generator=generator))
            spans.append((start, start + int(torch.randint(0, TOKENS - start + 1, (1,), generator=generator))))
        change = torch.rand(3, TOKENS, generator=generator) < 0.2
        latents = torch.where(change[..., None], torch.randn(3, TOKENS, SIZE, generator=generator), latents)
        if not any(stop > start for start, stop in spans):
            continue
        guided = step % 4 != 3
        states = call(backbone, latents, spans, guided=guided)
        fresh = call(started(model, guided=guided), latents, spans, guided=guided)
        torch.testing.assert_close(states.cond, fresh.cond, atol=1e-4, rtol=1e-4)
        if guided:
            assert states.uncond is not None
            assert fresh.uncond is not None
            torch.testing.assert_close(states.uncond, fresh.uncond, atol=1e-4, rtol=1e-4)


def test_captured_forwards_give_what_uncaptured_ones_give(model: ContinuousModel, tmp_path: Path) -> None:
    """One token after the other, as the loop does: states and the transitions of a token."""
    other = load_continuous(files.write(tmp_path / "model"))
    reader = other.backbone
    decoder = reader.decoder
    weights = [*other.backbone.parameters(), *(weight for _, weight in other.head.named_parameters())]  # type: ignore[attr-defined]
    other.capture(lambda: Traced(lambda: [*weights, *decoder.tables()]))
    backbones, latents = [started(model), started(other)], torch.randn(3, TOKENS, SIZE, generator=torch.manual_seed(7))
    with torch.inference_mode():
        for token in range(TOKENS):
            found = []
            for each, backbone in zip((model, other), backbones, strict=True):
                states = each.head.ready(call(backbone, latents, 3 * [(token, token + 1)]))
                x = latents[:, token]
                for index in reversed(range(each.head.steps)):
                    x = each.head.distribution(x, index, states).mean
                found.append(x)
            torch.testing.assert_close(found[0], found[1], atol=1e-4, rtol=1e-4)
    assert isinstance(reader.decoder, GraphRunner)
    for graphs in (reader.decoder, other.graphs):
        assert graphs.counts["replayed"] > 3, graphs.describe()
        assert not [why for why in graphs.counts if why.startswith("refused")]


def test_a_row_alone_is_the_row_in_a_batch(model: ContinuousModel) -> None:
    latents = torch.randn(3, TOKENS, SIZE, generator=torch.Generator().manual_seed(4))
    both = call(started(model), latents, [(1, 4), (5, 6), (0, 2)])
    for row, (span, at) in enumerate(
        zip([(1, 4), (5, 6), (0, 2)], [slice(0, 3), slice(3, 4), slice(4, 6)], strict=True)
    ):
        own = call(started(model, (CAPTIONS[row],)), latents[row : row + 1], [span])
        torch.testing.assert_close(own.cond, both.cond[at], atol=1e-4, rtol=1e-4)


def test_rows_that_left_are_not_fed(model: ContinuousModel) -> None:
    backbone, latents = started(model), torch.randn(3, TOKENS, SIZE, generator=torch.Generator().manual_seed(5))
    whole = call(backbone, latents, [(0, 4)] * 3)
    index = torch.arange(TOKENS)
    wanted, known = (index == 3)[None], (index < 3)[None]
    last = backbone.states(latents[2:], known, torch.tensor([2]), wanted, torch.tensor([2.0]))
    torch.testing.assert_close(last.cond[0], whole.cond[-1], atol=1e-4, rtol=1e-4)


def test_one_token_a_step_feeds_one_token(model: ContinuousModel, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone, latents = started(model), torch.zeros(3, TOKENS, SIZE)
    widths: list[tuple[int, int]] = []
    decoder = model.backbone.decoder  # type: ignore[attr-defined]
    forward = type(decoder).forward

    def counted(self: object, plan: object, cache: object) -> object:
        widths.append((plan.batch, plan.width))  # type: ignore[attr-defined]
        return forward(self, plan, cache)  # type: ignore[arg-type]

    monkeypatch.setattr(type(decoder), "forward", counted)
    for step in range(4):
        latents[:, step] = step + 1.0
        call(backbone, latents, [(step, step + 1)] * 3)
    assert widths == [(6, 1)] * 3  # the first needs nothing beyond the prompts
    call(backbone, latents, [(3, 7)] * 3)
    assert widths[-1] == (6, 4)  # the token before the window again: its output is not cached


def test_unknown_tokens_are_read_as_zeros(model: ContinuousModel) -> None:
    latents = torch.randn(1, TOKENS, SIZE, generator=torch.Generator().manual_seed(6))
    index = torch.arange(TOKENS)[None]
    wanted, known = (index >= 2) & (index < 6), index < 2
    backbone = started(model, ("one",), guided=False)
    states = backbone.states(latents, known, torch.tensor([0]), wanted)
    zeros = torch.where(known[..., None], latents, 0.0)
    again = started(model, ("one",), guided=False).states(zeros, index >= 0, torch.tensor([0]), wanted)
    torch.testing.assert_close(states.cond, again.cond)


def test_conditions_that_cannot_be_read_are_refused(model: ContinuousModel) -> None:
    with pytest.raises(ArgumentError, match="reads captions, and a row has a label"):
        model.backbone.start([Condition(label=3)], size=None, guided=False)
    with pytest.raises(ArgumentError, match="a prompt of 132 tokens and an image of 9 tokens exceed the 120 positions"):
        started(model, ("x" * 127,))
    with pytest.raises(TypeError, match="start"):
        model.backbone.states(torch.zeros(1), torch.zeros(1), torch.zeros(1), torch.zeros(1))


def test_prompts_are_the_published_ones(model: ContinuousModel, tmp_path: Path) -> None:
    ids = model.backbone.prompts.ids  # type: ignore[attr-defined]
    cond, uncond = ids(Condition(text="ab"), (3, 5))
    tokenizer = ids.tokenizer
    assert cond == [*tokenizer("ab")["input_ids"], 256, *tokenizer("3*5")["input_ids"], 257]
    assert uncond == [256, *tokenizer("3*5")["input_ids"], 257]
    # A tokenizer with a first token: the published pipeline takes the first id off the words of the grid.
    files.write_tokenizer(tmp_path / "other", bos_token="<|end_of_image|>")
    from transformers import AutoTokenizer

    from pardec.models.families.nextstep import CaptionPrompts

    first = CaptionPrompts(AutoTokenizer.from_pretrained(tmp_path / "other"), 257, "other")
    area = list(first.tokenizer("<|image_area|>3*5")["input_ids"])
    assert first.prompt("ab", (3, 5)) == [*first.tokenizer("ab")["input_ids"], *area[1:], 257]
