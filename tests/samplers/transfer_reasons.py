"""The bound of transfers per step, and why some methods are above it."""

from __future__ import annotations

DOWNLOADS = 1  # the bound per step; with a model that drafts one more
# Methods above the bound: part of the case's name -> reason, which docs/guides/speed.md shows.
_STOPS = "the host reads after each token whether the draft ends there: the draft forwards it saves are the point"
ABOVE = {
    **dict.fromkeys(("+calibrated", "+fallback", "+unsure", " del"), _STOPS),
    "sorted": "the host reads after each exit whether more layers run: the layers it saves are the point",
    "triforce": "the host reads how many tokens each inner round accepts: the rounds that it saves are the point",
}


def reason(name: str) -> str:
    """Why the case of this name is above the bound; "" for one that has no reason."""
    return next((why for part, why in ABOVE.items() if part in name), "")
