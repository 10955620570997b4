"""Fills the gaps of a given text, which an autoregressive model cannot do.

    python examples/infilling.py

Each `<mask>` of the template is one token; everything else stays as it is. Prints the filled text and the order in
which the gaps were filled, then limits what a position may hold.
"""

from __future__ import annotations

import pardec


def main() -> None:
    model = pardec.load("tiny-dream")
    prompt = "Tom has 8 cups. He loses 3. How many cups does Tom have now?"
    template = "8 - <mask> = <mask>; answer 5"

    result = model.generate(prompt, template=template, sampler="sequential")
    assert result.text is not None
    print(result.text[0])
    for step in result.trace.steps[0]:
        tokens = model.tokenizer.decode(list(step.tokens))
        print(f"  positions {step.positions}: {tokens!r} (probability {step.scores[0]:.2f})")

    # The same text as a question without a template, but the first generated token has to be the digit 8.
    result = model.generate(prompt, sampler="threshold:tau=0.9+eos", allowed={0: ["8"]})
    assert result.text is not None
    print(result.text[0])


if __name__ == "__main__":
    main()
