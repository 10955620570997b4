"""Measures a server under load: latency and throughput of many clients against one, and the effect of faulty clients.

python benchmarks/serve.py --out benchmarks/serve
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import psutil
import torch

import pardec
from pardec.environment import processor

SAMPLERS = {
    "tiny-dream": ["threshold:tau=0.8", "threshold:tau=0.7@dual", "confidence", "fixed:steps=16@prefix"],
    "tiny-llama": ["sequential", "lookup", "model:name=tiny-llama-draft,k=3", "eagle:name=tiny-llama-eagle"],
}
BROKEN = [
    b"",
    b"{",
    b"null",
    b"[1]",
    b'{"prompt": 3}',
    b'{"prompt": "x", "max_tokens": -1}',
    b'{"prompt": "x", "max_tokens": 100000}',
    b'{"prompt": "x", "temperature": "hot"}',
    b'{"prompt": "x", "sampler": "nothing"}',
    b'{"prompt": "x", "sampler": "model:name=/etc/passwd"}',
    b'{"prompt": "x", "n": 1000}',
    b'{"prompt": "x", "unknown": 1}',
    b'{"prompt": NaN}',
    b"\xff\xfe",
    b"[" * 3000,
]

PAGE = """# A server under load

`{command}` on {processor}, torch {torch}; the server and its clients share the machine's {cores} cores.
Embedded models, requests of 8 to 48 tokens with samplers, temperatures and seeds of their own, up to {batch} rows
decoded at once.

## {clients} clients at once, and one after the other

Latency is from a request to the end of its answer, as a client sees it. `unequal`: answers other than those of
`generate` alone.

| model | clients | requests | p50 s | p99 s | tokens/s | rows a forward | unequal |
|---|---|---|---|---|---|---|---|
{rows}

Rows of other samplers and temperatures cannot share a forward: their batches take turns. With one sampler for all
({one}) the same clients get

| model | clients | requests | p50 s | p99 s | tokens/s | rows a forward | unequal |
|---|---|---|---|---|---|---|---|
{same}

## Faulty clients

{faults:,} requests to tiny-llama: {left:,} of them closed by the client at a random moment, {broken:,} with a body that
is no request or too large.

| | |
|---|---|
| answers | {statuses} |
| with another body than JSON | {no_json} |
| rows left in batches or queue | {rows_left} |
| tracebacks in the server's log | {tracebacks} |
| open sockets and files before, after | {files_before}, {files_after} |
| memory before, after the first half, after all | {memory} MiB |

