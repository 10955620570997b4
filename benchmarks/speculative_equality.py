"""Greedy tokens of each speculative mode of five engines, compared with the plain greedy tokens of the same engine.

    python benchmarks/speculative_equality.py --model FILE.gguf --prompts QUESTIONS.jsonl [--count 30]
        [--max-new-tokens 64] [--venv FOLDER] [--rows NAME ...] [--modes NAME ...] [--keep] [--run FOLDER]

Prompts are first turns of Spec-Bench, of each kind in turn, in the chat template of FILE (SmolLM2-135M-Instruct in
Q4_1: `scripts/get_smollm2` fetches it). float32 and bfloat16 are the dequantized weights of FILE. OpenVINO computes the
4-bit weights with activations of that type, and a cache of it; llama.cpp has FILE, and FILE as F32, with its usual
cache in float16; vLLM runs without its compiler. Draft models are FILE again with its 4-bit tensors as Q4_0, so that
most drafts are right and some are wrong. Each engine decodes one prompt at a time on one thread, in an environment of
its own, as in benchmarks/cpu_engines.py. The tokens are kept in the folder --run, and the same command continues from
there; --rows chooses engines by a part of their name, and --modes among their modes. The page is
benchmarks/speculative_equality.md; with --keep, lines of the page that is there stay where this run has none.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from cpu_engines import (  # noqa: E402
    EAGLE,
    PLAIN,
    REFERENCE,
    Arm,
    Left,
    Peers,
    chosen,
    chosen_prompts,
    encoded,
    equal,
    processor_features,
    processor_flags,
    table,
    until_end,
    versions,
)

Row = dict[str, Any]
AGAIN = "plain, again"  # plain decoding a second time: if its tokens differ, differing tokens of drafts mean nothing
REPEATED = 2  # prompts of that mode
TYPES = ("float32", "bfloat16")
PARDEC = {
    "prompt lookup": "lookup:k=7", "suffix": "suffix:k=3,least=0.5", "eagle": EAGLE,
    "eagle, tree": f"{EAGLE}+beam:beams=4,nodes=6", "auto(eagle, lookup)": f'auto:model="{EAGLE}",copy="lookup:k=7"',
    "early exit": "earlyexit:layers=15", "jacobi": "jacobi", "lookahead": "lookahead", "recycling": "recycling",
    "copyspec": "copyspec", "seeded jacobi": "seeded_jacobi", "sjd": "sjd", "layerskip": "layerskip",
}  # fmt: skip
PACKED = ("prompt lookup", "suffix", "eagle", "eagle, tree", "auto(eagle, lookup)")
FEW = ("n-gram simple", "n-gram cache")  # modes of llama.cpp that run few prompts: it is slow in float32
NGRAMS = {"n-gram simple": "NGRAM_SIMPLE", "n-gram map": "NGRAM_MAP_K", "n-gram map, 4 values": "NGRAM_MAP_K4V",
          "n-gram mod": "NGRAM_MOD", "n-gram cache": "NGRAM_CACHE"}  # fmt: skip
PRECISE = {  # as it comes, OpenVINO rounds activations and the cache to 8 bits
    name: {"INFERENCE_PRECISION_HINT": kind, "KV_CACHE_PRECISION": kind, "DYNAMIC_QUANTIZATION_GROUP_SIZE": 0}
    for name, kind in {"float32": "f32", "bfloat16": "bf16"}.items()
}
PAGE = """# Greedy tokens with drafts, by engine

Made by `python benchmarks/speculative_equality.py --model {model} --prompts spec_bench.jsonl --count {count}`, whose
docstring says what is compared. {count} first turns of Spec-Bench ({lengths} tokens), {new} new tokens at most, one
thread.

`as plain` counts prompts whose tokens are those of the same engine without drafts. `from drafts` is the share of
decoded tokens that were accepted drafts: a mode that accepts none is not tested by its row. `first other token` is the
place of the first token that differs, the median of the prompts where one does. `as float32` compares plain tokens
with transformers' in float32. The row `{again}` decodes the first prompts a second time. `made` is the day of a row,
with the newest instructions of its processor.

