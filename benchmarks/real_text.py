"""Compares drafters with transformers' own decoding, on a real language model and real prompts.

    python benchmarks/real_text.py --model FILE.gguf --prompts QUESTIONS.jsonl [--count 10] [--timed 2]
        [--max-new-tokens 64] [--checked-tokens N] [--specs SPEC ...] [--beside NAME ...] [--runs NAME ...]
        [--assistant NAME] [--run FOLDER] [--only check|timed|forwards|report] [--out NAME]

The prompts are lines of JSON with `question_id`, `category` and `turns`, as in Spec-Bench's question file; the first
turn of each is asked, as a user's turn in the chat template. Their categories make six kinds, of which `--count`
prompts each are decoded greedily by every exact drafter, in batches of 8, and compared with transformers' greedy
tokens ("equal"). The first `--timed` of each kind are also decoded one by one by all arms in turn (every prompt begins
with the next arm), each in all of `--runs`: float32 with kernels in C, float32 with PyTorch's, and bfloat16. An arm is
compared with transformers over the prompts that it has done, whose number is given. "Over sequential" compares all
tokens and all seconds; "Spec-Bench's speedup" compares, as its script does, the mean of the prompts' tokens per second,
in which a prompt of few tokens counts as much as one of many. Seconds are process time on one thread, the prompt's
forward included, which other load on the machine changes little; a last column has wall time. Results are kept in
FOLDER, and the same command continues from there; `--only` does a part of it.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
import transformers

import pardec
from pardec.environment import processor
from pardec.models.draft_modules.load import KINDS as KINDS_OF_MODULES
from pardec.models.files.weights import inspect, read, weight_files
from pardec.samplers import registry
from pardec.training.texts import chat_ids

HERE = Path(__file__).resolve().parent
KINDS = {"translation": "translation", "summarization": "summarization", "qa": "questions"}
KINDS |= {"math_reasoning": "mathematics", "rag": "retrieval"}  # all other categories are of conversations
RUNS = {"float32, C": ("float32", "auto"), "float32": ("float32", "reference"), "bfloat16": ("bfloat16", "auto")}
PLAIN, LOOKUP, ASSISTED = "transformers", "transformers, prompt lookup", "transformers, assisted"
OTHERS = {"model", "zipar", "auto", *KINDS_OF_MODULES}  # they need a model or module that is named, or an image
BATCH = 8
POSITIONS, REPEATS = (1, 8, 32, 128), 15
Row = dict[str, Any]


@dataclass(frozen=True)
class Prompt:
    id: int
    kind: str
    text: str


def read_prompts(file: Path, count: int) -> list[Prompt]:
    """The first `count` prompts of each kind; conversations are taken evenly from all categories."""
    groups: dict[str, dict[str, list[Prompt]]] = {}
    for line in file.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        kind = KINDS.get(entry["category"], "conversation")
        prompt = Prompt(entry["question_id"], kind, entry["turns"][0])
        groups.setdefault(kind, {}).setdefault(entry["category"], []).append(prompt)
    chosen: list[Prompt] = []
    for categories in groups.values():
        longest = max(map(len, categories.values()))
        across = [group[i] for i in range(longest) for group in categories.values() if i < len(group)]
        chosen += across[:count]
    return chosen


def specs() -> list[str]:
    """Every drafter that is exact where decoding is greedy, and a longer lookup."""
    names = [card.name for card in registry.cards() if card.stage == "draft" and card.exact != "relaxed"]
    return ["sequential", "lookup:k=7", *sorted({*names} - {"sequential"} - OTHERS)]


class Decoders:
    """pardec's model and transformers' of the same files, in one dtype, loaded when they are first used."""

    def __init__(self, options: argparse.Namespace, run: str) -> None:
        self.dtype, self.kernels = RUNS[run]
        os.environ["PARDEC_KERNELS"] = self.kernels
        self.options = options
        self.model = pardec.load(options.model, device="cpu", dtype=self.dtype)

    @cached_property
    def network(self) -> Any:
        return self._published(self.model.network.path)

    @cached_property
    def assistant(self) -> Any:
        return self._published(pardec.load(self.options.assistant, device="cpu").network.path)

    def _published(self, folder: Path) -> Any:
        """The model in transformers; of a GGUF file, with its dequantized weights under the published names."""
        kind, state = getattr(torch, self.dtype), {}
        if (files := weight_files(folder))[0].suffix != ".gguf":
            return transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=kind).eval()
        read(inspect(files), lambda name, tensor: state.__setitem__(name, tensor.to(kind)))
        network = transformers.AutoModelForCausalLM.from_config(
            transformers.AutoConfig.from_pretrained(folder), dtype=kind
        )
        missing = network.load_state_dict(state, strict=False)
        tied = {"lm_head.weight"} if network.config.tie_word_embeddings else set()
        assert not missing.unexpected_keys, missing
        assert set(missing.missing_keys) <= tied, missing
        network.generation_config = transformers.GenerationConfig.from_pretrained(folder)
        return network.eval()

    def decode(self, arm: str, prompts: list[list[int]], new: int) -> tuple[list[list[int]], Row]:
        """The tokens of each prompt, up to and including the first end token, and counts."""
        os.environ["PARDEC_KERNELS"] = self.kernels
        if not arm.startswith(PLAIN):
            result = self.model.generate(input_ids=prompts, sampler=arm, max_new_tokens=new)
            gained = [count for row in result.trace.gained for count in row[1:] if count]
            figures = {"nfe": sum(result.nfe), "drafter": sum(result.draft_forwards)}
            return result.tokens, {**figures, "gained": sum(gained), "rounds": len(gained)}
        more: Row = {"prompt_lookup_num_tokens": 10} if arm == LOOKUP else {}
        if arm == ASSISTED:
            third = {"assistant_early_exit": max(1, self.network.config.num_hidden_layers // 3)}
            more = third if self.options.assistant is None else {"assistant_model": self.assistant}
        rows = []
        for ids in prompts:
            inputs = torch.tensor([ids])
            with torch.inference_mode():
                output = self.network.generate(
                    inputs, attention_mask=torch.ones_like(inputs), max_new_tokens=new, do_sample=False, **more
                )
            rows.append(output[0, len(ids) :].tolist())
        return rows, {}

    @torch.inference_mode()
    def gap(self, ids: list[int], expected: list[int], tokens: list[int]) -> float:
        """The difference of transformers' logits of the two tokens at which two answers first differ."""
        same = next((i for i, pair in enumerate(zip(expected, tokens, strict=False)) if pair[0] != pair[1]), None)
        if same is None:
            return float("inf")
        logits = self.network(torch.tensor([ids + expected[:same]])).logits[0, -1].float()
        return float(logits[expected[same]] - logits[tokens[same]])


