"""Loading a transformers causal LM as a `LanguageModel`, when no native family takes it."""

from __future__ import annotations

from typing import Any

import torch

from .errors import ModelError, listed, one_line
from .facts import end_ids, pad_id
from .language_model import Facts, LanguageModel
from .placement import choose_dtype, guarded, out_of_memory, short, stored_dtype
from .quiet import quiet
from .sources import Source, read_json
from .tokenizers import load_tokenizer
from .weights import inspect, weight_files


def load_adapter(
    source: Source,
    config: dict[str, Any],
    why: str,
    *,
    device: torch.device,
    reason: str,
    dtype: str | torch.dtype,
    device_map: str | dict[str, Any] | None,
) -> LanguageModel:
    """Load through transformers; `why` no native family does is repeated in what `describe` says.

    Raises ModelError for what cannot be run faithfully.
    """
    from .hf_adapter import HFAdapter

    published = inspect(weight_files(source.folder))
    kind, kind_reason = choose_dtype(dtype, device, stored_dtype(published))
    placed = device_map if device_map is not None else {"": device}
    model = guarded(source.name, lambda: _pretrained(source, kind, placed), published, kind)
    adapter = HFAdapter(model, source.name)
    generation = read_json(source.folder / "generation_config.json")
    tokenizer = load_tokenizer(source.tokenizer)
    flat = {**config, **model.config.get_text_config(decoder=True).to_dict()}
    ends = end_ids(flat, generation, adapter.vocab)
    facts = Facts(
        mask_id=None,
        eos_ids=tuple(ends),
        pad_id=pad_id(flat, generation, tokenizer, ends),
        bos_id=flat.get("bos_token_id"),
        shift=1,
        attention="causal",
    )
    where = f"on {adapter.device} ({reason})" if device_map is None else "spread by device_map"
    return LanguageModel(
        decoder=adapter,
        facts=facts,
        config=config,
        tokenizer=tokenizer,
        name=source.name,
        path=source.folder,
        family=f"transformers {type(model).__name__}",
        device=adapter.device,
        dtype=kind,
        vocab_size=adapter.vocab,
        layers=adapter.layers,
        width=int(model.get_input_embeddings().weight.shape[1]),
        max_positions=flat.get("max_position_embeddings"),
        limit=adapter.limit,
        choice=f"{where}, {short(kind)} ({kind_reason}); {why}",
    )


def _pretrained(source: Source, dtype: torch.dtype, device_map: Any) -> Any:
    from transformers import AutoModelForCausalLM

    try:
        with quiet():
            model, info = AutoModelForCausalLM.from_pretrained(
                source.folder,
                dtype=dtype,
                device_map=device_map,
                trust_remote_code=False,
                local_files_only=True,
                output_loading_info=True,
            )
    except Exception as error:  # configs, weights and models each fail in their own way
        if out_of_memory(error):
            raise
        raise ModelError(f"transformers cannot load {source.name}: {one_line(error)}") from error
    groups = (("missing", "missing_keys"), ("not known", "unexpected_keys"), ("of the wrong shape", "mismatched_keys"))
    said = [
        f"{len(info[key])} {kind}: {listed(sorted(str(entry) for entry in info[key]))}"
        for kind, key in groups
        if info.get(key)
    ]
    if said:
        raise ModelError(
            f"the tensors do not match a {type(model).__name__} of this config; {'; '.join(said)}",
            "check that config.json and the weights belong together",
        )
    return model.eval()
