"""What controllers learn from a round."""

from __future__ import annotations

import numpy as np
import torch

from ..contracts import Outcome


def levels(outcome: Outcome) -> tuple[np.ndarray, np.ndarray]:
    """How many levels of each row's draft were accepted, and how many there were; both [B], on the host."""
    draft = outcome.draft
    drafted = torch.where(draft.tested, draft.depth, 0).amax(1)
    return outcome.verdict.count.cpu().numpy(), drafted.cpu().numpy()
