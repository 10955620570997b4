"""The ranges of request parameters: numbers for which float32 suffices, and sizes that a forward can take.

Logits are divided by the temperature in float32, whose numbers end at 3.4e38 and lose digits below 1.2e-38. Within
LEAST to MAX_SCALE a logit of up to 1e32 stays finite and one of -inf, an excluded token, stays -inf. The range covers
all useful temperatures: at LEAST, logits that are 1e-4 apart differ by a factor of e^100, which is the argmax, and at
MAX_SCALE, logits that are 1000 apart differ by a thousandth, which is no preference at all.
"""

from __future__ import annotations

from pardec.models.errors import SpecError

LEAST = 1e-6  # the least temperature above 0
MAX_SCALE = 1e6  # the greatest temperature, and factor of logits, states and probabilities
MOST_NODES = 2**12  # nodes of a draft tree: one forward computes them all, with a mask of all pairs
MOST_PARTS = 64  # the most parts of a spec, and parameters of a part

RANGE = f"0, or from {LEAST:g} to {MAX_SCALE:g}"


def divides(temperature: float) -> bool:
    """Whether logits can be divided by `temperature`, or it is 0, which means the argmax.

    >>> [divides(temperature) for temperature in (0, 0.7, 1e-40, 3.5e38)]
    [True, True, False, False]
    """
    return temperature == 0 or LEAST <= temperature <= MAX_SCALE


def check_nodes(what: str, nodes: int) -> None:
    """Raises SpecError for a draft of more nodes than a forward may have."""
    if nodes > MOST_NODES:
        raise SpecError(
            f"{what} drafts {nodes} nodes at once, and the limit is {MOST_NODES}",
            hint="make the tree narrower or less deep: published ones have 25 to 800 nodes",
        )
