"""Recorded pools of LookaheadDecoding: the n-grams it stores from windows, prompts and texts."""

from __future__ import annotations

from typing import Any

import numpy as np

from pardec.samplers.speculative.draft.lookahead import Pool

Case = dict[str, Any]


def pool(case: Case, *_: object) -> str | None:
    """The pool after each operation; without a limit its order was not recorded."""
    size, most = case["params"]["LEVEL"], case["params"]["GUESS_SET_SIZE"]
    made = Pool(None if most == -1 else most)
    for number, op in enumerate(case["ops"]):
        if op["op"] == "update_token_map":
            first, *lines = op["past_tokens"]
            columns = np.array([[op["lst_token"], *first], *lines, op["new_results"]]).T
            for key, *following in columns.tolist():
                made.add(key, tuple(following))
        else:
            made.learn(np.array(op["tokens" if "tokens" in op else "prompt"]), size)
        found = {str(key): [list(tokens) for tokens in made.continuations(key)] for key in made.after}
        if most == -1:
            found = {key: sorted(value) for key, value in found.items()}
        if found != op["map"]:
            return f"operation {number}: {found}, expected {op['map']}"
    return None


PURE = {"lookahead_pool": pool}
