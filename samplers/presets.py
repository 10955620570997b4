"""Presets: the settings of each paper, as a complete spec with arguments of `generate`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pardec.models.errors import SpecError, UnknownNameError, did_you_mean

from .spec import Part, Spec, parse


@dataclass(frozen=True, slots=True)
class Preset:
    """A preset: `sampler="preset:<name>"` means `spec` with `arguments`; the caller's arguments take precedence."""

    name: str
    spec: str
    paper: str
    summary: str
    arguments: Mapping[str, int | float] = field(default_factory=dict)
    template: str = ""  # the value that `template=` must have, if the setting needs one


def _canvas(tokens: int, block: int, **more: float) -> dict[str, int | float]:
    return {"max_new_tokens": tokens, "block_length": block, **more}


_BLOCKS = _canvas(256, 32)

PRESETS = (
    # LLaDA: steps = tokens. The authors' settings differ by task in the length of the canvas and of the block.
    Preset(
        "llada",
        "fixed",
        "arXiv:2502.09992",
        "LLaDA: linear schedule, most confident first, one token per step",
        _BLOCKS,
    ),
    Preset("llada-gsm8k", "fixed", "arXiv:2502.09992", "LLaDA 8B Instruct on GSM8K, in blocks of 8", _canvas(256, 8)),
    Preset("llada-math", "fixed", "arXiv:2502.09992", "LLaDA 8B Instruct on MATH, in blocks of 64", _canvas(512, 64)),
    Preset(
        "llada-base", "fixed", "arXiv:2502.09992", "LLaDA 8B Base: the whole canvas is one block", _canvas(1024, 1024)
    ),
    # Dream and Dimple decode the canvas as one block.
    Preset(
        "dream",
        "entropy+timesteps",
        "arXiv:2508.15487",
        "Dream 7B: its schedule by entropy, as its authors recommend",
        _canvas(512, 512, temperature=0.2, top_p=0.95),
    ),
    Preset(
        "dream-origin", "origin", "arXiv:2508.15487", "Dream 7B: its schedule at random positions", _canvas(512, 512)
    ),
    Preset(
        "dimple",
        "confident:tau=0.95@prefix:before=1",
        "arXiv:2505.16990",
        "Dimple, with its prompt cache",
        _canvas(64, 64),
    ),
    # Fast-dLLM and methods built on it.
    Preset(
        "fast-dllm",
        "threshold:tau=0.9@dual",
        "arXiv:2505.22618",
        "Fast-dLLM: confidence threshold with the dual cache",
        _BLOCKS,
    ),
    Preset(
        "fast-dllm-prefix",
        "threshold:tau=0.9@prefix",
        "arXiv:2505.22618",
        "Fast-dLLM: confidence threshold with the prefix cache",
        _BLOCKS,
    ),
    Preset(
        "fast-dllm-factor",
        "factor:f=1.0@dual",
        "arXiv:2505.22618",
        "Fast-dLLM: factor rule with the dual cache",
        _BLOCKS,
    ),
    Preset(
        "fast-dllm-dream-no-cache",
        "carry:tau=0.9",
        "arXiv:2505.22618",
        "Fast-dLLM on Dream without a cache: quotas carried over the whole canvas",
        _canvas(256, 256),
    ),
    Preset(
        "psd", "freedave:subset=true+threshold:tau=0.9", "arXiv:2605.15609", "PSD: drafts of several depths", _BLOCKS
    ),
    Preset(
        "dparallel", "entropy_threshold:tau=0.45", "arXiv:2509.26488", "dParallel: entropy threshold, no cache", _BLOCKS
    ),
    Preset("localleap", "threshold:tau=0.9+localleap:relaxed=0.75,radius=4", "arXiv:2510.07081", "LocalLeap", _BLOCKS),
    Preset(
        "credit",
        "credit:alpha=0.7,beta=0.8,gamma=0.2+threshold:tau=0.9",
        "arXiv:2510.06133",
        "CreditDecoding with the constants of its released code, blocks of 64",
        _canvas(256, 64),
    ),
    Preset(
        "prophet",
        "fixed+prophet:start=202,length=5,decided=true",
        "arXiv:2508.19982",
        "Prophet on GSM8K: the answer follows a suffix at offset 200, which template= must set",
        _BLOCKS,
        "the suffix before the answer, at offset 200",
    ),
    Preset(
        "dc-leap",
        "leap:tau=0.7+provisional:tau=0.98",
        "arXiv:2607.20467",
        "DC-Leap: a window of half the answer, with provisional drafts; one block",
        _canvas(256, 256),
    ),
    Preset("entropy-bound", "entropy_bound:gamma=0.1", "arXiv:2505.24857", "EB-Sampler: 0.1 nat of shared information"),
    *(
        Preset(
            f"klass-{model}-{task}",
            f"klass:tau={tau},kl={kl},steps=256",
            "arXiv:2511.05664",
            f"KLASS: {family} on {title}",
            _canvas(256, block),
        )
        for model, family, block, settings in (
            ("llada", "LLaDA 8B Instruct", 64, ((0.6, 0.015), (0.6, 0.01), (0.9, 0.01), (0.7, 0.01))),
            ("dream", "Dream 7B Instruct", 256, ((0.9, 0.001), (0.9, 0.005), (0.8, 0.001), (0.9, 0.001))),
        )
        for (task, title), (tau, kl) in zip(
            (("gsm8k", "GSM8K"), ("math", "MATH"), ("humaneval", "HumanEval"), ("mbpp", "MBPP")), settings, strict=True
        )
    ),
    *(
        Preset(
            f"wino-{task}",
            f"wino:draft={draft},verify=0.9",
            "arXiv:2507.18578",
            f"WINO: LLaDA 8B Instruct on {title}",
            _canvas(256, 128),
        )
        for task, title, draft in (
            ("gsm8k", "GSM8K", 0.6),
            ("math", "MATH", 0.7),
            ("humaneval", "HumanEval", 0.7),
            ("mbpp", "MBPP", 0.8),
        )
    ),
    Preset(
        "learn2pd", "learned+eos", "arXiv:2509.25188", "Learn2PD: a trained filter and the end-of-text stop", _BLOCKS
    ),
    Preset(
        "remdm",
        "fixed+remdm:at=0.875,rounds=4,tokens=1",
        "arXiv:2503.00307",
        "ReMDM: late remasking on LLaDA's schedule",
        _BLOCKS,
    ),
    # dInfer.
    Preset(
        "dinfer",
        "threshold:tau=0.8+eos@vicinity:before=16,after=16,warmup=4",
        "arXiv:2510.08666",
        "dInfer: threshold with vicinity refresh, LLaDA-MoE's recommended windows",
        _canvas(1024, 64),
    ),
    Preset(
        "dinfer-hierarchy",
        "hierarchy:high=0.9,low=0.4+eos@dual",
        "arXiv:2510.08666",
        "dInfer: hierarchical decoding with the dual cache",
        _canvas(256, 64),
    ),
    Preset(
        "dinfer-smoothing",
        "smoothing+threshold:tau=0.9,fall=0.02+eos@vicinity:before=16,after=16,warmup=4",
        "arXiv:2510.08666",
        "dInfer: iteration smoothing with its falling threshold",
        _canvas(1024, 64),
    ),
    # dKV-Cache.
    Preset(
        "dkv-decode",
        "fixed@dkv:refresh=8,full=2",
        "arXiv:2505.15781",
        "dKV-Cache-Decode on LLaDA: a token is cached one step after its commit",
        _BLOCKS,
    ),
    Preset(
        "dkv-greedy",
        "random+fixed@dkv_greedy:refresh=2,window=4",
        "arXiv:2505.15781",
        "dKV-Cache-Greedy on LLaDA: a random order with windows of 4",
        _BLOCKS,
    ),
    Preset(
        "dkv-dream",
        "entropy+timesteps@dkv:refresh=4,settle=next,reference=true",
        "arXiv:2505.15781",
        "dKV-Cache-Decode on Dream: a token is cached once its right neighbour is committed",
        _canvas(256, 256),
    ),
    Preset(
        "dkv-dream-pd",
        "entropy+timesteps@dkv:refresh=4,settle=next,prompt=keep,reference=true",
        "arXiv:2505.15781",
        "dKV-Cache-PD on Dream: the prompt is computed once",
        _canvas(256, 256),
    ),
    Preset(
        "dkv-dream-prefill",
        "entropy+timesteps@prefix:before=1",
        "arXiv:2505.15781",
        "dKV-Cache-Prefill on Dream: the prompt is computed once, everything else always",
        _canvas(256, 256),
    ),
    # Pictures. The published guidance (1 + s) c - s u is cfg = 1 + s.
    Preset(
        "dimoo",
        "maskgit:steps=64,noise=1.0,anneal=none",
        "arXiv:2510.06308",
        "Lumina-DiMOO: pictures in 64 steps of the cosine schedule",
        {"temperature": 1.0, "cfg": 5.0},
    ),
    Preset(
        "dimoo-cache",
        "maskgit:steps=64,noise=1.0,anneal=none@mlcache:reuse=0.9,refresh=5",
        "arXiv:2510.06308",
        "Lumina-DiMOO with its max-logit cache: computes a tenth of the positions between refreshes",
        {"temperature": 1.0, "cfg": 5.0},
    ),
    Preset(
        "mmada",
        "maskgit:steps=15,noise=1.0,anneal=product",
        "arXiv:2505.15809",
        "MMaDA: pictures in 15 steps of the cosine schedule, with noise that fades",
        {"temperature": 1.0, "cfg": 4.5},
    ),
    Preset(
        "scd",
        "sjd:refresh=coupled",
        "arXiv:2510.24211",
        "SCD, MC-SJD: drafts of an image's codes are coupled with those of the round before",
    ),
    # Block-causal families lay their own blocks.
    Preset("sdar", "threshold:tau=0.9+eos@block", "arXiv:2510.06303", "SDAR: confidence threshold in its own blocks"),
    Preset(
        "llada2",
        "threshold:tau=0.5+edit:tau=0.0,post=16+eos@block",
        "arXiv:2602.08676",
        "LLaDA2.1's joint threshold: drafts at 0.5, edits every change, at most 16 extra forwards",
    ),
    Preset(
        "llada2.0",
        "quota:tau=0.95,steps=32+eos@block",
        "arXiv:2512.15745",
        "LLaDA2.0: all confident candidates, or a block's share of 32 steps",
        {"max_new_tokens": 2048},
    ),
    Preset(
        "llada2.1-quality",
        "quota:tau=0.7+edit:tau=0.5,post=16+eos@block",
        "arXiv:2602.08676",
        "LLaDA2.1 in quality mode: drafts at 0.7, edits above 0.5",
    ),
    Preset(
        "flowblock",
        "multiblock:blocks=2,add=0.6+quota:tau=0.7+edit:tau=0.5,post=16+eos@block",
        "arXiv:2607.17652",
        "FlowBlock: two blocks at once, each edited until the left one is final; thresholds of LLaDA2.1's quality mode",
    ),
    Preset(
        "llada2.1-speed",
        "quota:tau=0.5+edit:tau=0.0,post=16+eos@block",
        "arXiv:2602.08676",
        "LLaDA2.1 in speed mode, as SGLang reads it: drafts at 0.5, edits every change (diffusers edits nothing at 0)",
    ),
    Preset(
        "llada2.2",
        "threshold:tau=0.5+levenshtein:tau=0.0,post=16+eos@block",
        "https://huggingface.co/inclusionAI/LLaDA2.2-flash",
        "LLaDA2.2: drafts at 0.5, edits every change, deletes and inserts",
        {"block_length": 32},
    ),
    Preset(
        "dmax",
        "interpolate+contiguous:tau=0.5+edit:tau=0.0,post=32,sure=0.9+eos@block",
        "arXiv:2604.08302",
        "DMax: drafts from the left at 0.5, edits every change, feeds tokens mixed with the mask",
    ),
    Preset(
        "sdar-dynamic",
        "quota:tau=0.85,steps=4+eos@block",
        "arXiv:2510.06303",
        "SDAR's low_confidence_dynamic with its script's threshold, blocks of 4",
    ),
    Preset(
        "trado", "quota:tau=0.9,steps=4+eos@block", "arXiv:2509.06949", "TraDo: SDAR's dynamic decoding, blocks of 4"
    ),
    Preset(
        "fast-dllm-v2",
        "threshold:tau=0.9+eos@subblock:size=8",
        "arXiv:2509.26328",
        "Fast-dLLM v2: sub-blocks of 8 with the block cache",
    ),
    Preset(
        "stable-diffcoder",
        "fixed+eos@block",
        "https://huggingface.co/ByteDance-Seed/Stable-DiffCoder-8B-Instruct",
        "Stable-DiffCoder: one token per step, most confident first, blocks of 4",
        {"max_new_tokens": 512},
    ),
    Preset(
        "d3llm-llada",
        "entropy_threshold:tau=0.5+eos",
        "arXiv:2601.07568",
        "d3LLM on LLaDA, one block at a time",
        _BLOCKS,
    ),
    Preset(
        "d3llm-dream",
        "entropy_threshold:tau=0.4+eos",
        "arXiv:2601.07568",
        "d3LLM on Dream, one block at a time",
        _BLOCKS,
    ),
    # Drafters that read the target's states: `preset:medusa:name=...` names the module that was trained for the target.
    Preset(
        "medusa",
        "medusa:name=tiny-llama-medusa,k=4+paths:tree=mc_sim_7b_63,top=true+typical:reference=true",
        "arXiv:2401.10774",
        "Medusa: the tree of 63 paths with typical acceptance; preset:medusa:name=FOLDER for other heads",
        {"max_new_tokens": 512, "temperature": 0.7},
    ),
    Preset(
        "hydra",
        "hydra:name=tiny-llama-hydra,k=4+paths:tree=mc_sim_7b_63,top=true",
        "arXiv:2402.05109",
        "Hydra and Hydra++: Medusa's tree, whose levels depend on each other; preset:hydra:name=FOLDER for other heads",
        {"max_new_tokens": 512},
    ),
    Preset(
        "eagle",
        "eagle:name=tiny-llama-eagle,k=5+paths:tree=eagle_mc_sim_7b_63",
        "arXiv:2401.15077",
        "EAGLE: its fixed tree, 26 nodes with the last token; preset:eagle:name=FOLDER for another module",
        {"max_new_tokens": 1024},
    ),
    # The authors' 60 nodes include the last token. Their depths 5 and 7 are one less than the levels that they draft.
    *(
        Preset(
            name,
            f"eagle:name=tiny-llama-eagle,k={k}+beam:beams=10,nodes=59,raw=true",
            paper,
            f"{title}: its dynamic tree, {k} levels deep, 60 nodes with the last token;"
            f" preset:{name}:name=FOLDER for another module",
            {"max_new_tokens": 1024},
        )
        for name, title, k, paper in (
            ("eagle2", "EAGLE-2", 6, "arXiv:2406.16858"),
            ("eagle3", "EAGLE-3", 8, "arXiv:2503.01840"),
        )
    ),
    Preset(
        "lazymar",
        "mar:uncond_every=9,decoder_every=9,head_every=7",
        "arXiv:2503.12450",
        "LazyMAR: computes only what changed",
    ),
    # Families whose attention follows the canvas.
    Preset(
        "wedlm",
        "wedlm:tau=0.4,distance=0.02+eos@window",
        "arXiv:2512.22737",
        "WeDLM: a sliding window of 16, entropies below 0.4",
        {"block_length": 16, "temperature": 0.2},
    ),
    Preset(
        "sdlm",
        "contiguous:tau=0.9+eos@next_sequence",
        "arXiv:2509.24007",
        "SDLM: commits the confident tokens at the front of a window as long as its training blocks",
    ),
    Preset(
        "sdlm-verified",
        "freedave:drafts=3+leftmost+sequential+eos@next_sequence",
        "arXiv:2509.24007",
        "SDLM's self-speculation in windows of 4: each forward has a window after every prefix of the draft",
        {"block_length": 4},
    ),
    Preset(
        "nemotron",
        "threshold:tau=0.9+eos@causal",
        "https://huggingface.co/nvidia/Nemotron-Labs-Diffusion-8B",
        "Nemotron-Labs-Diffusion in diffusion mode: confidence 0.9, blocks of 32",
        {"block_length": 32},
    ),
    Preset(
        "diffusion-gemma",
        "selfcondition+anneal:high=0.8,low=0.4,steps=48+renoise:gamma=0.1,confidence=0.005,steps=48+eos@causal",
        "https://huggingface.co/google/diffusiongemma-26B-A4B-it",
        "DiffusionGemma: canvases of 256 random tokens, at most 48 steps each",
        {"block_length": 256, "max_new_tokens": 256, "temperature": 1.0},
    ),
    Preset(
        "sumi",
        "ancestral:steps=128",
        "arXiv:2606.19005",
        "Sumi: a canvas of 2,048 random tokens, drawn anew at 128 steps from the posterior of uniform noise",
        {"temperature": 1.0},
    ),
    Preset(
        "sumi-adaptive",
        "adaptive:steps=256",
        "arXiv:2606.19005",
        "Sumi on code and mathematics: the token that the model would change most surely, 256 times",
        {"max_new_tokens": 256, "temperature": 1.0},
    ),
)


