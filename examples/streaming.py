"""Follows a decode while it runs: what each forward commits, and the text as soon as it is final.

    python examples/streaming.py

Prints one line per forward. A masked model commits tokens in any order, so a piece of text is final (and printed) only
when everything before it is committed.
"""

from __future__ import annotations

import pardec


def main() -> None:
    model = pardec.load("tiny-dream")
    prompt = "Tom has 18 cups. He loses 4. He finds 12 cups. How many cups does Tom have now?"

    pieces = []
    for event in model.stream(prompt, sampler="entropy+fixed:steps=16+eos"):
        if isinstance(event, pardec.Step):
            (piece,) = event.text or ("",)  # one piece for each row that is still being decoded
            pieces.append(piece)
            print(f"forward {event.number + 1}: {int(event.committed.sum())} committed, final so far: {piece!r}")
        elif isinstance(event, pardec.RowFinished):
            pieces.append(event.text or "")
            print(f"finished ({event.reason}) after {event.nfe} forwards")
    print("".join(pieces))


if __name__ == "__main__":
    main()
