"""One colour scale for all views: blue (committed early) over green to yellow (late).

The scale is defined in OKLCH (https://bottosson.github.io/posts/oklab/). Its hues run from blue to yellow and its
lightness only increases, so its order stays visible in grey and with every kind of colour blindness.
"""

from __future__ import annotations

from functools import cache
from math import cos, radians, sin

EARLY, LATE = 264.0, 100.0  # hues in degrees
DARK, LIGHT = 0.42, 0.90  # lightness of a background, early and late
TEXT = 0.72  # lightness of coloured text, legible on a dark and on a light terminal
CHROMA = 0.13
RAMP = 32  # shades in a page


def shade(step: int, last: int) -> str:
    """The background, as #rrggbb, of a token that forward `step` of 0..`last` committed.

    >>> shade(0, 9) != shade(9, 9)
    True
    """
    fraction = _fraction(step, last)
    return _hex(DARK + (LIGHT - DARK) * fraction, fraction)


def ink(background: str) -> str:
    """Black or white, whichever has more contrast with the `background`.

    >>> ink("#ffe680"), ink("#203080")
    ('#000000', '#ffffff')
    """
    return max(("#000000", "#ffffff"), key=lambda text: contrast(text, background))


def glow(step: int, last: int) -> str:
    """The same hue for text on a terminal, whose background is unknown."""
    return _hex(TEXT, _fraction(step, last))


def contrast(one: str, other: str) -> float:
    """Contrast ratio of two colours, 1 to 21, as WCAG defines it."""
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def luminance(colour: str) -> float:
    """Relative luminance of #rrggbb, 0 to 1."""
    levels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [level / 12.92 if level <= 0.04045 else ((level + 0.055) / 1.055) ** 2.4 for level in levels]
    return sum(weight * level for weight, level in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


@cache
def ramp() -> list[tuple[str, str]]:
    """The scale in RAMP steps, early to late: each background with its text colour."""
    return [(background, ink(background)) for background in (shade(step, RAMP - 1) for step in range(RAMP))]


def _fraction(step: int, last: int) -> float:
    return min(max(step / last, 0.0), 1.0) if last > 0 else 0.0


def _hex(lightness: float, fraction: float) -> str:
    hue = EARLY + (LATE - EARLY) * fraction
    chroma = CHROMA
    while min(levels := _linear(lightness, chroma, hue)) < 0 or max(levels) > 1:
        chroma -= 0.005  # outside sRGB: less chroma, same lightness and hue
    return "#" + "".join(f"{round(255 * _gamma(level)):02x}" for level in levels)


def _linear(lightness: float, chroma: float, hue: float) -> tuple[float, float, float]:
    """OKLCH to linear sRGB."""
    a, b = chroma * cos(radians(hue)), chroma * sin(radians(hue))
    long = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3
    medium = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3
    short = (lightness - 0.0894841775 * a - 1.2914855480 * b) ** 3
    return (
        4.0767416621 * long - 3.3077115913 * medium + 0.2309699292 * short,
        -1.2684380046 * long + 2.6097574011 * medium - 0.3413193965 * short,
        -0.0041960863 * long - 0.7034186147 * medium + 1.7076147010 * short,
    )


def _gamma(level: float) -> float:
    return 12.92 * level if level <= 0.0031308 else float(1.055 * level ** (1 / 2.4) - 0.055)
