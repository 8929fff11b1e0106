"""Rotary fields of a config.json: `rope_parameters`, or `rope_theta` and `rope_scaling` in older files. No torch."""

from pathlib import Path

from simulator.errors import BadInputError
from simulator.imports.json_file import Json, real_number, whole_number

YARN = {
    "factor": "rope_scaling_factor",
    "beta_fast": "rope_beta_fast",
    "beta_slow": "rope_beta_slow",
    "mscale": "rope_mscale",
    "mscale_all_dim": "rope_mscale_all_dim",
}
"""Numbers of a YaRN object, and their names in a ModelSpec."""

KINDS = ("default", "yarn")


def rope_fields(values: Json, path: Path) -> tuple[dict[str, float | int], list[str]]:
    """Fields of a ModelSpec, and notes on what is there besides.

    Raises:
        BadInputError: a kind that is not known, a field of the wrong type, or two that contradict each other.
    """
    nested = _nested(values, path)
    kind = nested.get("rope_type", nested.get("type", "default"))
    if kind not in KINDS:
        raise BadInputError(f"{path}: rope type {kind!r} is not known; known are {' and '.join(KINDS)}")
    read = {"rope_type", "type"}
    fields: dict[str, float | int] = {}
    for name in ("rope_theta", "partial_rotary_factor"):
        if nested.get(name) is not None:
            read.add(name)
            fields[name] = real_number(nested, name, path)
            outer = values.get(name)
            if outer is not None and outer != fields[name]:
                raise BadInputError(f"{path}: {name}={outer} and {name}={nested[name]} within contradict each other")
    if kind == "yarn":
        read |= {*YARN, "original_max_position_embeddings"}
        missing = [name for name in ("factor", "original_max_position_embeddings") if nested.get(name) is None]
        if missing:
            raise BadInputError(f"{path}: rope_scaling of type yarn lacks {', '.join(missing)}")
        fields["rope_original_max_position"] = whole_number(nested, "original_max_position_embeddings", path)
        given = [name for name in YARN if nested.get(name) is not None]
        fields |= {YARN[name]: real_number(nested, name, path) for name in given}
    unknown = sorted(name for name in nested if name not in read and nested[name] is not None)
    if unknown:
        return fields, [f"not understood of the rotary embedding, and left out: {', '.join(unknown)}"]
    return fields, []


def _nested(values: Json, path: Path) -> Json:
    """The object that describes the rotary embedding, empty where there is none."""
    found: Json = {}
    for name in ("rope_parameters", "rope_scaling"):
        value = values.get(name)
        if value is None:
            continue
        if not isinstance(value, dict):
            raise BadInputError(f"{path}: {name}={value!r} must be an object")
        if found and value and found != value:
            raise BadInputError(f"{path}: rope_parameters and rope_scaling contradict each other")
        found = value or found
    return found
