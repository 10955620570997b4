"""benchmarks/speculative_equality.py: what is decoded, the lines of its table, and the files of its draft models."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import speculative_equality as program
from cpu_engines import Arm, Left

from tests.test_random_gguf import random_gguf

PROMPTS = {7: [1, 2], 9: [3, 4], 11: [5, 6]}
STOP = [0]


class Process:
    def poll(self) -> None:
        return None


class Worker:
    """An engine that counts up from the prompt; its mode "wrong" goes astray at the second prompt."""

    process = Process()

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.taken = 0

    def ask(self, do: str, **request: Any) -> Any:
        if do == "decode":
            self.asked.append(request["mode"])
            if request["mode"] == "broken":
                raise Left("no drafts here")
            tokens = [request["ids"][-1] + at for at in range(1, 4)] + [0, 99]
            self.taken += 2 * bool(request["mode"])
            if request["mode"] == "wrong" and request["ids"] == [3, 4]:
                tokens[1] += 1
            return {"result": tokens}
        return {"result": self.taken if do == "accepted" else {"engine": "1"}}

    def stop(self) -> None:
        pass


class Peers:
    threads = 1

    def __init__(self) -> None:
        self.started: list[Worker] = []

    def worker(self, *_: str) -> Worker:
        self.started.append(Worker())
        return self.started[-1]


def decoded(folder: Path) -> tuple[program.Rows, Peers]:
    arm = Arm("engine", {"plain": "", "drafts": "right", "others": "wrong", "none": "broken"}, "", "script", {})
    rows, peers = program.Rows(folder / "rows.jsonl"), Peers()
    program.decode(arm, peers, PROMPTS, STOP, 5, rows)  # type: ignore[arg-type]
    return rows, peers


def test_rows_say_which_prompts_have_the_plain_tokens(tmp_path: Path) -> None:
    rows, _ = decoded(tmp_path)
    made = datetime.now(UTC).date().isoformat()
    assert all(line[-1].startswith(f"{made}, ") for line in rows.lines())
    assert [line[:-1] for line in rows.lines()] == [
        ["engine", "plain", "3", "", "", "", ""],
        ["engine", "plain, again", "2", "2 of 2", "", "", ""],
        ["engine", "drafts", "3", "3 of 3", "67%", "", ""],
        ["engine", "others", "3", "2 of 3", "67%", "2", ""],
        ["engine", "none", "0", "not available: no drafts here", "", "", ""],
    ]


def test_a_second_run_decodes_only_what_is_missing(tmp_path: Path) -> None:
    decoded(tmp_path)
    rows, peers = decoded(tmp_path)
    assert [worker.asked for worker in peers.started] == [["broken"]]
    assert len(list(rows.lines())) == 5


def test_kept_lines_stay_where_a_run_has_none(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    old = [["one", "plain", "30", "", "", "", "", "day 1"], ["two", "plain", "30", "", "", "", "", "day 1"]]
    page.write_text(program.table(["engine", "mode", *"abcdef"], old) + "\nVersions: one 1.0, two 2.0+cpu.\n")
    lines, named = program.kept_from(page)
    assert lines == old
    assert named == {"one": "1.0", "two": "2.0+cpu"}
    new = [["two", "plain", "3", "", "", "", "", "day 2"], ["one", "drafts", "3", "3 of 3", "5%", "", "", "day 2"]]
    assert program.merged(new, lines, ["two", "one"]) == [new[0], old[0], new[1]]


def test_first_other_token_of_texts_that_end_early() -> None:
    assert program.first_other([1, 2], [1, 2]) is None
    assert program.first_other([1, 2], [1, 3]) == 2
    assert program.first_other([1, 2], [1, 2, 3]) == 3


def test_draft_models_are_the_file_with_its_4_bit_tensors_rounded_again(tmp_path: Path) -> None:
    source = tmp_path / "source.gguf"
    random_gguf.write(source, random_gguf.SHAPES["tiny"], "Q4_1")
    before = {tensor.name: tensor for tensor in gguf.GGUFReader(source).tensors}
    for kind in ("Q4_0", "F32"):
        reader = gguf.GGUFReader(program.rewrite(source, tmp_path / f"{kind}.gguf", kind))
        after = {tensor.name: tensor for tensor in reader.tensors}
        assert before.keys() == after.keys()
        assert reader.fields.keys() == gguf.GGUFReader(source).fields.keys()
        for name, tensor in after.items():
            old = gguf.quants.dequantize(before[name].data, before[name].tensor_type)
            new = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
            rounded = kind == "Q4_0" and before[name].tensor_type.name == "Q4_1"
            assert tensor.tensor_type.name == (kind if rounded or kind == "F32" else before[name].tensor_type.name)
            assert np.abs(new - old).max() <= (0.2 * np.abs(old).max() if rounded else 0.0)
            assert bool((new != old).any()) == rounded
