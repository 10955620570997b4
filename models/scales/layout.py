"""The tokens of an image that is predicted scale by scale: the codes of all its maps, coarse to fine."""

from __future__ import annotations

from dataclasses import dataclass, field

from torch import Tensor

from ..images.contracts import ImageLayout
from .contracts import Scales


@dataclass(frozen=True, eq=False)
class ScaleLayout(ImageLayout):
    """The layout of all maps' codes; its grid is the last map's."""

    scales: Scales = field(kw_only=True)

    @staticmethod
    def of(scales: Scales) -> ScaleLayout:
        """The layout of these maps."""
        return ScaleLayout(scales.sides[-1], scales.sides[-1], scales=scales)

    @property
    def tokens(self) -> int:
        return self.scales.tokens

    @property
    def code_shape(self) -> tuple[int, ...]:
        return (self.scales.tokens,)

    def codes(self, tokens: Tensor) -> Tensor:
        """Returns tokens [..., L]: they are the codes."""
        return tokens[..., : self.scales.tokens]
