"""One adaptation of a causal checkpoint to block diffusion: rows, steps, state, export."""

from __future__ import annotations

import json
import math
import random
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from pardec.io.text_files import numbered_lines, read_utf8
from pardec.models.errors import SpecError
from pardec.models.files.sources import read_json
from pardec.tasks import task
from pardec.training.resumable import Resumable, Tensors
from text_training.block_diffusion import complementary_loss

ROW = 'a line is {"prompt": text or messages, "text": "the answer"}, as pardec generate -o FILE.jsonl writes it'
STACKS = ("llama", "qwen2")  # whose tensors Fast-dLLM v2's names and shape hold


@dataclass
class Options:
    """The command line; see scripts/adapt_text.py."""

    source: Path
    rows: list[Path]
    mix: dict[str, float]
    block: int
    mask_token: str | None
    lora: int
    longest: int
    batch: int
    steps: int | None
    minutes: float | None
    lr: float
    seed: int
    device: str
    state: Path
    out: Path


class Adaptation(Resumable):
    """One run."""

    kept = (*Resumable.kept, "loss", "tokens")
    warmup, decay_from, floor = 50, 0.0, 0.05

    def __init__(self, options: Options) -> None:
        length = {"steps": options.steps, "minutes": options.minutes}
        super().__init__(options.source.name, options.state, **length, every=math.inf, peak=options.lr)  # type: ignore[arg-type]
        self.o = options
        torch.manual_seed(options.seed)
        torch.set_num_threads(1)
        self.device = torch.device(
            ("cuda" if torch.cuda.is_available() else "cpu") if options.device == "auto" else options.device
        )
        kind = read_json(options.source / "config.json", required=True).get("model_type")
        if kind not in STACKS:
            raise SpecError(
                f"{options.source.name} is of the type {kind}, and models of {' and '.join(STACKS)} can be adapted",
                hint="name a causal checkpoint of one of these types",
            )
        self.tokenizer: Any = AutoTokenizer.from_pretrained(options.source)
        self.mask_id = mask_id(self.tokenizer, options.mask_token)
        self.end_id = int(self.tokenizer.eos_token_id)
        model = AutoModelForCausalLM.from_pretrained(options.source, dtype=torch.float32, attn_implementation="eager")
        self.model = self._with_lora(model).to(self.device)
        self.learned = {name: value for name, value in self.model.named_parameters() if value.requires_grad}
        adam = {"lr": options.lr, "betas": (0.9, 0.98), "weight_decay": 0.01}
        self.optimizers = [torch.optim.AdamW(self.learned.values(), **adam)]
        self.rows = [row for file in options.rows for row in self._read(file)]
        self.tokens = 0
        self.restore(self.device)

    def _with_lora(self, model: Any) -> Any:
        if not self.o.lora:
            return model
        from peft import LoraConfig, get_peft_model  # an extra: full adaptations do without

        return get_peft_model(
            model, LoraConfig(r=self.o.lora, lora_alpha=2 * self.o.lora, target_modules="all-linear", lora_dropout=0.0)
        )

    def parts(self) -> dict[str, Tensors]:
        return {"learned": Tensors(self.learned)}

    def settings(self) -> dict[str, Any]:
        return {"source": self.name, "block": self.o.block, "mask id": self.mask_id, "lora": self.o.lora}

    # -- rows ------------------------------------------------------------------------------------------------------

    def _read(self, file: Path) -> Iterator[tuple[list[int], int]]:
        """Reads rows of `pardec generate -o FILE.jsonl`: prompts, and the model's answers.

        Raises SpecError for a line that is no such row, or whose prompt leaves no room for an answer.
        """
        lines = numbered_lines(read_utf8(file, "rows", hint=ROW))
        if not lines:
            raise SpecError(f"{file} has no row", hint=ROW)
        for number, line in lines:
            try:
                row = json.loads(line)
                prompt, text = row["prompt"], row["text"]
            except (ValueError, LookupError, TypeError) as error:
                raise SpecError(f"{file}, line {number} is no row with prompt and text", hint=ROW) from error
            if not isinstance(prompt, (str, list)) or not isinstance(text, str):
                raise SpecError(f"{file}, line {number} is no row with prompt and text", hint=ROW)
            if isinstance(prompt, list):
                opening = self.tokenizer.apply_chat_template(prompt, add_generation_prompt=True, return_dict=False)
            else:
                opening = self.tokenizer(prompt)["input_ids"]
            yield self._row(list(opening), text)

    def _row(self, opening: list[int], text: str) -> tuple[list[int], int]:
        answer = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        room = self.o.longest - len(opening)
        if room < 1:
            raise SpecError(
                f"a prompt of {len(opening)} tokens leaves no room in a row of {self.o.longest}",
                hint="raise --longest, or leave the prompt out",
            )
        closed = [*answer, self.end_id] if len(answer) < room else answer[:room]
        return [*opening, *closed], len(opening)

    def batch(self, step: int) -> tuple[Tensor, Tensor, Tensor]:
        """Rows [B, L], and where their answers begin and end; a pure function of the step.

        The block of a row's end token is filled with end tokens, which are trained too: decoding fills whole blocks.
        """
        rng = random.Random(f"{self.o.seed}/{step}")
        rows = [self._drawn(rng) for _ in range(self.o.batch)]
        block = self.o.block
        lengths = [-(-len(ids) // block) * block for ids, _ in rows]
        ids = torch.full((len(rows), max(lengths)), self.end_id)
        for row, (tokens, _) in enumerate(rows):
            ids[row, : len(tokens)] = torch.tensor(tokens)
        ends = [
            length if tokens[-1] == self.end_id else len(tokens)
            for length, (tokens, _) in zip(lengths, rows, strict=True)
        ]
        return ids, torch.tensor([start for _, start in rows]), torch.tensor(ends) - 1

    def _drawn(self, rng: random.Random) -> tuple[list[int], int]:
        if self.rows:
            return rng.choice(self.rows)
        (name,) = rng.choices(tuple(self.o.mix), weights=tuple(self.o.mix.values()))
        problem = task(name).sample(rng, "train")
        return self._row(self.tokenizer(problem.prompt)["input_ids"], problem.answer)

    # -- steps -----------------------------------------------------------------------------------------------------

    def advance(self) -> float:
        ids, prompt, end = self.batch(self.step)
        noise = torch.Generator().manual_seed(self.o.seed * 1_000_003 + self.step)
        with torch.autocast(self.device.type, torch.bfloat16):
            loss = complementary_loss(self.model, ids.to(self.device), prompt, end, self.o.block, self.mask_id, noise)
        self.descend(loss, self.learned.values())
        self.step += 1
        self.tokens += int((end + 1 - prompt).sum())
        return loss.item()

    def log(self, more: Mapping[str, Any]) -> str:
        return super().log({"answer_tokens": self.tokens, **more})

    def evaluate(self, final: bool) -> dict[str, Any]:
        """Writes a folder in Fast-dLLM v2's format; with LoRA also the adapter alone, in peft's."""
        out = self.o.out
        out.mkdir(parents=True, exist_ok=True)
        model = self.model
        if self.o.lora:
            model.save_pretrained(out / "adapter")
            model = model.merge_and_unload()
        config = model.config.to_dict()
        for key in ("auto_map", "_name_or_path", "transformers_version"):
            config.pop(key, None)
        config |= {"model_type": "Fast_dLLM_Qwen", "architectures": ["Fast_dLLM_QwenForCausalLM"]}
        config |= {"mask_token_id": self.mask_id, "bd_size": self.o.block, "torch_dtype": "bfloat16"}
        (out / "config.json").write_text(json.dumps(config, indent=1, default=str) + "\n", encoding="utf-8")
        save_file(tensors(model), out / "model.safetensors", metadata={"format": "pt"})
        for file in self.o.source.glob("*token*"):
            shutil.copyfile(file, out / file.name)
        for name in ("generation_config.json", "chat_template.jinja"):
            if (self.o.source / name).is_file():
                shutil.copyfile(self.o.source / name, out / name)
        return {}


def tensors(model: Any) -> dict[str, Tensor]:
    """The weights in bfloat16 under Qwen2's names: biases that a Llama lacks are zero, tied heads are left out."""
    state = {name: value.detach().to("cpu", torch.bfloat16).contiguous() for name, value in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        state.pop("lm_head.weight", None)
    for name in [name for name in state if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight"))]:
        state.setdefault(name.replace(".weight", ".bias"), torch.zeros(len(state[name]), dtype=torch.bfloat16))
    return state


def mask_id(tokenizer: Any, token: str | None) -> int:
    """The id of the mask token: one that the tokenizer has and no text contains."""
    if token is None and tokenizer.mask_token_id is None:
        raise SystemExit("error: the tokenizer has no mask token; name an unused token of it with --mask-token")
    number = tokenizer.mask_token_id if token is None else tokenizer.get_vocab().get(token)
    if number is None:
        raise SystemExit(f"error: the tokenizer has no token {token!r}")
    return int(number)
