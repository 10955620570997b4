"""Logits of one model as a GGUF file of each type, by each engine that reads it: KL per token, and greedy agreement.

    python benchmarks/gguf_types.py --model FILE.gguf --prompts spec_bench.jsonl [--count 6] [--new 32]
        [--venv ENVIRONMENTS] [--types Q4_0 Q4_K_M ...]

llama.cpp's own quantizer writes the files, from the float32 weights of FILE: rows whose length is no multiple of 256
get another type than the name of the file says, and the page lists what each file holds. The reference is
transformers in float32 on weights that the package gguf dequantizes from the same file; where transformers refuses the
file, it is pardec with plain float32 weights. The text is the greedy answers of FILE. The page is
benchmarks/gguf_types.md; llama-cpp-python and transformers are installed in environments of their own.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

from torch import Tensor

import pardec
from pardec.models.errors import PardecError

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from cpu_engines import ENVIRONMENTS, Left, Peers, processor_features, processor_flags  # noqa: E402
from packed_error import answers, by_worker, compared, log_probabilities  # noqa: E402

FILE_TYPES = {
    "F16": 1, "BF16": 32, "Q8_0": 7, "Q4_0": 2, "Q4_1": 3, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10, "Q3_K_M": 12, "Q4_K_M": 15,
    "Q5_K_M": 17, "Q6_K": 18, "IQ4_NL": 25, "IQ4_XS": 30, "TQ2_0": 37, "MXFP4_MOE": 38,
}  # fmt: skip
PARDEC = {
    "pardec, plain float32 weights": {"packed": False},
    "pardec, packed weights": {"packed": True},
    "pardec, packed weights, int8 activations": {"packed": True, "activations": "int8"},
}
PAGE = """# A model as a GGUF file of each type

Made by `python benchmarks/gguf_types.py --model SmolLM2-135M-Instruct.Q4_1.gguf --prompts spec_bench.jsonl`, whose
docstring says how the files are made. {prompts} answers of SmolLM2-135M to first turns of Spec-Bench, {tokens} tokens.
KL is that of an engine's predictions from those of the reference, in nats per token; the share is that of tokens with
the same likeliest token. {processor}, {versions}; {date}.

| file | tensors | engine | KL per token | same likeliest token |
|---|---|---|---|---|
"""


def written(python: Path, source: Path, kind: str, folder: Path) -> Path:
    """The model as a file of this type, by llama.cpp's quantizer."""
    plain, file = folder / "plain.gguf", folder / f"{kind}.gguf"
    if not plain.is_file():
        _quantize(python, source, plain, 0)
    _quantize(python, plain, file, FILE_TYPES[kind])
    return file


def _quantize(python: Path, source: Path, file: Path, kind: int) -> None:
    program = [python, "-P", HERE / "cpu_workers" / "llama_cpp_quantize.py", source, file, str(kind)]
    ran = subprocess.run(program, capture_output=True, text=True, check=False)
    if ran.returncode:
        raise Left(f"llama.cpp cannot write it: {(ran.stderr.strip().splitlines() or ['no output'])[-1][:200]}")


def tensors(file: Path) -> str:
    """How many tensors of each type the file has."""
    from gguf import GGUFReader

    count = Counter(tensor.tensor_type.name for tensor in GGUFReader(file).tensors)
    return ", ".join(f"{number} {name}" for name, number in count.most_common())


def rows_of(file: Path, texts: list[tuple[list[int], int]], peers: Peers) -> list[tuple[str, str, str]]:
    """Engine, KL and share, or the reason why an engine does not run the file."""
    found: dict[str, Tensor | str] = {}
    for name, environment, worker in (
        ("transformers float32", "transformers", "huggingface_logits"),
        ("llama.cpp", "logits", "llama_cpp_logits"),
    ):
        try:
            found[name] = by_worker(worker, peers.python(environment), file, texts)
        except (Left, RuntimeError) as reason:
            found[name] = f"refuses: {reason}"
    for name, given in PARDEC.items():
        try:
            found[name] = log_probabilities(pardec.load(str(file), device="cpu", dtype="float32", **given), texts)
        except PardecError as error:
            found[name] = f"refuses: {str(error).splitlines()[0]}"
    first = found["transformers float32"]
    reference = found["pardec, plain float32 weights"] if isinstance(first, str) else first
    rows = []
    for name, each in found.items():
        if isinstance(each, str):
            rows.append((name, each, ""))
        elif each is reference:
            rows.append((name, "the reference", ""))
        else:
            assert isinstance(reference, Tensor)
            divergence, same = compared(reference, each)
            rows.append((name, f"{max(divergence, 0.0):.5f}", f"{same:.1%}"))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--count", type=int, default=6)
    parser.add_argument("--new", type=int, default=32)
    parser.add_argument("--venv", type=Path, default=HERE.parent / "build" / "cpu_engines")
    parser.add_argument("--types", nargs="+", choices=FILE_TYPES, default=list(FILE_TYPES))
    given = parser.parse_args()
    every = [json.loads(line)["turns"][0] for line in given.prompts.read_text(encoding="utf-8").splitlines()]
    prompts = every[:: max(1, len(every) // given.count)][: given.count]
    texts = answers(pardec.load(str(given.model), device="cpu", dtype="float32"), prompts, given.new)
    peers = Peers(given.venv, 1)
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        for kind in given.types:
            try:
                file = written(peers.python("logits"), given.model, kind, Path(folder))
            except Left as reason:
                lines.append(f"| {kind} | | llama.cpp's quantizer | refuses: {reason} | |")
                continue
            for at, (name, divergence, same) in enumerate(rows_of(file, texts, peers)):
                shown = (kind, tensors(file)) if at == 0 else ("", "")
                lines.append(f"| {shown[0]} | {shown[1]} | {name} | {divergence} | {same} |")
                print(lines[-1], flush=True)
            file.unlink()
    packages = [*ENVIRONMENTS["logits"], *ENVIRONMENTS["transformers"]]
    page = PAGE.format(
        prompts=len(texts),
        tokens=sum(len(ids) - start for ids, start in texts),
        processor=f"A processor with {processor_features(processor_flags())}",
        versions=", ".join(name.replace("==", " ") for name in packages if "==" in name),
        date=datetime.now(UTC).date().isoformat(),
    )
    (HERE / "gguf_types.md").write_text(page + "\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
