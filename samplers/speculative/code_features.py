"""What the ids of a model look like, and which look most alike: prepared once for a model, and saved."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from pardec.models.errors import ModelError
from pardec.models.loading import cache_dir
from pardec.models.model import LanguageModel

from ..rng import wide

_DISTANCES = 1 << 24  # that many are held at a time
_KEPT = 2  # neighbour tables in memory
_digests: WeakIdKeyDictionary = WeakIdKeyDictionary()  # by table, as long as it lives
_prepared: dict[tuple[str, int], Tensor] = {}  # by digest and how many; the last ones asked for


@dataclass(frozen=True, slots=True, eq=False)
class CodeFeatures:
    """A table that all rows of a request share."""

    table: Tensor  # [V, E] what each id looks like, or [V, K] int32 which ids look most like it

    def keep(self, rows: np.ndarray) -> None:
        """Rows that leave leave it as it is."""

    def put(self, where: np.ndarray, other: CodeFeatures) -> None:
        """And so do rows that enter."""


def codebook_features(model: LanguageModel) -> Tensor:
    """[V, C]: the image codebook of a model, else its input embeddings.

    Raises:
        ModelError: it has another number of rows than the model has ids.
    """
    embedding = model.decoder.embedding
    table = embedding[: model.vocab_size] if model.codebook is None else model.codebook
    if len(table) != model.vocab_size:
        what = "input embeddings" if model.codebook is None else "a codebook"
        raise ModelError(
            f"{model.name} has {what} of {len(table)} rows and {model.vocab_size} ids",
            "load it with the image tokenizer that it was trained on",
        )
    return embedding if model.codebook is None and len(embedding) == len(table) else table


def neighbours(table: Tensor, k: int) -> Tensor:
    """[V, min(k, V - 1)] int32: the ids nearest to each in `table` [V, C], by distance, itself left out.

    What was found is saved in the cache, in a file named by the table's digest and k, and the last few stay in memory.
    Where its folder cannot be read or written, or others could write to it, they are found again. Raises ModelError for
    NaN and infinity.
    """
    k = min(k, len(table) - 1)
    if table not in _digests:
        if not bool(table.isfinite().all()):
            raise ModelError(
                "what ids look like, an image codebook or input embeddings, holds NaN or infinity",
                "the checkpoint is damaged: fetch it again",
            )
        _digests[table] = digest(table)
    key = (_digests[table], k)
    if key not in _prepared:
        name = f"neighbours-{key[0][:32]}-{k}.safetensors"
        found = _read(name, len(table), k)
        if found is None:
            found = nearest(table, k).cpu()
            _write(name, found)
        _prepared[key] = found.to(table.device)
    _prepared[key] = _prepared.pop(key)  # to the end
    while len(_prepared) > _KEPT:
        del _prepared[next(iter(_prepared))]
    return _prepared[key]


def nearest(table: Tensor, k: int) -> Tensor:
    """[V, k] int32: the k rows nearest to each of `table` [V, C], nearest first; the lowest id on ties."""
    rows = wide(table)
    rows = rows - rows.mean(0)  # smaller numbers, so that the differences of squares lose less
    square = rows.square().sum(1)
    count = max(_DISTANCES // len(rows), 1)
    found = []
    for start in range(0, len(rows), count):
        own = torch.arange(start, min(start + count, len(rows)), device=rows.device)
        far = square - 2 * (rows[own] @ rows.T)  # the squared distance, less what is the same for the whole row
        far[own - start, own] = torch.inf
        found.append(_lowest(far, k).int())
    return torch.cat(found)


def _lowest(values: Tensor, k: int) -> Tensor:
    """[N, k]: where the k lowest of each row of `values` [N, V] stand, lowest first, of equal ones the first."""
    if k == 0:
        return torch.zeros(len(values), 0, dtype=torch.int64, device=values.device)
    last = values.topk(k, dim=1, largest=False).values[:, -1:]
    below, level = values < last, values == last
    chosen = below | (level & (level.cumsum(1) <= k - below.sum(1, keepdim=True)))
    places = chosen.nonzero()[:, 1].view(-1, k)
    return places.gather(1, values.gather(1, places).argsort(dim=1, stable=True))


def digest(table: Tensor) -> str:
    """The SHA-256 of a table's shape and numbers, as hexadecimal digits."""
    numbers = (table.detach().float() if table.is_floating_point() else table).cpu().contiguous().numpy()
    return hashlib.sha256(repr(numbers.shape).encode() + numbers.tobytes()).hexdigest()


def _read(name: str, vocab: int, k: int) -> Tensor | None:
    """What `_write` saved; None where there is nothing, or something else."""
    try:
        with cache_dir.private() as folder, safe_open(cache_dir.require_own(folder / name), framework="pt") as file:
            found: Tensor = file.get_tensor("nearest")
            whole = (file.metadata() or {}).get("sha256") == digest(found)
    except (OSError, SafetensorError):
        return None
    return found if whole and found.shape == (vocab, k) and found.dtype == torch.int32 else None


def _write(name: str, found: Tensor) -> None:
    """The whole file, or none."""
    try:
        with cache_dir.private() as folder:
            cache_dir.write(folder / name, save({"nearest": found.contiguous()}, metadata={"sha256": digest(found)}))
    except OSError as error:
        cache_dir.warn_uncached(error)
