"""CoDA's config: what it leaves out, and what is refused. Its logits: `test_families.py`."""

from __future__ import annotations

from typing import Any

import pytest

from pardec.models.families import FAMILIES
from pardec.models.families.base import Unsupported

SMALL = {"model_type": "CoDA", "vocab_size": 61, "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2}


def shape(**changes: Any) -> Any:
    return FAMILIES["coda"].decoder(SMALL | changes)


def test_what_the_config_leaves_out_has_the_defaults_of_its_own_class() -> None:
    found = shape()
    assert (found.heads, found.kv_heads, found.head_dim, found.tied, found.qk_norm) == (16, 8, 128, True, True)
    assert found.frequencies[1] == pytest.approx(1000000 ** (-2 / 128))
    assert not shape(tie_word_embeddings=False).tied


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"attention_kernel": "default"}, "attention_kernel"),
        ({"rope_scaling": {"rope_type": "linear", "factor": 2.0}}, "rope_scaling"),
        ({"use_sliding_window": True}, "use_sliding_window"),
    ],
)
def test_what_its_code_does_not_do_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(Unsupported, match=message):
        shape(**changes)