"""


def arms(peers: Peers, model: Path, stop: list[int]) -> list[Arm]:
    """The engines with their modes. An option that is a function returns a file, and writes it where it is missing."""

    def rewritten(kind: str) -> Path:
        return rewrite(model, peers.folder / "models" / f"{model.stem}-{kind}.gguf", kind)

    def weights() -> Path:
        return peers.converted(f"{model.stem}-float32", "transformers", "huggingface", file=str(model))

    def draft() -> Path:
        file = rewritten("Q4_0")
        return peers.converted(f"{file.stem}-float32", "transformers", "huggingface", file=str(file))

    def exported_draft() -> Path:
        file = rewritten("Q4_0")
        return peers.converted(f"{file.stem}-openvino", "openvino", "open_vino", source=str(file))

    draft_file, plain = partial(rewritten, "Q4_0"), {PLAIN: ""}
    found = []
    for kind in TYPES:
        options = {"folder": weights, "dtype": kind, "stop": stop}
        modes = {PLAIN: "", "prompt lookup": "lookup", "draft model": "draft model", "early exit": "early exit"}
        found.append(Arm(f"transformers {kind}", modes, "transformers", "huggingface", {**options, "draft": draft}))
        drafts = {"method": "draft_model", "draft": draft}
        vllm = {PLAIN: {}, "n-gram": {"lookup": True}, "suffix": {"method": "suffix"}, "draft model": drafts}
        for mode, more in vllm.items():
            found.append(
                Arm(f"vLLM for CPU {kind}", {mode: ""}, "vllm", "vllm_cpu", {**options, "eager": True, **more})
            )
    for name, properties in {"": {}, **PRECISE}.items():
        options = {"folder": str(model), "stop": stop, **properties}
        drafts = {"prompt lookup": {"lookup": True}, "draft model": {"draft": exported_draft}}
        for mode, more in {PLAIN: {}, **drafts}.items():
            row = f"OpenVINO GenAI, {name or 'as it comes'}"
            found.append(Arm(row, {mode: ""}, "openvino", "open_vino", {**options, **more}))
    for name, file in {"the file": str(model), "float32": partial(rewritten, "F32")}.items():
        row = f"llama.cpp, {name}"
        found.append(Arm(row, plain, "llama.cpp", "llama_cpp", {"file": file}))
        for mode, kind in NGRAMS.items():
            if name == "float32" and mode not in FEW:
                continue
            found.append(Arm(row, {mode: ""}, "llama.cpp", "llama_cpp", {"file": file, "speculation": kind}))
        options = {"file": file, "speculation": "DRAFT_SIMPLE", "draft": draft_file}
        found.append(Arm(row, {"draft model": ""}, "llama.cpp", "llama_cpp", options))
    for kind in TYPES:
        modes = {PLAIN: "sequential", **PARDEC, "draft model": "model:name={draft}"}
        options = {"file": weights, "dtype": kind, "draft": draft}
        found.append(Arm(f"pardec {kind}", modes, "", "pardec_engine", options))
    for kind in ("int8", "float32"):
        modes = {PLAIN: "sequential", **{mode: PARDEC[mode] for mode in PACKED}}
        options = {"file": str(model), "activations": kind}
        found.append(Arm(f"pardec packed, {kind} activations", modes, "", "pardec_engine", options))
    return found


def rewrite(source: Path, file: Path, kind: str) -> Path:
    """The model with its tensors of 4 bits as Q4_0, or with all of them as F32 or BF16."""
    import gguf

    if file.is_file():
        return file
    types, array = gguf.GGMLQuantizationType, gguf.GGUFValueType.ARRAY
    reader, part = gguf.GGUFReader(source), file.with_suffix(".part")
    writer = gguf.GGUFWriter(part, reader.fields["general.architecture"].contents())
    for name, field in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            of = field.types[-1] if field.types[0] == array else None
            writer.add_key_value(name, field.contents(), field.types[0], of)
    for tensor in reader.tensors:
        values, own = tensor.data, tensor.tensor_type
        if own.name.startswith("Q4") or (kind != "Q4_0" and own != types.F32):
            values, own = gguf.quants.quantize(gguf.quants.dequantize(values, own), types[kind]), types[kind]
        writer.add_tensor(tensor.name, values, raw_dtype=own)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    part.rename(file)
    return file


def decode(arm: Arm, peers: Peers, prompts: dict[int, list[int]], stop: list[int], new: int, rows: Rows) -> None:
    """Decodes the missing rows of an engine's modes, and adds them to the file."""
    missing = [(mode, prompt) for mode, prompt in wanted(arm, list(prompts)) if not rows.has(arm.row, mode, prompt)]
    if not missing:
        return
    worker = None
    try:
        options = {key: str(value()) if callable(value) else value for key, value in arm.options.items()}
        specs = {mode: spec.replace("{draft}", options.get("draft", "")) for mode, spec in arm.modes.items()}
        if arm.script == "pardec_engine":
            options.pop("draft", None)
        print(f"loading {arm.row}: {', '.join(arm.modes)}", flush=True)
        worker = peers.worker(arm.environment, arm.script, f"equality {arm.row} {next(iter(arm.modes))}")
        said = worker.ask("load", **options, threads=peers.threads)["result"]
        before = worker.ask("accepted")["result"]
    except Left as reason:
        for mode in arm.modes:
            rows.add({"engine": arm.row, "mode": mode, "reason": str(reason)})
        if worker:
            worker.stop()
        return
    refused: set[str] = set()
    for mode, prompt in missing:
        if mode in refused:
            continue
        spec = specs[PLAIN if mode == AGAIN else mode]
        try:
            tokens = worker.ask("decode", mode=spec, ids=prompts[prompt], new=new)["result"]
            accepted = worker.ask("accepted")["result"]
        except Left as reason:
            rows.add({"engine": arm.row, "mode": mode, "reason": str(reason)})
            refused.add(mode)
            if worker.process.poll() is not None:
                break
            continue
        row = {"engine": arm.row, "mode": mode, "prompt": prompt, "accepted": accepted - before, "versions": said}
        rows.add({**row, "tokens": until_end(tokens, stop)})
        before = accepted
    worker.stop()


