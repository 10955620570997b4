"""Small models decode on one CPU thread, and the caller's number of threads is restored."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import pardec
from pardec.comparison.worker import device_name
from pardec.engine import stepping
from pardec.models.decoder import Decoder
from pardec.models.parallel import threads
from pardec.models.parallel.threads import SMALL, threads_for, using

CPU = torch.device("cpu")


@pytest.fixture
def two(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Sets a process to two threads that no setting requested."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(threads, "_UNCHOSEN", 2)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("two")
def test_small_models_on_a_cpu_take_one_thread() -> None:
    assert threads_for(CPU, SMALL - 1) == 1
    assert threads_for(CPU, SMALL) is None
    assert threads_for(torch.device("cuda"), 1000) is None


@pytest.mark.usefixtures("two")
def test_what_the_user_chose_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.set_num_threads(3)
    assert threads_for(CPU, 1000) is None
    torch.set_num_threads(2)
    monkeypatch.setenv("OMP_NUM_THREADS", "2")
    assert threads_for(CPU, 1000) is None


@pytest.mark.usefixtures("two")
def test_threads_are_given_back_between_steps_and_after_an_error() -> None:
    def counting() -> Iterator[int]:
        yield torch.get_num_threads()
        yield torch.get_num_threads()
        raise ValueError("no more")

    events = stepping(counting(), 1)
    assert [(next(events), torch.get_num_threads()) for _ in range(2)] == [(1, 2), (1, 2)]
    with pytest.raises(ValueError, match="no more"):
        next(events)
    assert torch.get_num_threads() == 2
    with using(None):
        assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two")
def test_decoding_and_serving_take_them(monkeypatch: pytest.MonkeyPatch) -> None:
    model, seen, forward = pardec.load("tiny-dream", device="cpu"), set(), Decoder.forward

    def watched(*args: object, **named: object) -> object:
        seen.add(torch.get_num_threads())
        return forward(*args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(Decoder, "forward", watched)
    model.generate("Ann has 8 cups.", max_new_tokens=4)
    assert {torch.get_num_threads() for _ in model.stream("Ann has 8 cups.", max_new_tokens=4)} == {2}
    assert [torch.get_num_threads() for _ in model.serve_batch(["Ann has 8 cups."], max_new_tokens=4)] == [2]
    assert seen == {1}


@pytest.mark.usefixtures("two")
def test_what_is_recorded_are_the_threads_that_decode() -> None:
    model = pardec.load("tiny-dream", device="cpu")
    assert model.environment()["threads"] == "1"
    assert device_name(model).endswith(", 1 thread")
    torch.set_num_threads(3)
    assert model.environment()["threads"] == "3"
    assert device_name(model).endswith(", 3 threads")
