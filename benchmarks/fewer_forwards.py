"""Measures seven methods of 2026 by the forwards that they take, against the best of the earlier ones on the same task.

    python benchmarks/fewer_forwards.py [--only blocks|rows|suffixes|chains|masks|paths] [--smollm2 FILE.gguf]
        [--prompts QUESTIONS.jsonl] [-n 12] [--images 24] [--rounds 1000] [--run FOLDER] [--out NAME]

- blocks: `linearspec` on tiny-nemotron, which verifies its blocks itself, against block length 1.
- rows: `pjd` on tiny-llamagen against `sjd`, and how alike neighbouring codes are.
- suffixes: `suffix` against `lookup`, on SmolLM2's greedy answers (`scripts/get_smollm2` prints the file): texts that
  are copied with an edit after they were so before, in one chat or in several requests, and a second pass over prompts.
  Questions are lines of JSON with `question_id`, `category` and `turns`, as in Spec-Bench's file.
- chains: what `block` and `speculative` accept of tiny-llama-draft's chains, over every chain that can be drafted.
- masks: `leap+provisional` (DC-Leap) against its run alone, and `counterfactual` (LEAP) against `threshold`.
- paths: `fasthybrid` on tiny-mar: the head's evaluations, and how far its images are from those of `mar`.

Greedy text is the same with every drafter, so that it is decoded once. Settings are swept by a model that predicts it,
in the same loop, and the best are decoded. Results are kept in FOLDER, and the same command continues from there.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, cast
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor

import pardec
from pardec.environment import processor
from pardec.models.continuous.diffusion_head import DiffusionHead
from pardec.models.images.vq import load_vq
from pardec.models.plan import Hidden, Plan, Visible
from pardec.samplers import registry
from pardec.samplers.masked.inputs.provisional import Provisional
from pardec.samplers.masked.select.counterfactual import Counterfactual
from pardec.samplers.speculative.accept.block import BlockVerification
from pardec.samplers.speculative.accept.speculative import Speculative
from pardec.samplers.speculative.contracts import Draft, TargetDistributions
from pardec.training.texts import chat_ids

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from methods import resampled  # noqa: E402
from real_text import read_prompts  # noqa: E402

Row = dict[str, Any]


class Rows:
    """Measured rows, each in the file once it is measured."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.file = folder / "rows.jsonl"
        self.all: list[Row] = (
            [json.loads(line) for line in self.file.read_text().splitlines()] if self.file.exists() else []
        )

    def get(self, part: str, task: str, name: str) -> Row | None:
        return next((row for row in self.all if (row["part"], row["task"], row["name"]) == (part, task, name)), None)

    def add(self, part: str, task: str, name: str, **figures: Any) -> Row:
        self.all.append({"part": part, "task": task, "name": name, **figures})
        with self.file.open("a") as out:
            out.write(json.dumps(self.all[-1]) + "\n")
        print(part, task, name, flush=True)
        return self.all[-1]

    def of(self, part: str, task: str) -> list[Row]:
        return [row for row in self.all if (row["part"], row["task"]) == (part, task)]


# --- blocks ---

BLOCKS = ("linearspec:k=3", "linearspec:k=7", "linearspec:k=15", "linearspec:k=31")
SINGLE = "threshold:tau=0.9+eos@causal, block length 1"
PARALLEL = "threshold:tau=0.9+eos@causal, block length 8"


def blocks(rows: Rows, options: argparse.Namespace) -> None:
    """Forwards per prompt, those that draft included, and whether tokens are those of block length 1."""
    masked, causal = (pardec.load("tiny-nemotron", device="cpu", **how) for how in ({}, {"attention": "causal"}))
    for name in ("arithmetic", "chains"):
        task = pardec.task(name)
        problems = task.problems(split="heldout", n=options.n, seed=3)
        prompts = [problem.prompt for problem in problems]

        def decode(
            model: pardec.Model,
            spec: str,
            task: Any = task,
            problems: Any = problems,
            prompts: Any = prompts,
            **more: Any,
        ) -> Row:
            done = model.generate(prompts, sampler=spec, max_new_tokens=96, **more)
            forwards = np.array(done.nfe) + np.array(done.draft_forwards or [0] * len(prompts))
            right = [float(task.score(*pair) or 0) for pair in zip(problems, done.text, strict=True)]
            return {"forwards": forwards.tolist(), "right": right, "tokens": done.tokens}

        for label, length in ((SINGLE, 1), (PARALLEL, 8)):
            if rows.get("blocks", name, label) is None:
                rows.add("blocks", name, label, **decode(masked, "threshold:tau=0.9+eos@causal", block_length=length))
        for spec in BLOCKS:
            if rows.get("blocks", name, spec) is None:
                rows.add("blocks", name, spec, **decode(causal, spec))


# --- rows ---

IMAGES = (
    *("sequential", "sjd", "sjd:window=64", "sjd:window=145", "sjd:tree=3x3", "sjd:window=145,tree=3x3"),
    *("pjd", "pjd:lag=2", "pjd:lag=1", "pjd:lag=1,wait=true"),
    *(f"pjd:lag=1,joint=true,window={window}" for window in ("64", "145", "145,tree=3x3")),
)
STATISTICS = (
    "equal, right",
    "equal, below",
    "distance, right",
    "distance, below",
    "information, right",
    "information, below",
)


