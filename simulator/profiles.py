"""Hardware profiles by name: reads `conf/hardware/*.yaml`, and picks the one of the GPU that is present. No torch."""

import dataclasses
from pathlib import Path

from omegaconf import OmegaConf

from simulator.errors import BadInputError, Problem
from simulator.hardware import Hardware
from simulator.schema import writable_schema

PACKAGED_CONF = Path(__file__).parent / "conf"
CHECKOUT_CONF = Path(__file__).parent.parent / "conf"

DEFAULT_PROFILE = "rtx_pro_6000_x8"
"""What a prediction is for where neither a profile is named nor a GPU found."""


def conf_directory() -> Path:
    """Where the YAML is: inside the installed package, or at the top of a checkout."""
    return PACKAGED_CONF if PACKAGED_CONF.is_dir() else CHECKOUT_CONF


def load_profile(name: str) -> Hardware:
    """The profile called `name`."""
    path = conf_directory() / "hardware" / f"{name}.yaml"
    loaded = OmegaConf.to_object(OmegaConf.merge(writable_schema(Hardware), OmegaConf.load(path)))
    if not isinstance(loaded, Hardware):
        raise TypeError(f"{path} does not describe hardware")
    return loaded


def resolve_hardware(chosen: Hardware, device_name: str | None) -> tuple[Hardware, str | None]:
    """The profile to work with, and a note on how it was found.

    `auto` means the profile of the GPU that is present, or the default one; fields that were given beside it win.

    Raises:
        BadInputError: the profile lacks the memory bandwidth that every floor needs.
    """
    note = None
    if chosen.name == "auto":
        profile, note = _found_profile(device_name)
        chosen = _with_overrides(profile, chosen)
    if not chosen.bandwidth_gbps or chosen.bandwidth_gbps <= 0:
        must = "must be the memory bandwidth in GB/s, above 0"
        raise BadInputError(Problem(key="hardware.bandwidth_gbps", value=chosen.bandwidth_gbps, must=must))
    return chosen, note


def _found_profile(device_name: str | None) -> tuple[Hardware, str | None]:
    if device_name is None:
        return load_profile(DEFAULT_PROFILE), f"no GPU and no hardware= named: floors are those of {DEFAULT_PROFILE}"
    for path in sorted((conf_directory() / "hardware").glob("*.yaml")):
        profile = load_profile(path.stem)
        if profile.device and profile.device in device_name:
            return profile, None
    raise BadInputError(
        Problem(
            key="hardware",
            value="auto",
            must=f"knows no profile of {device_name}",
            suggestion="name one, with its fields overridden where they differ: hardware=h200_x8 ...",
        )
    )


def _with_overrides(profile: Hardware, given: Hardware) -> Hardware:
    defaults = Hardware(name="auto")
    changed = {
        entry.name: getattr(given, entry.name)
        for entry in dataclasses.fields(Hardware)
        if getattr(given, entry.name) != getattr(defaults, entry.name)
    }
    return dataclasses.replace(profile, **changed)
