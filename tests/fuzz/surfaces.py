"""The fuzzed inputs: each class damages one and uses it as a user would; a case succeeds or raises PardecError."""

from __future__ import annotations

import json
import shutil
import struct
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from random import Random
from typing import Any

import torch
from PIL import Image
from PIL.PngImagePlugin import PngInfo
from rich.console import Console
from safetensors.torch import load_file, save_file

import pardec
from pardec.images import pngs
from pardec.io.prompt_files import read_file
from pardec.models.files.catalog import EMBEDDED, TOKENIZER
from pardec.requests.settings import Settings
from pardec.samplers import registry
from pardec.views import html, order_image, terminal
from tests.fuzz.mutate import DEEP, ODD, bytes_of, odd, shaken, text_of
from tests.models import llamagen_files
from tests.models.toys import family_tensors, llama_config, llama_tensors, write_checkpoint

Case = tuple[str, Callable[[], object]]
IDS = [[5, 6, 7]]
EXTRA = (
    "num_hidden_layers", "hidden_size", "head_dim", "vocab_size", "num_attention_heads", "num_key_value_heads",
    "intermediate_size", "rope_theta", "rope_scaling", "rope_parameters", "rms_norm_eps", "tie_word_embeddings",
    "attention_bias", "mask_token_id", "pad_token_id", "eos_token_id", "bos_token_id", "max_position_embeddings",
    "architectures", "model_type", "torch_dtype", "dtype", "quantization_config", "sliding_window", "layer_types",
    "use_sliding_window", "auto_map", "block_size", "n_layers", "d_model", "n_heads", "mlp_ratio",
    "partial_rotary_factor",
)  # fmt: skip


def checkpoints(folder: Path) -> dict[str, Path]:
    """One tiny checkpoint of each kind."""
    made = {
        "llama": write_checkpoint(
            folder / "llama", llama_config(vocab_size=361), llama_tensors(llama_config(vocab_size=361))
        )
    }
    dream = llama_config(
        vocab_size=361, model_type="Dream", architectures=["DreamModel"], mask_token_id=4, pad_token_id=0
    )
    made["dream"] = write_checkpoint(folder / "dream", dream, family_tensors(dream))
    for name in ("llama", "dream"):
        shutil.copytree(TOKENIZER, made[name], dirs_exist_ok=True)
        (made[name] / "generation_config.json").write_text(json.dumps({"eos_token_id": [3], "pad_token_id": 0}))
    llada = {
        "model_type": "llada", "d_model": 16, "n_heads": 2, "n_layers": 1, "vocab_size": 40, "mlp_hidden_size": 24,
        "rms_norm_eps": 1e-5, "rope_theta": 1e4, "mask_token_id": 4, "eos_token_id": 3, "pad_token_id": 0,
        "max_sequence_length": 64, "weight_tying": False, "block_type": "llama", "rope": True, "layer_norm_type": "rms",
    }  # fmt: skip
    made["llada"] = write_checkpoint(folder / "llada", llada, family_tensors(llada))
    picture = {"model_type": "llamagen", "dim": 16, "n_head": 2, "n_layer": 2, "vocab_size": 12, "ffn_hidden": 24}
    picture |= {"block_size": 9, "cls_token_num": 1, "gpt_type": "c2i", "class_num": 4}
    made["llamagen"] = write_checkpoint(folder / "llamagen", picture, llamagen_files.tensors())
    from transformers import GPT2Config, GPT2LMHeadModel

    gpt2 = GPT2LMHeadModel(GPT2Config(vocab_size=361, n_embd=16, n_layer=1, n_head=2, n_positions=64))
    gpt2.save_pretrained(folder / "gpt2")
    made["gpt2"] = folder / "gpt2"
    made["mar"] = folder / "mar"
    shutil.copytree(EMBEDDED / "tiny-mar-draft", made["mar"])
    return made


