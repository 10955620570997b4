"""Pages of swept samplers: short names, one line per setting, and tables that the documentation can quote."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import curves
import endurance
import numerics
import numpy as np
from pages import benchmarks, claims

from pardec.samplers.logprobs import TokenLogprobs


def point(sampler: str, accuracy: float, nfe: float, gain: dict[str, float] | None = None) -> dict[str, Any]:
    figures = {"tokens_per_forward": 2.0, "tokens_fed": 400.0, "seconds": 1.0, "dominated_by": None, "gain": gain}
    return {"sampler": sampler, "accuracy": accuracy, "accuracy_low": 0.5, "accuracy_high": 1.0, "nfe": nfe, **figures}


def curve(name: str, reference: str | None, *points: dict[str, Any]) -> dict[str, Any]:
    given = {"name": name, "parameter": "threshold.tau", "reference": reference, "aup": 100.0, "points": list(points)}
    return {**given, "at": {"nfe": {"value": 9.0, "low": 8.0, "high": 10.0}}, "ratio": None}


SECTION: dict[str, Any] = curves.with_bare_names({
    "task": "chains", "model": "tiny-dream", "seed": 7, "problems": 10, "accuracy": 0.9,
    "generate": {"max_new_tokens": 64},
    "sequential": {"accuracy": 0.91, "nfe": 64.0}, "oracle": {"accuracy": 0.91, "nfe": 5.0},
    "curves": [
        curve("eos+threshold", None, point("eos+threshold:tau=0.9", 0.9, 10)),
        curve("eos@dual", "eos+threshold",
              point("eos+threshold:tau=0.9@dual", 0.8, 10, {"value": -0.1, "low": -0.2, "high": -0.05})),
    ],
})  # fmt: skip


def test_the_rule_that_all_share_is_left_out_of_the_names() -> None:
    assert [curves.bare(name) for name in ("eos", "credit+eos", "eos+threshold:tau=0.9@dual", "eos@dkv")] == [
        "", "credit", "threshold:tau=0.9@dual", "@dkv",
    ]  # fmt: skip
    assert [one["reference"] for one in SECTION["curves"]] == [None, "threshold"]


def test_conditions_and_a_line_for_each_setting() -> None:
    assert curves.conditions(SECTION) == (
        "10 held-out problems (seed 7), max new tokens 64. `sequential`: 91.0% in 64.0 forwards. `oracle`: 5.0."
    )
    lines = curves.settings_of(SECTION).splitlines()
    assert lines[3] == "| `threshold:tau=0.9` | 90.0% (50..100) | 10.00 | 2.00 | 20.0 | 50% |  |"
    assert lines[4] == "| `threshold:tau=0.9@dual` | 80.0% (50..100) | 10.00 | 2.00 | 20.0 |  | -10.0 (-20.0..-5.0) |"


def test_gains_stand_beside_each_other() -> None:
    first, second = SECTION["curves"]
    gaining = {**second, "ratio": {"nfe": {"value": 0.8, "low": 0.7, "high": 0.9}}, "aup": 130.0}
    both = [SECTION, {**SECTION, "model": "tiny-llada", "curves": [first, gaining]}]
    head = ["| curve | chains, tiny-dream | chains, tiny-llada |", "| --- | --- | --- |"]
    assert curves.gains_of(both).splitlines() == [*head, "| `@dual` | - | 0.80 (0.70..0.90) |"]
    assert curves.areas_of(both).splitlines() == [*head, "| `@dual` | 1.00 | 1.30 |"]


def test_the_documentation_quotes_both_tables_and_the_sections(tmp_path: Path) -> None:
    tables = "\n".join(["## chains with tiny-dream\n", curves.curves_of(SECTION), curves.settings_of(SECTION)])
    for page in benchmarks.QUOTED:
        (tmp_path / f"{page}.md").write_text("# Title\n")
    (tmp_path / "samplers.md").write_text(f"# Samplers\n\n`python benchmarks/samplers.py`\n\n{tables}")
    swept, settings = benchmarks.read(tmp_path)
    assert swept.columns == ("AUP", "to reference", "fed", "off")
    assert [row.names for row in swept.rows] == [{"threshold"}, {"", "dual"}]
    assert settings.columns == ("right", "forwards", "positions per token", "above reference")
    assert (settings.rows[1].number("right"), settings.command) == (90.0, "python benchmarks/samplers.py")
    (tmp_path / "claims.md").write_text(f"# Claims\n\n{tables}\n## Columns\n\n- a: b.\n")
    assert list(claims.snippets(tmp_path)) == [
        "reference/generated/claims-chains with tiny-dream.txt",
        "reference/generated/claims-columns.txt",
    ]


def test_the_pages_of_rounding_and_of_long_runs() -> None:
    row = {"way": "bfloat16", "positions": 10, "largest": 0.5, "error": 0.1, "kl": 0.01, "ties": 0.25, "near": 0.5}
    data = {
        "made": {"logits": "A, torch 2; D", "shapes": "B", "batches": "A, torch 2; D"}, "new": 4,
        "logits": [{**row, "other": 0.125}],
        "shapes": [{"way": "bfloat16", "positions": 8, "same": 0.5, "other": 0.25, "largest": 0.125}],
        "batches": [{
            "model": "m", "way": "bfloat16", "sampler": "s", "other": {str(size): size for size in numerics.SIZES},
            "largest": 0.125, "gap": None,
        }],
    }  # fmt: skip
    page = numerics.page(data)
    assert "| bfloat16 | 0.5 | 0.1 | 0.01 | 25.00% | 50.00% | 12.50% |" in page
    assert "| bfloat16 | 8 | 50.0% | 25.00% | 0.12 |" in page
    assert "| m | bfloat16 | `s` | 1 | 2 | 3 | 4 | 6 | 8 | 12 | 16 | 24 | 32 | 48 | 64 | 0.12 |  |" in page
    assert page.count("A, torch 2; D.") == 2
    part = {"memory": 100.0, "files": 8, "p50": 0.1, "p99": 0.5, "cpu": 60.0}
    soak = {"model": "m", "requests": 4000, "failed": 0, "compared": 80, "unequal": 1}
    parts = [{**part, "memory": 100.0 + 10 * at} for at in range(4)]
    text = endurance.page({"made": {"soak": "P, torch 2; D"}, "soak": [{**soak, "parts": parts}]})
    assert "| m | 4,000 | 0 | 80 | 1 | 100 | 110 | 130 | +18.2% | 0.50 | 0.50 | 8, 8 |" in text
    assert "P, torch 2; D. 16 clients" in text
    assert "| m | 3,000 | 120 | 60.0 | 0.10 | 0.50 |" in text


class Other:
    """A model whose second row of a batch has the second likeliest token in place of the first, from `FROM` on."""

    FROM, CLOSE = 2, 0.25

    def generate(self, *, input_ids: list[list[int]], max_new_tokens: int, **_: Any) -> SimpleNamespace:
        tokens, listed = [], []
        for at, _ids in enumerate(input_ids):
            astray = np.arange(max_new_tokens) >= (self.FROM if at == 1 else max_new_tokens)
            tokens.append(list(np.where(astray, 8, 7)))
            top = np.tile(np.float32([-1, -1 - self.CLOSE]), (max_new_tokens, 1)) - np.float32(0.5) * astray[:, None]
            own = np.where(astray, top[:, 1], top[:, 0])
            listed.append(TokenLogprobs(own, np.tile([7, 8], (max_new_tokens, 1)), top, np.empty((max_new_tokens, 0))))
        return SimpleNamespace(tokens=tokens, logprobs=listed)


def test_rows_that_a_batch_changes_are_counted_with_their_gap() -> None:
    model: Any = Other()
    first = next(numerics.batches("tiny-llama", "float32", model, [[1]] * 64, 5))
    assert first["other"] == {str(size): int(size > 1) for size in numerics.SIZES}
    assert first["gap"] == Other.CLOSE
    assert first["largest"] == 0.5