def images(rows: Rows, options: argparse.Namespace) -> None:
    """Forwards per image and its codes, with the checkpoint's own guidance, temperature and filter."""
    model = pardec.load("tiny-llamagen", device="cpu")
    problems = pardec.task("captions").problems(split="heldout", n=options.images, seed=3)
    imaging = model.language_model.imaging
    assert imaging is not None, "an image model"
    layout = imaging.layout
    for spec in IMAGES:
        if rows.get("rows", "captions", spec) is None:
            done = model.generate([one.prompt for one in problems], sampler=spec, **imaging.defaults)
            codes = [text[: layout.rows * layout.columns] for text in done.tokens]
            written = [np.cumsum(np.array(counts) + 1) for counts in done.trace.accepted]  # codes after each round
            first = [1 + int((count < layout.columns).sum()) for count in written]
            rows.add(
                *("rows", "captions", spec),
                forwards=list(done.nfe),
                positions=list(done.tokens_fed),
                codes=codes,
                first=first,  # forwards until the first row is complete
            )


def neighbours(codes: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """[images, 4] equal codes and squared distances to the right and below; [images, 2, 8, 8] pairs of code groups.

    A code's group is the signs of its codebook vector on the three widest axes of the codebook.
    """
    book = load_vq("tiny-vq").rows().detach()
    centred = book - book.mean(0)
    axes = torch.linalg.svd(centred, full_matrices=False).Vh[:3]
    group = ((centred @ axes.T > 0) * torch.tensor([1, 2, 4])).sum(1).numpy()
    side = round(len(codes[0]) ** 0.5)
    image = np.array(codes).reshape(-1, side, side)
    pairs = (image[:, :, :-1], image[:, :, 1:]), (image[:, :-1], image[:, 1:])
    vectors = book.numpy()
    means = [(first == second).mean((1, 2)) for first, second in pairs]
    means += [((vectors[first] - vectors[second]) ** 2).sum(-1).mean((1, 2)) for first, second in pairs]
    counts = np.zeros((len(image), 2, 8, 8))
    for which, (first, second) in enumerate(pairs):
        for at in range(len(image)):
            np.add.at(counts[at, which], (group[first[at]], group[second[at]]), 1)
    return np.stack(means, 1), counts


def information(counts: np.ndarray) -> np.ndarray:
    """[2] mutual information in nats of the pairs counted in [2, 8, 8]."""
    joint = counts / counts.sum((1, 2), keepdims=True)
    apart = joint.sum(2, keepdims=True) * joint.sum(1, keepdims=True)
    return np.where(joint > 0, joint * np.log(np.where(joint > 0, joint, 1) / np.where(apart > 0, apart, 1)), 0).sum(
        (1, 2)
    )


def compared(ours: list[list[int]], exact: list[list[int]]) -> list[tuple[float, float, float]]:
    """For each statistic: its value on exact images, our difference from it, and the difference's standard error."""
    (own, own_pairs), (other, other_pairs) = neighbours(ours), neighbours(exact)
    found = []
    for at in range(4):
        each = own[:, at] - other[:, at]
        found.append((float(other[:, at].mean()), float(each.mean()), float(each.std(ddof=1) / len(each) ** 0.5)))
    whole = information(other_pairs.sum(0)), information(own_pairs.sum(0))
    count = len(own_pairs)
    left_out = np.array([
        information(own_pairs.sum(0) - own_pairs[at]) - information(other_pairs.sum(0) - other_pairs[at])
        for at in range(count)
    ])  # fmt: skip
    spread = ((left_out - left_out.mean(0)) ** 2).sum(0) * (count - 1) / count
    for which in range(2):
        difference = float(whole[1][which] - whole[0][which])
        found.append((float(whole[0][which]), difference, float(spread[which] ** 0.5)))
    return found


# --- suffixes ---

LOOKUPS = (
    *(f"lookup:k={k},max_ngram=3,prefer=last" for k in (10, 5, 20, 32, 63)),
    *(f"lookup:k=10,max_ngram={most},prefer=last" for most in (1, 2, 5)),
    *(f"lookup:k={k},prefer=longest" for k in (10, 32)),
)
SUFFIXES = (
    *(f"suffix:factor={factor},offset=0" for factor in (1, 2, 4, 16)),
    *(f"suffix:factor={factor},offset=4" for factor in (1, 4)),
    "suffix:tree=true,factor=4",
    "suffix:tree=true,factor=16",
    "suffix:factor=16,k=63",
)


class Predicting:
    """A decoder that predicts the next token of a known text, so that only drafts that equal the text are accepted."""

    def __init__(self, inner: Any) -> None:
        self.inner = inner
        self.text = torch.zeros(1, dtype=torch.long)

    def __call__(self, plan: Plan, cache: Any = None) -> Hidden:
        following = self.text[(plan.positions + 1).clamp(0, len(self.text) - 1)]
        vocab = self.inner.embed.weight.shape[0]
        return Hidden(
            plan,
            following[..., None].float(),
            lambda flat: torch.nn.functional.one_hot(flat[:, 0].long(), vocab).float(),
        )

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


def texts_to_edit(file: Path, count: int) -> Iterator[tuple[str, list[str]]]:
    """Texts of 60 words, and words of each to replace."""
    lines = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    articles = [entry["turns"][0] for entry in lines if entry["category"] == "summarization"]
    for seed, article in enumerate(articles[:count]):
        text = " ".join(article.removeprefix("Summarize: ").split()[:60])
        words = sorted({word for word in text.split() if word.isalpha() and len(word) > 4})
        yield text, random.Random(seed).sample(words, EDITS)


def chat(model: pardec.Model, *turns: str) -> list[int]:
    """The prompt that ends with the last turn, the first and every other one the user's."""
    messages = [{"role": ("user", "assistant")[at % 2], "content": turn} for at, turn in enumerate(turns)]
    return list(
        model.tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=True)["input_ids"]
    )


