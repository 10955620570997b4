"""Evaluates a masked model by the likelihood of its answers under the autoregressive model that it learned from.

    python benchmarks/masked_answers.py --parent FILE.gguf --model MODEL --prompts spec_bench.jsonl --run FOLDER
        [--count 480 --every 1] [--max-new-tokens 64] [--batch 8] [--specs SPEC ...] [--parts answers copies choices]
        [--dtype float32] [--quantize int8 --activations int8] [--out NAME.md]

Prompts are lines of JSON with `turns`, as in Spec-Bench's question file: the first turn is asked, as a user's turn in
the chat template of the model that answers. Where the two models have different tokenizers, answers are compared as
texts: an answer is decoded, and encoded with the parent's tokenizer after the prompt in the parent's template, so that
every figure counts the parent's tokens. Three parts:

answers: each spec's answers beside the parent's own greedy ones. `nats` is the parent's log-likelihood per token of the
    answer, its end token left out; `agreement` the share of positions with the parent's own token, up to the shorter of
    the two; `distinct-n` the share of different n-grams in all answers; `empty` the share of answers without a token.
copies: "repeat this sentence with one word in place of another": the share of answers that are exactly right.
choices: which of four endings of a sentence has the largest likelihood per token. A masked model's likelihood is
    estimated (`mc` of LLaDA's evaluation), the parent's is exact.

Rows are kept in the folder of `--run`; the same command goes on with those that are not done. Two goals are judged: the
parent finds the answers at most 0.5 nats per token less likely than its own, and fewer than 3% are empty.
"""

from __future__ import annotations

import argparse
import json
import shlex
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch

import pardec
from pardec.environment import processor
from pardec.training.texts import chat_ids

PARTS = ("answers", "copies", "choices")
SPECS = ("sequential", "threshold:tau=0.9@dual", "threshold:tau=0.7@dual")
PARENT = "parent"
NATS, EMPTY = 0.5, 0.03  # goals: at most this many nats per token, and this share of empty answers
ESTIMATES = 32  # random masks of one estimated likelihood
SUBJECTS = ("The old man", "A small dog", "My sister", "The teacher", "Our neighbour", "The young girl")
VERBS = ("walked to", "looked at", "talked about", "dreamed of", "drew")
OBJECTS = ("the house", "the river", "the garden", "the moon", "the market", "the train")
FACTS = (
    ("The capital of France is", " Paris.", (" London.", " Berlin.", " Madrid.")),
    ("The capital of Japan is", " Tokyo.", (" Beijing.", " Seoul.", " Bangkok.")),
    ("The capital of Italy is", " Rome.", (" Paris.", " Athens.", " Vienna.")),
    ("The opposite of hot is", " cold.", (" warm.", " red.", " loud.")),
    ("The opposite of up is", " down.", (" over.", " green.", " slow.")),
    ("The opposite of big is", " small.", (" tall.", " blue.", " fast.")),
    ("The opposite of day is", " night.", (" noon.", " water.", " road.")),
    ("A baby dog is called a", " puppy.", (" kitten.", " calf.", " chick.")),
    ("A baby cat is called a", " kitten.", (" puppy.", " lamb.", " foal.")),
    ("Cows give us", " milk.", (" wool.", " eggs.", " honey.")),
    ("Bees make", " honey.", (" milk.", " silk.", " bread.")),
    ("Fish live in", " water.", (" trees.", " sand.", " clouds.")),
    ("The sun rises in the", " east.", (" west.", " north.", " south.")),
    ("Two plus two is", " four.", (" five.", " seven.", " nine.")),
    ("Three plus five is", " eight.", (" six.", " nine.", " two.")),
    ("There are seven days in a", " week.", (" month.", " year.", " minute.")),
    ("There are twelve months in a", " year.", (" week.", " day.", " month.")),
    ("We see with our", " eyes.", (" ears.", " hands.", " feet.")),
    ("We hear with our", " ears.", (" eyes.", " nose.", " hands.")),
    ("Snow is", " white.", (" green.", " black.", " purple.")),
    ("Grass is", " green.", (" blue.", " white.", " orange.")),
    ("The sky on a clear day is", " blue.", (" green.", " brown.", " black.")),
    ("A triangle has three", " sides.", (" wheels.", " legs.", " wings.")),
    ("Water freezes and becomes", " ice.", (" steam.", " sand.", " oil.")),
    ("The largest animal in the sea is the", " whale.", (" mouse.", " horse.", " eagle.")),
    ("You use an umbrella when it", " rains.", (" snores.", " sings.", " burns.")),
    ("Bread is made from", " flour.", (" iron.", " glass.", " paper.")),
    ("A doctor works in a", " hospital.", (" kitchen.", " stadium.", " forest.")),
    ("A book is made of", " pages.", (" bricks.", " leaves of tea.", " wheels.")),
    ("The Earth goes around the", " sun.", (" moon.", " stars.", " ocean.")),
)
Row = dict[str, Any]
Answer = tuple[list[int], int]  # ids, and forwards


