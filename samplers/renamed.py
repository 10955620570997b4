"""Former names of attributes of methods, and an error for methods that still define one, which nothing would read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from pardec.models.errors import SpecError

from .traits import Trait

# Family and stage of the methods -> former name -> today's name, or the trait that says the same.
_FORMER: Mapping[tuple[str, str], Mapping[str, str]] = {
    ("masked", ""): {"reads_row": Trait.READS_WHOLE_ROW, "needs_shadow": Trait.LEAVE_ONE_OUT},
    ("masked", "block"): {"keeps_grid": "conflicts"},
    ("masked", "branch"): {"exactly": Trait.KEEPS_TOKENS},
    ("masked", "cache"): {
        "stores": Trait.STORES_KV,
        "memoryless": Trait.KV_OF_TOKENS,
        "whole_block": Trait.WHOLE_BLOCK,
        "slides": Trait.SLIDES,
        "reuses_predictions": Trait.REUSES_PREDICTIONS,
        "needs_commit_order": "requires",
    },
    ("masked", "inputs"): {"after_logits": Trait.OBSERVES_CHANGED_LOGITS},
    ("masked", "propose"): {"order_is_fixed": Trait.KNOWN_SCORES},
    ("masked", "select"): {
        "may_wait": Trait.MAY_WAIT,
        "reads_forwards": Trait.COUNTS_FORWARDS,
        "counts_steps": Trait.COUNTS_STEPS,
        "knows_order": Trait.KNOWN_ORDER,
        "tick": "skipped_steps",
    },
    ("masked", "revise"): {"moves": Trait.MOVES_TOKENS, "idle": Trait.IDLE, "needs_leave_one_out": Trait.LEAVE_ONE_OUT},
    ("masked", "finish"): {"fills": Trait.FILLS_ROWS, "cuts": Trait.CUTS_ROWS},
    ("ar", "draft"): {
        "takes_shape": Trait.TAKES_SHAPE,
        "takes_length": Trait.TAKES_LENGTH,
        "one_pass": Trait.ONE_FORWARD_DRAFTS,
        "within_verify": Trait.DRAFTS_DURING_VERIFY,
        "drafts_during_verify": Trait.DRAFTS_DURING_VERIFY,
        "in_pass": Trait.ADDS_VERIFY_NODES,
        "adds_verify_nodes": Trait.ADDS_VERIFY_NODES,
        "copies": Trait.COPIES,
        "reads_prompt": Trait.READS_PROMPT,
        "refuse_kept_samples": Trait.KEEPS_DRAFTS,
    },
    ("ar", "accept"): {"follows_pick": Trait.FOLLOWS_PICK, "seeded": Trait.SEEDED},
    ("ar", "shape"): {
        "adaptive": Trait.ADAPTIVE_TREES,
        "chains": Trait.DRAFTS_ONE_CHAIN,
        "unprocessed": Trait.UNPROCESSED_SCORES,
    },
    ("ar", "cache"): {
        "room": "max_depth",
        "shares": Trait.SHARES_PROMPTS,
        "beyond": Trait.LONGER_TEXTS,
        "fit": "requires",
    },
    ("ar", "length"): {"drops_last": Trait.DROPS_LAST, "times_rounds": Trait.TIMES_ROUNDS},
    ("ar", "draft_model"): {"forward_over_ids": "forward_subset"},
    ("", ""): {"yardstick": "uses_answer"},
}


def refuse_former_names(cls: type[Any], name: str, *, family: str, stage: str) -> None:
    """Raises SpecError if the class defines an attribute under a former name; parameters may be named like one."""
    parameters = {field.name for field in fields(cls)} if hasattr(cls, "__dataclass_fields__") else set()
    for key in ((family, stage), (family, ""), ("", "")):
        for former, today in _FORMER.get(key, {}).items():
            if former in parameters or not hasattr(cls, former):
                continue
            if isinstance(today, Trait):
                today = f"Trait.{today.name} in `provides`"
            raise SpecError(
                f"{name}: {cls.__name__} defines {former!r}, which nothing reads any more: it is {today} now",
                hint=f"write {today} in place of {former}",
            )
