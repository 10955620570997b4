"""The neighbours that `lantern` precomputes: which they are, and how they are saved and loaded."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save
from torch import Tensor

from pardec.models.errors import ModelError
from pardec.models.images.contracts import ImageLayout
from pardec.samplers.speculative.accept import code_features
from tests.models.loading.test_cache_dir import give_away, mode
from tests.samplers.ar_toys import toy_ar

Patch = pytest.MonkeyPatch


@pytest.fixture
def counted(monkeypatch: Patch, tmp_path: Path) -> list[int]:
    """Records the number of rows of each search; the cache folder is `tmp_path`, and nothing stays in memory."""
    calls, found = list[int](), code_features.nearest

    def nearest(table: Tensor, k: int) -> Tensor:
        calls.append(len(table))
        return found(table, k)

    monkeypatch.setattr(code_features, "nearest", nearest)
    monkeypatch.setenv("PARDEC_CACHE", str(tmp_path))
    monkeypatch.setattr(code_features, "_prepared", {})
    return calls


def table(size: int = 12, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.RandomState(seed).normal(size=(size, 3))).float()


def forget() -> None:
    code_features._prepared.clear()


def test_the_nearest_come_first_and_equal_ones_by_id() -> None:
    """On a line at 0, 1, 3, 3.5 and 1 again: tokens 1 and 4 have equal vectors."""
    line = torch.tensor([[0.0], [1.0], [3.0], [3.5], [1.0]]) + 1000
    assert code_features.nearest(line, 4).tolist() == [
        [1, 4, 2, 3],
        [4, 0, 2, 3],
        [3, 1, 4, 0],
        [2, 1, 4, 0],
        [1, 0, 2, 3],
    ]
    for k in range(4):
        assert torch.equal(code_features.nearest(line, k), code_features.nearest(line, 4)[:, :k])
    assert code_features.nearest(line, 2).dtype == torch.int32


def test_many_rows_are_searched_in_parts(monkeypatch: Patch) -> None:
    """V x V distances are never in memory at once, and the neighbours stay the same."""
    whole = code_features.nearest(table(40), 7)
    full = torch.cdist(table(40), table(40)).fill_diagonal_(torch.inf).argsort(dim=1)[:, :7]
    assert whole.tolist() == full.tolist()
    monkeypatch.setattr(code_features, "_DISTANCES", 100)
    sizes, lowest = [], code_features._lowest
    monkeypatch.setattr(code_features, "_lowest", lambda far, k: sizes.append(far.numel()) or lowest(far, k))
    assert torch.equal(code_features.nearest(table(40), 7), whole)
    assert max(sizes) <= 100


def test_they_are_found_once_and_saved_under_the_table_and_k(counted: list[int], tmp_path: Path) -> None:
    first = code_features.codebook_neighbours(table(), 4)
    assert first.tolist() == code_features.nearest(table(), 4).tolist()
    counted.clear()
    files = sorted(path.name for path in tmp_path.iterdir())
    assert files == [f"neighbours-{code_features.digest(table())[:32]}-4.safetensors"]
    assert torch.equal(code_features.codebook_neighbours(table(), 4), first)  # remembered
    forget()
    assert torch.equal(code_features.codebook_neighbours(table(), 4), first)  # read
    assert counted == []
    code_features.codebook_neighbours(table(), 5)
    code_features.codebook_neighbours(table(seed=1), 4)
    assert counted == [12, 12]
    assert len(list(tmp_path.iterdir())) == 3
    assert len(code_features._prepared) == 2  # the oldest is forgotten
    assert code_features.codebook_neighbours(table(), 1000).shape == (12, 11)


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty", "text", "another", "folder"])
def test_a_damaged_file_is_prepared_again(counted: list[int], tmp_path: Path, damage: str) -> None:
    first = code_features.codebook_neighbours(table(), 4)
    (file,) = tmp_path.iterdir()
    whole = file.read_bytes()
    if damage == "another":
        code_features.codebook_neighbours(table(9), 4)
        (other,) = (path for path in tmp_path.iterdir() if path != file)
        file.write_bytes(other.read_bytes())
    elif damage == "folder":
        file.unlink()
        file.mkdir()
    else:
        file.write_bytes(
            {
                "cut": whole[:-5],
                "flipped": whole[:-6] + bytes([whole[-6] ^ 1]) + whole[-5:],
                "empty": b"",
                "text": b"neighbours",
            }[damage]
        )
    forget()
    counted.clear()
    assert torch.equal(code_features.codebook_neighbours(table(), 4), first)
    assert counted == [12]
    if damage != "folder":
        assert file.read_bytes() == whole
        forget()
        code_features.codebook_neighbours(table(), 4)
        assert counted == [12]


def test_a_folder_that_cannot_be_written_is_no_error(counted: list[int], tmp_path: Path, monkeypatch: Patch) -> None:
    (tmp_path / "file").write_text("")
    for place in (tmp_path / "file", tmp_path / "file" / "below", Path("/proc/nothing")):
        monkeypatch.setenv("PARDEC_CACHE", str(place))
        forget()
        assert code_features.codebook_neighbours(table(), 4).shape == (12, 4)
    assert counted == [12, 12, 12]


def test_a_write_that_fails_leaves_nothing_behind(counted: list[int], tmp_path: Path, monkeypatch: Patch) -> None:
    def broken(number: int) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(os, "fsync", broken)
    code_features.codebook_neighbours(table(), 4)
    assert counted == [12]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("which", ["folder", "file"])
@pytest.mark.parametrize("how", ["another user's", "for all", "a link"])
def test_what_another_user_planted_is_not_read(
    counted: list[int], tmp_path: Path, monkeypatch: Patch, which: str, how: str
) -> None:
    """Neighbours planted with a valid checksum would be ids that the model does not have."""
    place = tmp_path / "cache"
    monkeypatch.setenv("PARDEC_CACHE", str(place))
    first = code_features.codebook_neighbours(table(), 4)
    (file,) = place.iterdir()
    wrong = torch.full((12, 4), 1000, dtype=torch.int32)
    file.write_bytes(save({"nearest": wrong}, metadata={"sha256": code_features.digest(wrong)}))
    path = {"folder": place, "file": file}[which]
    if how == "another user's":
        give_away(path, monkeypatch)
    elif how == "for all":
        path.chmod(mode(path) | 0o002)
    else:
        path.rename(tmp_path / "elsewhere")
        path.symlink_to(tmp_path / "elsewhere")
    forget()
    assert torch.equal(code_features.codebook_neighbours(table(), 4), first)
    assert counted == [12, 12]


def test_models_without_a_codebook_look_like_their_embeddings() -> None:
    model = toy_ar(2, 6)
    assert code_features.code_table(model) is model.decoder.embedding
    model.vocab_size = 5  # rows that stand for no id
    assert torch.equal(code_features.code_table(model), model.decoder.embedding[:5])
    model.vocab_size = 7
    with pytest.raises(ModelError, match="toy has input embeddings of 6 rows for 7 ids"):
        code_features.code_table(model)


def test_codes_among_other_ids_have_neighbours_among_codes() -> None:
    model: Any = toy_ar(0, 6)
    codebook = torch.tensor([[0.0], [1.0], [5.0], [1.5]])
    ids = torch.tensor([3, 0, 4, 1])
    model = replace(model, imaging=SimpleNamespace(layout=ImageLayout(2, 2, ids=ids), codebook=codebook))
    near = code_features.token_neighbours(model, 2).tolist()
    assert [near[token] for token in ids.tolist()] == [[0, 1], [1, 3], [1, 0], [0, 3]]
    others = set(range(model.vocab_size)) - set(ids.tolist())
    assert all(near[token] == [token] * 2 for token in others)
    model.imaging.codebook = codebook[:3]
    with pytest.raises(ModelError, match="a codebook of 3 rows for 4 codes"):
        code_features.token_neighbours(model, 2)
