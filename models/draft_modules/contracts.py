"""The base class of draft modules, and the description of one kind of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from ..caches.kv_cache import KVCache
from ..decoder_config import DecoderConfig
from ..errors import ModelError, listed
from ..files.weights import Published, read
from ..finite import damaged
from ..kernels import layout
from ..kernels.attention import attention_pattern
from ..kernels.ops import Ops
from ..layers.layer import LayerPass
from ..layers.rope import Rope
from ..model import LanguageModel
from ..plan import IdSubset, Plan, TargetStates


@dataclass(frozen=True, slots=True)
class ModuleName:
    """The kind, name and options of a draft module, as `load_draft_module` takes them; "" names the target's own."""

    kind: str
    name: str
    options: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class DraftFiles:
    """The files of one draft module; no weights have been read yet."""

    name: str
    folder: Path
    config: Mapping[str, Any]
    published: Mapping[str, Published]  # the tensors by name
    quantize: str | None = None  # "int8", "int4": bits of matrices, which are multiplied in 8
    source: str = "config.json"  # the file that its config is from

    def read(self, names: Mapping[str, str], dtype: torch.dtype, device: torch.device) -> dict[str, Tensor]:
        """The weights by their new names, from {published: new}. Nothing else is read.

        Raises ModelError for one that is missing, is not floating-point, or holds NaN or infinity.
        """
        missing = [name for name in names if name not in self.published]
        if missing:
            raise ModelError(f"{self.name} lacks {listed(missing)}", f"it has {listed(sorted(self.published))}")
        if foreign := [name for name in names if self.published[name].dtype is None]:
            raise ModelError(f"{self.name}: {listed(foreign)} is not floating-point", "export its weights again")
        tensors: dict[str, Tensor] = {}

        def store(name: str, tensor: Tensor) -> None:
            if wrong := damaged([(name, tensor)]):
                raise ModelError(f"{self.name} cannot draft: {wrong}", "fetch its files again")
            tensors[names[name]] = tensor.to(device=device, dtype=dtype, copy=True)

        read({name: self.published[name] for name in names}, store)
        return tensors

    def read_ids(self, name: str) -> Tensor:
        """[n] int64 on the CPU: a tensor of ids or of booleans. Raises ModelError for another shape or type."""
        tensors: list[Tensor] = []
        read({name: self.published[name]}, lambda _, tensor: tensors.append(tensor.clone()))
        ids = tensors[0]
        if ids.dim() != 1 or ids.is_floating_point() or ids.is_complex():
            raise ModelError(f"{self.name}: {name} is no list of whole numbers", "export it again")
        return ids.long()


class DraftModule(nn.Module):
    """A trained module bound to its target, whose embedding, and often head, it uses. Runs without gradients."""

    kind: ClassVar[str]
    states = TargetStates()  # the target's states that it reads
    vocabulary: Tensor | None = None  # [Vd] the target's id of each id that it drafts; None: all of them
    depth: int | None = None  # maximum number of tokens that it drafts ahead; None: any
    estimates_acceptance: bool = False  # whether a forward also estimates each token's acceptance probability
    layers_config: DecoderConfig  # the configuration of its layers, if it has any
    rope: Rope  # the rotary embedding of these layers
    about: tuple[str, ...] = ()  # decisions made while loading, for people: one line each

    def __init__(self, files: DraftFiles, target: LanguageModel) -> None:
        super().__init__()
        self.name, self.path, self.config = files.name, files.folder, dict(files.config)
        self.target = target
        self.device, self.dtype = target.device, target.dtype
        self.vocab_size = target.vocab_size

    @property
    def subset(self) -> IdSubset | None:
        """The ids that its heads compute logits of."""
        return None if self.vocabulary is None else IdSubset(self.vocabulary, self.vocab_size)

    @property
    def parameter_count(self) -> int:
        """The number of parameters of the module, without the target's."""
        return sum(weight.numel() for weight in self.parameters())

    @property
    def parameters_read(self) -> int:
        """The number of parameters that one drafting forward reads, the target's included; it measures the cost."""
        return self.parameter_count

    @property
    def with_cache(self) -> Any:
        """The module or the stack inside it that keeps keys and values while it drafts; None if neither does."""
        return self if hasattr(self, "layers_config") else None

    def new_cache(self, batch: int, capacity: int, *, scratch: int = 0) -> KVCache:
        """An empty cache; `scratch` more slots are for trees, whose nodes take more slots than positions."""
        return self.cache_of(self.layers_config, batch, capacity + scratch)

    def cache_of(self, config: DecoderConfig, batch: int, slots: int) -> KVCache:
        """An empty cache of `slots` slots for `batch` rows, for the layers of `config`."""
        return KVCache(
            layers=config.layers,
            batch=batch,
            capacity=slots,
            kv_heads=config.kv_heads,
            head_dim=config.head_dim,
            dtype=self.dtype,
            device=self.device,
        )

    def chain(self, cache: KVCache) -> Any:
        """A `PairChain` that drafts greedy chains over `cache` in one call; None where plans have to be run."""
        return None

    def layer_pass(self, plan: Plan, cache: KVCache | None, ops: Ops, *, window: int | None = None) -> LayerPass:
        """The `LayerPass` of a forward of `plan`; without a `cache`, layers attend to the plan's own K/V."""
        cos, sin = self.rope.rows(plan, limit=None if cache is None else cache.capacity, device=self.device)
        extent = cache.extent(plan) if cache is not None else plan.uniform or plan.width
        pattern = attention_pattern(plan, extent=extent, dtype=self.dtype, device=self.device, window=window)
        return LayerPass(plan, ops, pattern, None if cache is None else cache.slots(plan), cos, sin)

    def embed(self, tokens: Tensor) -> Tensor:
        """[..., E] the target's input embeddings of ids [...]; 0 where the id is -1."""
        return looked_up(self.target.decoder.embedding, tokens, self.target.embedding_scale)

    def over_vocabulary(self, logits: Tensor) -> Tensor:
        """Logits [..., Vd] as float32 [..., V] over the target's ids; -inf for an id that it does not draft."""
        logits = logits.float()
        if self.subset is not None:
            return self.subset.spread(logits)
        short = self.vocab_size - logits.shape[-1]
        return logits if not short else nn.functional.pad(logits, (0, short), value=-torch.inf)


def looked_up(table: Tensor, tokens: Tensor, scale: float = 1.0) -> Tensor:
    """[..., E] the rows `tokens` [...] of `table` [V, E], times `scale`; 0 where the id is -1."""
    every = tokens.device.type == "cpu" and bool((tokens.numpy() >= 0).all())  # on a GPU this would synchronize
    rows = layout.rows_of(table, tokens if every else tokens.clamp(min=0))
    if scale != 1:
        rows = rows * scale
    return rows if every else rows.masked_fill((tokens < 0)[..., None], 0)


@dataclass(frozen=True, slots=True)
class DraftKind:
    """One kind of draft module: how its files are recognised and loaded."""

    name: str  # also the drafter's name
    summary: str
    matches: Callable[[Mapping[str, Any], Mapping[str, Published]], bool]  # (config, tensors); their names decide first
    load: Callable[..., DraftModule]  # (files, target, **options); raises ModelError for what cannot be loaded
    published: Mapping[str, str] = field(default_factory=dict)  # layouts that load -> how each was verified


KINDS: dict[str, DraftKind] = {}


def register(kind: DraftKind) -> DraftKind:
    """Adds a kind; its name must be new."""
    if kind.name in KINDS:
        raise ValueError(f"the kind of draft module {kind.name!r} is registered twice")
    KINDS[kind.name] = kind
    return kind