The server ran with `ONEDNN_PRIMITIVE_CACHE_CAPACITY=4`: PyTorch's oneDNN else keeps a kernel for each of the last 1,024
shapes of matrices, and memory grows by some 100 MiB until those are there, with faulty clients or without.
"""


@contextmanager
def server(model: str, *options: str, **variables: str) -> Iterator[tuple[str, psutil.Process, Path]]:
    """Starts a server in a separate process; yields its address, the process, and its log."""
    log = Path(f"serve-{model}.log")
    with log.open("w") as file:
        command = [sys.executable, "-m", "pardec", "serve", model, "--port", "0", *options]
        process = subprocess.Popen(command, stderr=file, stdout=file, env={**os.environ, **variables})
        try:
            while not (found := re.search(r"http://[^/]+", log.read_text())):
                if process.poll() is not None:
                    raise RuntimeError(log.read_text())
                time.sleep(0.1)
            while True:
                try:
                    httpx.get(f"{found[0]}/health")
                    break
                except httpx.HTTPError:
                    time.sleep(0.1)
            yield found[0], psutil.Process(process.pid), log
        finally:
            process.terminate()
            process.wait(60)


def requests(model: str, count: int, samplers: list[str], temperatures: tuple[float, ...]) -> list[dict[str, Any]]:
    """Prompts of unequal length, each with its own settings."""
    order = random.Random(0)
    questions = [problem.prompt for problem in pardec.task("arithmetic").problems(n=count)]
    return [
        {
            "prompt": question,
            "max_tokens": order.choice([8, 16, 32, 48]),
            "sampler": order.choice(samplers),
            "temperature": order.choice(temperatures),
            "seed": at,
            "ignore_eos": model == "tiny-llama",
        }
        for at, question in enumerate(questions)
    ]


async def load(url: str, bodies: list[dict[str, Any]], clients: int) -> tuple[list[float], list[dict[str, Any]], float]:
    """Seconds of each request, the answers, and the seconds of all, with `clients` clients at once.

    Where a connection fails, the answer has its error.
    """
    gate, seconds = asyncio.Semaphore(clients), [0.0] * len(bodies)
    answers: list[dict[str, Any]] = [{}] * len(bodies)
    async with httpx.AsyncClient(timeout=3600, limits=httpx.Limits(max_connections=clients)) as client:

        async def one(at: int) -> None:
            async with gate:
                start = time.perf_counter()
                try:
                    answer = await client.post(f"{url}/v1/completions", json=bodies[at])
                    answers[at] = answer.json()
                except httpx.TransportError as error:
                    answers[at] = {"error": {"message": repr(error)}}
                seconds[at] = time.perf_counter() - start

        start = time.perf_counter()
        await asyncio.gather(*(one(at) for at in range(len(bodies))))
        return seconds, answers, time.perf_counter() - start


def measure(model: str, bodies: list[dict[str, Any]], clients: int, batch: int) -> list[dict[str, Any]]:
    """Many clients, then one, against one server."""
    loaded = pardec.load(model, device="cpu")
    expected = [alone(loaded, body) for body in bodies]
    rows = []
    with server(model, "--batch-size", str(batch)) as (url, _, _):
        asyncio.run(load(url, bodies[:8], 4))  # draft models are loaded by the first request that names them
        for count in (clients, 1):
            before = _forwards(url)
            seconds, answers, total = asyncio.run(load(url, bodies, count))
            texts = [answer["choices"][0]["text"] for answer in answers]
            taken = sum(answer["usage"]["forwards"] for answer in answers)
            rows.append(
                {
                    "model": model,
                    "clients": count,
                    "requests": len(bodies),
                    "p50": float(np.percentile(seconds, 50)),
                    "p99": float(np.percentile(seconds, 99)),
                    "tokens_per_second": sum(answer["usage"]["completion_tokens"] for answer in answers) / total,
                    "rows_per_forward": taken / (_forwards(url) - before),
                    "unequal": sum(text != own for text, own in zip(texts, expected, strict=True)),
                }
            )
            print(rows[-1], flush=True)
    return rows


def alone(model: pardec.Model, body: dict[str, Any]) -> str:
    stop_ids = {"stop_ids": []} if body["ignore_eos"] else {}
    names = ("sampler", "temperature", "seed")
    result = model.generate(
        body["prompt"], max_new_tokens=body["max_tokens"], **{name: body[name] for name in names}, **stop_ids
    )
    assert result.text is not None
    return result.text[0]


def _forwards(url: str) -> float:
    found = re.search(r"^pardec_forwards (\S+)", httpx.get(f"{url}/metrics").text, re.MULTILINE)
    assert found is not None
    return float(found[1])


async def _faulty(url: str, count: int) -> dict[str, Any]:
    """`count` requests, 32 at once: a third disconnect early and a fifth are malformed."""
    order, gate = random.Random(1), asyncio.Semaphore(32)
    statuses: dict[str, int] = {}
    result = {"left": 0, "broken": 0, "no_json": 0}
    questions = [problem.prompt for problem in pardec.task("arithmetic").problems(n=50)]
    async with httpx.AsyncClient(timeout=600, limits=httpx.Limits(max_connections=32)) as client:

        async def one(at: int) -> None:
            async with gate:
                broken = order.random() < 0.2
                body: Any = {
                    "prompt": questions[at % 50],
                    "max_tokens": order.choice([1, 8, 64]),
                    "sampler": order.choice(SAMPLERS["tiny-llama"]),
                    "seed": at,
                    "temperature": at % 2,
                    "stream": at % 3 == 0,
                    "ignore_eos": True,
                }
                content = order.choice([*BROKEN, b" " * 5_000_000]) if broken else json.dumps(body).encode()
                task = asyncio.create_task(client.post(f"{url}/v1/completions", content=content))
                result["broken"] += broken
                if leaves := order.random() < 0.33:
                    await asyncio.sleep(order.random() * 0.5)
                    task.cancel()
                try:
                    answer = await task
                except (asyncio.CancelledError, httpx.HTTPError):
                    result["left"] += leaves
                    status = "none"
                else:
                    status = str(answer.status_code)
                    if not answer.headers["content-type"].startswith(("application/json", "text/event-stream")):
                        result["no_json"] += 1
                statuses[status] = statuses.get(status, 0) + 1

        await asyncio.gather(*(one(at) for at in range(count)))
    return {**result, "statuses": statuses}


def faults(count: int) -> dict[str, Any]:
    """A server before and after faulty clients."""
    with server("tiny-llama", ONEDNN_PRIMITIVE_CACHE_CAPACITY="4") as (url, process, log):
        asyncio.run(load(url, requests("tiny-llama", 32, SAMPLERS["tiny-llama"], (0.0, 1.0)), 8))
        sizes, files = [memory(process)], process.num_fds()
        first = asyncio.run(_faulty(url, count // 2))
        sizes.append(memory(process))
        second = asyncio.run(_faulty(url, count - count // 2))
        time.sleep(1)
        health = httpx.get(f"{url}/health").json()
        sizes.append(memory(process))
        statuses = {
            status: first["statuses"].get(status, 0) + second["statuses"].get(status, 0)
            for status in sorted({*first["statuses"], *second["statuses"]})
        }
        result = {name: first[name] + second[name] for name in ("left", "broken", "no_json")}
        return {
            **result,
            "faults": count,
            "statuses": statuses,
            "rows_left": health["live"] + health["waiting"],
            "tracebacks": log.read_text().count("Traceback"),
            "files_before": files,
            "files_after": process.num_fds(),
            "memory": sizes,
        }


def memory(process: psutil.Process) -> float:
    """The resident memory of a process in MiB."""
    return float(process.memory_info().rss / 2**20)


def _line(row: dict[str, Any]) -> str:
    figures = f"{row['p50']:.2f} | {row['p99']:.2f} | {row['tokens_per_second']:.0f} | {row['rows_per_forward']:.1f}"
    return f"| {row['model']} | {row['clients']} | {row['requests']} | {figures} | {row['unequal']} |"


def main() -> None:
    parser = argparse.ArgumentParser(description="Measures a server with many and with faulty clients.")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--requests", type=int, default=128)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--faults", type=int, default=1000)
    parser.add_argument("--out", type=Path, default=Path("serve"), help="path without suffix")
    options = parser.parse_args()
    rows, same = [], []
    one = {"tiny-dream": "threshold:tau=0.8", "tiny-llama": "eagle:name=tiny-llama-eagle"}
    for model, samplers in SAMPLERS.items():
        mixed = requests(model, options.requests, samplers, (0.0, 0.7, 1.0))
        rows += measure(model, mixed, options.clients, options.batch_size)
        equal = requests(model, options.requests, [one[model]], (0.0,))
        same += measure(model, equal, options.clients, options.batch_size)
    faulty = faults(options.faults)
    print(faulty, flush=True)
    document = {"rows": rows, "same": same, "faults": faulty}
    options.out.with_suffix(".json").write_text(json.dumps(document, indent=1) + "\n")
    page = PAGE.format(
        **{**faulty, "statuses": ", ".join(f"{key}: {value}" for key, value in faulty["statuses"].items())}
        | {"memory": ", ".join(f"{value:.0f}" for value in faulty["memory"])},
        command="python benchmarks/serve.py",
        processor=processor(),
        torch=torch.__version__,
        cores=psutil.cpu_count(),
        batch=options.batch_size,
        clients=options.clients,
        rows="\n".join(map(_line, rows)),
        same="\n".join(map(_line, same)),
        one="greedy `threshold:tau=0.8` and `eagle`",
    )
    options.out.with_suffix(".md").write_text(page)


if __name__ == "__main__":
    main()