class Store:
    """The finished rows of a run, in a file of JSON lines."""

    def __init__(self, file: Path, settings: Row) -> None:
        self.file, self.rows = file, []
        lines = file.read_text().splitlines() if file.is_file() else []
        if lines and json.loads(lines[0]) != settings:
            sys.exit(f"{file} was written with other settings: {lines[0]}")
        if lines:
            self.rows = [json.loads(line) for line in lines[1:]]
        else:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(settings) + "\n")

    def find(self, **key: Any) -> Row | None:
        return next((row for row in self.rows if all(row[name] == value for name, value in key.items())), None)

    def add(self, row: Row) -> None:
        self.rows.append(row)
        with self.file.open("a") as out:
            out.write(json.dumps(row) + "\n")


def check(decoders: Decoders, prompts: list[Prompt], options: argparse.Namespace, store: Store) -> None:
    """Decodes all prompts by transformers, one by one, and with every drafter in batches; short ones first."""
    ids = {prompt.id: chat_ids(decoders.model, prompt.text) for prompt in prompts}
    ordered = sorted(prompts, key=lambda prompt: len(ids[prompt.id]))  # rows of a batch are of about one length
    for start in range(0, len(ordered), BATCH):
        for arm in [PLAIN, *options.specs]:
            left = [prompt for prompt in ordered[start : start + BATCH] if store.find(arm=arm, id=prompt.id) is None]
            if not left:
                continue
            answers, _ = decoders.decode(arm, [ids[prompt.id] for prompt in left], options.checked_tokens)
            for prompt, tokens in zip(left, answers, strict=True):
                store.add({"arm": arm, "id": prompt.id, "kind": prompt.kind, "tokens": tokens})
        print(f"{min(start + BATCH, len(ordered))} of {len(ordered)} prompts compared", flush=True)
    for row in [row for row in store.rows if "gap" not in row]:
        expected = store.find(arm=PLAIN, id=row["id"])
        gap_row = store.find(arm=f"gap of {row['arm']}", id=row["id"])
        if expected and expected["tokens"] != row["tokens"] and gap_row is None:
            gap = decoders.gap(ids[row["id"]], expected["tokens"], row["tokens"])
            store.add({"arm": f"gap of {row['arm']}", "id": row["id"], "gap": gap})


