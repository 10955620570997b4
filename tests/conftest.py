"""One thread for every test: the models are tiny, and runs beside each other must not fight for the cores."""

from __future__ import annotations

import torch

torch.set_num_threads(1)
