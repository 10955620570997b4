"""The drivers of the families of models. A new kind of family is a file here and a name in `DRIVERS`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pardec.models.errors import ModelError

from .ar import ARDriver
from .base import Driver
from .maps import MapDriver
from .masked import MaskedDriver
from .vectors import VectorDriver

if TYPE_CHECKING:
    from pardec.samplers.cards import Family

__all__ = ["DRIVERS", "Driver", "driver_of"]

DRIVERS: dict[Family, type[Driver]] = {
    driver.family: driver for driver in (MaskedDriver, ARDriver, VectorDriver, MapDriver)
}


def driver_of(network: Any) -> Driver:
    """The driver of a loaded network. Raises ModelError where there is none."""
    for driver in DRIVERS.values():
        if driver.drives(network):
            return driver(network)
    raise ModelError(
        f"Model cannot decode a {type(network).__name__}",
        "pardec.load loads a checkpoint; docs/guides/own-network.md wraps a network of your own in a LanguageModel",
    )
