"""Logs of nccl-tests' `all_reduce_perf`: times by size, with what cannot be true set aside. No torch.

Columns are found by the header's words, since versions differ (a root column, `error` for `#wrong`). A row is set
aside, never mended, where its own numbers contradict each other: bus bandwidth is algorithm bandwidth times
2 (n - 1) / n (nccl-tests, doc/PERFORMANCE.md), and algorithm bandwidth is size over time.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from simulator.errors import BadInputError

MAX_BYTES = 16_000_000
LEAST_TIME_US = 1.0
"""No all-reduce over several GPUs takes less: one store and its flag cross a link in about half a microsecond."""

TYPE_BYTES = {
    "half": 2, "bfloat16": 2, "float": 4, "double": 8, "int8": 1, "uint8": 1, "int32": 4, "uint32": 4, "int64": 8,
    "uint64": 8, "fp8_e4m3": 1, "fp8_e5m2": 1, "f8e4m3": 1, "f8e5m2": 1,
}  # fmt: skip
ROUNDING_UNITS = 2
"""Units in the last printed digit that a printed bandwidth may differ from the one its size and time give."""


@dataclass(frozen=True, kw_only=True)
class AllReduceRow:
    """One size: its time, out of place or in place, whichever is longer."""

    size_bytes: int
    time_us: float


@dataclass(frozen=True, kw_only=True)
class AllReduceLog:
    """What a log says, and what of it was set aside with the reason."""

    num_gpus: int
    in_graph: bool
    rows: tuple[AllReduceRow, ...]
    set_aside: tuple[str, ...]


def read_log(path: Path) -> AllReduceLog:
    """The all-reduce times of a log.

    Raises:
        BadInputError: no file, another collective, or no row that can be believed.
    """
    try:
        if path.stat().st_size > MAX_BYTES:
            raise BadInputError(
                f"{path} has {path.stat().st_size / 1e6:.0f} MB; a log of nccl-tests has a few kilobytes"
            )
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise BadInputError(f"{path} cannot be read: {error.strerror}") from None
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        raise BadInputError(f"{path} is empty")
    _check_collective(lines, path)
    columns = _columns(lines, path)
    num_gpus = _num_gpus(lines, path)
    rows, set_aside = [], []
    for line in (line for line in lines if re.match(r"\d", line)):
        row, reason = _row(line.split(), columns, num_gpus)
        if row is None:
            set_aside.append(f"{' '.join(line.split()[:6])} ...: {reason}")
        else:
            rows.append(row)
    if not rows:
        hint = set_aside[0] if set_aside else "the last line is the header: the test hung or was stopped"
        raise BadInputError(f"{path} has no row that can be used ({hint})")
    graph = re.search(r"graph:\s*(\d+)", text)
    rows.sort(key=lambda row: row.size_bytes)
    return AllReduceLog(
        num_gpus=num_gpus,
        in_graph=graph is not None and int(graph[1]) > 0,
        rows=tuple(rows),
        set_aside=tuple(set_aside),
    )


def _check_collective(lines: Sequence[str], path: Path) -> None:
    for line in lines:
        found = re.search(r"(\w+)_perf\b", line)
        if found and found[1] != "all_reduce":
            raise BadInputError(f"{path} is a log of {found[1]}_perf; all_reduce_perf is needed")


def _columns(lines: Sequence[str], path: Path) -> list[str]:
    """Names of the columns, from the header that begins with size and count."""
    for line in lines:
        words = line.lstrip("# ").split()
        if words[:2] == ["size", "count"]:
            return words
    raise BadInputError(f"{path} has no header with size and count: it is no log of nccl-tests")


def _num_gpus(lines: Sequence[str], path: Path) -> int:
    """Ranks: those listed, or those that the parameters name (per process, where no list stands beside them)."""
    listed = sum(bool(re.match(r"#\s+Rank\s+\d+", line)) for line in lines)
    if listed:
        return listed
    for line in lines:
        found = re.search(r"nGpus\s+(\d+)", line)
        if found:
            return int(found[1])
    raise BadInputError(f"{path} does not say how many GPUs took part")


def _row(words: Sequence[str], columns: Sequence[str], num_gpus: int) -> tuple[AllReduceRow | None, str]:
    """The row, or None and the reason to set it aside."""
    if len(words) != len(columns):
        return None, f"{len(words)} columns instead of {len(columns)}"
    fields = list(zip(columns, words, strict=True))
    first = dict(reversed(fields))
    times, checks = (
        [text for name, text in fields if name == "time"],
        [t for n, t in fields if n in ("#wrong", "error")],
    )
    try:
        size_bytes, count = int(first["size"]), int(first["count"])
        times_us = [float(text) for text in times]
        wrong = [float(text) for text in checks if text != "N/A"]
    except ValueError:
        return None, "not a number where one belongs"
    width = TYPE_BYTES.get(first.get("type", ""))
    reasons = (
        (
            bool(width) and size_bytes != count * (width or 0),
            f"{count} elements of {first.get('type')} are {count * (width or 0)} bytes",
        ),
        (any(wrong), "the test counted wrong values"),
        (min(times_us) <= 0, "a time of zero"),
        (
            min(times_us) < LEAST_TIME_US and num_gpus > 1,
            f"{min(times_us)} us is less than any all-reduce over {num_gpus} GPUs takes",
        ),
    )
    reason = next((reason for is_wrong, reason in reasons if is_wrong), None)
    reason = reason or _contradiction(size_bytes, times_us, fields, num_gpus)
    if reason is not None:
        return None, reason
    return AllReduceRow(size_bytes=size_bytes, time_us=max(times_us)), ""


def _contradiction(
    size_bytes: int, times_us: Sequence[float], fields: Sequence[tuple[str, str]], num_gpus: int
) -> str | None:
    """How a printed bandwidth contradicts size and time; None where none does."""
    factors = {"algbw": 1.0, "busbw": 2 * (num_gpus - 1) / num_gpus}
    for name, factor in factors.items():
        for time_us, text in zip(times_us, [text for column, text in fields if column == name], strict=False):
            expected = size_bytes / time_us / 1e3 * factor
            unit = 10.0 ** -len(text.partition(".")[2])
            # time is printed with few digits too: half a unit of it moves the bandwidth by so much
            slack = ROUNDING_UNITS * unit + expected * 0.005 / time_us
            if abs(float(text) - expected) > slack:
                return f"{name} {text} GB/s, but size and time give {expected:.2f}"
    return None