def presets() -> tuple[Preset, ...]:
    """Every preset: a complete spec with the arguments of its paper."""
    return PRESETS


def preset(name: str) -> Preset:
    """The preset `name`, with or without the prefix `preset:`; parameters after it apply to its first method.

    >>> preset("preset:hydra:name=FOLDER,k=2").spec
    'hydra:name=FOLDER,k=2+paths:tree=mc_sim_7b_63,top=true'
    """
    known = {p.name: p for p in PRESETS}
    name, _, parameters = name.removeprefix("preset:").partition(":")
    if name not in known:
        raise UnknownNameError(f"unknown preset {name!r}{did_you_mean(name, known)}", hint='run "pardec list presets"')
    chosen = known[name]
    if not parameters:
        return chosen
    spec = parse(chosen.spec)
    first, *others = spec.parts
    own = parse(f"{first.name}:{parameters}")
    if len(own.parts) > 1 or own.cache is not None:
        raise SpecError(
            f"a preset takes parameters of its first method, {first.name}, got {parameters!r}",
            hint=f"to change other methods, write the spec out: {chosen.spec}",
        )
    part = Part(first.name, tuple({**dict(first.params), **dict(own.parts[0].params)}.items()))
    return replace(chosen, spec=str(Spec((part, *others), spec.cache)))