class Checkpoints:
    """Folders of models with one damaged file."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.made = checkpoints(folder / "whole")

    def case(self, rng: Random) -> Case:
        kind = rng.choice(("llama", "llama", "dream", "dream", "llada", "llamagen", "gpt2", "mar"))
        target = self.folder / "damaged"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(self.made[kind], target)
        what = rng.choice(("config", "config", "config", "side", "bytes", "header", "tensors", "weights", "index"))
        told = getattr(self, f"_{what}")(rng, target)
        return f"{kind} {what}: {told}", lambda: self.use(target)

    def use(self, target: Path) -> None:
        model = pardec.load(target, device="cpu")
        repr(model)
        if model.imaging is not None:
            (model.prepare if model.family == "continuous" else model.generate)(label=[1])
        else:
            model.generate(input_ids=IDS, max_new_tokens=2)
            if model.tokenizer is not None:
                model.generate("a b", max_new_tokens=2)

    def _config(self, rng: Random, target: Path) -> str:
        return self._json(rng, target / "config.json", EXTRA)

    def _json(self, rng: Random, file: Path, more: tuple[str, ...] = ()) -> str:
        value, told = shaken(rng, json.loads(file.read_text()), more=more)
        file.write_text(text_of(value))
        return f"{file.name} {told}"

    def _side(self, rng: Random, target: Path) -> str:
        files = [file for file in sorted(target.glob("*.json")) if file.name != "config.json"]
        if not files or rng.random() < 0.2:
            file = target / "generation_config.json"
            file.write_text(text_of({rng.choice(EXTRA): odd(rng), "eos_token_id": odd(rng)}))
            return file.name
        return self._json(rng, rng.choice(files))

    def _bytes(self, rng: Random, target: Path) -> str:
        file = rng.choice(sorted(entry for entry in target.glob("*.json")))
        data, told = bytes_of(rng, file.read_bytes())
        file.write_bytes(data)
        return f"{file.name} {told}"

    def _weights(self, rng: Random, target: Path) -> str:
        file = target / "model.safetensors"
        data, told = bytes_of(rng, file.read_bytes(), 4000)
        if rng.random() < 0.3:
            file.unlink()
            file = target / "pytorch_model.bin"
        file.write_bytes(data)
        return f"{file.name} {told}"

    def _header(self, rng: Random, target: Path) -> str:
        file = target / "model.safetensors"
        data = file.read_bytes()
        (size,) = struct.unpack("<Q", data[:8])
        header, told = shaken(rng, json.loads(data[8 : 8 + size]))
        text = text_of(header).encode("utf-8", "surrogatepass")
        said = rng.choice((len(text), len(text), len(text), 2**63, 10**9, 0))
        file.write_bytes(struct.pack("<Q", said) + text + data[8 + size :])
        return f"header {told}, {said} bytes said"

    def _tensors(self, rng: Random, target: Path) -> str:
        file = target / "model.safetensors"
        held = load_file(file)
        name = rng.choice(sorted(held))
        what = rng.choice(("drop", "rename", "int", "scalar", "empty", "turned", "half", "nan", "layers", "none"))
        old = held.pop(name)
        new = {
            "rename": {name + "x": old}, "int": {name: old.to(torch.int8)}, "scalar": {name: torch.tensor(1.0)},
            "empty": {name: torch.empty(0, 3)}, "turned": {name: old.flatten()[None]}, "half": {name: old.half()},
            "nan": {name: old * float("nan")}, "layers": {name: old, "layers.99999999999.x": old.clone()},
        }.get(what, {})  # fmt: skip
        save_file({} if what == "none" else {**held, **new}, file)
        return f"{what} {name}"

    def _index(self, rng: Random, target: Path) -> str:
        (target / "model.safetensors").rename(target / "a.safetensors")
        index = target / "model.safetensors.index.json"
        names = list(load_file(target / "a.safetensors"))
        good = {"metadata": {}, "weight_map": dict.fromkeys(names, "a.safetensors")}
        value, told = shaken(rng, good)
        if rng.random() < 0.5:
            value = rng.choice([{"weight_map": {names[0]: bad}} for bad in ODD] + [{"weight_map": bad} for bad in ODD])
            told = "weight_map"
        index.write_text(text_of(value))
        return told


class Results:
    """Saved results, damaged and shown in every view."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        made = checkpoints(folder / "whole")
        text = pardec.load(made["dream"], device="cpu").generate(
            ["a b", "c"], max_new_tokens=4, sampler="threshold:tau=0.02"
        )
        drafted = pardec.load(made["llama"], device="cpu").generate(input_ids=IDS, max_new_tokens=6, sampler="lookup")
        drawn = pardec.load("tiny-mar-draft", device="cpu").generate(label=[1])
        for name, result in (("text", text), ("drafted", drafted), ("drawn", drawn)):
            result.save(folder / f"{name}.json")
            result.save(folder / name)

    def case(self, rng: Random) -> Case:
        name = rng.choice(("text", "text", "drafted", "drawn"))
        if rng.random() < 0.75:
            file = self.folder / "damaged.json"
            whole = (self.folder / f"{name}.json").read_text()
            value, told = shaken(rng, json.loads(whole))
            if rng.random() < 0.8:
                file.write_text(text_of(value))
            else:
                data, told = bytes_of(rng, whole.encode())
                file.write_bytes(data)
            return f"{name}.json {told}", lambda: self.use(file)
        target = self.folder / "damaged"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(self.folder / name, target)
        files = sorted(entry for entry in target.rglob("*") if entry.is_file())
        victim = rng.choice(files)
        data, told = bytes_of(rng, victim.read_bytes(), 2000)
        victim.unlink()
        if rng.random() < 0.1:
            victim.mkdir()
        elif rng.random() < 0.9:
            victim.write_bytes(data)
        return f"{name}/{victim.name} {told}", lambda: self.use(target)

    def use(self, file: Path) -> None:
        result = pardec.Result.load(file)
        assert result.rows() is not None
        _ = result.acceptance_length, result.acceptance_rate, result.tokens_per_forward
        shown = [repr(result), result._repr_html_(), html.page(result)]
        console = Console(force_terminal=True, width=80)
        with console.capture() as held:
            console.print(terminal.finished(result))
        order_image.png(result)
        if len(result.tokens) < 50:
            order_image.gif(result)
        assert not any("<script>alert" in text for text in shown[1:])
        assert "\x1b" not in shown[0]
        assert "\x1b[31mred" not in held.get()
        result.save(self.folder / "again.json")


