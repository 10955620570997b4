"""What length controllers observe of a round."""

from __future__ import annotations

import numpy as np
import torch

from ..contracts import RoundResult


def levels(outcome: RoundResult) -> tuple[np.ndarray, np.ndarray]:
    """The accepted and the drafted levels of each row, both [B], on the host."""
    draft = outcome.draft
    drafted = torch.where(draft.tested, draft.depth, 0).amax(1)
    return outcome.verdict.count.cpu().numpy(), drafted.cpu().numpy()
