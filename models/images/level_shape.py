"""The common base of autoencoder shapes: levels of convolutions, each but the last halving the image."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from ..errors import ModelError
from ..files.weights import count_parts

GROUPS = 32  # groups of every group norm: channel counts are multiples of it


class LevelShape:
    """The base of a frozen dataclass that declares `ch`, channels at the first level, and `ch_mult`, one per level."""

    ch: int
    ch_mult: tuple[int, ...]

    def check(self, what: str, *sizes: str) -> None:
        """Raise ModelError unless the levels can be built, and the sizes of these names are at least 1."""
        for name in sizes:
            if getattr(self, name) < 1:
                raise ModelError(f"{name} of a {what} must be at least 1, got {getattr(self, name)}")
        if not self.ch_mult or self.ch_mult[0] != 1 or min(self.ch_mult) < 1:
            raise ModelError(f"ch_mult must start with 1 and hold positive numbers, got {list(self.ch_mult)}")
        if self.ch < 1 or self.ch % GROUPS:
            raise ModelError(f"ch must be a multiple of {GROUPS}, the groups of its norms, got {self.ch}")

    @property
    def widths(self) -> tuple[int, ...]:
        """Channels of each level."""
        return tuple(self.ch * times for times in self.ch_mult)

    @property
    def downsample(self) -> int:
        """Pixels per code or latent vector along one side."""
        return int(2 ** (len(self.ch_mult) - 1))

    def check_pixels(self, pixels: Tensor) -> None:
        """Raise ModelError unless pixels [B, 3, H, W] can be encoded: sides are multiples of `downsample`."""
        side = self.downsample
        if pixels.ndim != 4 or pixels.shape[1] != 3:
            raise ModelError(f"pixels must be [images, 3, height, width], got {list(pixels.shape)}")
        if not pixels.shape[2] or not pixels.shape[3] or pixels.shape[2] % side or pixels.shape[3] % side:
            wrong = "x".join(map(str, pixels.shape[2:]))
            raise ModelError(
                f"an image of {wrong} pixels cannot be encoded", f"height and width must be multiples of {side}"
            )


def multiples(tensors: Mapping[str, Tensor], levels: str, conv: str, ch: int, what: str) -> tuple[int, ...]:
    """`ch_mult` of published tensors whose levels are named `<levels>.0` and so on, each with a convolution `conv`."""
    convs = [tensors.get(f"{levels}.{level}.{conv}") for level in range(count_parts(tensors, levels))]
    if not convs or any(each is None or each.shape[0] % ch for each in convs):
        raise ModelError(f"not the weights of a {what}: {levels} do not match its levels")
    return tuple(each.shape[0] // ch for each in convs if each is not None)
