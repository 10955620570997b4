"""Long runs: a server's memory and latency, a comparison that is killed again and again, long texts, several processes.

    python benchmarks/endurance.py [--only soak|resume|long|processes] [--requests 10000] [--rows 50000] [--kills 20]

- soak: requests of unequal length with six samplers, 16 at once, against a server of tiny-llama and one of tiny-dream;
  after every thousand, the server's memory and processor time, and the latencies. One answer in fifty is compared with
  `generate` alone. --models names one of the two; what the file says of the other stays.
- resume: `pardec compare` over many rows is killed (SIGKILL) at random moments and resumed with `--resume`; then its
  rows are counted, and compared with those of a run that nothing disturbed, over the first fifth of the problems, a
  thousand at most.
- long: tiny-llama's weights with room for 32,768 positions decode to the end: seconds per thousand tokens, and memory.
  --samplers names some of them; what the file says of the others stays.
- processes: the same prompts by one process, by two that split the layers (`tp=2`), and by two that share the rows
  (`--executor torchrun`); with `--ray PYTHON`, an interpreter that has ray, by its workers too: rows that are equal.

The results are benchmarks/endurance.json and endurance.md.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

import pardec
from pardec.environment import processor
from pardec.models.files.catalog import EMBEDDED

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from serve import alone, load, memory, requests, server  # noqa: E402

SAMPLERS = {
    "tiny-llama": ["sequential", "lookup", "suffix", "eagle:name=tiny-llama-eagle"],
    "tiny-dream": ["threshold:tau=0.8", "threshold:tau=0.7@dual"],
}
COMPARED = ("sequential", "lookup", "jacobi", "copyspec", "suffix")
LONG = ("sequential", "lookup", "sequential@streaming", "sequential@int8")

Row = dict[str, Any]


def soak(model: str, count: int) -> Iterator[Row]:
    """Memory and latencies so far, after every thousand requests."""
    bodies = requests(model, count, SAMPLERS[model], (0.0, 0.0, 1.0))
    for body in bodies:
        body["max_tokens"] = body["max_tokens"] // 2
    loaded = pardec.load(model, device="cpu")
    result: Row = {"model": model, "requests": 0, "parts": [], "compared": 0, "unequal": 0, "failed": 0}
    spent = 0.0
    with server(model, "--batch-size", "16", "--timeout", "3600") as (url, process, log):
        for start in range(0, count, 1000):
            part = bodies[start : start + 1000]
            seconds, answers, total = asyncio.run(load(url, part, 16))
            failed = [answer for answer in answers if "choices" not in answer]
            result["failed"] += len(failed)
            for answer in failed[:5]:
                print(answer, flush=True)
            for body, answer in list(zip(part, answers, strict=True))[::50]:
                result["compared"] += 1
                result["unequal"] += "choices" not in answer or answer["choices"][0]["text"] != alone(loaded, body)
            figures = {"p50": float(np.percentile(seconds, 50)), "p99": float(np.percentile(seconds, 99))}
            used = process.cpu_times()
            figures["cpu"], spent = used.user + used.system - spent, used.user + used.system
            result["requests"] += len(part)
            result["parts"].append({"memory": memory(process), "files": process.num_fds(), "seconds": total, **figures})
            print(model, result["requests"], result["parts"][-1], flush=True)
            result["tracebacks"] = log.read_text().count("Traceback")
            yield result


def resume(rows: int, kills: int) -> Row:
    """A comparison that is killed and resumed, beside one that is not."""
    draw, problems = random.Random(0), rows // len(COMPARED)
    samplers = [word for name in COMPARED for word in ("-s", name)]

    def command(out: Path, limit: int) -> list[str]:
        asked = ["--task", "arithmetic", "--limit", str(limit), "--batch-size", "64", "--no-references", "--quiet"]
        return [sys.executable, "-m", "pardec", "compare", "tiny-llama", *asked, *samplers, "--out", str(out)]

    with tempfile.TemporaryDirectory() as folder:
        run, undisturbed = Path(folder) / "run", Path(folder) / "undisturbed"
        file = run / "rows.jsonl"
        done = killed = 0
        started = time.perf_counter()
        while True:
            again = ["--resume"] if run.exists() else []
            process = subprocess.Popen([*command(run, problems), *again])
            wanted = done + draw.randrange(1, 2 * max(1, rows // (kills + 1)))
            while killed < kills and process.poll() is None and done < wanted:
                time.sleep(draw.random())
                done = file.read_bytes().count(b"\n") if file.exists() else 0
            if killed < kills and process.poll() is None:
                process.send_signal(signal.SIGKILL)
                process.wait()
                killed += 1
                print(f"killed {killed} times, {done} rows", flush=True)
                continue
            if process.wait():
                raise SystemExit(f"the comparison ended with {process.returncode}")
            break
        seconds = time.perf_counter() - started
        subprocess.run(command(undisturbed, min(problems // 5, 1000)), check=True)
        found, kept = _rows(file), _rows(undisturbed / "rows.jsonl")
        answers = dict(found)
        return {
            "rows": rows, "kills": killed, "seconds": seconds, "lines": len(found),
            "keys": len(answers), "compared": len(kept),
            "unequal": sum(answers.get(key) != row for key, row in kept),
        }  # fmt: skip


def _rows(file: Path) -> list[tuple[str, str]]:
    """The key and the answer of every row of a run."""
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    return [(str(row["key"]), json.dumps(row.get("answer", row.get("tokens")))) for row in rows]


def long(samplers: list[str], positions: int = 32_768) -> Iterator[Row]:
    """A long text by each sampler, in a process of its own."""
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder)
        for file in (EMBEDDED / "tiny-llama").iterdir():
            if file.suffix in (".json", ".safetensors"):
                (copy / file.name).write_bytes(file.read_bytes())
        config = json.loads((copy / "config.json").read_text())
        (copy / "config.json").write_text(json.dumps({**config, "max_position_embeddings": positions}))
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(1, mp_context=spawn, max_tasks_per_child=1) as pool:
            for row in pool.map(partial(one_long, folder, positions=positions), samplers):
                print(row, flush=True)
                yield row


def one_long(folder: str, spec: str, positions: int) -> Row:
    """Seconds per thousand tokens up to the end of a long text, and how much memory its decoding took."""
    model, own = pardec.load(folder, device="cpu", attention="causal"), psutil.Process()
    text = pardec.task("arithmetic").problems(n=1)[0].prompt
    prompt = model.generate(text, sampler=spec, max_new_tokens=64, stop_ids=[]).prompts[0]
    loaded, began, marks, resident, count = memory(own), time.process_time(), [], [], 0
    for event in model.stream(text, sampler=spec, max_new_tokens=positions - prompt, stop_ids=[]):
        count += int(event.committed.sum()) if isinstance(event, pardec.Step) else 0
        while len(marks) < count // 1000:
            marks.append(time.process_time() - began)
            resident.append(memory(own) - loaded)
    each = np.diff([0.0, *marks])
    return {
        "spec": spec, "tokens": count, "first": float(each[0]), "middle": float(each[len(each) // 2]),
        "last": float(each[-1]), "seconds": marks[-1],
        "memory": [resident[0], resident[len(resident) // 2], resident[-1]],
    }  # fmt: skip


def processes(ray: Path | None) -> Row:
    """The rows decoded by one process, and how many of them several processes reproduce."""
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        prompts = home / "prompts.jsonl"
        texts = [problem.prompt for problem in pardec.task("arithmetic").problems(n=200)]
        prompts.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts), encoding="utf-8")
        two = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"]
        asked = ["pardec", "generate", "tiny-llama", "-s", "lookup", "--prompts", str(prompts), "--batch-size", "16"]
        ways = {
            "one process": [sys.executable, "-m", *asked],
            "two processes that share the rows": [*two, *asked, "--executor", "torchrun"],
            "two processes that split each layer": [*two, *asked, "--tp"],
        }
        if ray is not None:
            workers = ["--executor", "ray", "--workers", "2"]
            ways["two Ray workers that share the rows"] = [str(ray), "-m", *asked, *workers]
        found = {}
        for name, command in ways.items():
            out = home / f"{len(found)}.jsonl"
            if "--tp" in command:  # which prints one document
                done = subprocess.run([*command, "--json"], check=True, cwd=HERE.parent, stdout=subprocess.PIPE)
                rows = json.loads(done.stdout)["rows"]
            else:
                subprocess.run([*command, "-o", str(out)], check=True, cwd=HERE.parent)
                rows = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
            found[name] = {"rows": len(rows), "texts": {row["prompt"]: row["text"] for row in rows}}
            print(name, len(rows), flush=True)
        first = found["one process"]["texts"]
        for row in found.values():
            own = row.pop("texts")
            row["equal"] = sum(own.get(key) == text for key, text in first.items())
        return found


def page(data: Row) -> str:
    lines = [
        "# Long runs", "",
        "Made by `python benchmarks/endurance.py`, each part when and where it says.", "",
    ]  # fmt: skip
    made, notes = data["made"], {name: [text, ""] for name, text in data.get("notes", {}).items()}
    if parts := data.get("soak"):
        lines += [
            "## A server under many requests", "",
            f"{made['soak']}. 16 clients at once, requests of 4 to 24 tokens, sampled and greedy, a server per model.",
            "`growth`: memory after the last request over that after half of them.", "",
            "| model | requests | failed | compared with `generate` | unequal | MiB after 1,000 | half | all | growth "
            "| p99 s, first 1,000 | last 1,000 | open files, first and last |",
            "|---|---|---|---|---|---|---|---|---|---|---|---|",
        ]  # fmt: skip
        for row in parts:
            each, half = row["parts"], row["parts"][len(row["parts"]) // 2 - 1]
            growth = each[-1]["memory"] / half["memory"] - 1
            lines.append(
                f"| {row['model']} | {row['requests']:,} | {row['failed']} | {row['compared']} | {row['unequal']} | "
                f"{each[0]['memory']:.0f} | {half['memory']:.0f} | {each[-1]['memory']:.0f} | {growth:+.1%} | "
                f"{each[0]['p99']:.2f} | {each[-1]['p99']:.2f} | {each[0]['files']}, {each[-1]['files']} |"
            )
        lines += [
            "", "Each thousand. Clients, server and other work share a processor, so that latencies follow the load;",
            "`server s`, the processor time of the server, does not.", "",
            "| model | requests | MiB | server s | p50 s | p99 s |", "|---|---|---|---|---|---|",
        ]  # fmt: skip
        lines += [
            f"| {row['model']} | {1000 * number:,} | {part['memory']:.0f} | {part['cpu']:.1f} | {part['p50']:.2f} | "
            f"{part['p99']:.2f} |"
            for row in parts
            for number, part in enumerate(row["parts"], 1)
        ]
        lines += ["", *notes.get("soak", ())]
    if row := data.get("resume"):
        lines += [
            "## A comparison that is killed", "",
            f"{made['resume']}, `--only resume --rows {row['rows']} --kills {row['kills']}`.",
            f"`pardec compare tiny-llama --task arithmetic` with {len(COMPARED)} samplers: {row['rows']:,} rows,",
            f"killed {row['kills']} times by SIGKILL and resumed. The file then had {row['lines']:,} lines with",
            f"{row['keys']:,} keys; of {row['compared']:,} rows that an undisturbed run gave as well,",
            f"{row['unequal']} were others. {row['seconds'] / 60:.0f} minutes.", "", *notes.get("resume", ()),
        ]  # fmt: skip
    if rows := data.get("long"):
        lines += [
            "## A text of 32,768 positions", "",
            f"{made['long']}.",
            "tiny-llama's weights, with room for this many positions; processor seconds of a thousand tokens, and MiB",
            "that the process has gained since before the text, after the first thousand, half, and all.", "",
            "| sampler | tokens | first 1,000 | in the middle | last 1,000 | all | MiB, first 1,000 | half | all |",
            "|---|---|---|---|---|---|---|---|---|",
        ]  # fmt: skip
        lines += [
            f"| `{row['spec']}` | {row['tokens']:,} | {row['first']:.1f} | {row['middle']:.1f} | {row['last']:.1f} | "
            f"{row['seconds']:.0f} | {' | '.join(f'{value:.0f}' for value in row['memory'])} |"
            for row in rows
        ]
        lines += ["", *notes.get("long", ())]
    if rows := data.get("processes"):
        lines += [
            "## Several processes", "",
            f"{made['processes']}.",
            "`pardec generate tiny-llama -s lookup` over 200 prompts; rows with the text of one process.", "",
            "| | rows | equal |", "|---|---|---|",
        ]  # fmt: skip
        lines += [f"| {name} | {row['rows']} | {row['equal']} |" for name, row in rows.items()]
        lines.append("")
    lines += ["Rows of batches of 1 to 64, beside the same rows alone: [rounding](numerics.md#rows-of-a-batch).", ""]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", choices=("soak", "resume", "long", "processes"))
    parser.add_argument("--models", nargs="+", choices=SAMPLERS, default=list(SAMPLERS), help="models of the soak")
    parser.add_argument("--samplers", nargs="+", choices=LONG, default=list(LONG), help="samplers of the long text")
    parser.add_argument("--requests", type=int, default=10_000)
    parser.add_argument("--rows", type=int, default=50_000)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--ray", type=Path)
    given = parser.parse_args()
    file = HERE / "endurance.json"
    if given.only in (None, "soak"):
        for model in given.models:
            for row in soak(model, given.requests):
                write_row(file, "soak", "model", row, SAMPLERS)
    if given.only in (None, "resume"):
        write(file, {"resume": resume(given.rows, given.kills)})
    if given.only in (None, "long"):
        for row in long(given.samplers):
            write_row(file, "long", "spec", row, LONG)
    if given.only in (None, "processes"):
        write(file, {"processes": processes(given.ray)})


def written(file: Path) -> Row:
    data: Row = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    return data


def write_row(file: Path, part: str, key: str, row: Row, order: Iterable[str]) -> None:
    """Replaces the row of a part that has the same `key`, and keeps the others."""
    rows = {**{each[key]: each for each in written(file).get(part, ())}, row[key]: row}
    write(file, {part: [rows[name] for name in order if name in rows]})


def write(file: Path, part: Row) -> None:
    """Replaces one part of the results, and writes the page again."""
    now = f"{processor()}, torch {torch.__version__}; {datetime.now(UTC).date().isoformat()}"
    data = written(file)
    notes = {name: text for name, text in data.get("notes", {}).items() if name not in part}  # notes of kept runs
    data |= {**part, "made": data.get("made", {}) | dict.fromkeys(part, now), "notes": notes}
    file.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    file.with_suffix(".md").write_text(page(data), encoding="utf-8")


if __name__ == "__main__":
    main()
