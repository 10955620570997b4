"""The range of a request's numbers for which float32 suffices, and the sizes that a forward can take.

Logits are divided by the temperature in float32, whose numbers end at 3.4e38 and lose digits below 1.2e-38. Within
LEAST to MOST a logit of up to 1e32 stays finite and one of -inf, a token that is ruled out, stays -inf. The range
covers all useful temperatures: at LEAST logits that are 1e-4 apart differ by a factor of e^100, which is the argmax,
and at MOST logits that are 1000 apart differ by a thousandth, which is no preference at all.
"""

from __future__ import annotations

from pardec.models.errors import SpecError

LEAST = 1e-6  # temperature above 0
MAX_SCALE = 1e6  # of temperatures, and of what logits, states and probabilities are multiplied by
MOST_NODES = 2**12  # of a tree of drafts: one forward asks them all, and each looks at all
MOST_PARTS = 64  # of a spec, and parameters of a part

RANGE = f"0, or from {LEAST:g} to {MAX_SCALE:g}"


def divides(temperature: float) -> bool:
    """Whether logits can be divided by it, or it is 0, which stands for the argmax.

    >>> [divides(temperature) for temperature in (0, 0.7, 1e-40, 3.5e38)]
    [True, True, False, False]
    """
    return temperature == 0 or LEAST <= temperature <= MAX_SCALE


def check_nodes(what: str, nodes: int) -> None:
    """Refuses a draft of more nodes than a forward is asked for. Raises SpecError."""
    if nodes > MOST_NODES:
        raise SpecError(
            f"{what} drafts {nodes} nodes at once, and {MOST_NODES} are the most",
            hint="make the tree narrower or less deep: published ones have 25 to 800 nodes",
        )
