"""The page about a network of one's own: its models decode as plain loops do, and say what they lack."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

import pardec
from pardec.models.errors import ModelError

PAGE = Path(__file__).resolve().parent.parent / "docs" / "guides" / "own-network.md"
PROMPTS = [[1, 2, 3], [4, 0], [3]]
END, MASK = 9, 11


@pytest.fixture(scope="module")
def page() -> dict[str, Any]:
    names: dict[str, Any] = {"__name__": "page"}
    exec(compile("\n".join(re.findall(r"(?ms)^```python\n(.*?)^```", PAGE.read_text())), str(PAGE), "exec"), names)
    return names


@torch.no_grad()
def filled(network: Any, prompt: list[int], new: int) -> list[int]:
    """A canvas of the page's masked network, filled in order of confidence, one token per forward."""
    canvas = torch.tensor([*prompt, *[MASK] * new])
    while (canvas == MASK).any():
        logits = network(canvas[None], torch.zeros(1, len(canvas), dtype=torch.bool))[0]
        logits[:, MASK] = -torch.inf
        best, tokens = logits.softmax(-1).max(-1)
        at = int(best.masked_fill(canvas != MASK, -1).argmax())
        canvas[at] = tokens[at]
    return canvas[len(prompt) :].tolist()


def test_the_masked_network_is_decoded_as_it_is(page: dict[str, Any]) -> None:
    model = page["denoiser"]
    network = model.network.decoder.network
    result = model.generate(input_ids=PROMPTS, max_new_tokens=6, sampler="sequential", stop_ids=[])
    assert result.tokens == [filled(network, prompt, 6) for prompt in PROMPTS]
    for prompt, tokens in zip(PROMPTS, result.tokens, strict=True):
        alone = model.generate(input_ids=[prompt], max_new_tokens=6, sampler="sequential", stop_ids=[])
        assert alone.tokens == [tokens]


@pytest.mark.parametrize("sampler", ["sequential", "lookup", "jacobi", "suffix"])
def test_the_causal_function_is_decoded_as_it_is(page: dict[str, Any], sampler: str) -> None:
    result = page["counter"].generate(input_ids=PROMPTS, max_new_tokens=9, sampler=sampler)
    assert result.tokens == [[(prompt[-1] + 1 + at) % 5 for at in range(9)] for prompt in PROMPTS]


@pytest.mark.parametrize("sampler", ["lookup", "recycling", "lookahead", "jacobi", "sjd"])
def test_the_attending_network_keeps_its_tokens_with_drafts(page: dict[str, Any], sampler: str) -> None:
    model = page["drafted"]
    plain = [model.generate(input_ids=[prompt], max_new_tokens=9).tokens[0] for prompt in PROMPTS]
    assert model.generate(input_ids=PROMPTS, max_new_tokens=9, sampler=sampler).tokens == plain
    served = model.serve_batch(({"input_ids": prompt} for prompt in PROMPTS), batch_size=2, max_new_tokens=9)
    assert {row.index: row.result.tokens[0] for row in served} == dict(enumerate(plain))


@pytest.mark.parametrize(
    ("name", "sampler", "words"),
    [
        ("denoiser", "threshold@dual", "the stack Canvases has no new_cache, which this request needs"),
        ("denoiser", "smoothing+threshold", "the stack Canvases has no embedding, which this request needs"),
        ("denoiser", "dawn", "needs attention weights, and the network only gives logits"),
        ("counter", "recycling", "this network reads chains, no trees"),
        ("drafted", "superposed", "needs inputs that are mixtures of tokens, and the network only gives logits"),
    ],
)
def test_what_a_network_lacks_is_named(page: dict[str, Any], name: str, sampler: str, words: str) -> None:
    with pytest.raises(ModelError, match=words) as error:
        page[name].generate(input_ids=PROMPTS, max_new_tokens=6, sampler=sampler)
    assert error.value.hint


def test_a_network_without_a_stack_is_refused_with_where_to_read(page: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match="Model cannot decode a function") as error:
        pardec.Model(page["counting"])
    assert "docs/guides/own-network.md" in str(error.value.hint)
    assert PAGE.is_file()
