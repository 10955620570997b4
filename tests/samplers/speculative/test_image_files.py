"""Drafting with files: a target and a smaller image model on disk, guided, captions of unequal length."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import pardec
from pardec.models.errors import PardecError
from tests.models.llamagen_files import ARGUMENTS, tensors, write

CAPTIONS = [torch.randn(size, 7, generator=torch.Generator().manual_seed(size)) for size in (2, 6, 1, 4)]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[pardec.Model, Path]:
    """The target, and the file of a drafter that is its first two layers."""
    folder = tmp_path_factory.mktemp("pictures")
    whole = tensors("t2i", layers=3, scale=0.6)
    first = {name: tensor for name, tensor in whole.items() if not name.startswith("layers.2.")}
    target = pardec.load(write(folder, whole, ARGUMENTS, "target.pt"), device="cpu")
    return target, write(folder, first, ARGUMENTS, "draft.pt")


@pytest.mark.parametrize(
    "spec", ["model:name={},k=3", "model:name={},k=2+template:widths=2-2", "recycling:k=3,tree=3-4"]
)
def test_a_smaller_model_and_recycled_tokens_draft_pictures(files: tuple[pardec.Model, Path], spec: str) -> None:
    target, drafter = files
    spec = spec.format(drafter)
    plain = target.generate(prompt_embeds=CAPTIONS, cfg=2.5, sampler="sequential")
    made = target.generate(prompt_embeds=CAPTIONS, cfg=2.5, sampler=spec)
    assert made.tokens == plain.tokens
    if "model" in spec:
        assert sum(made.nfe) < sum(plain.nfe)
    asked: dict[str, Any] = {"cfg": 2.5, "temperature": 1.0, "top_k": 6, "sampler": spec}
    together = target.generate(prompt_embeds=CAPTIONS, seed=[5, 6, 7, 8], **asked)
    for row in (0, 1):
        assert target.generate(prompt_embeds=[CAPTIONS[row]], seed=[5 + row], **asked).tokens == [together.tokens[row]]


def test_a_drafter_that_cannot_read_the_caption_is_refused(files: tuple[pardec.Model, Path], tmp_path: Path) -> None:
    target, _ = files
    classes = write(tmp_path, tensors("c2i"), ARGUMENTS)
    with pytest.raises(PardecError, match="row 0 has no class"):
        target.generate(prompt_embeds=CAPTIONS, sampler=f"model:name={classes}")
    with pytest.raises(PardecError, match="tiny-llama-draft"):
        target.generate(prompt_embeds=CAPTIONS, sampler="model:name=tiny-llama-draft")
