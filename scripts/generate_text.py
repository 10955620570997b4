"""Decode one prompt with several samplers and show what each costs: a short script to copy and change.

python scripts/generate_text.py
python scripts/generate_text.py --model tiny-llama
python scripts/generate_text.py --model GSAI-ML/LLaDA-8B-Instruct --chat --prompt "What is a fjord?" --tokens 128
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import pardec

MASKED = ("sequential+eos", "threshold:tau=0.9+eos", "threshold:tau=0.9+eos@dual", "factor:f=1.0+eos@prefix")
BLOCKS = ("sequential+eos", "threshold:tau=0.9+eos", "factor:f=1.0+eos")  # with the cache that the attention wants
AUTOREGRESSIVE = ("sequential", "lookup", "recycling", "jacobi")
PROBLEM = "Tom has 18 cups. He loses 4. He finds 12 cups. How many cups does Tom have now?"


def samplers_of(model: pardec.Model) -> tuple[str, ...]:
    """The samplers of the model's family."""
    if model.family == "ar":
        return AUTOREGRESSIVE
    return MASKED if model.language_model.decoding_config.attention == "bidirectional" else BLOCKS


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--model", default="tiny-dream", help="embedded model, folder or hub id")
    parser.add_argument("--prompt", default=PROBLEM)
    parser.add_argument("--chat", action="store_true", help="put the prompt into the model's chat template")
    parser.add_argument("--sampler", action="append", help="a spec; may be repeated")
    parser.add_argument("--tokens", type=int, default=40, help="tokens to fill")
    parser.add_argument("--save", type=Path, help="folder to save each result in, for pardec view")
    given = parser.parse_args()
    try:
        model = pardec.load(given.model)
        if model.imaging is not None:
            raise pardec.SpecError(f"{model.name} draws images", hint="scripts/generate_image.py draws them")
        prompt = [{"role": "user", "content": given.prompt}] if given.chat else given.prompt
        for sampler in given.sampler or samplers_of(model):
            result = model.generate(prompt, sampler=sampler, max_new_tokens=given.tokens)
            rate = f"{result.nfe[0]:4d} forwards  {result.tokens_per_forward:5.2f} tokens per forward"
            print(f"{sampler:24s} {rate}  {result.timing.total_s:6.2f} s  {result.text[0] if result.text else ''}")
            if given.save is not None:
                result.save(given.save / sampler.replace(":", "-").replace("@", "-"))
    except pardec.PardecError as error:
        print(f"error: {error}\n{error.hint or ''}".rstrip(), file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