class Rows:
    """The finished rows of a part, one JSON line each, by (spec, number)."""

    def __init__(self, file: Path) -> None:
        self.file = file
        lines = file.read_text(encoding="utf-8").splitlines() if file.is_file() else []
        self.found = {(row["spec"], row["number"]): row for row in map(json.loads, lines)}

    def missing(self, spec: str, count: int) -> list[int]:
        """The numbers below `count` for which this spec has no row."""
        return [number for number in range(count) if (spec, number) not in self.found]

    def add(self, rows: Iterable[Row]) -> None:
        with self.file.open("a", encoding="utf-8") as file:
            for row in rows:
                self.found[row["spec"], row["number"]] = row
                file.write(json.dumps(row) + "\n")

    def of(self, spec: str, count: int) -> list[Row]:
        return [self.found[spec, number] for number in range(count)]


def decoded(model: pardec.Model, spec: str, prompts: Sequence[list[int]], new: int) -> list[Answer]:
    """The ids of each answer before its end token, and the forwards of its row."""
    ends = model.language_model.decoding_config.eos_ids
    result = model.generate(
        input_ids=[list(ids) for ids in prompts], sampler=spec, max_new_tokens=new, stop_ids=list(ends)
    )
    answers = []
    for row, forwards in zip(result.tokens, result.nfe, strict=True):
        ids = [int(token) for token in row]
        stop = next((at for at, token in enumerate(ids) if token in ends), len(ids))
        answers.append((ids[:stop], int(forwards)))
    return answers


def nats(parent: pardec.Model, prompt: list[int], answer: list[int]) -> float | None:
    """The parent's mean log-likelihood per token of the answer; None for an empty answer."""
    if not answer:
        return None
    logits = parent.logits(torch.tensor([prompt + answer[:-1]]))[0, len(prompt) - 1 :]
    return float(logits.log_softmax(-1).gather(1, torch.tensor(answer)[:, None]).mean())


def agreement(answer: list[int], own: list[int]) -> float | None:
    """The share of equal tokens, up to the end of the shorter answer."""
    shorter = min(len(answer), len(own))
    return sum(a == b for a, b in zip(answer, own, strict=False)) / shorter if shorter else None


def distinct(answers: Iterable[list[int]], n: int) -> float:
    """The share of distinct n-grams."""
    grams = [tuple(answer[at : at + n]) for answer in answers for at in range(len(answer) - n + 1)]
    return len(set(grams)) / max(len(grams), 1)


def missing_answers(
    given: argparse.Namespace,
    parent: pardec.Model,
    model: pardec.Model,
    rows: Rows,
    asked: Sequence[str],
    new: int,
) -> Iterator[tuple[str, list[int], list[Answer], float]]:
    """Decodes missing answers in batches; yields the spec, the numbers, the answers, and the seconds per answer."""
    for spec, decoder, sampler in ((PARENT, parent, "sequential"), *((spec, model, spec) for spec in given.specs)):
        missing = rows.missing(spec, len(asked))
        prompts = [chat_ids(decoder, text) for text in asked]
        for at in range(0, len(missing), given.batch):
            numbers = missing[at : at + given.batch]
            started = time.perf_counter()
            found = decoded(decoder, sampler, [prompts[number] for number in numbers], new)
            yield spec, numbers, found, (time.perf_counter() - started) / len(numbers)


def encoded_alike(parent: pardec.Model, model: pardec.Model) -> bool:
    """Whether both models have the same tokens under the same ids."""
    same: bool = parent.tokenizer.get_vocab() == model.tokenizer.get_vocab()
    return same


def in_tokens_of(parent: pardec.Model, model: pardec.Model, answer: list[int]) -> list[int]:
    """The answer in the parent's tokens, through its text where the tokenizers differ."""
    if encoded_alike(parent, model):
        return answer
    text = model.tokenizer.decode(answer, skip_special_tokens=True)
    return list(parent.tokenizer(text, add_special_tokens=False)["input_ids"])


