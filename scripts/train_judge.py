"""Trains a head for the acceptance `judge`, which finds drafted tokens that differ from the target's but do no harm.

    python scripts/train_judge.py tiny-llama --drafter 2 --tasks arithmetic,lists,records

The labels are AutoJudge's (https://arxiv.org/abs/2504.20039), without annotators. The target answers a problem of the
train split. At the first token where the drafter disagrees, the drafter's token replaces it and the target finishes
the answer. If the new answer is still right, the token is unimportant and the new answer replaces the old one; else the
token is important and the old answer stays. This continues after that token until the two agree to the end. An answer
that gets longer counts as wrong, since it takes the forwards that were saved. Problems that the target gets wrong are
left out.

The head reads the target's normed state at each of these tokens: standardised, then logistic regression, its penalty
chosen by the AUC on problems that were held back. The threshold keeps `--recall` of their important tokens. Last,
held-out problems are decoded with a grid of thresholds, and card.json has the results. Mined problems are stored in the
file --labels, one per line, and a command continues after the ones that it finds there.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("OMP_NUM_THREADS", "1")

import torch  # noqa: E402
from torch import Tensor  # noqa: E402

import pardec  # noqa: E402
from pardec.models.model import LanguageModel  # noqa: E402
from pardec.models.plan import Hidden, Plan  # noqa: E402
from pardec.samplers.ops.judge_heads import JudgeHead  # noqa: E402

NEW = 64  # tokens of an answer
SLACK = 2  # a right answer may have this many tokens more than the target's own; more would cost what acceptance saves
PENALTIES = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # penalties on the squared weights
THRESHOLDS = (0.0, 0.05, 0.1, 0.2, 0.4)
Score = Callable[[Sequence[int]], float]  # score of the tokens of an answer
Continue = Callable[[list[list[int]]], list[list[int]]]  # texts -> the tokens that the target writes after them
Choices = Callable[[list[list[int]]], list[list[int]]]  # texts -> what the drafter would write after each token


@dataclass
class Answer:
    """The mining state of one problem."""

    prompt: list[int]
    tokens: list[int]  # the answer, its end token included
    score: Score
    most: int  # tokens within which it has to end
    begin: int = 0  # tokens of the answer that were compared with the drafter already


@dataclass(frozen=True)
class Label:
    """A drafted token that differs from the answer's, and whether it matters."""

    ids: list[int]  # prompt, answer before it, and the token itself
    important: bool


def mine(answers: list[Answer], choices: Choices, finish: Continue, ends: frozenset[int]) -> list[list[Label]]:
    """The labels of each answer; all of them advance together, one mismatch at a time."""
    labels: list[list[Label]] = [[] for _ in answers]
    active = list(range(len(answers)))
    while active:
        texts = [answers[at].prompt + answers[at].tokens for at in active]
        mismatches: list[tuple[int, int, int]] = []  # answer, index in it, the drafter's token
        for at, choice in zip(active, choices(texts), strict=True):
            answer, first = answers[at], len(answers[at].prompt) - 1
            for index in range(answer.begin, min(len(answer.tokens), answer.most)):
                if choice[first + index] != answer.tokens[index]:
                    mismatches.append((at, index, choice[first + index]))
                    break
        changed = [answers[at].prompt + answers[at].tokens[:index] + [token] for at, index, token in mismatches]
        open_texts = [text for text in changed if text[-1] not in ends]
        continued = iter(finish(open_texts) if open_texts else [])
        for (at, index, token), text in zip(mismatches, changed, strict=True):
            answer = answers[at]
            tokens = text[len(answer.prompt) :] + ([] if token in ends else next(continued))[: answer.most - index - 1]
            ended = not ends or tokens[-1] in ends
            important = not ended or answer.score(tokens) < 1
            labels[at].append(Label(text, important))
            if not important:
                answer.tokens = tokens
            answer.begin = index + 1
        active = [at for at, _, _ in mismatches]
    return labels


