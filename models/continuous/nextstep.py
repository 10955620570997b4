"""NextStep-1's backbone: a causal decoder that reads a caption, then the vectors of an image in raster order.

NextStep-1: Toward Autoregressive Image Generation with Continuous Tokens at Scale, https://arxiv.org/abs/2508.10711

    input    caption <|image_area|>rows*columns <boi>, then in_projector(token 0), in_projector(token 1), ...
    state    cond_embed(out_projector(norm(h))) of token i, from the output h at the position before it

Guidance feeds the same tokens after a second prompt. Keys and values of both are cached for the length of a request.
Letters: B rows of a request, C rows of the cache (B, or 2 B with guidance), R rows of a call, S tokens of an image,
d values of a token, E width, N wanted tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from ..cuda_graphs.capture import Capturer
from ..cuda_graphs.functions import FunctionGraphs
from ..cuda_graphs.runner import GraphRunner
from ..decoder import Decoder
from ..errors import ArgumentError
from ..images.contracts import Condition
from ..kernels.matmul import Linear
from ..plan import Plan, Visible
from .contracts import Fed, States
from .diffusion_head import EPS, MARHead

Grid = tuple[int, int]  # rows and columns of tokens


class Projectors(nn.Module):
    """Maps tokens to the decoder's inputs, and the decoder's outputs to the head's conditions."""

    def __init__(self, size: int, width: int) -> None:
        super().__init__()
        self.image_in_projector = Linear(size, width)
        self.image_out_projector = Linear(width, width)


@dataclass(frozen=True, slots=True)
class Prompts:
    """How a condition becomes prompts: token ids of the condition, and of guidance's negative or empty prompt."""

    ids: Callable[[Condition, Grid], tuple[list[int], list[int]]]
    grid: Callable[[tuple[int, int] | None], Grid]  # pixels -> the token grid; None: the model's own size
    longest: int | None  # positions that the model was trained with


class NextStepReader:
    """The backbone of a checkpoint, for decoding; sessions, made by `start`, hold its caches."""

    causal = next_token = True
    fed = None

    def __init__(
        self, decoder: Decoder, projectors: Projectors, head: MARHead, prompts: Prompts, *, normalise: bool = False
    ) -> None:
        """With `normalise` every token is layer-normed before it is read, as the published option `use_norm`."""
        self.decoder: Decoder | GraphRunner = decoder
        self.projectors, self.head, self.prompts = projectors, head, prompts
        self.normalise = normalise

    def capture(self, graphs: FunctionGraphs, make: Callable[[], Capturer]) -> None:
        if isinstance(self.decoder, Decoder):
            self.decoder = GraphRunner(self.decoder, make())

    @property
    def tokens(self) -> int:
        rows, columns = self.prompts.grid(None)
        return rows * columns

    @torch.inference_mode()
    def start(self, conditions: Sequence[Condition], *, size: tuple[int, int] | None, guided: bool) -> NextStepSession:
        """Reads the prompts into a cache.

        Raises ArgumentError for a condition that is no caption, and for prompts that leave no room for an image.
        """
        grid = self.prompts.grid(size)
        pairs = [self.prompts.ids(condition, grid) for condition in conditions]
        prompts = [pair[0] for pair in pairs] + ([pair[1] for pair in pairs] if guided else [])
        tokens, most = grid[0] * grid[1], max(map(len, prompts))
        if self.prompts.longest is not None and most + tokens - 1 > self.prompts.longest:
            raise ArgumentError(
                f"a prompt of {most} tokens and an image of {tokens} tokens exceed the {self.prompts.longest} "
                "positions that the model was trained with",
                "draw a smaller image, or shorten the caption",
            )
        return NextStepSession(self, prompts, len(pairs), tokens)

    def reusing(self, layer: int | None) -> None:
        """Returns None: a session computes nothing twice."""

    def states(
        self, latents: Tensor, known: Tensor, labels: Tensor, wanted: Tensor, scale: Tensor | None = None
    ) -> States:
        """Raises TypeError: only a session has states."""
        raise TypeError("only the session that start() returns computes states")

    def project(self, tokens: Tensor) -> Tensor:
        """Tokens [..., d] as inputs [..., E] of the decoder."""
        tokens = normalised(tokens) if self.normalise else tokens
        projector = self.projectors.image_in_projector
        out: Tensor = projector(tokens.to(projector.weight.dtype))
        return out

    def conditions(self, outputs: Tensor) -> Tensor:
        """The head's conditions, which it adds to times, from the decoder's normed outputs [..., E]."""
        out: Tensor = self.head.cond_embed(self.projectors.image_out_projector(outputs))
        return out

    def parameters(self) -> Iterator[Tensor]:
        yield from (weight for _, weight in self.named_parameters())

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        yield from self.decoder.named_parameters()
        yield from self.projectors.named_parameters()


