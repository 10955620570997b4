"""The text of a stream: its pieces concatenate to the result's text, and none is ever revised."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, decoders, pre_tokenizers
from tokenizers.models import BPE, WordLevel
from transformers import PreTrainedTokenizerFast

import pardec
from pardec.drivers.text import TextCall
from pardec.samplers import registry
from pardec.samplers.events import Event, RowFinished, Started, Step
from pardec.samplers.request import Request
from pardec.samplers.rng import Keyed
from pardec.serving.streaming import RowText, Texts
from tests.grids import chequered
from tests.samplers.toys import names, toy

TEXTS = ["Tom has 3 cups.", "Sara buys 12 apples and finds 4 more apples.", "Ann"]
UNK, EOS, MASK = 0, 1, 2
SPECIAL = {"<unk>": UNK, "<eos>": EOS, "<mask>": MASK}
LOOKS = "a€😀 é\n…"
MODEL_OF = {
    **dict.fromkeys(("threshold", "leftmost", "wino+eos", "remdm+threshold+eos@dual"), "tiny-dream"),
    **dict.fromkeys(("sequential", "jacobi", "lookup", "earlyexit"), "tiny-llama"),
}


def wrapped(tokenizer: Tokenizer, **options: Any) -> Any:
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", eos_token="<eos>", mask_token="<mask>", **options
    )


def byte_level() -> tuple[Any, list[list[int]]]:
    """A tokenizer with one token per byte, like GPT-2's; complete texts and truncated ones."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(BPE({**SPECIAL, **{token: at + 3 for at, token in enumerate(alphabet)}}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    made = wrapped(tokenizer)
    whole = made(LOOKS * 2, add_special_tokens=False)["input_ids"]
    return made, [whole, whole[2:-1], np.random.RandomState(0).randint(3, 259, 30).tolist()]


def byte_fallback() -> tuple[Any, list[list[int]]]:
    """A tokenizer that writes characters without a token as bytes, like Llama 2's."""
    table = {**SPECIAL, **{f"<0x{i:02X}>": i + 3 for i in range(256)}, "▁a": 259, "b": 260, "▁": 261}
    tokenizer = Tokenizer(BPE(table, [], unk_token="<unk>", byte_fallback=True))
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    tokenizer.decoder = decoders.Sequence(steps)
    spelt = [byte + 3 for byte in "€😀".encode()]
    return wrapped(tokenizer), [[259, *spelt, 260, *spelt], [261, *spelt[:4], 260], [259, 260, *spelt[:3], *spelt[3:6]]]


def cleaning() -> tuple[Any, list[list[int]]]:
    """A tokenizer that removes spaces before punctuation and suffixes."""
    words = ["do", "n't", "'", "s", "'s", ".", ",", "?", "it", "we", "'ve"]
    tokenizer = Tokenizer(WordLevel({**SPECIAL, **{word: at + 3 for at, word in enumerate(words)}}, "<unk>"))
    made = wrapped(tokenizer, clean_up_tokenization_spaces=True)
    ids = made.convert_tokens_to_ids(["it", "'s", ",", "do", "n't", ".", "we", "'ve", "?", "it", "'", "s", "'", "."])
    return made, [ids, ids[::-1], np.random.RandomState(1).randint(3, 3 + len(words), 40).tolist()]


def run_of(tokens: list[int], stop_ids: tuple[int, ...], seed: int) -> tuple[TextCall, Iterator[Event]]:
    """A request that commits `tokens` after a prompt of two tokens, in random order, some of them in one step."""
    length, render = len(tokens) + 2, np.random.RandomState(seed)
    canvas = torch.tensor([3, 4] + [MASK] * len(tokens))
    request = Request((canvas,), (2,), 4, Keyed((0,)), stop_ids=stop_ids)
    whole, now = np.array([3, 4, *tokens]), canvas.numpy().copy()

    def events() -> Iterator[Event]:
        still = np.arange(length) >= 2
        yield Started(now[None].copy(), still[None].copy(), np.array([2]))
        for number in range(length):
            at = render.choice(np.flatnonzero(still)[:4], render.randint(1, 3))
            now[at], still[at] = whole[at], False
            first = int(still.argmax()) if still.any() else length
            none = np.zeros((1, length), dtype=bool)
            settled = np.array([first])
            yield Step(
                number, np.array([0]), np.array([number + 1]), now[None].copy(), still[None].copy(), none, settled
            )
            if not still.any():
                break
        yield RowFinished(0, whole, "length", number + 1)

    return TextCall(sampler=registry.resolve("sequential"), request=request, seeds=(0,)), events()