def timed(prompts: list[Prompt], beside: set[int], options: argparse.Namespace, store: Store) -> None:
    """Decodes each prompt alone with every arm of every run, alternately; `beside` by transformers, too."""
    decoders = {run: Decoders(options, run) for run in options.runs}
    arms = [PLAIN, *options.beside, *options.specs]
    warm = set()
    for number, prompt in enumerate(prompts):
        ids = chat_ids(next(iter(decoders.values())).model, prompt.text)
        for arm in (arms[number % len(arms) :] + arms)[: len(arms)]:
            for run, decoder in decoders.items():
                if store.find(run=run, arm=arm, id=prompt.id) is not None:
                    continue
                if arm.startswith(PLAIN) and prompt.id not in beside:
                    continue
                if (run, arm) not in warm:
                    decoder.decode(arm, [ids[-16:]], 4)
                    warm.add((run, arm))
                process, clock = time.process_time(), time.perf_counter()
                [tokens], figures = decoder.decode(arm, [ids], options.max_new_tokens)
                duration = {"process_s": time.process_time() - process, "clock_s": time.perf_counter() - clock}
                head = {"run": run, "arm": arm, "id": prompt.id, "kind": prompt.kind, "prompt": len(ids)}
                store.add({**head, "tokens": tokens, **figures, **duration})
        print(f"{number + 1} of {len(prompts)} prompts", flush=True)


