"""Reading a JSON object that somebody else wrote, without trusting its size, depth or numbers. No torch."""

import json
from collections import Counter
from collections.abc import Mapping
from math import isfinite
from pathlib import Path
from typing import Any

from simulator.errors import BadInputError

MAX_BYTES = 32_000_000
"""Configurations have some kilobytes; a list that names every expert of every layer has a few megabytes."""

Json = Mapping[str, Any]


class _RepeatedFieldError(ValueError):
    """An object names a field twice: parsers differ in which one counts."""


def read_json_object(path: Path) -> Json:
    """The object in `path`.

    Raises:
        BadInputError: no file, too large, not text, not JSON, nested too deeply, a field twice, or no object.
    """
    try:
        loaded = json.loads(_text(path), object_pairs_hook=_without_repetition)
    except UnicodeDecodeError:
        raise BadInputError(f"{path} is not a text file") from None
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise BadInputError(f"{path} is not JSON: {error.msg} at {where} (cut off while copying?)") from None
    except RecursionError:
        raise BadInputError(f"{path} is nested too deeply to be a configuration") from None
    except _RepeatedFieldError as error:
        raise BadInputError(f"{path}: {error} stands there more than once") from None
    except ValueError:
        # Python refuses to convert integers of thousands of digits
        raise BadInputError(f"{path} holds a number of too many digits") from None
    if not isinstance(loaded, dict):
        raise BadInputError(f"{path} must hold a JSON object, not a {type(loaded).__name__}")
    return loaded


def _text(path: Path) -> str:
    """The text of a regular file of at most MAX_BYTES, which may grow while it is read."""
    try:
        if path.exists() and not path.is_file():
            raise BadInputError(f"{path} is no regular file")
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except FileNotFoundError:
        raise BadInputError(f"{path} does not exist") from None
    except OSError as error:
        raise BadInputError(f"{path} cannot be read: {error.strerror}") from None
    except ValueError as error:
        raise BadInputError(f"{str(path)!r} is no path: {error}") from None
    if len(content) > MAX_BYTES:
        raise BadInputError(f"{path} has more than {MAX_BYTES / 1e6:.0f} MB: no configuration is as large")
    return content.decode("utf-8")


def _without_repetition(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        (name, _), *_ = Counter(name for name, _ in pairs).most_common(1)
        raise _RepeatedFieldError(name)
    return values


def whole_number(values: Json, name: str, path: Path) -> int:
    """The integer `name`; text, fractions and booleans are refused rather than converted."""
    value = values[name]
    if isinstance(value, bool) or not isinstance(value, int):
        raise BadInputError(f"{path}: {name}={value!r} must be a whole number")
    return value


def real_number(values: Json, name: str, path: Path) -> float:
    """The finite number `name`."""
    value = values[name]
    try:
        if not isinstance(value, bool) and isinstance(value, int | float) and isfinite(value):
            return float(value)
    except OverflowError:
        pass
    raise BadInputError(f"{path}: {name}={value!r} must be a finite number")


def truth(values: Json, name: str, path: Path) -> bool:
    """The boolean `name`."""
    value = values[name]
    if not isinstance(value, bool):
        raise BadInputError(f"{path}: {name}={value!r} must be true or false")
    return value
