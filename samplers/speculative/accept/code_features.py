"""Feature vectors of a model's image codes or tokens, and their nearest neighbours: computed once and saved."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor
from torch.utils.weak import WeakIdKeyDictionary

from pardec.models.errors import ModelError
from pardec.models.files import cache_dir
from pardec.models.model import LanguageModel

from ...batching import RowState
from ...rng import wide

_DISTANCES = 1 << 24  # elements computed at a time
_TABLES = 2  # neighbour tables in memory
_digests: WeakIdKeyDictionary = WeakIdKeyDictionary()  # digests of tables in memory
_prepared: dict[tuple[str, int], Tensor] = {}  # by digest and k, most recently used last


@dataclass(frozen=True, slots=True, eq=False)
class CodeFeatures(RowState):
    """A table of feature vectors that all rows of a request share."""

    table: Tensor  # [V, E] features of each id, or [V, K] int32 its nearest ids


def code_table(model: LanguageModel) -> Tensor:
    """[V, C]: the image codebook of a model, else its input embeddings.
    Raises ModelError if its number of rows is not the model's number of ids.
    """
    embedding = model.decoder.embedding
    table = embedding[: model.vocab_size] if model.codebook is None else model.codebook
    if len(table) != model.vocab_size:
        what = "input embeddings" if model.codebook is None else "a codebook"
        raise ModelError(
            f"{model.name} has {what} of {len(table)} rows for {model.vocab_size} ids",
            "load it with the image tokenizer that it was trained on",
        )
    return embedding if model.codebook is None and len(embedding) == len(table) else table


def token_neighbours(model: LanguageModel, k: int) -> Tensor:
    """[V, K] int32, K <= k: the ids nearest to each id of a model, by `code_table`, nearest first.

    Where codes of images are some ids among others, only these have neighbours; any other id has itself for all of its.
    """
    ids = None if model.imaging is None else model.imaging.layout.ids
    if ids is None:
        return codebook_neighbours(code_table(model), k)
    embedding = model.decoder.embedding
    table = embedding[ids.to(embedding.device)] if model.codebook is None else model.codebook
    if len(table) != len(ids):
        raise ModelError(
            f"{model.name} has a codebook of {len(table)} rows for {len(ids)} codes",
            "load it with the image tokenizer that it was trained on",
        )
    near = codebook_neighbours(table, k)
    ids = ids.to(near.device)
    nearest = torch.arange(model.vocab_size, dtype=torch.int32, device=near.device)[:, None].repeat(1, near.shape[1])
    nearest[ids] = ids.int()[near.long()]
    return nearest


def codebook_neighbours(table: Tensor, k: int) -> Tensor:
    """[V, min(k, V - 1)] int32: the ids nearest to each in `table` [V, C], by distance, itself left out.

    They are saved in the cache folder, in a file named by the table's digest and k, and the last few stay in memory.
    They are computed again if the folder cannot be read or written, or others could write to it. Raises ModelError for
    NaN and infinity.
    """
    k = min(k, len(table) - 1)
    if table not in _digests:
        if not bool(table.isfinite().all()):
            raise ModelError(
                "the image codebook, or the input embeddings, contain NaN or infinity",
                "the checkpoint is damaged: fetch it again",
            )
        _digests[table] = digest(table)
    key = (_digests[table], k)
    if key not in _prepared:
        name = f"neighbours-{key[0][:32]}-{k}.safetensors"
        ids = _read(name, len(table), k)
        if ids is None:
            ids = nearest(table, k).cpu()
            _write(name, ids)
        _prepared[key] = ids.to(table.device)
    _prepared[key] = _prepared.pop(key)  # the most recently used one is last
    while len(_prepared) > _TABLES:
        del _prepared[next(iter(_prepared))]
    return _prepared[key]


def nearest(table: Tensor, k: int) -> Tensor:
    """[V, k] int32: the k rows nearest to each of `table` [V, C], nearest first; the lowest id on ties."""
    rows = wide(table)
    rows = rows - rows.mean(0)  # smaller values lose less precision in the differences of squares
    square = rows.square().sum(1)
    count = max(_DISTANCES // len(rows), 1)
    ids = []
    for start in range(0, len(rows), count):
        own = torch.arange(start, min(start + count, len(rows)), device=rows.device)
        distances = square - 2 * (rows[own] @ rows.T)  # the squared distance without the row's constant
        distances[own - start, own] = torch.inf
        ids.append(_lowest(distances, k).int())
    return torch.cat(ids)


def _lowest(values: Tensor, k: int) -> Tensor:
    """[N, k]: the indices of the k lowest `values` [N, V] of each row, lowest first; the first index on ties."""
    if k == 0:
        return torch.zeros(len(values), 0, dtype=torch.int64, device=values.device)
    last = values.topk(k, dim=1, largest=False).values[:, -1:]
    below, level = values < last, values == last
    chosen = below | (level & (level.cumsum(1) <= k - below.sum(1, keepdim=True)))
    columns = chosen.nonzero()[:, 1].view(-1, k)
    return columns.gather(1, values.gather(1, columns).argsort(dim=1, stable=True))


def digest(table: Tensor) -> str:
    """The SHA-256 of a table's shape and values, as hexadecimal digits."""
    values = (table.detach().float() if table.is_floating_point() else table).cpu().contiguous().numpy()
    return hashlib.sha256(repr(values.shape).encode() + values.tobytes()).hexdigest()


def _read(name: str, vocab: int, k: int) -> Tensor | None:
    """The array that `_write` saved; None if the file is missing or damaged."""
    try:
        with cache_dir.private() as folder, safe_open(cache_dir.require_own(folder / name), framework="pt") as file:
            ids: Tensor = file.get_tensor("nearest")
            intact = (file.metadata() or {}).get("sha256") == digest(ids)
    except (OSError, SafetensorError):
        return None
    return ids if intact and ids.shape == (vocab, k) and ids.dtype == torch.int32 else None


def _write(name: str, ids: Tensor) -> None:
    """Saves an array to the file atomically."""
    try:
        with cache_dir.private() as folder:
            cache_dir.write(folder / name, save({"nearest": ids.contiguous()}, metadata={"sha256": digest(ids)}))
    except OSError as error:
        cache_dir.warn_uncached(error)
