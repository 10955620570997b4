"""Simulates schedules on machines that need not be present: tokens are really decoded, times come from stated costs."""

from __future__ import annotations

from .machine import Machine
from .run import Simulation, simulate
from .schedules import SCHEDULES

__all__ = ["SCHEDULES", "Machine", "Simulation", "simulate"]
