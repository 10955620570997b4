"""The refusals of acceptances that verify one drafted chain per row."""

from __future__ import annotations

from ...traits import Reasons, Trait, Why


def one_chain(does: str, otherwise: str = "") -> tuple[Reasons, Reasons]:
    """The `requires` and `conflicts` of an acceptance that verifies one chain per row.

    `does` tells what the acceptance does with the chain; `otherwise`, after a comma, another way out.
    """
    hint = f"draft with model:name=..., a draft module or lookup, without a shape{otherwise}"
    own_nodes = Why(f"{{me}} {does}, and {{other!r}} lays out its own nodes or keeps rejected tokens", hint)
    trees = Why(f"{{me}} {does}, and {{other!r}} drafts trees", f"leave the shape out: chain is the default{otherwise}")
    branches = Why(f"{{me}} {does}, and {{does}}", hint)
    return {Trait.DRAFTS_ONE_CHAIN: own_nodes}, {Trait.DRAFTS_TREES: trees, Trait.ADDS_BRANCHES: branches}
