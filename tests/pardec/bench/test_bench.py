"""Whole benchmarks: other loops on the same weights give the same tokens; commands print the measured values."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import pardec
from pardec.bench import decode, kernels
from pardec.bench.decode import Differs, bench, prepare
from pardec.bench.memory import sweep
from pardec.bench.report import DECODE, markdown
from pardec.bench.rivals import published, rivals
from pardec.bench.shapes import build
from pardec.models.errors import ModelError
from pardec.models.kernels.cpu import library
from pardec.samplers.ops import chunked_distribution
from tests.models import llamagen_files
from tests.models.traced import captured
from tests.pardec.bench.test_clock import MAR

Cli = Callable[..., tuple[int, str, str]]
WIDE = {
    "model_type": "llada", "rope": True, "layer_norm_type": "rms", "weight_tying": False, "d_model": 8, "n_layers": 1,
    "n_heads": 1, "mlp_hidden_size": 8, "vocab_size": 60000,
}  # fmt: skip


@pytest.fixture(scope="module")
def llama() -> pardec.Model:
    return pardec.load("tiny-llama", device="cpu", dtype="float32")


@pytest.mark.parametrize("name", ["tiny-dream", "tiny-llada"])
def test_plain_and_diffusers_loops_give_the_tokens_of_sequential(name: str) -> None:
    model = pardec.load(name, device="cpu", dtype="float32")
    for spec, others in (("sequential", {"plain", "diffusers"}), ("sequential@dual", {"plain"})):
        call = prepare(model, spec, 2, 8, 8, 4)
        ids = torch.stack(call.request.canvases)[:, :8]
        how: dict[str, Any] = {"max_new_tokens": 8, "block_length": 4, "stop_ids": []}
        expected = model.generate(input_ids=ids, sampler=spec, **how).tokens
        found = rivals(model.language_model, call).runs
        assert set(found) == others
        assert all(run().tolist() == expected for run in found.values())


def test_transformers_runs_the_same_memory_and_gives_the_same_tokens(llama: pardec.Model) -> None:
    call = prepare(llama, "lookup", 2, 24, 12, None)
    network: Any = published(llama.language_model)
    table = network.model.embed_tokens.weight
    assert table.data_ptr() == llama.language_model.decoder.embedding.data_ptr()
    expected = llama.generate(input_ids=torch.stack(call.request.canvases)[:, :24], max_new_tokens=12, stop_ids=[])
    assert rivals(llama.language_model, call).runs["transformers"]().tolist() == expected.tokens


def test_rows_of_prompts_end_where_they_end_and_so_do_those_of_transformers(llama: pardec.Model) -> None:
    prompts = ["Copy the list: 8 4 3 1.", "Repeat this list: owl ant bee ant cat.", "Write the list again: bee hen."]
    rows = list(bench(llama, ["sequential", "lookup"], batches=(2, 4), new=(24,), prompts=prompts, pairs=1))
    assert [row["beside"]["transformers"]["same_rows"] for row in rows] == [1, 1, 1, 1]
    alone = llama.generate([*prompts, prompts[0]], max_new_tokens=24)
    assert rows[1]["tokens_per_second"] * rows[1]["step_s"] * rows[1]["steps"] == pytest.approx(
        sum(map(len, alone.tokens))
    )
    assert rows[1]["steps"] == max(alone.nfe) < 24
    assert rows[3]["steps"] < rows[1]["steps"]


def test_loops_of_equal_rows_are_not_timed_beside_others(model: pardec.Model) -> None:
    call = prepare(model, "sequential", 2, 0, 8, 8, ["Tom has 2 apples.", "Tom has 12 apples. He buys 7 more."])
    found = rivals(model.language_model, call)
    assert (set(found.runs), set(found.left_out)) == (set(), {"plain", "diffusers"})


def test_what_is_left_out_is_named_with_the_reason(model: pardec.Model, llama: pardec.Model) -> None:
    for who, spec, name in (
        (model, "threshold", "plain"),
        (model, "sequential", "diffusers"),
        (llama, "lookup+typical", "transformers"),
    ):
        call = prepare(who, spec, 1, 3, 8, None)
        assert name in rivals(who.language_model, call).left_out


def test_a_row_says_what_was_measured(model: pardec.Model) -> None:
    rows = list(bench(model, ["sequential"], batches=(1, 2), contexts=(0, 8), new=(8,), block_length=8, pairs=1))
    assert [(row["batch"], row["context"]) for row in rows] == [(1, 20), (2, 20), (1, 8), (2, 8)]
    for row in rows:
        assert row["steps"] == 8
        assert row["tokens_fed"] == row["batch"] * 8 * (row["context"] + 8)
        assert 0 < row["decision_and_host"] < 1
        assert row["floor"]["step_s"] <= row["step_s"]
        assert row["beside"]["plain"]["speed_up"] > 0
        assert row["over_predicted"] is None
    (cached,) = bench(model, ["sequential@dual"], batches=(1,), new=(8,), block_length=8, pairs=1, beside=False)
    assert cached["over_predicted"] > 0 < cached["uncached_step_s"]
    assert "time / predicted" in markdown(DECODE, [cached])
    json.dumps([*rows, cached])


def test_layers_that_compute_a_share_have_no_floor_that_positions_tell() -> None:
    model = pardec.load("tiny-llada", device="cpu", dtype="float32")
    (row,) = bench(model, ["sequential@spa"], batches=(1,), new=(8,), block_length=8, pairs=1, beside=False)
    assert row["floor"] is None
    assert row["over_predicted"] is None
    assert row["step_s"] > 0


def test_a_law_is_drawn_from_and_stands_beside_no_other_loop(model: pardec.Model, cli: Cli, folder: Path) -> None:
    distribution = {"temperature": 1.0, "top_k": 3}
    (row,) = bench(model, ["sequential"], batches=(2,), new=(8,), block_length=8, distribution=distribution, pairs=1)
    assert (row["steps"], row["beside"]) == (8, {})
    size = ("--batch", "1", "--new", "8", "--pairs", "1", "--device", "cpu", "--json")
    code, out, _ = cli("bench", "decode", folder, "-s", "sequential", *size, "--temperature", "0.7", "--top-p", "0.9")
    assert code == 0
    assert {"temperature": 0.7, "top_p": 0.9}.items() <= json.loads(out)["settings"].items()


def test_random_weights_have_the_same_rivals_as_loaded_ones() -> None:
    tied = {"model_type": "llama", "tie_word_embeddings": True, "hidden_size": 16, "num_hidden_layers": 2}
    tied |= {"num_attention_heads": 2, "num_key_value_heads": 1, "intermediate_size": 24, "vocab_size": 40}
    model = build("little", tied, device="cpu", dtype="float32")
    (row,) = bench(model, batches=(2,), contexts=(5,), new=(6,), pairs=1)
    assert row["beside"]["transformers"]["same_rows"] == 1
    assert (row["steps"], row["tokens_fed"]) == (6, 2 * (5 + 5))


def test_vectors_are_timed_without_a_floor() -> None:
    model = build("little-mar", MAR, device="cpu", dtype="float32")
    (row,) = bench(model, ["mar:steps=3"], batches=(2,), pairs=1)
    assert (row["steps"], row["new"], row["floor"], row["beside"]) == (3, 4, None, {})
    assert markdown(DECODE, [row]).count("\n") == 3


def test_pictures_of_codes_are_timed_whole(tmp_path: Path) -> None:
    file = llamagen_files.write(tmp_path, llamagen_files.tensors(), llamagen_files.ARGUMENTS)
    (row,) = bench(pardec.load(file, device="cpu"), ["sjd"], batches=(2,), pairs=1)
    assert (row["new"], row["floor"] is None) == (9, False)
    assert row["steps"] < 9


def test_other_tokens_end_a_benchmark(model: pardec.Model, monkeypatch: pytest.MonkeyPatch) -> None:
    def wrong(*_: Any) -> Any:
        return decode.Rivals({"plain": lambda: torch.zeros((1, 8), dtype=torch.int64)})

    monkeypatch.setattr(decode, "rivals", wrong)
    with pytest.raises(Differs, match="plain gives other tokens in 1 of 1 rows"):
        list(bench(model, ["sequential"], batches=(1,), new=(8,), pairs=1))


class Largest(TorchDispatchMode):
    """Records the size in bytes of the largest tensor that any operation makes; allocators do not affect it.

    Views count for nothing: packed weights lie together in large pieces of memory.
    """

    most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = func(*args, **kwargs or {})
        given = {
            leaf.untyped_storage()._cdata for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)
        }
        found = [leaf.untyped_storage() for leaf in tree_leaves(made) if isinstance(leaf, torch.Tensor)]
        self.most = max([self.most, *(storage.nbytes() for storage in found if storage._cdata not in given)])
        return made


def test_no_tensor_grows_with_all_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chunked_distribution, "CHUNK_BYTES", 1 << 22)
    model = build("wide", WIDE, device="cpu", dtype="float32")
    list(sweep(model, [(1, 8)]))  # the first forward packs the weights
    with Largest() as found:
        less, more = sweep(model, [(1, 32), (2, 64)])
    assert more["logits_bytes"] == 4 * less["logits_bytes"] == 4 * 4 * 32 * 60000
    assert 0.9 * (1 << 22) < found.most <= 1 << 22 < more["logits_bytes"]


def test_models_without_a_canvas_have_no_sweep(llama: pardec.Model) -> None:
    with pytest.raises(ModelError, match="is not a masked model"):
        next(sweep(llama))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_kernel_has_its_definition_timed(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "best", lambda run, device: (run(), 1e-3)[1])
    monkeypatch.setattr(kernels, "bandwidth", lambda device, size: 1e9)
    rows = list(kernels.bench(torch.device("cpu"), dtype))
    names = {row["kernel"] for row in rows}
    assert {"norm", "swiglu", "confidence", "rotary_and_cache", "attention, tree"} <= names
    assert all(row["triton_s"] is None and row["moved_bytes"] > 0 for row in rows)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_versions_in_c_stand_beside_their_definitions(
    in_c: None, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "best", lambda run, device: (run(), 1e-3)[1])
    monkeypatch.setattr(kernels, "bandwidth", lambda device, size: 1e9)
    monkeypatch.setattr(library, "has_tiles", lambda: False)  # with tiles, PyTorch multiplies bfloat16
    rows = list(kernels.bench(torch.device("cpu"), dtype))
    timed = {row["kernel"] for row in rows if row["c_s"] is not None}
    assert timed == {"matmul", "norm", "swiglu", "rotary_and_cache", "attention, bidirectional"}
    near = 1e-3 if dtype == torch.float32 else 0.5  # a unit in the last place of 64 in bfloat16
    assert all(row["furthest"] < near for row in rows if row["c_s"] is not None)
    assert not [row for row in kernels.bench(torch.device("cpu"), torch.float16) if row["c_s"] is not None]


def test_the_command_writes_json_with_machine_versions_and_command(cli: Cli, folder: Path, tmp_path: Path) -> None:
    file = tmp_path / "speed.json"
    size = ("--batch", "1", "--new", "8", "--pairs", "1", "--device", "cpu")
    code, out, _ = cli("bench", "decode", folder, "-s", "sequential@dual", *size, "--json", "-o", file)
    assert code == 0
    made = json.loads(out)
    assert made == json.loads(file.read_text())
    assert made["command"].split()[0] == "pardec"  # what follows is the process's, here the tests'
    assert made["versions"]["torch"] == torch.__version__
    assert made["machine"]["torch_threads"] == "1"
    assert made["rows"][0]["beside"]["plain"]["speed_up"] > 0
    code, out, err = cli("bench", "decode", folder, "-s", "threshold", *size, "--no-beside")
    assert (code, out.splitlines()[0].split(" | ")[:2]) == (0, ["| model", "sampler"])
    assert "ms per step" in err
    code, out, _ = cli("bench", "decode", folder, "--memory", "--device", "cpu", "--json")
    assert [(row["batch"], row["new"]) for row in json.loads(out)["rows"]] == [(1, 127), (2, 127), (4, 127), (8, 127)]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("decode",), "nothing to time"),
        (("decode", "tiny-dream", "--batch", "0"), "--batch takes whole numbers from 1 to"),
        (("decode", "tiny-dream", "--new", "x"), "--new takes whole numbers"),
        (("decode", "tiny-dream", "--context", "4096", "--device", "cpu"), "positions"),
        (("decode", "--shape", "llada-9b"), "did you mean 'llada-8b'"),
    ],
)
def test_misuse_is_told(cli: Cli, arguments: tuple[str, ...], says: str) -> None:
    code, out, err = cli("bench", *arguments)
    assert (code != 0, out) == (True, "")
    assert says in err


def test_whole_steps_transfers_and_replays_are_counted_and_shown() -> None:
    model = pardec.Model(captured(pardec.load("tiny-dream", device="cpu", dtype="float32").language_model))
    call = prepare(model, "threshold:tau=1@dual", 1, 8, 12, 6)
    found = [decode._crossings(model, call) for _ in range(2)]
    assert [each["downloads"] for each in found] == [0, 0]  # a CPU has none
    assert 0 < found[0]["replays"] <= found[1]["replays"] <= 12  # 12 steps, some of which are the first of a shape
    assert decode._whole_steps(model)["replayed"] > 8  # type: ignore[index]
    shown = dict(DECODE)
    ran = {"forwards": {"replayed": 1, "the first of its shape": 1}, "whole_steps": {"replayed": 3, "edit needs": 1}}
    assert shown["CUDA graphs"](ran) == "50% of forwards, 75% of whole steps"
    per_step = {"uploads": 0.5, "blocking_uploads": 0.0, "downloads": 1.0, "replays": 1.0}
    assert shown["per step"]({"per_step": per_step}) == "0.5 uploads, 1 downloads, 1 replays"
    assert shown["per step"]({}) == shown["CUDA graphs"]({}) == ""