# --- the target and what drafts ---


def outputs(model: LanguageModel, texts: list[list[int]], layers: slice | None = None) -> Hidden:
    """One forward over texts of any lengths, of the whole stack or a part of it."""
    lengths = torch.tensor(list(map(len, texts)))
    ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(text) for text in texts], batch_first=True)
    full = Plan.full(ids, model.visible(), lengths)
    plan = (
        full if layers is None else Plan(**{name: getattr(full, name) for name in Plan.__slots__} | {"layers": layers})
    )
    hidden: Hidden = model.forward(plan)
    return hidden


def drafter_choices(model: pardec.Model, drafter: str) -> Choices:
    """The tokens that `drafter` would write: another model by name, or the target's first layers by their number."""
    other = model.network if drafter.isdecimal() else pardec.load(drafter, device="cpu", dtype="float32").network
    layers = slice(0, int(drafter)) if drafter.isdecimal() else None

    @torch.inference_mode()
    def choices(texts: list[list[int]]) -> list[list[int]]:
        logits = outputs(other, texts, layers).logits()
        picks: list[list[int]] = logits.argmax(-1).tolist()
        return [row[: len(text)] for row, text in zip(picks, texts, strict=True)]

    return choices


def mined(
    model: pardec.Model, drafter: str, task: str, count: int, *, seed: int, batch: int, known: int = 0
) -> Iterator[dict[str, Any]]:
    """One line per problem of the train split after the first `known`: its labels; none if the target is wrong."""
    source, ends = pardec.task(task), frozenset(model.network.decoding_config.eos_ids)
    choices, tokenizer = drafter_choices(model, drafter), model.tokenizer

    def finish(texts: list[list[int]]) -> list[list[int]]:
        result = model.generate(input_ids=texts, sampler="sequential", max_new_tokens=NEW)
        return [list(tokens) for tokens in result.tokens]

    problems = source.problems(split="train", n=count, seed=seed)
    for start in range(known, count, batch):
        part = problems[start : start + batch]
        result = model.generate([problem.prompt for problem in part], sampler="sequential", max_new_tokens=NEW)
        answers = []
        for row, problem in enumerate(part):
            prompt = result.sequences[row, : result.prompts[row]].tolist()

            def score(tokens: Sequence[int], problem: Any = problem) -> float:
                text = tokenizer.decode([token for token in tokens if token not in ends])
                return float(source.score(problem, text) or 0)

            answers.append(Answer(prompt, list(result.tokens[row]), score, len(result.tokens[row]) + SLACK))
        right = [answer for answer in answers if answer.score(answer.tokens) == 1]
        labels = dict(zip(map(id, right), mine(right, choices, finish, ends), strict=True))
        for problem, answer in zip(part, answers, strict=True):
            made = [[label.ids, int(label.important)] for label in labels.get(id(answer), [])]
            yield {"id": problem.id, "task": task, "labels": made}


# --- the head ---


@torch.inference_mode()
def states_of(model: LanguageModel, texts: list[list[int]], batch: int = 64) -> Tensor:
    """The target's normed state at the last token of each text, [N, E]."""
    parts = []
    for start in range(0, len(texts), batch):
        some = texts[start : start + batch]
        normed = outputs(model, some).normed()
        parts.append(normed[torch.arange(len(some)), torch.tensor([len(text) - 1 for text in some])].float())
    return torch.cat(parts).clone()


