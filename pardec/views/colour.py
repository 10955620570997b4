"""One colour scale for all views: from blue (committed early) over green to red (late)."""

from __future__ import annotations

import colorsys

EARLY, LATE = 215.0, 5.0  # hues in degrees


def shade(step: int, last: int, *, lightness: float = 0.6) -> str:
    """The colour of a commit at forward `step` out of 0..`last`, as #rrggbb.

    >>> shade(0, 9) != shade(9, 9)
    True
    """
    share = step / last if last > 0 else 0.0
    red, green, blue = colorsys.hls_to_rgb((EARLY + (LATE - EARLY) * share) / 360, lightness, 0.7)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"
