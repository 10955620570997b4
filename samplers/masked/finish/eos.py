"""Ends a row at its first end token, once everything before it is committed.

Decoding length of masked diffusion models, https://arxiv.org/abs/2502.09992 (answers are padded with end tokens)

    done = an end token was committed at j, and everything before j is final: committed, and not to be revised

Positions still open then become padding and are never committed. Only committed tokens count: an end token in the
prompt or a template does not stop a row. This is the end-of-text prediction of Learn2PD
(https://arxiv.org/abs/2509.25188) too. `reference=true` waits until the block is complete, as dInfer does.
Exact: greedy, up to the end token.
"""

from __future__ import annotations

from typing import Annotated

import numpy as np

from ...registry import register
from ..contracts import Canvas, Finish, Request


@register("eos", exact="greedy", checked="golden/fast_dllm_v2 golden/llada golden/llada2")
class Eos(Finish):
    reference: Annotated[bool, "stop at the end of a block only"] = False

    def done(self, canvas: Canvas, request: Request) -> np.ndarray:
        ended: np.ndarray = canvas.first_committed(request.stop_ids) < canvas.settled
        return ended & (canvas.block_started | canvas.finished) if self.reference else ended
