from __future__ import annotations

import numpy as np
import torch

from pardec.samplers.ops.position_sets import columns_of, first_columns


def test_first_columns_are_those_of_columns_of() -> None:
    which = np.random.RandomState(0).rand(5, 9) < 0.4
    which[2] = False
    found = first_columns(torch.from_numpy(which), 1, 9)
    assert found.tolist() == columns_of(which, 9).tolist(), "on a CPU the bound is not needed"
    assert first_columns(torch.zeros(2, 4, dtype=torch.bool), 3, 4).shape == (2, 0)
