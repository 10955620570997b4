"""Checks that a DFlash or DSpark belongs to its target, and takes rows of the target's head."""

from __future__ import annotations

from ..errors import ModelError
from ..model import LanguageModel
from .contracts import DraftFiles
from .dflash_files import DFlashLayout


def check_target(files: DraftFiles, target: LanguageModel, layout: DFlashLayout) -> None:
    """Raises ModelError where widths or vocabularies differ."""
    width, published = layout.config.width, files.published
    columns = published["fc.weight"].shape[-1]
    if columns != len(layout.taps) * target.width:
        raise ModelError(
            f"fc.weight of {files.name} reads {len(layout.taps)} states of width {columns // len(layout.taps)};"
            f" those of {target.name} have {target.width}",
            "it was trained for another target",
        )
    lacks = [name for name in ("embed_tokens.weight", "lm_head.weight") if name not in published]
    if width != target.width and lacks:
        raise ModelError(
            f"{files.name} has width {width} and {target.name} {target.width}, and no {lacks[0]} of its own"
        )
    if abs(layout.config.vocab - target.vocab_size) > target.vocab_size // 100:  # a smaller difference is padding
        raise ModelError(
            f"{files.name} is for a vocabulary of {layout.config.vocab} ids; {target.name} has {target.vocab_size}",
            "it was trained for another target",
        )
    rows = (
        len(target.decoder.embedding) if "embed_tokens.weight" in lacks else published["embed_tokens.weight"].shape[0]
    )
    if layout.mask >= rows:
        raise ModelError(f"mask_token_id {layout.mask} of {files.name} is outside its {rows} embeddings")
    if "lm_head.weight" in lacks and not hasattr(target.decoder, "head"):
        raise ModelError(
            f"{files.name} drafts with the head of {target.name}, which runs in transformers and does not expose it"
        )
    if (confidence := published.get("confidence_head.proj.weight")) is not None:
        expected = {width, width + layout.rank}
        if confidence.shape[-1] not in expected:
            raise ModelError(
                f"the confidence head of {files.name} reads {confidence.shape[-1]} numbers, not"
                f" {' or '.join(map(str, sorted(expected)))}"
            )