def fit(states: Tensor, important: Tensor, penalty: float) -> JudgeHead:
    """Logistic regression on standardised states [N, E] with labels [N], by Newton's method in float64.

    `penalty` weighs the sum of the squared weights against the mean loss.
    """
    mean, scale = states.mean(0), states.std(0).clamp(min=1e-6)
    inputs = torch.nn.functional.pad((states - mean) / scale, (0, 1), value=1.0).double()
    target, count = important.double(), len(states)
    ridge = torch.full((inputs.shape[1],), 2 * penalty, dtype=torch.float64)
    ridge[-1] = 1e-9  # penalty on the bias

    def loss(w: Tensor) -> float:
        fitting = torch.nn.functional.binary_cross_entropy_with_logits(inputs @ w, target)
        return float(fitting + (ridge * w.square()).sum() / 2)

    w = torch.zeros_like(ridge)
    for _ in range(50):
        p = (inputs @ w).sigmoid()
        slope = inputs.T @ (p - target) / count + ridge * w
        curvature = (inputs.T * (p * (1 - p))) @ inputs / count + ridge.diag()
        step, size = torch.linalg.solve(curvature, slope), 1.0
        while size > 1e-6 and loss(w - size * step) > loss(w):
            size /= 2
        w = w - size * step
        if float(step.abs().max()) * size < 1e-7:
            break
    return JudgeHead(mean, scale, w[:-1].float(), w[-1].float())


def auc(scores: Tensor, important: Tensor) -> float:
    """The share of pairs, one important and one not, that the scores [N] order rightly; ties count half."""
    high, low = scores[important][:, None], scores[~important][None]
    return float(((high > low).float() + 0.5 * (high == low).float()).mean())


def threshold(scores: Tensor, important: Tensor, recall: float) -> float:
    """The highest threshold that at least this share of the important tokens reaches."""
    kept = scores[important].sort().values
    return float(kept[int((1 - recall) * len(kept))])


def measured(model: pardec.Model, task: str, spec: str, problems: list[Any], batch: int = 50) -> dict[str, float]:
    """The share of right answers, and the forwards per answer."""
    source, scores, forwards = pardec.task(task), 0.0, 0
    for start in range(0, len(problems), batch):
        part = problems[start : start + batch]
        result = model.generate([problem.prompt for problem in part], sampler=spec, max_new_tokens=NEW)
        scores += sum(source.score(problem, text) or 0 for problem, text in zip(part, result.text or (), strict=True))
        forwards += sum(result.nfe)
    return {"exact": round(scores / len(problems), 4), "forwards": round(forwards / len(problems), 2)}


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("target", help="embedded name, folder or hub id")
    parser.add_argument("--drafter", default="2", help="a checkpoint, or a number of the target's first layers")
    parser.add_argument("--tasks", default="arithmetic,lists,records")
    parser.add_argument("--problems", type=int, default=300, help="training problems per task")
    parser.add_argument("--heldout", type=int, default=100, help="held-out problems per task")
    parser.add_argument("--validation", type=float, default=0.25, help="share of the mined problems held back")
    parser.add_argument(
        "--recall", type=float, default=0.9, help="share of important tokens to keep, on held-back problems"
    )
    parser.add_argument("--k", type=int, default=10, help="tokens drafted when held-out problems are decoded")
    parser.add_argument("--batch", type=int, default=32, help="problems mined together")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--labels", type=Path, help="file of mined problems (default runs/<target>-judge.jsonl)")
    parser.add_argument("--out", type=Path, help="export folder (default models/embedded/judges/<target>)")
    given = parser.parse_args(argv)
    if not 0 < given.validation <= 0.5:
        parser.error(f"--validation must be above 0 and at most 0.5, got {given.validation}")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", pardec.EmptyAnswer)  # the drafter may have written the whole answer
    model = pardec.load(given.target, device="cpu", dtype="float32")
    tasks = given.tasks.split(",")
    labels = given.labels or ROOT / "runs" / f"{model.name}-judge.jsonl"
    out = given.out or ROOT / "models" / "embedded" / "judges" / model.name
    lines = collect(model, given, tasks, labels)
    head, about = trained(model.network, lines, given)
    head.save(out)
    table: dict[str, dict[str, dict[str, float]]] = {}
    spec = f"earlyexit:layers={given.drafter}" if given.drafter.isdecimal() else f"model:name={given.drafter}"
    for task in tasks:
        problems = pardec.task(task).problems(split="heldout", n=given.heldout, seed=7)
        table[task] = {}
        for thr in sorted({*THRESHOLDS, round(about["thr"], 4)}):
            judge = f'{spec},k={given.k}+judge:head="{out}",thr={thr}'
            table[task][str(thr)] = measured(model, task, judge, problems)
            print(task, thr, table[task][str(thr)], flush=True)
    card = {
        "name": out.name,
        "summary": f"A head for the acceptance `judge`, trained on {model.name}'s states.",
        "target": model.name,
        "parameters": head.width + 1,
        **about,
        "recipe": {
            "script": "scripts/train_judge.py",
            "labels": f"AutoJudge's, from train splits of {', '.join(tasks)}, {given.problems} problems each",
            "drafter": spec,
            "recall": given.recall,
            "seed": given.seed,
        },
        "heldout": {"problems": given.heldout, "seed": 7, "k": given.k, "by_threshold": table},
    }
    (out / "card.json").write_text(json.dumps(card, indent=1) + "\n", encoding="utf-8")


