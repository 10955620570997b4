"""The run of scripts/train_stories.py: rows in place of tasks, and the loss on held-out rows in place of accuracy."""

from __future__ import annotations

import random
import shutil
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import pardec
from pardec.environment import processor
from pardec.training.resumable import AVERAGE
from text_training import networks, stories
from text_training.data import EOS, LENGTH_SHARES, MASK, Batch, Targets, masked_targets
from text_training.export import items, opening, write_model, write_pages
from text_training.loop import Run
from text_training.options import Options

LENGTHS = tuple(range(32, 289, 32))  # lengths of rows
CHUNK = 2048  # rows between two readings of the files
INSTRUCTIONS = 0.4  # share of the rows that ask about a story or text
MEASURED = 32  # held-out rows
RATES = 4  # masking rates of the held-out loss of a row
ASKED = ("Write a happy story about a girl named Mia and a red ball.", "Write a sad story about a dog and the rain.")


class StoryRun(Run):
    """One training run on files of rows."""

    kept = (*Run.kept, "core_seconds")

    def __init__(self, options: Options, files: list[Path], others: list[Path], share: float) -> None:
        self.files, self.other_files, self.share = files, others, share
        self.core_seconds = 0.0  # processor time of the whole run
        self.others = list(stories.read(others))
        super().__init__(options)
        self.began = time.process_time() - self.core_seconds

    # -- rows --------------------------------------------------------------------------------------------------

    def rows(self, held_out: bool) -> tuple[list[stories.Row], list[stories.Row]]:
        """Stories and other texts, of the training or the held-out part."""
        both = list(stories.read(self.files)), self.others
        own, others = ([row for row in each if stories.is_held_out(row) == held_out] for each in both)
        return own, others

    def encoded(self, rows: list[stories.Row], rng: random.Random) -> dict[int, list[tuple[list[int], int, int]]]:
        """Ids, start and end of the answer, by length; rows that are longer than the longest length are dropped."""
        prompts = self.tokenizer.encode_batch([prompt + "\n" for prompt, _ in rows])
        answers = self.tokenizer.encode_batch([answer for _, answer in rows], add_special_tokens=False)
        found: dict[int, list[tuple[list[int], int, int]]] = defaultdict(list)
        for prompt, answer in zip(prompts, answers, strict=True):
            ids = prompt.ids + answer.ids
            fitting = [length for length in LENGTHS if length > len(ids)][: len(LENGTH_SHARES)]
            if fitting:
                length = rng.choices(fitting, weights=LENGTH_SHARES[: len(fitting)])[0]
                found[length].append((ids + [EOS] * (length - len(ids)), len(prompt.ids), len(ids)))
        return found

    def batches(self) -> Iterator[Batch]:
        while True:
            rng = random.Random(f"{self.o.seed}/{self.chunk}")
            own, others = self.rows(held_out=False)
            drawn = [rng.choice(own if not others or rng.random() < self.share else others) for _ in range(CHUNK)]
            drawn = [stories.about(rng, row) if rng.random() < INSTRUCTIONS else row for row in drawn]
            made = []
            for length, group in sorted(self.encoded(drawn, rng).items()):
                count = max(1, self.o.batch // length)
                for start in range(0, len(group) - count + 1, count):
                    made.append(Batch(*map(torch.tensor, zip(*group[start : start + count], strict=True))))
            rng.shuffle(made)
            while self.index < len(made):
                self.index += 1
                yield made[self.index - 1]
            self.chunk, self.index = self.chunk + 1, 0

    def targets(self, batch: Batch) -> Targets:
        noise = torch.Generator().manual_seed(self.o.seed * 1_000_003 + self.step)
        return masked_targets(batch, noise, self.o.focus)

    # -- state and measurements --------------------------------------------------------------------------------

    def save(self) -> None:
        self.core_seconds = time.process_time() - self.began
        super().save()

    @torch.no_grad()
    def held_out_loss(self, model: torch.nn.Module, rows: list[stories.Row]) -> float:
        """An upper bound of the negative log-likelihood per token of the answers and their end tokens, in nats.

        LLaDA's estimate (arXiv:2502.09992, eq. 6): of L answer tokens, l are masked, l uniform in 1..L, and the
        cross entropy of the masked ones counts L / l times. The masks are the same in every measurement.
        """
        rng, total, tokens = random.Random(0), 0.0, 0
        for group in self.encoded(rows[:MEASURED], random.Random(0)).values():
            for ids, start, end in group:
                count = end + 1 - start
                at = torch.arange(start, end + 1)
                masks = torch.zeros(RATES, len(ids), dtype=torch.bool)
                for mask in masks:
                    mask[at[rng.sample(range(count), rng.randint(1, count))]] = True
                clean = torch.tensor([ids]).expand(RATES, -1)
                inputs = clean.masked_fill(masks, MASK)
                inputs[:, end + 1 :] = MASK
                each = F.cross_entropy(
                    networks.logits_of(model, inputs, True).float().transpose(1, 2), clean, reduction="none"
                )
                weights = masks / masks.sum(1, keepdim=True) * count
                total += float((each * weights).sum() / RATES)
                tokens += count
        return total / max(tokens, 1)

    def evaluate(self, final: bool) -> dict[str, float]:
        model, weights = self.exported()
        own, others = self.rows(held_out=True)
        losses = {"held_out_stories": self.held_out_loss(model, own)}
        if others:
            losses["held_out_texts"] = self.held_out_loss(model, others)
        self.core_seconds = time.process_time() - self.began
        losses = {name: round(loss, 4) for name, loss in losses.items()}
        self.curve.append({"core_hours": self.core_hours(), "step": self.step, "loss": round(self.loss, 4)} | losses)
        self.export(model, weights)
        return losses

    def core_hours(self) -> float:
        return round(self.core_seconds / 3600, 3)

    def export(self, model: torch.nn.Module, weights: dict[str, Tensor]) -> None:
        """Writes the model in LLaDA's format, and its card with two texts that it wrote itself."""
        for file in self.o.tokenizer.iterdir():
            self.o.out.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, self.o.out / file.name)
        card = self.card({})
        write_model(self.o.out, self.name, model, weights)
        written = pardec.load(self.o.out, device="cpu", dtype="float32").generate(
            [[{"role": "user", "content": text}] for text in ASKED], sampler="threshold:tau=0.9+eos", max_new_tokens=96
        )
        card["texts"] = [
            {"prompt": prompt, "text": text, "forwards": int(forwards)}
            for prompt, text, forwards in zip(ASKED, written.text, written.nfe, strict=True)
        ]
        write_pages(self.o.out, card, page(card))

    def card(self, found: dict[str, Any]) -> dict[str, Any]:
        own, _ = self.rows(held_out=False)
        recipe = {
            "script": "scripts/train_stories.py, which says how to go on",
            "data": f"{len(own)} stories by SmolLM2-135M-Instruct, and instructions about them"
            + (f"; {len(self.others)} other texts of it in {1 - self.share:.0%} of the rows" if self.others else ""),
            "masks": "half of the rows at a random rate, half after a prefix",
            "optimizer": f"{self.o.optimizer}, peak learning rate {self.o.lr:g}",
            "learning rate now": f"{self.rate():.2f} of the peak",
            "steps": f"{self.step} of {self.o.steps}",
            "tokens": self.tokens,
            "core-hours": self.core_hours(),
            "processor": processor(),
            "exported": f"moving average over steps (decay {AVERAGE}) in bfloat16",
        }
        summary = (
            "A small masked diffusion model in training on short English stories. Its texts below show how far it is."
        )
        parameters = sum(p.numel() for p in self.model.parameters())
        head = {"name": self.o.out.name, "summary": summary, "parameters": parameters, "recipe": recipe}
        return head | {"curve": self.curve, "accuracy": found}


def page(card: dict[str, Any]) -> str:
    """The card as Markdown."""
    lines = opening(card, f'pardec generate . -p "{ASKED[0]}" -n 96  # in this folder')
    bound = "an upper bound of the negative log-likelihood per token"
    lines += [f"The loss on held-out rows ({bound}, in nats), and in training:", ""]
    keys = list(card["curve"][-1])
    lines += [f"| {' | '.join(key.replace('_', ' ') for key in keys)} |", "|---" * len(keys) + "|"]
    lines += [f"| {' | '.join(str(point.get(key, '')) for key in keys)} |" for point in card["curve"]]
    lines += ["", "## Texts", "", "With `threshold:tau=0.9+eos`:", ""]
    for text in card["texts"]:
        lines += [f"- *{text['prompt']}* ({text['forwards']} forwards): {' '.join(text['text'].split())}"]
    return "\n".join([*lines, "", "## Recipe", "", *items(card["recipe"])])
