"""The packages of the distribution: every folder of the three floors, two of which lie beside `pardec`."""

from setuptools import find_packages, setup

FLOORS = {"pardec": "pardec", "pardec.models": "models", "pardec.samplers": "samplers"}

setup(
    package_dir=FLOORS,
    packages=[
        *FLOORS,
        *(f"{floor}.{package}" for floor, folder in FLOORS.items() for package in find_packages(folder)),
    ],
)