def wanted(arm: Arm, prompts: list[int]) -> Iterator[tuple[str, int]]:
    for mode in arm.modes:
        yield from ((mode, prompt) for prompt in prompts)
        if mode == PLAIN:
            yield from ((AGAIN, prompt) for prompt in prompts[:REPEATED])


class Rows:
    """A file with a line for each prompt and mode of each engine, and for each mode that an engine refuses."""

    def __init__(self, file: Path) -> None:
        self.file = file
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
        self.rows: list[Row] = [json.loads(line) for line in lines]

    def has(self, engine: str, mode: str, prompt: int) -> bool:
        key = (engine, mode, prompt)
        return any((row["engine"], row["mode"], row.get("prompt")) == key for row in self.rows)

    def add(self, row: Row) -> None:
        newest = processor_features(processor_flags()).rpartition(", ")[2]
        row = {**row, "made": f"{datetime.now(UTC).date().isoformat()}, {newest}"}
        self.rows.append(row)
        with self.file.open("a", encoding="utf-8") as out:
            out.write(json.dumps(row) + "\n")
        if "reason" in row:
            print(f"{row['engine']}, {row['mode']}: {row['reason']}", flush=True)

    def lines(self) -> Iterator[list[str]]:
        """Lines of the table."""
        groups: dict[tuple[str, str], dict[int, list[Row]]] = {}
        reasons: dict[tuple[str, str], str] = {}
        made: dict[tuple[str, str], str] = {}
        for row in self.rows:
            key = (row["engine"], row["mode"])
            made[key] = row.get("made", "")
            if "reason" in row:
                reasons[key] = row["reason"]
            else:
                groups.setdefault(key, {})[row["prompt"]] = [row]
        for engine, mode in dict.fromkeys([*groups, *reasons]):
            done = groups.get((engine, mode), {})
            plain, reference = groups.get((engine, PLAIN), {}), groups.get((REFERENCE, PLAIN), {})
            if not done:
                yield [engine, mode, "0", f"not available: {reasons[engine, mode]}", "", "", "", made[engine, mode]]
                continue
            same = equal(done, plain)
            decoded = [row for [row] in done.values()]
            accepted = sum(row["accepted"] for row in decoded) / max(1, sum(len(row["tokens"]) for row in decoded))
            places = [place for prompt, [row] in done.items() if prompt in plain
                      and (place := first_other(row["tokens"], plain[prompt][0]["tokens"])) is not None]  # fmt: skip
            float32 = equal(done, reference)
            yield [
                engine, mode, str(len(done)),
                "" if mode == PLAIN else "no plain tokens" if same is None else f"{same} of {len(done)}",
                "" if mode in (PLAIN, AGAIN) else f"{accepted:.0%}",
                f"{statistics.median(places):.0f}" if places else "",
                "" if float32 is None or mode != PLAIN else f"{float32} of {len(done)}",
                made[engine, mode],
            ]  # fmt: skip


