"""Frozen dataclasses as schemas of configuration files. No torch."""

from dataclasses import fields, is_dataclass

from omegaconf import DictConfig, OmegaConf


def writable_schema(schema: type) -> DictConfig:
    """The typed nodes of a frozen dataclass, without the lock: OmegaConf would refuse every override of them."""
    node: DictConfig = OmegaConf.structured(schema)
    OmegaConf.set_readonly(node, None)
    for entry in fields(schema):
        if isinstance(entry.type, type) and is_dataclass(entry.type):
            node[entry.name] = writable_schema(entry.type)
    return node


def dotted_keys(schema: type, prefix: str = "") -> list[str]:
    """Every key of a nested schema, as a user types it."""
    keys = []
    for entry in fields(schema):
        if isinstance(entry.type, type) and is_dataclass(entry.type):
            keys += dotted_keys(entry.type, f"{prefix}{entry.name}.")
        keys.append(prefix + entry.name)
    return keys
