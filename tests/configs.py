"""Shipped configuration files as objects: one by one without Hydra, or composed as from a command line."""

from typing import Any, TypeVar

from hydra import compose, initialize_config_dir
from omegaconf import OmegaConf

from simulator.config import SimulatorConfig, from_hydra, register
from simulator.model import ModelSpec
from simulator.profiles import conf_directory
from simulator.recipe import Recipe
from simulator.schema import writable_schema

Loaded = TypeVar("Loaded")


def load(schema: type[Loaded], group: str, name: str, **overrides: Any) -> Loaded:
    written = OmegaConf.load(conf_directory() / group / f"{name}.yaml")
    # which recipe goes with a model is Hydra's to read
    written.pop("defaults", None)
    merged = OmegaConf.merge(writable_schema(schema), written, overrides)
    loaded = OmegaConf.to_object(merged)
    assert isinstance(loaded, schema)
    return loaded


def composed(*overrides: str) -> tuple[SimulatorConfig, list[str]]:
    """The configuration of a command line, and the notes on what was read for it."""
    register()
    with initialize_config_dir(version_base="1.3", config_dir=str(conf_directory())):
        return from_hydra(compose("config", list(overrides)), overrides)


def model(name: str, **overrides: Any) -> ModelSpec:
    return load(ModelSpec, "model", name, **overrides)


def recipe(name: str, **overrides: Any) -> Recipe:
    return load(Recipe, "recipe", name, **overrides)
