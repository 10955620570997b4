"""Samples the tokens of an image in a random order, few at first and more as more are known.

Autoregressive Image Generation without Vector Quantization, https://arxiv.org/abs/2406.11838

    left after step k of K: S cos(pi/2 (k+1)/K);  each token of a step: its own denoising path, from z of what is known

With `head_to` the head takes fewer transitions from step to step, as the image fills (DiSA: Diffusion Step Annealing
in Autoregressive Image Generation, https://arxiv.org/abs/2505.20297, with `head=50,head_to=5`):

    transitions at step k = 0 .. K-1: head_to + floor((K-1-k) / (K-1) (head - head_to))

With `order=local` a step's tokens are far apart and near to known ones (LPD: Locality-aware Parallel Decoding for
Efficient Autoregressive Image Generation, https://arxiv.org/abs/2507.01957; see `local_order`), in the sizes of the
same schedule; LPD's own models and group sizes are not supported.

With `order=checker` the cells of one colour of a checkerboard are sampled at all steps but the last, and the others,
whose neighbours are then known, together at the last (GtR: Generation then Reconstruction: Accelerating Masked
Autoregressive Models via Two-Stage Sampling, https://arxiv.org/abs/2510.17171). How its authors divide the steps was
not confirmed; their choice of tokens that get more transitions is not built.

Three options reuse results of earlier steps (LazyMAR: Accelerating Masked Autoregressive Models via Feature Caching,
https://arxiv.org/abs/2503.12450; `preset:lazymar` has its 9, 9 and 7). Step k computes everything if k < warmup or
k - warmup is a multiple of the option; else

    uncond_every:  the half without the condition is the guided one + the difference of the last full step
    decoder_every: only the last step's and this step's tokens, and the positions whose values at `layer` changed the
                   most, pass all layers: a share of all that falls from 1 to .05, at least `margin` more than those
    head_every:    the first tenth of the head's transitions, the last and every 7th are full; in others, what blocks
                   add and what the condition changes are those of the last full one, without the unconditional half

If every step is full, they equal plain `mar` bit for bit. `forward_rows` does not count a half that is not computed,
and `tokens_fed` counts the tokens that pass all layers; the layers up to `layer` always compute all.

Deviates from the authors' code: `last` chooses which end of a path is the token; theirs is "map". From LazyMAR's: there
the head's first block, and those from the sixth on, compute their gate anew at every transition, and the first tenth
computes only the first block; its shares are for 64 steps, here for K in proportion.
Exact: distribution: the baseline of the family. Other methods are exact with respect to `mar` with the same `steps`,
`last`, `guidance`, `head` and `head_to`, in a random order. No with any of the three options.

The order of `order=local` (LPD):

    c_i = sum of 1 / distance to the known ones of the eight neighbours of i
    a group of m: from the highest c_i on, tokens with c_i >= 1 that are no neighbours of one taken before;
    then, as long as fewer than m are taken, the token that is farthest from all taken
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

import numpy as np
import torch

from pardec.models.continuous.contracts import ContinuousModel, Reuse, ReusingBackbone
from pardec.models.errors import SpecError

from ...host_transfer import download, upload
from ...ops.denoising_paths import Last
from ...ops.unmasking import Guidance
from ...registry import register
from ..contracts import ContinuousContext, RoundResult
from .groups import GroupMethod


def local_order(rows: int, columns: int, bounds: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """The rank of each token of a grid in raster order, int64 [rows * columns]: groups one after the other.

    Args:
        bounds: [K + 1] tokens known before each group, and after the last.
        keys: [rows * columns] random values; of tokens that are equal otherwise the lowest comes first, and the very
            first token is that of the lowest of all.
    """
    grid = np.stack(np.divmod(np.arange(rows * columns), columns), 1).astype(np.float64)
    distance = np.hypot(*(grid[:, None] - grid).transpose(2, 0, 1))
    near = (distance > 0) & (distance < 2)  # the eight neighbours: the next ones in a row are 2 away
    pull = np.where(near, 1 / np.where(near, distance, 1), 0)
    known, order = np.zeros(len(grid), dtype=bool), list[int]()
    for size in np.diff(bounds).tolist():
        proximity = pull @ known
        group: list[int] = []
        blocked = known | (proximity < 1 - 1e-9)
        for token in np.lexsort((keys, -proximity)).tolist():
            if len(group) < size and not blocked[token]:
                group.append(token)
                blocked |= near[token]
        free = ~known
        free[group] = False
        while len(group) < size:
            gap = distance[:, group].min(1) if group else proximity
            best = np.flatnonzero(free & (gap >= gap[free].max() - 1e-9))
            token = int(best[keys[best].argmin()])
            group.append(token)
            free[token] = False
        known[group] = True
        order += group
    rank = np.empty(len(grid), dtype=np.int64)
    rank[order] = np.arange(len(grid))
    return rank


# For LazyMAR's 64 steps, (last step, share): up to that step, this share of the positions passes all decoder layers.
_SHARES = ((20, 1.0), (21, 0.6), (25, 0.5), (30, 0.4), (35, 0.15), (40, 0.12), (64, 0.05))


@register("mar", exact="distribution", checked="golden/mar")
class MAR(GroupMethod):
    quality_grid: ClassVar[dict[str, tuple[object, ...]]] = {"steps": (64, 32, 16, 8)}

    steps: Annotated[int, "steps of the schedule (K), at most one per token"] = 64
    guidance: Annotated[Guidance, "how cfg grows over the steps: linear or constant"] = "linear"
    last: Annotated[Last, "the path's last transition: map (its mean), noise (a sample) or x1 (left out)"] = "map"
    head: Annotated[int | None, "denoising transitions of the head; none: the model's number"] = None
    head_to: Annotated[
        int | None, "transitions at the last step, falling evenly from head; none: head at every step"
    ] = None
    order: Annotated[
        Literal["random", "local", "checker"],
        "order of the tokens; local: those of a step are far apart, near known ones; checker: every second one last",
    ] = "random"
    uncond_every: Annotated[int, "compute the unconditional half at every n-th step"] = 1
    decoder_every: Annotated[int, "compute all positions at every n-th step"] = 1
    head_every: Annotated[int, "compute the head's blocks at every n-th transition"] = 1
    warmup: Annotated[int, "full steps at the start, if any *_every is above 1"] = 5
    margin: Annotated[int, "fewest positions computed in addition to the last step's and this step's tokens"] = 15
    layer: Annotated[int, "layer of the decoder, from 0, whose values show which positions have changed"] = 3

    def __post_init__(self) -> None:
        super().__post_init__()
        self.require("uncond_every", "decoder_every", "head_every", "warmup", least=1)
        self.require("margin", "layer", least=0)
        if self.uncond_every > 1 and self.uncond_every % self.decoder_every:
            raise SpecError(
                f"mar: uncond_every={self.uncond_every} must be a multiple of decoder_every={self.decoder_every}: "
                "only full steps compute the unconditional half",
                hint="write the same number for both",
            )

    @property
    def exact(self) -> str | None:
        return "relaxed" if max(self.uncond_every, self.decoder_every, self.head_every) > 1 else None

    @property
    def reuses(self) -> bool:
        """Whether backbone calls reuse results of earlier calls."""
        return max(self.uncond_every, self.decoder_every) > 1

    def check_model(self, model: ContinuousModel) -> None:
        super().check_model(model)
        if model.backbone.next_token:
            raise SpecError(
                f"mar samples several tokens per step, and {model.name} predicts each token from all tokens before it",
                hint="use sequential; seeded_jacobi and cspd:mode=exact take fewer forwards",
            )
        if self.reuses:
            self._reusing(model)

    def _reusing(self, model: ContinuousModel) -> ReusingBackbone:
        """The request's backbone that reuses earlier calls. Raises SpecError for a model without one."""
        backbone = model.backbone.reusing(self.layer if self.decoder_every > 1 else None)
        if backbone is None:
            raise SpecError(
                f"mar: {model.name} cannot reuse earlier steps",
                hint="leave uncond_every, decoder_every and head_every out",
            )
        return backbone

    def start(self, context: ContinuousContext) -> ReusingBackbone | None:
        super().start(context)
        if self.order == "local":
            self._order_locally(context)
        if not self.reuses:
            return None
        backbone = self._reusing(context.model)
        context.backbones[id(context.model.backbone)] = backbone
        return backbone

    def round(self, context: ContinuousContext, state: ReusingBackbone | None) -> RoundResult:
        if state is None:
            return super().round(context, state)
        schedule = self.schedule(context)
        state.reuse = self.reuse_at(int(schedule.step(context.images.count)[0]), len(schedule))  # rows go together
        self.sample_group(context)
        return RoundResult(copies=state.sequences, computed=state.computed)

    def reuse_at(self, step: int, steps: int) -> Reuse:
        """The results that the call at `step` (from 0) of `steps` reuses from earlier calls."""
        after = step - self.warmup
        if after < 0 or (after % self.uncond_every == 0 and after % self.decoder_every == 0):
            return Reuse()
        share = next(share for until, share in _SHARES if step * 64 // steps < until)
        partial = after % self.decoder_every > 0
        return Reuse(after % self.uncond_every > 0, share if partial else None, self.margin)

    def _order_locally(self, context: ContinuousContext) -> None:
        images, (rows, columns) = context.images, context.model.imaging.layout.grid
        index = torch.arange(images.tokens).expand(len(images), images.tokens)
        keys = download(images.source.uniform(images.rows, np.zeros_like(images.rows), index, "order"))
        bounds = self.schedule(context).bounds
        ranks = np.stack([local_order(rows, columns, bounds, row) for row in keys])
        images.rank = upload(ranks, images.device)