def pieces_of(events: Iterator[Event], rows: int = 1) -> list[list[str]]:
    """The pieces of each row, in order; the last one is in RowFinished."""
    found: list[list[str]] = [[] for _ in range(rows)]
    for event in events:
        if isinstance(event, Step):
            for row, piece in zip(event.rows.tolist(), event.text, strict=True):
                found[row].append(piece)
        elif isinstance(event, RowFinished):
            assert event.text is not None
            found[event.row].append(event.text)
    return found


@pytest.mark.parametrize("kind", [byte_level, byte_fallback, cleaning])
def test_pieces_make_up_the_text_whatever_the_tokenizer_does(kind: Any) -> None:
    tokenizer, rows = kind()
    early = 0
    for seed, tokens in enumerate(rows * 10):
        ends = tokens[:] if seed % 2 else [*tokens[: len(tokens) // 2], EOS, *tokens]
        call, events = run_of(ends, (EOS,), seed)
        (pieces,) = pieces_of(map(Texts(tokenizer, call), events))
        cut, _ = call.generated(0, [3, 4, *ends])
        assert "".join(pieces) == tokenizer.decode(cut, skip_special_tokens=True)
        early += len("".join(pieces[:-1]))
    assert early > 0


def test_no_half_character_is_told() -> None:
    for kind in (byte_level, byte_fallback):
        tokenizer, rows = kind()
        call, events = run_of(rows[0], (), 0)
        (pieces,) = pieces_of(map(Texts(tokenizer, call), events))
        assert "�" not in "".join(pieces)
        assert "€" in "".join(pieces)


def test_plain_text_is_told_as_soon_as_it_is_final(model: pardec.Model) -> None:
    told, start = "", model.prepare("Ann").request.prompts[0]
    for event in model.stream("Ann", sampler="leftmost", max_new_tokens=8, stop_ids=[]):
        if isinstance(event, Step):
            told += event.text[0]
            tokens = event.tokens[0, start : event.settled[0]].tolist()
            assert told == model.tokenizer.decode(tokens, skip_special_tokens=True)


def specs() -> list[str]:
    named = {stage: names(stage) for stage in ("select", "revise", "finish")}
    made = [f"{select}+eos@dual" for select in named["select"]]
    return [
        *made,
        *(f"threshold:tau=0.02+eos+{name}" for name in (*named["revise"], *named["finish"]) if name != "eos"),
    ]


@pytest.fixture(scope="module")
def stop(model: pardec.Model) -> int:
    """A token of the plain answer."""
    return model.generate(TEXTS, sampler="sequential", max_new_tokens=12, stop_ids=[]).tokens[0][5]


@pytest.mark.parametrize("spec", specs())
def test_pieces_make_up_the_results_text(model: pardec.Model, stop: int, spec: str) -> None:
    try:
        registry.resolve(spec)
    except pardec.SpecError:
        pytest.skip("refused")
    ways = ({}, {"stop_ids": [stop]}, {"temperature": 0.7, "cfg": 1.5, "stop_ids": [stop]})
    given: dict[str, Any] = {"sampler": spec, "max_new_tokens": 12, "block_length": 4, **ways[len(spec) % 3]}
    result = model.generate(TEXTS, **given)
    pieces = pieces_of(model.stream(TEXTS, **given), 3)
    assert ["".join(row) for row in pieces] == result.text
    assert any(piece for row in pieces for piece in row[:-1])


@pytest.mark.filterwarnings("ignore::pardec.EmptyAnswer")
@pytest.mark.parametrize(("sampler", "stop"), chequered(MODEL_OF, [None, ["1", "om", "never"]]))
def test_a_stream_tells_every_row_of_several_sequences(sampler: str, stop: list[str] | None) -> None:
    """Row numbers, texts and ends equal those of `generate`; `RowFinished` may have no text left."""
    decoded = pardec.load(MODEL_OF[sampler], device="cpu")
    given: dict[str, Any] = {"sampler": sampler, "temperature": 1.2, "seed": 3, "max_new_tokens": 24}
    given |= {"num_return_sequences": 3} | ({} if stop is None else {"stop": stop})
    result = decoded.generate(TEXTS[:2], **given)
    events = list(decoded.stream(TEXTS[:2], **given))
    ends = {event.row: event for event in events if isinstance(event, RowFinished)}
    assert sorted(ends) == list(range(6))
    assert ["".join(row) for row in pieces_of(iter(events), 6)] == result.text
    assert [ends[row].reason for row in range(6)] == result.finish
    assert [ends[row].nfe for row in range(6)] == result.nfe
    assert len(set(result.text or ())) > 2


def test_what_a_template_gives_is_text_too_and_its_end_tokens_end_nothing(model: pardec.Model) -> None:
    given: dict[str, Any] = {"template": [50, None, 3, None, 51, None, None], "stop_ids": [3], "max_new_tokens": 7}
    result = model.generate(TEXTS, **given)
    pieces = pieces_of(model.stream(TEXTS, **given), 3)
    assert ["".join(row[:-1]) for row in pieces] == result.text
    assert [row[-1] for row in pieces] == [""] * 3


def test_without_a_tokenizer_there_is_no_text(model: pardec.Model) -> None:
    for deaf in (pardec.Model(toy()), pardec.Model(replace(model.language_model, tokenizer=None))):
        for event in deaf.stream(input_ids=[[5, 6]], max_new_tokens=4):
            assert getattr(event, "text", None) is None


def test_a_callback_hears_the_text_as_well(model: pardec.Model) -> None:
    heard: list[Event] = []
    result = model.generate(TEXTS, max_new_tokens=6, callback=heard.append)
    assert ["".join(row) for row in pieces_of(iter(heard), 3)] == result.text


def told_one_by_one(tokenizer: Any, tokens: list[int]) -> str:
    """What is told of tokens that become final one by one."""
    canvas = np.array([3, 4, *tokens])
    text = RowText(tokenizer, run_of(tokens, (), 0)[0], 0, np.ones(len(canvas), dtype=bool))
    return "".join(text.new(canvas, settled) for settled in range(3, len(canvas) + 1))


def test_bytes_are_one_run_across_a_token_without_text() -> None:
    tokenizer, _ = byte_fallback()
    first, second, third = (byte + 3 for byte in "€".encode())
    for tokens in ([259, first, second, third, MASK, first, 260], [first, second, MASK, EOS, third, 260]):
        assert tokenizer.decode(tokens, skip_special_tokens=True).startswith(told_one_by_one(tokenizer, tokens))


@pytest.mark.parametrize("kind", [byte_level, byte_fallback])
def test_a_step_decodes_the_end_of_a_long_text_alone(kind: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, rows = kind()
    tokens, decoded, decode = rows[0] * 40, [], PreTrainedTokenizerFast.decode

    def counted(self: Any, ids: list[int], **options: Any) -> str:
        decoded.append(len(ids))
        return str(decode(self, ids, **options))

    monkeypatch.setattr(tokenizer, "decode", partial(counted, tokenizer))
    assert decode(tokenizer, tokens, skip_special_tokens=True).startswith(told_one_by_one(tokenizer, tokens))
    assert sum(decoded) < 60 * len(tokens)