class NextStepSession:
    """The backbone for one request. Row c of the cache reads prompt c; rows from B on are for guidance.

    The tokens of a call are compared with the cached ones: only tokens from the first difference on are fed. So rows
    may be at different tokens, and drafts need no rollback.
    """

    causal = next_token = True

    def __init__(self, reader: NextStepReader, prompts: Sequence[Sequence[int]], rows: int, tokens: int) -> None:
        """`rows` is B; a second half of `prompts` is for guidance."""
        self.reader, self.rows, self.tokens = reader, rows, tokens
        device = reader.decoder.embedding.device
        ids = pad_sequence([torch.tensor(list(prompt)) for prompt in prompts], batch_first=True).to(device)
        self.prefix = torch.tensor([len(prompt) for prompt in prompts], device=device)  # [C] positions of each prompt
        self.cache = reader.decoder.new_cache(len(prompts), ids.shape[1] + max(1, tokens - 1))
        size = reader.projectors.image_in_projector.in_features
        self.inputs = torch.zeros(len(prompts), tokens, size, device=device)  # [C, S, d] float32: the cached tokens
        self.count = torch.zeros(len(prompts), dtype=torch.int64, device=device)  # [C] number of tokens in the cache
        lengths = np.array([len(prompt) for prompt in prompts]).reshape(-1, rows).sum(0)
        self.fed = Fed(np.zeros((rows, 2), dtype=np.int64), lengths)
        plan = Plan.full(ids, Visible.causal(), self.prefix)
        hidden = reader.decoder(plan, self.cache)
        last = (self.prefix - 1)[:, None, None].expand(-1, 1, hidden.states.shape[-1])
        self.first = hidden.normed().gather(1, last)[:, 0]  # [C, E] the output after each prompt

    def start(self, conditions: Sequence[Condition], *, size: tuple[int, int] | None, guided: bool) -> NextStepSession:
        """A session for other conditions."""
        return self.reader.start(conditions, size=size, guided=guided)

    def reusing(self, layer: int | None) -> None:
        """Returns None: cached values are final."""

    def parameters(self) -> Iterator[Tensor]:
        return self.reader.parameters()

    def named_parameters(self) -> Iterator[tuple[str, Tensor]]:
        return self.reader.named_parameters()

    @torch.inference_mode()
    def states(
        self, latents: Tensor, known: Tensor, labels: Tensor, wanted: Tensor, scale: Tensor | None = None
    ) -> States:
        """See `Backbone.states`; `scale` requires a guided request."""
        tokens = torch.where(known[..., None], latents, 0.0)
        if scale is None:
            return States(self.reader.conditions(self._outputs(labels, tokens, wanted)))
        both = torch.cat((labels, labels + self.rows))
        outputs = self._outputs(both, tokens.repeat(2, 1, 1), wanted.repeat(2, 1))
        self.fed = Fed(self.fed.spans[: len(labels)], self.fed.prompts)
        cond, uncond = self.reader.conditions(outputs).chunk(2)
        return States(cond, uncond, scale[:, None].expand_as(wanted)[wanted])

    def _outputs(self, rows: Tensor, tokens: Tensor, wanted: Tensor) -> Tensor:
        """[N, E] the decoder's outputs before the wanted tokens; `rows` [R] of the cache, `tokens` [R, S, d]."""
        index = torch.arange(self.tokens, device=tokens.device)
        count, same = self.count[rows], (self.inputs[rows] == tokens).all(-1)
        cached = (same & (index < count[:, None])).cumprod(1).sum(1)  # tokens before the first one that is to be fed
        # The output before token i is that of token i - 1, or of the prompt.
        earliest = torch.where(wanted, index, self.tokens).amin(1) - 1
        start, stop = torch.minimum(cached, earliest).clamp(min=0), torch.where(wanted, index, 0).amax(1)
        spans = torch.stack((torch.minimum(start, stop), stop), 1)
        self.fed = Fed(spans.cpu().numpy(), self.fed.prompts)
        feeding = (stop > start).nonzero()[:, 0]
        outputs = self._feed(rows[feeding], tokens[feeding], start[feeding], stop[feeding])
        # Feeding the same tokens again leaves the cached tokens after them valid.
        self.count[rows] = torch.where((stop > start) & (stop > cached), stop, count)
        row, token = wanted.nonzero(as_tuple=True)
        result: Tensor = self.first[rows[row]]
        if outputs is not None:
            column = torch.zeros_like(rows)
            column[feeding] = torch.arange(len(feeding), device=rows.device)
            behind = token > 0
            row, token = row[behind], token[behind]
            result[behind] = outputs[column[row], token - 1 - start[row]]
        return result

    def _feed(self, rows: Tensor, tokens: Tensor, start: Tensor, stop: Tensor) -> Tensor | None:
        """[R, W, E] the outputs at tokens `start` .. `stop` - 1 of each row, which are written to the cache."""
        if not len(rows):
            return None
        width = int((stop - start).max())
        index = start[:, None] + torch.arange(width, device=rows.device)
        real = index < stop[:, None]
        at = index.clamp(max=self.tokens - 1)[..., None].expand(-1, -1, tokens.shape[-1])
        inputs = tokens.gather(1, at)
        prefix = self.prefix[rows]
        positions = torch.where(real, prefix[:, None] + index, -1)
        lengths = prefix + stop
        order = torch.arange(width, device=rows.device).expand_as(index)
        plan = Plan(
            tokens=torch.full_like(index, -1),
            positions=positions,
            slots=positions,
            visible=Visible.causal(),
            lengths=lengths,
            want=torch.where(real, order, -1),
            soft=self.reader.project(inputs),
            rows=rows,
        )
        outputs: Tensor = self.reader.decoder(plan, self.cache).normed()
        row, column = real.nonzero(as_tuple=True)
        self.inputs[rows[row], index[row, column]] = inputs[row, column]
        return outputs


def normalised(tokens: Tensor) -> Tensor:
    """Tokens [..., d] with mean 0 and variance 1 each."""
    return F.layer_norm(tokens.float(), tokens.shape[-1:], eps=EPS)
