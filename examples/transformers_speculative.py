"""Speculative decoding of a transformers model, inside its own `generate`.

    python examples/transformers_speculative.py
    python examples/transformers_speculative.py --model Qwen/Qwen2.5-0.5B-Instruct --prompt "Write this list again: ..."

Prints the text of each sampler and how often the model was called. At temperature 0 all give the tokens of
transformers' own greedy decoding. `lookup` drafts from the text itself and `recycling` from earlier logits; neither
needs a second model.
"""

from __future__ import annotations

import argparse

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import pardec
import pardec.interop.transformers


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", help="a folder or a hub id; the embedded tiny-llama if left out")
    parser.add_argument("--prompt", default="Write the list again: cow rat bee rat owl cow rat bee.")
    arguments = parser.parse_args()

    path = arguments.model or pardec.load("tiny-llama").path  # the embedded models open in transformers as well
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path)
    inputs = tokenizer(arguments.prompt, return_tensors="pt")

    calls = []
    model.model.register_forward_hook(lambda *_: calls.append(1))
    greedy = model.generate(**inputs, max_new_tokens=64, do_sample=False)
    print(f"transformers: {len(calls)} forwards")
    drafting = {"do_sample": False, "custom_generate": pardec.interop.transformers.generate}
    model.generate(**inputs, max_new_tokens=1, sampler="sequential", **drafting)  # checks the model, by a few forwards
    for sampler in ("lookup", "recycling"):
        calls.clear()
        output = model.generate(**inputs, max_new_tokens=64, sampler=sampler, **drafting)
        same = "the same tokens" if torch.equal(output, greedy) else "other tokens"
        text = tokenizer.decode(output[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
        print(f"{sampler}: {len(calls)} forwards, {same}: {text}")


if __name__ == "__main__":
    main()
