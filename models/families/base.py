"""The description of a checkpoint family, and the registry of families."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Literal

from ..decoder_config import DecoderConfig
from ..errors import ModelError, did_you_mean

if TYPE_CHECKING:
    from torch import Tensor  # matching a config to a family must not import torch

Config = dict[str, Any]  # a published config.json
Names = Mapping[str, str | tuple[str, ...]]
BLOCK_KEYS = ("block_size", "block_length", "bd_size", "canvas_length")  # config keys with the length of a block


class Unsupported(ModelError):
    """A checkpoint of a known family that uses something the native stack does not have."""


@dataclass(frozen=True, slots=True)
class ConfigKeys:
    """The config.json keys that a family follows, refuses and ignores, after its reference implementation.

    A key in neither of the first two fields is one that the reference ignores, and so it never reaches the decoder;
    with `ignored`, one that is there, and any other is refused.
    """

    followed: frozenset[str]
    refused: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)  # values that the stack computes; others raise
    inside: Mapping[str, ConfigKeys] = field(default_factory=dict)  # tables of nested configs
    ignored: frozenset[str] | None = None  # all other known keys, of files that people write
    defaults: Mapping[str, Any] = field(default_factory=dict)  # the reference's values of keys that a config leaves out

    def read(self, config: Config) -> Config:
        """The followed keys of a config. Raises Unsupported, with the key, for a refused value and an unknown key."""
        require(config, self.refused)
        config = {**self.defaults, **config}
        if self.ignored is not None:
            known = {*self.followed, *self.refused, *self.inside, *self.ignored}
            for key in config:
                if key not in known:
                    near = did_you_mean(key, known - self.ignored)
                    raise Unsupported(f"unknown key {key}={config[key]!r}{near}", "correct it, or leave it out")
        followed = {key: value for key, value in config.items() if key in self.followed}
        for key, keys in self.inside.items():
            if isinstance(inner := config.get(key), dict):
                followed[key] = keys.read(inner)
        return followed

    def without(self, *keys: str) -> ConfigKeys:
        """A copy of the table in which these keys are ignored."""
        refused = {key: values for key, values in self.refused.items() if key not in keys}
        return replace(self, followed=self.followed.difference(keys), refused=refused)

    def also(self, *keys: str, **refused: tuple[Any, ...]) -> ConfigKeys:
        """A copy of the table with these keys followed, and those in `refused` refused."""
        return replace(
            self, followed=self.followed.union(keys).difference(refused), refused={**self.refused, **refused}
        )


@dataclass(frozen=True, slots=True)
class _FollowedKeys:
    """A family's `decoder`, which gets the followed keys alone."""

    build: Callable[[Config], DecoderConfig]
    keys: ConfigKeys

    def __call__(self, config: Config) -> DecoderConfig:
        return self.build(self.keys.read(config))


@dataclass(frozen=True, slots=True)
class FamilySpec:
    """One checkpoint family: which configs belong to it, its shape, its tensor names, and how it decodes."""

    name: str
    summary: str
    matches: Callable[[Config], bool]
    decoder: Callable[[Config], DecoderConfig]  # raises Unsupported
    # parameter -> published name or names, `{i}` for the layer, `{e}` for an expert; several are fused in this order
    names: Names
    attention: Literal["bidirectional", "block-causal", "windowed-causal", "causal-prefix", "causal"]
    shift: Literal[0, 1]
    keys: ConfigKeys | None = None  # the keys that `decoder` gets; None: all
    mask: tuple[int, str] | None = None  # default id and token of the mask
    turn_ends: Mapping[int, str] = field(default_factory=dict)  # further end tokens, where the vocabulary has them
    start: tuple[int, str] | None = None  # default id and token that open a sequence
    block: int | None = None  # default width of a block
    uniform: bool = False  # a canvas of random tokens instead of masks
    anchored: bool = False  # a canvas has `block` tokens with the prompt, and end and start tokens after the answer
    layouts: tuple[Names, ...] = ()  # alternatives to `names` that some files have
    has: tuple[str, ...] = ()  # tensors that the family with the same config lacks; without tensors it is that one
    lacks: tuple[str, ...] = ()
    block_in_name: str = ""  # block-causal: a pattern whose first group is the width, in a checkpoint's name
    own_head: bool = True  # a head in the file is used though the config ties it
    # Keys without which the reference computes something else than the published files, with its words for that: for a
    # config that leaves them out, files are read as the published ones, with a warning.
    assumed: Mapping[str, str] = field(default_factory=dict)
    harmless: tuple[str, ...] = ()  # patterns of published tensors that the decoder does not read
    pictured: tuple[str, ...] = ()  # patterns of the harmless tensors that `imaging` reads
    twin: Callable[[str], str | None] = lambda name: None  # the other published name of a tensor that two modules share
    convert: Callable[[str, Tensor, DecoderConfig], Tensor] = lambda name, tensor, config: tensor
    imaging: str = ""  # image models: "module:function" that builds their interface from `ImagingParts`
    text: bool = False  # image models: they write text as well, and can be loaded for that
    draws: Literal["class", "text"] | None = (
        None  # image models: what images are conditioned on; None: the config's gpt_type decides
    )
    positions: Callable[[Config], int | None] = lambda config: config.get("max_position_embeddings")

    def __post_init__(self) -> None:
        if self.keys is not None:
            build = self.decoder.build if isinstance(self.decoder, _FollowedKeys) else self.decoder
            object.__setattr__(self, "decoder", _FollowedKeys(build, self.keys))

    def fits(self, tensors: Container[str]) -> bool:
        """Whether a file's `tensors` may be this family's; without tensors, a family with no `has` fits."""
        if not tensors:
            return not self.has
        return all(name in tensors for name in self.has) and not any(name in tensors for name in self.lacks)

    def evidence(self, config: Config) -> str:
        """The evidence that a checkpoint is of this family, in words."""
        signs = [f"model_type {config.get('model_type')!r}"]
        if named := architecture(config):
            signs.append(f"architecture {named!r}")
        signs += [f"tensor {name!r}" for name in self.has] + [f"no tensor {name!r}" for name in self.lacks]
        return " and ".join(signs)


FAMILIES: dict[str, FamilySpec] = {}


def register(spec: FamilySpec) -> FamilySpec:
    """Adds a family; its name must be new."""
    if spec.name in FAMILIES:
        raise ValueError(f"family {spec.name!r} is registered twice")
    FAMILIES[spec.name] = spec
    return spec


def architecture(config: Config) -> str:
    """The first entry of `architectures`, or an empty string."""
    named = config.get("architectures")
    return str(named[0]) if isinstance(named, list) and named else ""


def require(config: Config, expected: Mapping[str, tuple[Any, ...]]) -> None:
    """Refuse (Unsupported) a config whose settings differ from those the native stack implements; absent ones pass."""
    for key, allowed in expected.items():
        if key in config and config[key] not in allowed:
            raise Unsupported(
                f"{key}={config[key]!r} is not supported natively (only {' or '.join(map(repr, allowed))})"
            )