def collect(model: pardec.Model, given: argparse.Namespace, tasks: list[str], labels: Path) -> list[dict[str, Any]]:
    """All mined problems, including the ones that the file already has; a line cut off by an interruption is dropped.

    Raises SystemExit if the file's problems were mined with another target, drafter or seed.
    """
    labels.parent.mkdir(parents=True, exist_ok=True)
    lines = labels.read_text(encoding="utf-8").splitlines(keepends=True) if labels.exists() else []
    if lines and not lines[-1].endswith("\n"):
        lines.pop()
        labels.write_text("".join(lines), encoding="utf-8")
    known = [json.loads(line) for line in lines]
    mined_with = {"target": model.name, "drafter": given.drafter, "seed": given.seed}
    for name, value in mined_with.items():
        if other := [line[name] for line in known if line.get(name, value) != value]:
            raise SystemExit(
                f"error: {labels} was mined with {name} {other[0]}, not {value}\nname another file with --labels"
            )
    with labels.open("a", encoding="utf-8") as file:
        for task in tasks:
            have, started = sum(line["task"] == task for line in known), time.monotonic()
            more = {"seed": given.seed, "batch": given.batch, "known": have}
            for line in mined(model, given.drafter, task, given.problems, **more):
                line |= mined_with
                known.append(line)
                file.write(json.dumps(line) + "\n")
                file.flush()
            print(f"{task}: {time.monotonic() - started:.0f} s", flush=True)
    return [line for line in known if line["task"] in tasks]


def trained(
    model: LanguageModel, lines: list[dict[str, Any]], given: argparse.Namespace
) -> tuple[JudgeHead, dict[str, Any]]:
    """The head with its threshold, and the entries of its card; about every fourth problem is held out."""
    step = round(1 / given.validation)
    held = torch.tensor([index % step == 0 for index, line in enumerate(lines) for _ in line["labels"]])
    texts = [ids for line in lines for ids, _ in line["labels"]]
    important = torch.tensor([bool(flag) for line in lines for _, flag in line["labels"]])
    states = states_of(model, texts)
    heads = [fit(states[~held], important[~held], penalty) for penalty in PENALTIES]
    scores = [auc(head(states[held]), important[held]) for head in heads]
    best = max(range(len(heads)), key=scores.__getitem__)
    head = heads[best]
    thr = threshold(head(states[held]), important[held], given.recall)
    made = JudgeHead(head.mean, head.scale, head.w, head.b, model.name, round(thr, 4))
    about = {
        "thr": round(thr, 4),
        "auc": round(scores[best], 4),
        "examples": {"learning": int((~held).sum()), "held_back": int(held.sum())},
        "share_important": round(float(important.float().mean()), 4),
    }
    print(about, flush=True)
    return made, about


if __name__ == "__main__":
    from until_done import errors_in_two_lines

    with errors_in_two_lines():
        main()