def forwards(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Milliseconds of a forward over some positions in every run: the minimum of many alternating repetitions."""
    decoders = {run: Decoders(options, run) for run in options.runs}
    fastest: dict[str, dict[str, float]] = {run: {} for run in decoders}
    vocabulary = next(iter(decoders.values())).model.network.vocab_size
    for count in POSITIONS:
        ids = torch.randint(0, vocabulary, (1, count), generator=torch.Generator().manual_seed(count))
        for _ in range(REPEATS):
            for run, decoder in decoders.items():
                os.environ["PARDEC_KERNELS"] = decoder.kernels
                started = time.process_time()
                decoder.model.logits(ids)
                milliseconds = 1000 * (time.process_time() - started)
                fastest[run][str(count)] = min(milliseconds, fastest[run].get(str(count), milliseconds))
    return fastest


def summary(rows: list[Row], arms: list[str]) -> list[Row]:
    """A row for each arm, over the prompts that both the arm and transformers have decoded."""
    plain = {row["id"]: row for row in rows if row["arm"] == PLAIN}
    one_by_one = {row["id"]: row for row in rows if row["arm"] == "sequential"}
    summaries = []
    for arm in arms:
        own = [row for row in rows if row["arm"] == arm]
        if not own:
            continue
        total = {name: sum(row[name] for row in own) for name in ("process_s", "clock_s")}
        tokens = sum(len(row["tokens"]) for row in own)
        entry = {"arm": arm, "prompts": len(own), "tokens": tokens, "tokens_per_second": tokens / total["process_s"]}
        for label, base in (("speed_up", plain), ("over_sequential", one_by_one)):
            entry[f"{label}_prompts"] = len([row for row in own if row["id"] in base])
            for name in total:
                entry[f"{label}_{name}"] = _ratio(own, base, name)
        entry["spec_bench"] = _mean_ratio(own, one_by_one)
        entry["equal"] = sum(row["tokens"] == plain[row["id"]]["tokens"] for row in own if row["id"] in plain)
        entry["as_sequential"] = sum(
            row["tokens"] == one_by_one[row["id"]]["tokens"] for row in own if row["id"] in one_by_one
        )
        if "nfe" in own[0]:
            entry["acceptance_length"] = sum(row["gained"] for row in own) / max(1, sum(row["rounds"] for row in own))
            entry["forwards_per_token"] = sum(row["nfe"] for row in own) / tokens
            entry["tokens_per_forward"] = 1 / entry["forwards_per_token"]
            entry["drafter_forwards"] = sum(row["drafter"] for row in own) / len(own)
        summaries.append(entry)
    return summaries


def _ratio(rows: list[Row], base: Row, seconds: str) -> float | None:
    """Tokens per second of `rows` divided by those of `base`, on the prompts that both have decoded."""
    common = [(row, base[row["id"]]) for row in rows if row["id"] in base]
    if not common:
        return None
    own, other = (
        sum(len(row["tokens"]) for row in some) / sum(row[seconds] for row in some)
        for some in zip(*common, strict=True)
    )
    return own / other


def _mean_ratio(rows: list[Row], base: Row) -> float | None:
    """Spec-Bench's speedup: the mean of the prompts' tokens per second over that of `base`."""
    common = [(row, base[row["id"]]) for row in rows if row["id"] in base]
    if not common:
        return None
    own, other = (sum(len(row["tokens"]) / row["process_s"] for row in some) for some in zip(*common, strict=True))
    return own / other


COLUMNS = (
    ("tokens per forward", "tokens_per_forward", "{:.2f}"),
    ("acceptance length", "acceptance_length", "{:.2f}"),
    ("drafter's forwards per prompt", "drafter_forwards", "{:.0f}"),
    ("tokens per second", "tokens_per_second", "{:.1f}"),
    ("over sequential", "over_sequential_process_s", "{:.2f}"),
    ("Spec-Bench's speedup", "spec_bench", "{:.2f}"),
    ("by the clock", "over_sequential_clock_s", "{:.2f}"),
    ("as sequential", "as_sequential", "{}"),
    ("over transformers", "speed_up_process_s", "{:.2f}"),
    ("of prompts", "speed_up_prompts", "{}"),
)


def report(options: argparse.Namespace, checks: Store, times: Store) -> None:
    """Writes OUT.json and OUT.md from the rows so far."""
    arms = [PLAIN, LOOKUP, ASSISTED, *options.specs]
    command = ["python", "benchmarks/real_text.py", "--model", Path(options.model).name]
    command += ["--prompts", options.prompts.name]
    for name in ("count", "timed", "max_new_tokens", "checked_tokens"):
        command += [f"--{name.replace('_', '-')}", str(getattr(options, name))]
    for name, default in (("timed_beside", None), ("runs", [*RUNS]), ("specs", specs())):
        if (value := getattr(options, name)) != default:
            command += [f"--{name.replace('_', '-')}", *([str(value)] if isinstance(value, int | str) else value)]
    head = {
        "command": shlex.join(command),
        "model": Path(options.model).name,
        "max_new_tokens": options.max_new_tokens,
        "checked_tokens": options.checked_tokens,
        "processor": processor(),
        "threads": 1,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }
    plain = {row["id"]: row["tokens"] for row in checks.rows if row["arm"] == PLAIN}
    equality = []
    for arm in options.specs:
        own = [row for row in checks.rows if row["arm"] == arm and row["id"] in plain]
        equal = sum(row["tokens"] == plain[row["id"]] for row in own)
        gaps = [row["gap"] for row in checks.rows if row["arm"] == f"gap of {arm}"]
        equality += [{"arm": arm, "prompts": len(own), "equal": equal, "gaps": gaps}] if own else []
    runs, kinds = {}, {}
    for run in RUNS:
        own = [row for row in times.rows if row["run"] == run]
        if rows := summary(own, arms):
            runs[run] = rows
            names = sorted({row["kind"] for row in own})
            kinds[run] = {kind: summary([row for row in own if row["kind"] == kind], arms) for kind in names}
    file = options.run / "forwards.json"
    fastest = json.loads(file.read_text()) if file.is_file() else {}
    result = {**head, "equality": equality, "runs": runs, "kinds": kinds, "forwards_ms": fastest}
    options.out.with_suffix(".json").write_text(json.dumps(result, indent=1) + "\n")
    page = _page(head, equality, runs, kinds, across(times.rows, runs, arms), fastest)
    options.out.with_suffix(".md").write_text("\n".join(page).rstrip() + "\n")


def across(rows: list[Row], runs: Row, arms: list[str]) -> dict[str, list[str]]:
    """Seconds of each arm in every run divided by those in the first run, with the number of prompts."""
    first = next(iter(runs), None)
    ratios: dict[str, list[str]] = {}
    for arm in arms:
        seconds = {
            run: {row["id"]: row["process_s"] for row in rows if (row["run"], row["arm"]) == (run, arm)} for run in runs
        }
        common = {run: seconds[run].keys() & seconds[first].keys() for run in runs}
        if any(common.values()) and sum(map(bool, common.values())) > 1:
            sums = {run: [sum(seconds[at][i] for i in ids) for at in (run, first)] for run, ids in common.items()}
            ratios[arm] = [
                f"{own / base:.2f} ({len(common[run])})" if base else "" for run, (own, base) in sums.items()
            ]
    return ratios


def _page(head: Row, equality: list[Row], runs: Row, kinds: Row, ratios: Row, fastest: Row) -> Iterator[str]:
    yield f"# Drafting for {head['model']}\n"
    yield f"At most {head['max_new_tokens']} tokens an answer, greedy, one thread, {head['processor']}; torch"
    yield f"{head['torch']}, transformers {head['transformers']}; `{head['command']}`."
    yield "An arm is compared with transformers over the prompts that it has done, which need not be all.\n"
    if equality:
        yield "## Tokens equal to transformers' greedy ones, float32\n"
        yield f"The first {head['checked_tokens']} tokens of each answer; drafters in batches."
        yield "A gap is how far apart transformers' own logits of the two tokens are where the answers part.\n"
        yield "| arm | prompts | equal | gaps |"
        yield "|---|---|---|---|"
        for row in equality:
            gaps = ", ".join(f"{gap:.1e}" for gap in row["gaps"])
            yield f"| `{row['arm']}` | {row['prompts']} | {row['equal']} | {gaps} |"
        yield ""
    for run, rows in runs.items():
        yield f"## {run}: {max(row['prompts'] for row in rows)} prompts, one at a time\n"
        yield f"| arm | prompts | {' | '.join(title for title, _, _ in COLUMNS)} | equal |"
        yield "|---" * (len(COLUMNS) + 3) + "|"
        for row in rows:
            cells = " | ".join("" if row.get(name) is None else form.format(row[name]) for _, name, form in COLUMNS)
            name = row["arm"] if row["arm"].startswith(PLAIN) else f"`{row['arm']}`"
            yield f"| {name} | {row['prompts']} | {cells} | {row['equal']} |"
        yield ""
        yield "Over sequential, by kind; in brackets tokens per forward:\n"
        yield f"| arm | {' | '.join(kinds[run])} |"
        yield "|---" * (len(kinds[run]) + 1) + "|"
        for row in rows:
            cells_of = [{own["arm"]: own for own in rows}.get(row["arm"]) for rows in kinds[run].values()]
            cells = " | ".join("" if own is None else _short(own) for own in cells_of)
            yield f"| {row['arm']} | {cells} |"
        yield ""
    if len(runs) > 1:
        yield "## One run beside another\n"
        yield "Seconds of the process over those of the first run, on the prompts that both have done.\n"
        yield f"| arm | {' | '.join(runs)} |"
        yield "|---" * (len(runs) + 1) + "|"
        for arm, cells in ratios.items():
            yield f"| {arm} | {' | '.join(cells)} |"
        yield ""
    if fastest:
        yield "## A forward without a cache\n"
        yield f"Milliseconds of the process, by the number of positions; the least of {REPEATS} that take turns.\n"
        yield f"| run | {' | '.join(map(str, POSITIONS))} |"
        yield "|---" * (len(POSITIONS) + 1) + "|"
        for run, milliseconds in fastest.items():
            yield f"| {run} | {' | '.join(f'{milliseconds[str(count)]:.0f}' for count in POSITIONS)} |"


def _short(row: Row) -> str:
    ratio, tokens = row["over_sequential_process_s"], row.get("tokens_per_forward")
    return ("" if ratio is None else f"{ratio:.2f}") + (f" ({tokens:.2f})" if tokens else "")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--model", required=True, help="a GGUF file, a folder or a hub id, with a chat template")
    parser.add_argument("--prompts", type=Path, required=True)
    parser.add_argument("--count", type=int, default=10, help="prompts of each kind that are compared")
    parser.add_argument("--timed", type=int, default=2, help="prompts of each kind that are timed")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--checked-tokens", type=int, help="tokens of each answer to compare (default: all)")
    parser.add_argument("--specs", nargs="*", default=specs())
    parser.add_argument("--timed-beside", type=int, help="prompts of each kind that transformers decodes too")
    parser.add_argument("--beside", nargs="*", default=[LOOKUP, ASSISTED], choices=[LOOKUP, ASSISTED])
    parser.add_argument("--runs", nargs="*", default=[*RUNS], choices=[*RUNS])
    parser.add_argument("--assistant", help="a smaller model with the same tokens (default: the model's first layers)")
    parser.add_argument("--run", type=Path, default=Path("runs/real_text"), help="folder of results so far")
    parser.add_argument("--only", choices=["check", "timed", "forwards", "report"])
    parser.add_argument("--out", type=Path, default=HERE / "real_text", help="path without suffix")
    options = parser.parse_args()
    torch.set_num_threads(1)
    transformers.logging.set_verbosity_error()
    options.checked_tokens = options.checked_tokens or options.max_new_tokens
    model = Path(options.model).name
    checks = Store(options.run / "checks.jsonl", {"model": model, "tokens": options.checked_tokens})
    settings = {"model": model, "tokens": options.max_new_tokens, "assistant": options.assistant}
    times = Store(options.run / "timed.jsonl", settings)
    prompts = read_prompts(options.prompts, options.count)
    few = read_prompts(options.prompts, options.timed)
    fewer = few if options.timed_beside is None else read_prompts(options.prompts, options.timed_beside)
    if options.only in (None, "check"):
        check(Decoders(options, "float32, C"), prompts, options, checks)
    if options.only in (None, "timed"):
        timed(few, {prompt.id for prompt in fewer}, options, times)
    if options.only in (None, "forwards"):
        (options.run / "forwards.json").write_text(json.dumps(forwards(options)))
    report(options, checks, times)


if __name__ == "__main__":
    main()