def first_turns(given: argparse.Namespace) -> list[str]:
    lines = given.prompts.read_text(encoding="utf-8").splitlines()[:: given.every][: given.count]
    return [json.loads(line)["turns"][0] for line in lines]


def run_answers(given: argparse.Namespace, parent: pardec.Model, model: pardec.Model, rows: Rows) -> int:
    """Decodes and scores all answers; returns their number."""
    asked = first_turns(given)
    for spec, numbers, found, seconds in missing_answers(given, parent, model, rows, asked, given.max_new_tokens):
        answers = [ids if spec == PARENT else in_tokens_of(parent, model, ids) for ids, _ in found]
        rows.add(
            {
                "spec": spec,
                "number": number,
                "answer": answer,
                "forwards": forwards,
                "seconds": seconds,
                "nats": nats(parent, chat_ids(parent, asked[number]), answer),
            }
            for number, answer, (_, forwards) in zip(numbers, answers, found, strict=True)
        )
    return len(asked)


def copies(count: int) -> list[tuple[str, str]]:
    """(instruction, answer) pairs: sentences to repeat with one word replaced."""
    found = []
    for number in range(count):
        subject, verb = SUBJECTS[number % len(SUBJECTS)], VERBS[number // 2 % len(VERBS)]
        thing, other = OBJECTS[number % len(OBJECTS)], OBJECTS[(number + 1 + number // 6) % len(OBJECTS)]
        if thing == other:
            other = OBJECTS[(number + 2) % len(OBJECTS)]
        sentence, wanted = f"{subject} {verb} {thing}.", f"{subject} {verb} {other}."
        old, new = thing.removeprefix("the "), other.removeprefix("the ")
        text = f'Repeat this sentence, but write "{new}" in place of "{old}": {sentence}'
        found.append((text, wanted))
    return found


def run_copies(given: argparse.Namespace, parent: pardec.Model, model: pardec.Model, rows: Rows) -> int:
    tasks = copies(min(60, given.count))
    for spec, numbers, found, _ in missing_answers(given, parent, model, rows, [text for text, _ in tasks], 32):
        decode = (parent if spec == PARENT else model).tokenizer.decode
        texts = [decode(answer).strip() for answer, _ in found]
        rows.add(
            {"spec": spec, "number": number, "right": text.strip('"') == tasks[number][1], "text": text}
            for number, text in zip(numbers, texts, strict=True)
        )
    return len(tasks)


def run_choices(given: argparse.Namespace, parent: pardec.Model, model: pardec.Model, rows: Rows) -> int:
    from pardec.interop.lm_eval import PardecLM

    facts = FACTS[: given.count]
    for spec, decoder in ((PARENT, parent), ("likelihood", model)):
        scorer = PardecLM(decoder, batch_size=given.batch, seed=0, mc_num=ESTIMATES, check_greedy=False)

        def ids(text: str, tokenizer: Any = decoder.tokenizer) -> list[int]:
            return list(tokenizer(text, add_special_tokens=False)["input_ids"])

        for number in rows.missing(spec, len(facts)):
            start, right, wrong = facts[number]
            ends = [ids(end) for end in (right, *wrong)]
            scores = scorer._loglikelihood_tokens([(("", ""), ids(start), end) for end in ends], disable_tqdm=True)
            means = [score / len(end) for (score, _), end in zip(scores, ends, strict=True)]
            rows.add([{"spec": spec, "number": number, "right": means.index(max(means)) == 0}])
    return len(facts)


def mean(values: Iterable[float | None]) -> float:
    known = [value for value in values if value is not None]
    return sum(known) / max(len(known), 1)


def about(folder: Path) -> str:
    """The description and the training progress from the model's card; empty without a card."""
    if not (folder / "card.json").is_file():
        return ""
    card = json.loads((folder / "card.json").read_text(encoding="utf-8"))
    recipe = card.get("recipe", {})
    trained = ", ".join(f"{recipe[key]} {key}" for key in ("steps", "tokens", "core-hours") if key in recipe)
    return f"{card['summary']} Trained: {trained}.\n"


def page(given: argparse.Namespace, results: dict[str, tuple[Rows, int]], command: str, alike: bool) -> str:
    """The tables, and whether the goals are reached."""
    parts = [f"# Answers of {given.model.name}\n", about(given.model)]
    packed = f", the masked model in {given.quantize} with activations in {given.activations or 'float32'}"
    parts += [f"`{command}`\n", f"{processor()}, {given.dtype}{packed if given.quantize else ''}.\n"]
    if not alike:
        parts.append("The tokenizers differ: answers are compared as texts, and counted in the parent's tokens.\n")
    if "answers" in results:
        rows, count = results["answers"]
        own = [row["answer"] for row in rows.of(PARENT, count)]
        base = mean(row["nats"] for row in rows.of(PARENT, count))
        parts.append(f"{count} prompts, at most {given.max_new_tokens} tokens.\n")
        columns = ("spec", "nats", "to the parent's", "agreement", "distinct-1", "distinct-2", "distinct-3", "empty")
        parts.append(f"| {' | '.join((*columns, 'tokens per forward', 'tokens per second'))} |\n{'|---' * 10}|")
        verdicts = []
        for spec in (PARENT, *given.specs):
            found = rows.of(spec, count)
            answers = [row["answer"] for row in found]
            tokens = sum(map(len, answers))
            empty = mean(float(not answer) for answer in answers)
            likely = mean(row["nats"] for row in found)
            same = mean(agreement(answer, mine) for answer, mine in zip(answers, own, strict=True))
            cells = [f"`{spec}`", f"{likely:.3f}", f"{likely - base:+.3f}", f"{same:.1%}"]
            cells += [f"{distinct(answers, n):.3f}" for n in (1, 2, 3)]
            cells += [f"{empty:.1%}", f"{tokens / sum(row['forwards'] for row in found):.2f}"]
            cells += [f"{tokens / sum(row['seconds'] for row in found):.1f}"]
            parts.append(f"| {' | '.join(cells)} |")
            if spec != PARENT:
                met = ["met" if good else "missed" for good in (base - likely <= NATS, empty < EMPTY)]
                verdicts.append(
                    f"- `{spec}`: likelihood within {NATS} nats of the parent's {met[0]}; "
                    f"fewer than {EMPTY:.0%} empty answers {met[1]}."
                )
        parts += ["", *verdicts, ""]
    for part, title in (("copies", "Sentences repeated with one word changed"), ("choices", "Endings chosen of four")):
        if part in results:
            rows, count = results[part]
            specs = dict.fromkeys(spec for spec, _ in rows.found)
            parts += [f"## {title}\n", f"{count} of them.\n", "| spec | right |\n|---|---|"]
            parts += [f"| `{spec}` | {sum(row['right'] for row in rows.of(spec, count))} |" for spec in specs]
            parts.append("")
    return "\n".join(parts)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--parent", required=True, help="the autoregressive model: a file, folder or name")
    parser.add_argument("--model", type=Path, required=True, help="folder of the masked model")
    parser.add_argument("--prompts", type=Path, required=True, help="lines of JSON with turns")
    parser.add_argument("--run", type=Path, required=True, help="folder of results so far")
    parser.add_argument("--count", type=int, default=480, help="prompts")
    parser.add_argument("--every", type=int, default=1, help="take every so many lines of --prompts")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--batch", type=int, default=8, help="rows decoded together")
    parser.add_argument("--specs", nargs="+", default=list(SPECS), help="samplers of the masked model")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--dtype", default="float32")
    parser.add_argument("--quantize", help="quantization of the masked model")
    parser.add_argument("--activations", help="activations of the quantized model")
    parser.add_argument("--out", type=Path, help="the page (default: printed)")
    given = parser.parse_args(argv)
    given.run.mkdir(parents=True, exist_ok=True)
    parent = pardec.load(given.parent, device="cpu", dtype=given.dtype)
    packed = {"quantize": given.quantize, "activations": given.activations}
    model = pardec.load(given.model, device="cpu", dtype=given.dtype, **packed)
    if not model.language_model.decoding_config.masked or parent.language_model.decoding_config.masked:
        parser.error("--parent is autoregressive, and --model masked")
    work = {"answers": run_answers, "copies": run_copies, "choices": run_choices}
    results = {}
    for part in given.parts:
        rows = Rows(given.run / f"{part}.jsonl")
        results[part] = (rows, work[part](given, parent, model, rows))
    command = shlex.join(["python", "benchmarks/masked_answers.py", *(argv or sys.argv[1:])])
    text = page(given, results, command, encoded_alike(parent, model))
    if given.out is None:
        print(text)
    else:
        given.out.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
