"""Learning the codebook: k-means at first, then moving averages; unused codes are restarted."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

DECAY = 0.98  # decay of the moving averages per step
DEAD = 0.03  # a code that gets less than this share of an even share of the features is restarted
EVERY = 25  # steps between looks for dead codes


def kmeans(points: Tensor, count: int, rng: torch.Generator, rounds: int = 20) -> Tensor:
    """`count` directions around which the unit vectors `points` [n, C] cluster, [count, C]."""
    centres = points[torch.randperm(len(points), generator=rng)[:count]].clone()
    for _ in range(rounds):
        nearest = (points @ centres.T).argmax(1)
        total = torch.zeros_like(centres).index_add_(0, nearest, points)
        used = torch.bincount(nearest, minlength=count)
        total[used == 0] = points[torch.randint(len(points), (int((used == 0).sum()),), generator=rng)]
        centres = F.normalize(total, dim=1)
    return centres


class Averages:
    """Moving averages of the use of each code and of the features assigned to it."""

    def __init__(self, rows: Tensor) -> None:
        self.count = torch.ones(len(rows), device=rows.device)  # [codes]
        self.total = rows.clone()  # [codes, C]

    def state_dict(self) -> dict[str, Tensor]:
        return {"count": self.count, "total": self.total}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        self.count, self.total = state["count"].clone(), state["total"].clone()

    def update(self, features: Tensor, codes: Tensor) -> Tensor:
        """Updates the averages from features [n, C] and their codes [n]; returns unit rows [codes, C]."""
        used = torch.bincount(codes, minlength=len(self.count)).float()
        share = used * (len(self.count) / len(codes))  # 1 on average
        self.count.lerp_(share, 1 - DECAY)
        total = torch.zeros_like(self.total).index_add_(0, codes, features) * (len(self.count) / len(codes))
        self.total.lerp_(total, 1 - DECAY)
        return F.normalize(self.total, dim=1)

    def revive(self, features: Tensor, rng: torch.Generator) -> int:
        """Moves dead codes to randomly drawn features [n, C]; returns how many there were."""
        dead = self.count < DEAD
        number = int(dead.sum())
        if number:
            drawn = torch.randint(len(features), (number,), generator=rng).to(features.device)
            self.total[dead] = features[drawn]
            self.count[dead] = 1.0
        return number