EDITS = 4  # requests that edit one text
ASK = "Write {}, with the word {} in place of {}, and nothing else."


def edits(model: pardec.Model, file: Path, count: int) -> list[list[int]]:
    """Chats in which a text is copied with one word replaced, and then asked for with another word replaced."""
    return [
        chat(
            model,
            ASK.format("this text", "window", first) + "\n\n" + text,
            text.replace(first, "window"),
            ASK.format("the new text once more", "garden", second),
        )
        for text, (first, second, *_) in texts_to_edit(file, count)
    ]


def requests_to_edit(model: pardec.Model, file: Path, count: int) -> list[list[int]]:
    """`EDITS` prompts per text, each for the text with another word replaced."""
    return [
        chat(model, ASK.format("this text", "window", word) + "\n\n" + text)
        for text, words in texts_to_edit(file, count)
        for word in words
    ]


def suffixes(rows: Rows, options: argparse.Namespace) -> None:
    """For every setting, forwards per prompt on the same greedy texts, without the prompts' own forwards."""
    model = pardec.load(options.smollm2, device="cpu")
    questions = [chat_ids(model, prompt.text) for prompt in read_prompts(options.prompts, -(-options.n // 6))][
        : options.n
    ]
    sets = {
        "edits": edits(model, options.prompts, options.n),
        "repeated edits": requests_to_edit(model, options.prompts, options.n),
        "second pass": questions,
    }
    decoder = Predicting(model.language_model.decoder)
    known = pardec.Model(replace(model.language_model, decoder=decoder))

    def forwards(
        own: pardec.Model, spec: str, given: list[list[int]], texts: list[list[int]], passes: int
    ) -> list[int]:
        sampler, found = registry.resolve(spec, "ar", sampling=False), list[int]()
        for _ in range(passes):
            found.clear()
            for ids, text in zip(given, texts, strict=True):
                decoder.text = torch.tensor([*ids, *text])
                done = own.generate(input_ids=[ids], sampler=sampler, max_new_tokens=len(text))
                assert done.tokens[0] == text, f"{spec} changed a greedy text"
                found.append(done.nfe[0] - 1)
        return found

    for name, given in sets.items():
        plain = rows.get("suffixes", name, "sequential")
        if plain is None:
            texts = [
                model.generate(input_ids=[ids], sampler="sequential", max_new_tokens=64).tokens[0] for ids in given
            ]
            plain = rows.add("suffixes", name, "sequential", texts=texts, forwards=[len(text) - 1 for text in texts])
        texts, again = plain["texts"], name == "second pass"
        every = [*LOOKUPS, *SUFFIXES]
        if name != "edits":  # a chat that no request came before
            every += [f"{spec},keep=true" for spec in SUFFIXES]
        for spec in every:
            if rows.get("suffixes", name, spec) is None:
                rows.add(
                    "suffixes", name, spec, forwards=forwards(known, spec, given, texts, 1 + (again and "keep" in spec))
                )
        for spec in (best(rows, name, "lookup"), best(rows, name, "suffix")):
            if rows.get("suffixes", f"{name}, decoded", spec) is None:
                counts = forwards(model, spec, given, texts, 1 + (again and "keep" in spec))
                rows.add("suffixes", f"{name}, decoded", spec, forwards=counts)


def counted(row: Row) -> list[int]:
    """Forwards per prompt; of repeated edits of a text, the first is left out."""
    of = row["forwards"]
    return [count for at, count in enumerate(of) if at % EDITS] if row["task"].startswith("repeated") else list(of)


def best(rows: Rows, name: str, drafter: str) -> str:
    """The setting of a drafter that takes the fewest forwards."""
    of = [row for row in rows.of("suffixes", name) if row["name"].startswith(drafter)]
    return str(min(of, key=lambda row: sum(counted(row)))["name"])


# --- chains ---

CHUNK = 100  # rounds of a saved row
DRAFTED, CHOICES, TEMPERATURE = 4, 3, 2.0  # at temperature 1 the two models agree, and neither rule rejects much


def chains(rows: Rows, options: argparse.Namespace) -> None:
    """Expected counts of accepted tokens at the beginnings of rounds, over all chains of the drafting model."""
    target, drafter = (pardec.load(name, device="cpu") for name in ("tiny-llama", "tiny-llama-draft"))
    starts = list(round_starts(target, options.rounds))
    for at in range(0, len(starts), CHUNK):
        if rows.get("chains", "arithmetic", f"rounds from {at}") is None:
            found = [expected(target, drafter, text) for text in starts[at : at + CHUNK]]
            block, usual, worse = (list(figures) for figures in zip(*found, strict=True))
            rows.add("chains", "arithmetic", f"rounds from {at}", block=block, usual=usual, worse=worse)


def round_starts(model: pardec.Model, count: int) -> Iterator[list[int]]:
    """Texts at which rounds of sampled decoding begin, the last token included."""
    spec, prompts = f"model:name=tiny-llama-draft,k={DRAFTED}+block", pardec.task("arithmetic").problems(n=36, seed=3)
    made = 0
    for seed in range(99):
        ids = [chat_ids(model, str(problem.prompt)) for problem in prompts]
        done = model.generate(
            input_ids=ids, sampler=spec, temperature=TEMPERATURE, top_k=CHOICES, max_new_tokens=32, seed=seed
        )
        for prompt, text, accepted in zip(ids, done.tokens, done.trace.accepted, strict=True):
            at = 1  # after the prompt's own round
            for gained in accepted[1:]:
                if made == count:
                    return
                if at < len(text):
                    made += 1
                    yield prompt + text[:at]
                at += gained + 1


@torch.inference_mode()
def expected(target: pardec.Model, drafter: pardec.Model, text: list[int]) -> tuple[float, float, float]:
    """The mean tokens that `block` and `speculative` accept, and the share of chains where `block` accepts fewer.

    Both distributions are those of the likeliest tokens, `CHOICES` of them: a round has that many to the power of
    `DRAFTED` chains, with the probabilities that the drafting model gives them.
    """
    tree, level = torch.zeros(0, dtype=torch.long), 1  # all nodes, level by level, CHOICES children after one another
    for _ in range(DRAFTED):
        q = after(drafter, text, tree)
        level, likeliest = level * CHOICES, q[-level:].topk(CHOICES).indices
        tree = torch.cat((tree, likeliest.flatten()))
    inner = tree[:-level]  # the predictions after the last level are not needed: no chain contains the tokens after it
    leaf = torch.arange(level)
    sizes = [CHOICES**depth for depth in range(DRAFTED + 1)]
    starts = [sum(sizes[1:depth]) for depth in range(DRAFTED + 1)]
    nodes = torch.stack([starts[at] + leaf // sizes[DRAFTED - at] for at in range(1, DRAFTED + 1)], 1)
    before = torch.nn.functional.pad(nodes[:, :-1] + 1, (1, 0))  # of `after`: 0 is after the text
    p = after(target, text, inner)[before]
    q = q[before]
    paths = tree[nodes]
    chance = q.gather(2, paths[..., None])[..., 0].prod(1)
    pad = torch.nn.functional.pad
    draft = Draft(
        pad(paths, (1, 0)), np.full(level, DRAFTED + 1), np.full(level, len(text) - 1), q=pad(q, (0, 0, 1, 0))
    )
    last = torch.full_like(p[:, :1], 1 / p.shape[-1])
    logits = torch.cat((p, last), 1).log()
    laws, given = TargetDistributions(logits, logits, greedy=False), Zeros(level)
    h, each = (rule.accept(draft, laws, cast(Any, given), None).ratio for rule in (BlockVerification(), Speculative()))
    assert h is not None, "a rule says how probable its tests are"
    assert each is not None, "so does the other"
    h, each = h[:, 1:].double(), each[:, 1:].double()
    later = pad((1 - h).flip(1).cumprod(1).flip(1)[:, 1:], (0, 1), value=1.0)
    block, usual = (torch.arange(1, DRAFTED + 1) * h * later).sum(1), each.cumprod(1).sum(1)
    worse = chance[block < usual - 1e-6].sum()
    return float((block * chance).sum()), float((usual * chance).sum()), float(worse)


def after(model: pardec.Model, text: list[int], tree: Tensor) -> Tensor:
    """[1 + N, V] float64: the distributions after the text and each node of a tree, over the likeliest tokens only."""
    size, count = len(text), len(tree)
    sees, depth = ancestors(count)
    visible = torch.ones(size + count, size + count, dtype=torch.bool).tril()
    visible[size:, size:] = sees
    plan = Plan.full(torch.cat((torch.tensor(text), tree))[None], Visible.mask(visible[None]))
    plan = replace(plan, positions=torch.cat((torch.arange(size), size + depth))[None], span=None)
    raw = model.language_model.decoder(plan).logits()[0, size - 1 :].double() / TEMPERATURE
    return raw.masked_fill(raw < raw.topk(CHOICES).values[:, -1:], -torch.inf).softmax(-1)


@cache
def ancestors(count: int) -> tuple[Tensor, Tensor]:
    """[N, N] bool: the ancestors of each of the tree's first N = `count` nodes, itself included; and depths [N]."""
    sees, depth = torch.eye(count, dtype=torch.bool), torch.zeros(count, dtype=torch.long)
    for node in range(CHOICES, count):
        parent = node // CHOICES - 1
        sees[node] |= sees[parent]
        depth[node] = depth[parent] + 1
    return sees, depth


class Zeros:
    """Uniforms that are all 0, for draws that are not used."""

    def __init__(self, rows: int) -> None:
        self.rows = rows

    def accepts(self, width: int) -> Tensor:
        return torch.zeros(self.rows, width)

    def accept(self, node: int, active: Tensor, token: Tensor) -> Tensor:
        return torch.zeros(len(active))

    def draw(self, p: Tensor, purpose: str) -> Tensor:
        return p.argmax(-1)


# --- masks ---

MASKED = ("tiny-llada", "tiny-dream")
RUNS = ("leap", "leap:tau=0.5", "contiguous")  # the last two are one rule where the window does not end a run
PROVISIONAL = (
    *(f"leap+provisional:tau={tau}" for tau in (0.98, 0.9, 0.999)),
    *(f"{leap}+provisional:tau=0.98,alternate=true" for leap in ("leap", "leap:tau=0.5")),
)
THRESHOLDS = tuple(f"threshold:tau={tau}" for tau in (0.7, 0.8, 0.9))
LOOKAHEADS = (
    *(f"counterfactual:tau={tau}" for tau in (0.7, 0.8, 0.9)),
    *(f"counterfactual:tau=0.8,draft={draft}" for draft in (0.5, 0.05)),
)


@contextmanager
def watched() -> Iterator[dict[str, int]]:
    """Counts provisional tokens that are fed, and those of them that the same forward predicts otherwise.

    Of `counterfactual`, the candidates above its threshold, those of them that are held back, and forwards without any.
    """
    counts = dict.fromkeys(("fed", "changed", "sure", "held", "none"), 0)
    own, select = Provisional.observe, Counterfactual.select

    def observe(self: Provisional, evidence: Any, embed: Any, canvas: Any, state: Any) -> Any:
        fed = state.fed & evidence.predicted
        counts["fed"] += int(fed.sum())
        counts["changed"] += int((fed & (evidence.distribution.greedy[0] != state.ids)).sum())
        return own(self, evidence, embed, canvas, state)

    def selected(self: Counterfactual, proposal: Any, canvas: Any, state: None) -> Tensor:
        chosen, sure = select(self, proposal, canvas, state), proposal.eligible & (proposal.score >= self.tau)
        for name, count in (("sure", sure), ("held", sure & ~chosen), ("none", ~chosen.any(1))):
            counts[name] += int(count.sum())
        return chosen

    with patch.object(Provisional, "observe", observe), patch.object(Counterfactual, "select", selected):
        yield counts


def masks(rows: Rows, options: argparse.Namespace) -> None:
    """Forwards per prompt of each rule over the whole answer at once, without a cache."""
    for name in MASKED:
        model = pardec.load(name, device="cpu")
        for which, count in (("chains", options.n), ("grids", 4 * options.n)):
            task = pardec.task(which)
            problems = task.problems(split="heldout", n=count, seed=5)
            length = max(map(task.length, problems))
            for spec in (*RUNS, *PROVISIONAL, *THRESHOLDS, *LOOKAHEADS):
                if rows.get("masks", f"{name}, {which}", spec) is None:
                    with watched() as counts:
                        done = model.generate(
                            [problem.prompt for problem in problems],
                            sampler=f"{spec}+eos",
                            max_new_tokens=length,
                            block_length=length,
                        )
                    right = [float(task.score(*pair) or 0) for pair in zip(problems, done.text, strict=True)]
                    rows.add("masks", f"{name}, {which}", spec, forwards=list(done.nfe), right=right, **counts)


# --- paths ---

PLAIN_PATH = "mar:steps=18,head=50"
PATHS = (
    "fasthybrid:steps=18,head=50",
    *(f"fasthybrid:steps=18,head=50,k=3,tau={tau}" for tau in (0.98, 0.8)),
    "mar:steps=18,head=50,order=checker",
    *(f"fasthybrid:steps=18,head=50,k=3,tau={tau},order=checker" for tau in (0.98, 0.8)),
)
SETS = 48  # images of a set; classes in turn
ALONE = 3  # images that are drawn alone, whose calls are counted


def paths(rows: Rows, options: argparse.Namespace) -> None:
    """The head's calls and evaluated tokens per image that is drawn alone, and images of the same labels in batches."""
    model, task = pardec.load("tiny-mar", device="cpu"), pardec.task("classes")
    problems = task.problems(n=SETS)
    labels = [problem.label for problem in problems]
    for spec, seed in ((PLAIN_PATH, 0), (PLAIN_PATH, 1), *((spec, 0) for spec in PATHS)):
        name = f"{spec}, again" if seed else spec
        if rows.get("paths", "classes", name) is None:
            first = SETS * (seed + 2 * (spec != PLAIN_PATH))  # seeds of images, other ones for other sets
            vectors, right = list[list[float]](), list[float]()
            for start in range(0, SETS, 12):
                part = slice(start, start + 12)
                seeds = list(range(first + start, first + start + 12))
                done = model.generate(label=labels[part], sampler=spec, cfg=2.0, seed=seeds)
                vectors += torch.as_tensor(done.latents).reshape(12, -1).round(decimals=4).tolist()
                right += [float(task.score(*pair) or 0) for pair in zip(problems[part], done.images, strict=True)]
            calls = list[int]()
            with patch.object(DiffusionHead, "distribution", counting(calls)):
                for label in labels[:ALONE]:
                    model.generate(label=[label], sampler=spec, cfg=2.0, seed=[first])
            rows.add(
                "paths",
                "classes",
                name,
                vectors=vectors,
                right=right,
                calls=len(calls) / ALONE,
                tokens=sum(calls) / ALONE,
            )


def counting(calls: list[int]) -> Any:
    own = DiffusionHead.distribution

    def distribution(self: DiffusionHead, x: Tensor, *rest: Any) -> Any:
        calls.append(len(x))
        return own(self, x, *rest)

    return distribution


def kernel(first: Tensor, second: Tensor) -> Tensor:
    """[N + N, N + N]: a Gaussian kernel as wide as the median distance of two sets [N, D]."""
    apart = torch.cdist(*(torch.cat((first, second)).double(),) * 2)
    return (-((apart / apart[apart > 0].median()) ** 2) / 2).exp()


def discrepancy(values: Tensor, which: Tensor) -> float:
    """The unbiased squared MMD between the points where `which` [2 N] is True, and the others."""
    ours, theirs = values[which][:, which], values[~which][:, ~which]
    count = len(ours)
    inside = sum(float(part.sum() - part.diagonal().sum()) for part in (ours, theirs)) / (count * (count - 1))
    return inside - 2 * float(values[which][:, ~which].mean())


def far(ours: Tensor, theirs: Tensor) -> tuple[float, float]:
    """The squared MMD of two samples, and its 99th percentile over random divisions of their union."""
    values, generator = kernel(ours, theirs), torch.Generator().manual_seed(0)
    which = torch.arange(len(values)) < len(ours)
    null = [discrepancy(values, which[torch.randperm(len(which), generator=generator)]) for _ in range(1000)]
    return discrepancy(values, which), float(np.percentile(null, 99))


# --- the page ---

PAGE = """# Seven methods of 2026 and the forwards that they save

Each method against the best of the earlier ones on the same task, in one run, on {processor} with torch {torch}; the
counts depend on neither. Intervals are of 99%, by a bootstrap over prompts, or over texts where
several prompts edit one. Made by

`{command}`

{results}
"""


MASKS = """## Tokens that are fed before they are committed, and tokens that others confirm

Of every rule the whole answer is one block. Ratios are to `leap`, or to `threshold:tau=0.9` for the second half of each
task's rows. Of provisional tokens, how many were fed, and the share that the same forward predicts otherwise; of
`counterfactual`, the candidates above its threshold, and those that their second prediction holds back.

`leap+provisional` (DC-Leap) saves about a tenth of `leap`'s forwards on `grids`, with about as many right answers. On
`chains` it saves none: the run ends at a number that follows from the one before it, of which tokens further on say
nothing, and `leap:tau=0.5`, which is `contiguous` here, passes these numbers without them. tiny-llada was trained to
fill in masks, and at a token that it is fed it often predicts another: committed, these break its chains. With
`alternate` only predictions from masks count, and its chains are right again.

`counterfactual` (LEAP) has fewer errors than `threshold` at 0.7 on `grids`, and does not take fewer forwards than
`threshold` at 0.9 with as few errors: `threshold` at 0.8 takes fewer with about as many as it. On `chains` there is
nothing to save: most forwards find no sure token, and commit the surest one alone.

| model, task | rule | prompts | forwards per prompt | ratio | right | tokens |
|---|---|---|---|---|---|---|
"""
DISTANCES = """## Short denoising paths

`fasthybrid` on tiny-mar, with guidance 2. Calls of the head for an image that is drawn alone, and how many times fewer
than with `mar`: of calls, and of tokens evaluated in them. `MMD`: squared, unbiased, between {sets} images' vectors and
as many of `mar` with other seeds and the same classes, by a Gaussian kernel as wide as their median distance; `noise`:
the largest 1% of it in random divisions of the same images. Bar: half the calls, within the noise.

Half the calls are saved within the noise, and the defaults save two thirds, but of so few images MMD does not notice
that fewer classes are readable: seven groups ahead are two fifths of this model's 18 steps, and a ninth of the
published 64. With the checkerboard order more of them stay readable. Evaluated tokens do not fall: a look-ahead draws
its groups at once, in the same calls.

| decoded with | calls of the head per image | times fewer | tokens, times fewer | readable | MMD | noise |
|---|---|---|---|---|---|---|
"""


def ratio(ours: Sequence[float] | np.ndarray, theirs: Sequence[float] | np.ndarray) -> str:
    value, low, high = resampled(np.array(ours, dtype=float), np.array(theirs, dtype=float))
    return f"{value:.2f} ({low:.2f}..{high:.2f})"


def page_of_blocks(rows: Rows) -> str:
    text = (
        "## A block model that verifies itself\n\n`linearspec` on tiny-nemotron: one forward drafts k tokens, and "
        "one verifies them at block length 1; both are counted. Block length 1 takes one forward per token, whatever "
        "the "
        "sampler: it has no setting to sweep. Answers are cut after 96 tokens, which most of `chains` are longer "
        "than. Bar: 0.6, with its tokens.\n\n"
        "| task | decoded with | prompts | forwards per prompt | of block length 1 | same tokens | right |\n"
        "|---|---|---|---|---|---|---|\n"
    )
    for name in ("arithmetic", "chains"):
        plain = rows.get("blocks", name, SINGLE)
        assert plain is not None, "measured"
        for row in rows.of("blocks", name):
            same = sum(own == other for own, other in zip(row["tokens"], plain["tokens"], strict=True))
            label = row["name"].replace(", ", "`, ") if ", " in row["name"] else f"{row['name']}`"
            text += (
                f"| {name} | `{label} | {len(row['tokens'])} "
                f"| {np.mean(row['forwards']):.1f} | {ratio(row['forwards'], plain['forwards'])} "
                f"| {same} | {np.mean(row['right']):.0%} |\n"
            )
    return text


def page_of_rows(rows: Rows) -> str:
    measured = {row["name"]: row for row in rows.of("rows", "captions")}
    exact = [name for name in measured if name.startswith("sjd")]
    base = min(exact, key=lambda name: sum(measured[name]["forwards"]))
    count = len(measured[base]["codes"])
    text = (
        f"## Rows of an image at once\n\n`pjd` on tiny-llamagen's 12 x 12 codes, {count} captions, with the "
        f"checkpoint's guidance, temperature and filter. The best exact setting is `{base}`. Bar: 0.6.\n\n"
        f"| decoded with | forwards per image | of `{base}` | positions per image |\n|---|---|---|---|\n"
    )
    for name, row in measured.items():
        text += (
            f"| `{name}` | {np.mean(row['forwards']):.1f} | {ratio(row['forwards'], measured[base]['forwards'])} "
            f"| {np.mean(row['positions']):,.0f} |\n"
        )
    apart, joint = (
        min((row for row in measured.values() if row["name"].startswith("pjd") and ("joint" in row["name"]) is how),
            key=lambda row: sum(row["forwards"]))
        for how in (False, True)
    )  # fmt: skip
    each, base_each = (np.mean(row["forwards"]) / 12 for row in (apart, measured[base]))
    plain, alike = (ratio(joint["forwards"], measured[name]["forwards"]) for name in ("sjd", "sjd:window=145"))
    text += (
        f"\n`{joint['name']}` takes {plain} of the forwards of `sjd`, and {alike} of those of `sjd:window=145`; "
        "`tree` is SJD-PAC's, another method of 2026.\n"
        "\nWith the published mask a row's accepted tokens cannot pass those of the row above a round before, so that "
        "each row ends a forward after it or later: 12 rows take 13 forwards at the least, whatever the drafts, "
        f"{13 / 12 / base_each:.2f} of `{base}`'s. The fewest there are {each:.1f} forwards per row, and "
        f"{base_each:.1f} with `{base}`: the round in which a code is first predicted from the token above it is the "
        "one that tests its draft, which was sampled without that token. With `joint`, which is no part of the paper, "
        "drafts attend to the drafts above them and may be accepted in the same round as these. The first row, which "
        f"has none above it, takes {np.mean(joint['first']):.1f} forwards, as many as with `{base}` "
        f"({np.mean(measured[base]['first']):.1f}), and the other eleven "
        f"{np.mean(joint['forwards']) - np.mean(joint['first']):.1f} together. "
        "The published ratio is 0.35 to 0.45 on 48 rows of 48 codes, of which `sjd` takes 22 forwards per row, so that "
        "a forward per row is little.\n"
    )
    text += (
        "\nHow alike neighbouring codes are, in `sequential`'s images, and the difference to these in standard "
        "errors: "
        "of the differences over captions, or of a jackknife over captions for the mutual information of the codes' "
        "eight groups (signs on the three widest axes of the codebook). Of so many normal errors one in twenty "
        "tables "
        "has one beyond 3.2.\n\n"
        f"| decoded with | {' | '.join(STATISTICS)} |\n|---|{'---|' * len(STATISTICS)}\n"
    )
    plain = measured["sequential"]["codes"]
    text += "| `sequential` | " + " | ".join(f"{value:.3f}" for value, _, _ in compared(plain, plain)) + " |\n"
    for name, row in measured.items():
        if name != "sequential":
            cells = (f"{gap:+.3f} ({gap / error:+.1f})" for _, gap, error in compared(row["codes"], plain))
            text += f"| `{name}` | {' | '.join(cells)} |\n"
    return text


def by_text(counts: list[int], each: int) -> list[int]:
    """Sums over the `each` prompts that edit one text: these are not independent."""
    return [int(total) for total in np.reshape(counts, (-1, each)).sum(1)]


def whole_set(rows: Rows) -> str:
    """How many forwards all requests of the repeated edits take."""
    name = "repeated edits"
    ours, theirs = (rows.get("suffixes", name, best(rows, name, drafter)) for drafter in ("suffix", "lookup"))
    assert ours is not None, "measured"
    assert theirs is not None, "measured"
    share = ratio(*(by_text(each["forwards"], EDITS) for each in (ours, theirs)))
    return f"With the first request of each text, of which nothing is stored, it is {share}."


def page_of_suffixes(rows: Rows) -> str:
    text = (
        "## Suffix trees\n\nSmolLM2-135M-Instruct's greedy answers of 64 tokens at most. Forwards are those after "
        "the "
        "prompt's. `edits`: chats in which a text of 60 words was copied with a word replaced, and another one "
        f"is asked for. `repeated edits`: {EDITS} requests for each text, with another word to replace in each; those "
        "after a text's first are counted, and none is repeated. `second pass`: the same questions again. With `keep` "
        "the answers to earlier requests are searched too. The defaults, and the best of the settings. Bar: 0.7 of the "
        "best `lookup`.\n\n"
        "On `edits` what can be copied stands in the prompt for both, and either copies up to the next word that "
        "differs, which no copy foresees. `suffix` drafts no more than `factor` tokens per token of the match, so that "
        "its default begins anew with few after each such word. Of the `repeated edits` this small model makes few as "
        "asked: what it writes in place of the text it mostly writes again, so that only the store foresees it. "
        f"{whole_set(rows)}\n\n"
        "| set | drafter | prompts | forwards per prompt | of the best `lookup` |\n|---|---|---|---|---|\n"
    )
    for name in ("edits", "repeated edits", "second pass"):
        base = rows.get("suffixes", name, best(rows, name, "lookup"))
        assert base is not None, "measured"
        group = EDITS - 1 if name == "repeated edits" else 1
        defaults = ("sequential", "lookup:k=10,max_ngram=3,prefer=last", "suffix:factor=1,offset=0")
        kept = (f"{defaults[-1]},keep=true",) if name != "edits" else ()
        for spec in dict.fromkeys((*defaults, *kept, base["name"], best(rows, name, "suffix"))):
            row = rows.get("suffixes", name, spec)
            if row is None:  # of a run that was interrupted
                continue
            text += (
                f"| {name} | `{spec}` | {len(counted(row))} | {np.mean(counted(row)):.1f} "
                f"| {ratio(*(by_text(counted(each), group) for each in (row, base)))} |\n"
            )
    return text


def page_of_chains(rows: Rows) -> str:
    chunks = rows.of("chains", "arithmetic")
    block, usual, worse = (np.concatenate([row[name] for row in chunks]) for name in ("block", "usual", "worse"))
    gain, low, high = resampled(block - usual)
    return (
        f"## Chains verified together\n\n`block` and `speculative` at {len(block):,} beginnings of rounds of "
        "tiny-llama "
        f"at temperature {TEMPERATURE:g}, with the {CHOICES} likeliest tokens of either model. All "
        f"{CHOICES**DRAFTED} chains "
        "that tiny-llama-draft can draft there are enumerated, so that each round's expected number of accepted "
        "tokens is "
        "exact. Bar: never below the usual rule's.\n\n"
        "| rule | accepted per round | fewest, against the usual rule in the same round | most |\n|---|---|---|---|\n"
        f"| `speculative` | {usual.mean():.4f} | | |\n"
        f"| `block` | {block.mean():.4f}, +{gain:.4f} ({low:.4f}..{high:.4f}) | {(block - usual).min():+.1e} "
        f"| {(block - usual).max():+.3f} |\n\n"
        f"It is more by over 1e-6 in {(block - usual > 1e-6).mean():.0%} of the rounds. 'Never below' holds over the "
        f"drafts of a round, not of every draft: with a probability of {worse.mean():.1%} a chain is "
        "drafted of which `block` accepts fewer tokens on average.\n"
    )


def page_of_masks(rows: Rows) -> str:
    text = MASKS
    for name in MASKED:
        for which in ("chains", "grids"):
            task = f"{name}, {which}"
            for row in rows.of("masks", task):
                lookahead = row["name"].startswith(("threshold", "counterfactual"))
                base = rows.get("masks", task, "threshold:tau=0.9" if lookahead else "leap")
                assert base is not None, "measured"
                seen = f"{row['fed']:,} fed, {row['changed'] / row['fed']:.0%} changed" if row["fed"] else ""
                if row["sure"]:
                    share = row["none"] / sum(row["forwards"])
                    seen = f"{row['sure']:,} sure, {row['held']} held back; {share:.0%} of forwards find none"
                text += (
                    f"| {task} | `{row['name']}` | {len(row['right'])} | {np.mean(row['forwards']):.1f} "
                    f"| {ratio(row['forwards'], base['forwards'])} | {np.mean(row['right']):.0%} | {seen} |\n"
                )
    return text


def page_of_paths(rows: Rows) -> str:
    sets = {row["name"]: row for row in rows.of("paths", "classes")}
    plain = sets[PLAIN_PATH]
    text = DISTANCES.format(sets=SETS)
    for name, row in sets.items():
        cells = ""
        if name != PLAIN_PATH:
            value, most = far(*(torch.tensor(each["vectors"]) for each in (row, plain)))
            cells = f"{value:+.4f} | {most:.4f}"
        calls, tokens = (plain[which] / row[which] for which in ("calls", "tokens"))
        text += f"| `{name.replace(', again', '`, again')}{'' if 'again' in name else '`'} "
        text += (
            f"| {row['calls']:.0f} | {calls:.2f} | {tokens:.2f} | {np.mean(row['right']):.0%} | {cells or ' | '} |\n"
        )
    return text


PARTS = {
    "blocks": (blocks, page_of_blocks),
    "rows": (images, page_of_rows),
    "suffixes": (suffixes, page_of_suffixes),
    "chains": (chains, page_of_chains),
    "masks": (masks, page_of_masks),
    "paths": (paths, page_of_paths),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--only", choices=PARTS, help="measure and print this part, and write no page")
    parser.add_argument("--smollm2", help="SmolLM2's GGUF file")
    parser.add_argument("--prompts", type=Path, help="Spec-Bench's questions")
    parser.add_argument("-n", type=int, default=12, help="prompts of each task and set")
    parser.add_argument("--images", type=int, default=24, help="number of captions")
    parser.add_argument("--rounds", type=int, default=1000, help="rounds of chains")
    parser.add_argument("--run", type=Path, default=Path("runs/fewer_forwards"), help="folder of results so far")
    parser.add_argument("--out", type=Path, default=HERE / "fewer_forwards", help="path without suffix")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows = Rows(options.run)
    for name, (measure, _) in PARTS.items():
        if options.only in (None, name):
            measure(rows, options)
    if options.only is not None:
        print(PARTS[options.only][1](rows))
    if options.only is None:
        shown = " ".join(Path(part).name if part.endswith((".gguf", ".jsonl")) else part for part in sys.argv[1:])
        options.out.with_suffix(".md").write_text(
            PAGE.format(
                processor=processor(),
                torch=torch.__version__,
                command=f"python benchmarks/fewer_forwards.py {shown}",
                results="\n".join(write(rows) for _, write in PARTS.values()).rstrip(),
            )
        )


if __name__ == "__main__":
    main()
