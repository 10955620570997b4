"""MMaDA's pictures: a caption between task and end tokens, then the grid, whose codes follow the text vocabulary.

MMaDA: Multimodal Large Diffusion Language Models, https://arxiv.org/abs/2505.15809

    <|t2i|> bos caption eos <|soi|> codes <|eoi|>;  without a caption nothing stands between bos and eos

The published prompt is padded on the left to 513 ids, and nothing attends to the padding. As positions are relative,
it is left out here. Codes begin after the last token of the tokenizer, as in the published loop.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..errors import ModelError
from ..files.sources import Source
from .captioned import CaptionedImaging, codes, grid, reader
from .contracts import ImageLayout, ImagingParts, OneSize
from .magvit import MAGVIT, find_magvit, load_magvit

IMAGE, IMAGE_END, TASK = 126084, 126085, 126088
_LONGEST = 513  # limit of a caption's ids, with task, begin and end tokens
_TOKENS = 32 * 32
# (1 + s) c - s u of the published loop with s = 3.5.
_DEFAULTS = {"temperature": 1.0, "cfg": 4.5, "sampler": "maskgit:steps=15,noise=1.0,anneal=product"}


class MMaDAImaging(OneSize, CaptionedImaging):
    """The image interface of one MMaDA checkpoint."""

    where = 'load it with decoder="FILE", the weights of showlab/magvitv2, or put these into its folder as magvitv2.bin'

    def ids(self, caption: str | None) -> list[int]:
        begin, end = self.tokenizer.bos_token_id, self.tokenizer.eos_token_id
        ids = self.read(caption) if caption is not None else []
        ids = [TASK, *([] if ids[:1] == [begin] else [begin]), *ids, end]
        if len(ids) > _LONGEST:
            ids = [*ids[: _LONGEST - 1], end]
        return [*ids, IMAGE]


def build(parts: ImagingParts) -> MMaDAImaging:
    """The image interface of an MMaDA checkpoint. Raises ModelError for a tokenizer without begin or end token."""
    name = parts.source.name
    tokenizer, embedding = reader(parts)
    if tokenizer.bos_token_id is None or tokenizer.eos_token_id is None:
        raise ModelError(
            f"the tokenizer of {name} names no begin or no end token", "tokenizer_config.json must name both"
        )
    count, side, file = parts.config.get("codebook_size") or 8192, grid(parts, _TOKENS), _file(parts)

    def load() -> MAGVIT:
        assert file is not None, "there is one"
        model = load_magvit(file, device=parts.device)
        if model.codebook_size != count:
            raise ModelError(f"{name} has {count} codes, and its image tokenizer has {model.codebook_size}")
        return model

    layout = ImageLayout(side, side, closing=(IMAGE_END,), ids=codes(parts, len(tokenizer), count))
    loader = None if file is None else load
    return MMaDAImaging(name, layout, tokenizer, embedding, load=loader, defaults=_DEFAULTS)


def defaults(source: Source, config: Mapping[str, Any]) -> dict[str, Any]:
    """The authors' arguments of sampling."""
    return dict(_DEFAULTS)


def _file(parts: ImagingParts) -> Path | None:
    """The image tokenizer's weights: the file that the caller names, or the one in the checkpoint's folder."""
    if parts.decoder is not None:
        return find_magvit(parts.decoder)
    beside = sorted(parts.source.folder.glob("magvit*"))
    return find_magvit(str(beside[0])) if beside else None
