from __future__ import annotations

import json
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import errors as hub

from pardec.models.errors import ModelError, UnknownModelError
from pardec.models.files.sources import locate
from pardec.models.images.weight_files import find_file
from pardec.models.load import load
from tests.models.toys import llama_folder


class Repository:
    """A fake hub: records the requested patterns, and answers with a folder or an error."""

    def __init__(self, folder: Path, error: Exception | None = None) -> None:
        self.folder, self.error, self.calls = folder, error, []

    def __call__(self, repo, *, revision, allow_patterns, local_files_only):
        self.calls.append((repo, revision, allow_patterns, local_files_only))
        if self.error is not None:
            raise self.error
        return str(self.folder)


@pytest.fixture
def repository(tmp_path, monkeypatch):
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    made = Repository(tmp_path)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", made)
    return made


def answer(kind):
    """A hub error without the response object that some error classes require."""
    return kind.__new__(kind)


def test_what_asks_for_no_weights_downloads_none(repository):
    assert locate("owner/some.model-7B", weights=False).folder == repository.folder
    assert len(repository.calls) == 1
    assert not any("safetensors" in pattern or "bin" in pattern for pattern in repository.calls[0][2])


def test_a_hub_id_is_downloaded_weights_last(repository, tmp_path):
    llama_folder(tmp_path)
    model = load("owner/some.model-7B", revision="abc", device="cpu")
    assert model.name == "owner/some.model-7B"
    assert [call[:2] for call in repository.calls] == [("owner/some.model-7B", "abc")] * 2
    assert not any("safetensors" in pattern for pattern in repository.calls[0][2])
    assert "model.safetensors" in repository.calls[1][2]
    assert not any(call[3] for call in repository.calls)


def test_only_the_shards_of_the_index_are_downloaded(repository, tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}})
    )
    assert locate("owner/name").folder == tmp_path
    assert repository.calls[-1][2][-2:] == ["m-1.safetensors", "m-2.safetensors"]


def test_pickles_are_the_last_resort(repository, tmp_path):
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    locate("owner/name")
    assert repository.calls[-1][2][-1] == "pytorch_model.bin"


@pytest.mark.parametrize("file", ["medusa_lm_head.pt", "hydra_lm_head.safetensors", "adapter_model.safetensors"])
def test_a_repository_without_a_model_may_hold_a_draft_module(repository, file):
    locate("owner/drafter")
    assert file in repository.calls[-1][2]
    assert "model.safetensors" not in repository.calls[-1][2]


@pytest.mark.parametrize("way", ["argument", "variable"])
def test_offline_means_no_downloads(way, repository, tmp_path, monkeypatch):
    llama_folder(tmp_path)
    if way == "variable":
        monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    locate("owner/name", offline=way == "argument")
    assert all(call[3] for call in repository.calls)
    repository.error = hub.LocalEntryNotFoundError("not there")
    with pytest.raises(UnknownModelError, match="not in the local hub cache"):
        locate("owner/name", offline=way == "argument")


@pytest.mark.parametrize(
    ("error", "kind", "message"),
    [
        (answer(hub.RepositoryNotFoundError), UnknownModelError, r"no public hub repository 'owner/tiny-dreem'"),
        (answer(hub.GatedRepoError), ModelError, "is gated"),
        (answer(hub.RevisionNotFoundError), UnknownModelError, "no revision 'v9'"),
        (hub.LocalEntryNotFoundError("no route\nto host"), ModelError, "cannot be downloaded: no route to host"),
        (OSError("disk full"), ModelError, "cannot be downloaded: disk full"),
    ],
    ids=["missing", "gated", "revision", "connection", "disk"],
)
def test_what_the_hub_refuses_is_said_in_one_line(error, kind, message, repository):
    repository.error = error
    with pytest.raises(kind, match=message) as boosted:
        locate("owner/tiny-dreem", revision="v9")
    assert "\n" not in str(boosted.value)


def test_a_folder_goes_before_the_hub(repository, tmp_path, monkeypatch):
    llama_folder(tmp_path / "owner" / "name")
    monkeypatch.chdir(tmp_path)
    assert locate("owner/name").folder == Path("owner/name")
    assert repository.calls == []


def test_a_home_that_nobody_has_is_no_more_than_a_place_that_is_not_there():
    with pytest.raises(UnknownModelError, match="there is no folder ~nosuch/x"):
        locate("~nosuch/x")
    with pytest.raises(ModelError, match="~nosuch"):
        find_file("~nosuch/x", "vq", "image tokenizer", ("*.pt",))
