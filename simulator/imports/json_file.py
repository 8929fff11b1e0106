"""Reading a JSON object that somebody else wrote, without trusting its size, depth or numbers. No torch."""

import json
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from simulator.errors import BadInputError

MAX_BYTES = 4_000_000
"""Configurations of real models have a few kilobytes; ignore lists of every expert some hundreds."""

Json = Mapping[str, Any]


def read_json_object(path: Path) -> Json:
    """The object in `path`.

    Raises:
        BadInputError: no file, too large, not text, not JSON, nested too deeply, or no object.
    """
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise BadInputError(f"{path} has {size / 1e6:.1f} MB; a configuration has at most {MAX_BYTES / 1e6:.0f} MB")
        loaded = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadInputError(f"{path} does not exist") from None
    except OSError as error:
        raise BadInputError(f"{path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise BadInputError(f"{path} is not a text file") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise BadInputError(f"{path} is not JSON: {error.msg} at {where} (cut off while copying?)") from None
    except RecursionError:
        raise BadInputError(f"{path} is nested too deeply to be a configuration") from None
    if not isinstance(loaded, dict):
        raise BadInputError(f"{path} must hold a JSON object, not a {type(loaded).__name__}")
    return loaded


def whole_number(values: Json, name: str, path: Path) -> int:
    """The integer `name`; text, fractions and booleans are refused rather than converted."""
    value = values[name]
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadInputError(f"{path}: {name}={value!r} must be a whole number")
    return value


def real_number(values: Json, name: str, path: Path) -> float:
    """The finite number `name`."""
    value = values[name]
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise BadInputError(f"{path}: {name}={value!r} must be a finite number")
    return float(value)


def truth(values: Json, name: str, path: Path) -> bool:
    """The boolean `name`."""
    value = values[name]
    if not isinstance(value, bool):
        raise BadInputError(f"{path}: {name}={value!r} must be true or false")
    return value
