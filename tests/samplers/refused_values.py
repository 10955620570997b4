"""Numbers that the parameters of methods refuse, found by trying: `records()` returns a line for each message."""

from __future__ import annotations

import re
from pathlib import Path

from pardec.models.errors import PardecError
from pardec.samplers import registry
from tests.samplers.refused_pairs import CHECKPOINTS, MODULES, SOURCE, first_line

FILE = Path(__file__).with_name("refused_values.txt")
INTS = ("-1", "0", "1", "66")
TRIED = {"int": INTS, "float": (*INTS, "1.5", "nan")}
# What a method cannot be built without.
NEEDS = dict.fromkeys((*MODULES, *CHECKPOINTS), "name=toy,") | {"rasd": 'model="model:name=toy",'}


def records() -> str:
    """A line for each parameter and message: the method, the numbers, and the message with `...` for the number."""
    lines = []
    for card in (card for card in registry.cards() if card.file.startswith(SOURCE)):
        for parameter in card.parameters:
            refused = dict[str, list[str]]()
            for value in TRIED.get(parameter["type"].removesuffix(" | None"), ()):
                spec = f"{card.name}:{NEEDS.get(card.name, '')}{parameter['name']}={value}"
                try:
                    registry.build_method(registry.parse(spec).parts[0], card.family)
                except PardecError as error:
                    said = re.sub(rf"(got .*?){value}(\.0)?(?= |$)", r"\1...", first_line(error))
                    refused.setdefault(said, []).append(value)
            where = f"{card.family} {card.name}:{parameter['name']}"
            lines += [f"{where} {' '.join(values)} | {said}" for said, values in refused.items()]
    return "\n".join(sorted(lines)) + "\n"


if __name__ == "__main__":
    FILE.write_text(records())