class Prompts:
    """Files of prompts and of allowed tokens, read and decoded."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.model = pardec.load(checkpoints(folder / "whole")["dream"], device="cpu")

    def case(self, rng: Random) -> Case:
        lines: list[Any] = [
            {"prompt": "a b", "id": "x"}, {"messages": [{"role": "user", "content": "b"}]}, "plain", {"prompt": "c"},
        ]  # fmt: skip
        value, told = shaken(rng, lines)
        data = "\n".join(text_of(line) for line in value).encode()
        if rng.random() < 0.4:
            data, told = bytes_of(rng, data)
        file = self.folder / rng.choice(("p.jsonl", "p.json", "p.txt"))
        file.write_bytes(data)
        allowed = odd(rng) if rng.random() < 0.2 else None
        return f"{file.name} {told} allowed={str(allowed)[:30]}", lambda: self.use(file, allowed)

    def use(self, file: Path, allowed: Any) -> None:
        items = read_file(file)
        self.model.generate([item.prompt for item in items], max_new_tokens=2, allowed=allowed)


class Specs:
    """Spec strings from the grammar, with every existing parameter and unexpected values."""

    VALUES = ("0", "1", "2", "-1", "0.5", "1e999", "nan", "inf", "-inf", "1000000000", "1000000000000", "x", "", "none",
              "true", '""', '"\\""', "1e-320", "9" * 5000, "é", "../x", "\ud800", "\x1b[31m", "a=b")  # fmt: skip

    def __init__(self, folder: Path) -> None:
        made = checkpoints(folder / "whole")
        self.models = {
            "masked": pardec.load(made["dream"], device="cpu"),
            "ar": pardec.load(made["llama"], device="cpu"),
        }
        self.models["picture"] = pardec.load(made["llamagen"], device="cpu")

    def case(self, rng: Random) -> Case:
        name = rng.choice(("masked", "masked", "ar", "ar", "picture"))
        family = "masked" if name == "masked" else "ar"
        cards = [card for card in registry.cards() if card.family == family]
        parts = []
        for card in rng.sample(cards, rng.choice((1, 1, 1, 2, 3))):
            known = [f.name for f in fields(card.make)]
            keys = rng.sample(known, min(len(known), rng.choice((0, 1, 1, 2))))
            params = ",".join(f"{key}={rng.choice(self.VALUES)}" for key in keys)
            parts.append(f"{card.name}:{params}" if params else card.name)
        spec = "+".join(parts)
        if rng.random() < 0.3:
            spec += "@" + rng.choice(
                ("dual", "prefix", "dkv", "none", "x", "", "dual:refresh=0", "prefix:refresh=1000000000")
            )
        if rng.random() < 0.15:
            at = rng.randrange(len(spec))
            spec = spec[:at] + rng.choice(("+", "@", ":", "=", ",", '"', "\\", "\0", " ", "")) + spec[at + 1 :]
        temperature = rng.choice((0.0, 0.0, 1.0))
        return f"{name} {spec[:200]!r} T={temperature}", lambda: self.use(name, spec, temperature)

    def use(self, name: str, spec: str, temperature: float) -> None:
        given: dict[str, Any] = {"label": [1]} if name == "picture" else {"input_ids": IDS, "max_new_tokens": 8}
        self.models[name].generate(sampler=spec, temperature=temperature, **given)


class Arguments:
    """Calls of generate with values of wrong kinds."""

    def __init__(self, folder: Path) -> None:
        self.models = Specs(folder).models
        self.odd = [
            *(value for value in ODD if value not in (DEEP,)), torch.empty(0, 5), torch.empty(0, 5, dtype=torch.int64),
            torch.tensor([[5, 6]]), torch.tensor(5), torch.tensor([[1e9]]), torch.tensor([[float("nan")]]), b"bytes",
            object(), range(3), range(10**9), {1, 2}, lambda *a: None, Path("."), 1j, [torch.tensor([5])],
            [torch.tensor([5.0])], [{"role": "user"}], [{"role": "user", "content": None}],
            [{"role": "user", "content": 5}], {"role": "user", "content": "x"}, torch.zeros(2, 6, 7),
            [torch.zeros(3, 7)], "<mask>", ["<mask>", "a <mask>"],
        ]  # fmt: skip

    def case(self, rng: Random) -> Case:
        names = list(Settings.__dataclass_fields__)
        which = rng.choice(tuple(self.models))
        given: dict[str, Any] = {"max_new_tokens": 3} if which != "picture" else {}
        if rng.random() < 0.8:
            given |= {"label": [1]} if which == "picture" else {"input_ids": IDS}
        for name in rng.sample([*names, "prompt", "prompt"], rng.choice((1, 1, 2, 3))):
            given[name] = rng.choice(self.odd)
        return f"{which} {str(given)[:200]}", lambda: self.models[which].generate(**given)


class Imaging:
    """Damaged PNG files with pardec's metadata."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        said = pngs.file_metadata(
            model="m", spec="s", exact="greedy", settings={}, environment={}, images=[{"caption": "a", "seed": 1}]
        )
        self.said, self.picture = said, Image.new("RGB", (8, 8))

    def case(self, rng: Random) -> Case:
        said, told = shaken(rng, self.said)
        file = self.folder / "p.png"
        info = PngInfo()
        text = text_of(said)
        info.add_itxt(pngs.KEY, text, zip=rng.random() < 0.5)
        self.picture.save(file, pnginfo=info)
        data = file.read_bytes()
        if rng.random() < 0.5:
            data, told = bytes_of(rng, data)
        file.write_bytes(data)

        def use() -> None:
            pngs.generate_arguments(pngs.read(file))

        return told, use


SURFACES: dict[str, Any] = {
    "checkpoints": Checkpoints, "results": Results, "prompts": Prompts, "specs": Specs, "arguments": Arguments,
    "pictures": Imaging,
}  # fmt: skip
