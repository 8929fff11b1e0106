"""Shipped configuration files as objects, without going through Hydra."""

from typing import Any, TypeVar

from omegaconf import OmegaConf

from simulator.model import ModelSpec
from simulator.profiles import conf_directory
from simulator.recipe import Recipe
from simulator.schema import writable_schema

Loaded = TypeVar("Loaded")


def load(schema: type[Loaded], group: str, name: str, **overrides: Any) -> Loaded:
    merged = OmegaConf.merge(
        writable_schema(schema), OmegaConf.load(conf_directory() / group / f"{name}.yaml"), overrides
    )
    loaded = OmegaConf.to_object(merged)
    assert isinstance(loaded, schema)
    return loaded


def model(name: str, **overrides: Any) -> ModelSpec:
    return load(ModelSpec, "model", name, **overrides)


def recipe(name: str, **overrides: Any) -> Recipe:
    return load(Recipe, "recipe", name, **overrides)