def first_other(tokens: list[int], others: list[int]) -> int | None:
    """The first position, counted from 1, at which two lists of tokens differ; None if they are equal."""
    if tokens == others:
        return None
    pairs = enumerate(zip(tokens, others, strict=False), 1)
    return next((place for place, (one, other) in pairs if one != other), 1 + min(len(tokens), len(others)))


def kept_from(file: Path) -> tuple[list[list[str]], dict[str, str]]:
    """The lines of a page's table, and the versions that it names."""
    text = file.read_text(encoding="utf-8")
    lines = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines() if line.startswith("| ")]
    named = text.rpartition("Versions: ")[2].strip().removesuffix(".")
    return lines[2:], dict(package.rsplit(" ", 1) for package in named.split(", "))


def merged(new: list[list[str]], old: list[list[str]], engines: list[str]) -> list[list[str]]:
    """Lines by the order of `engines`; each of a mode that a run has made again replaces the old one."""
    lines = {(line[0], line[1]): line for line in [*old, *new]}
    return sorted(lines.values(), key=lambda line: engines.index(line[0]) if line[0] in engines else len(engines))


def page(options: argparse.Namespace, prompts: dict[int, list[int]], rows: Rows, engines: list[str]) -> str:
    lengths = sorted(map(len, prompts.values()))
    said = {
        "model": options.model.name, "count": len(prompts), "new": options.max_new_tokens, "again": AGAIN,
        "lengths": f"{lengths[0]} to {lengths[-1]}",
    }  # fmt: skip
    head = ["engine", "mode", "prompts", "as plain", "from drafts", "first other token", "as float32", "made"]
    old, named = kept_from(options.out) if options.keep and options.out.is_file() else ([], {})
    named |= {name: value for row in rows.rows for name, value in row.get("versions", {}).items()}
    lines = merged(list(rows.lines()), old, engines)
    return PAGE.format(**said) + table(head, lines) + f"\nVersions: {versions(named)}.\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, required=True)
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--rows", nargs="+", default=[], help="measure only engines whose name has one of these parts")
    parser.add_argument("--modes", nargs="+", default=[], help="measure only these modes of them")
    parser.add_argument("--keep", action="store_true", help="keep lines of the page that this run does not make")
    parser.add_argument("--venv", type=Path, help="folder that keeps the environments and converted models")
    parser.add_argument("--run", type=Path, default=Path("runs/speculative_equality"), help="folder of results so far")
    parser.add_argument("--out", type=Path, default=HERE / "speculative_equality.md")
    options = parser.parse_args()
    rows = Rows(options.run / "rows.jsonl")
    with contextlib.ExitStack() as stack:
        folder = options.venv or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="equality-")))
        peers = Peers(folder.resolve(), 1)
        chosen_ones = chosen_prompts(options.prompts, options.count)
        ids, stop = encoded(peers, options.model, [text for _, text in chosen_ones])
        prompts = dict(zip([prompt for prompt, _ in chosen_ones], ids, strict=True))
        every = arms(peers, options.model.resolve(), stop)
        engines = list(dict.fromkeys(arm.row for arm in every))
        for arm in every:
            modes = {mode: spec for mode, spec in arm.modes.items() if not options.modes or mode in options.modes}
            if modes and chosen(options, arm.row):
                decode(replace(arm, modes=modes), peers, prompts, stop, options.max_new_tokens, rows)
                options.out.write_text(page(options, prompts, rows, engines), encoding="utf-8")


if __name__ == "__main__":
    main()
