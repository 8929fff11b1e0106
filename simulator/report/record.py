"""The report of one run as data: the schema of report.json, from which every other output is made. No torch.

Every number has a kind (predicted, executed, measured). `Report.kinds` names it section by section, and goes into the
JSON with the numbers. Times are microseconds, bytes are those of one rank.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from enum import Enum
from math import isfinite
from typing import Any, Literal

import numpy as np

from simulator.replay.base import Kind

SCHEMA = 1
"""Raised by every change after which an older reader would misread a report."""

Interval = tuple[float, float]
"""Low and high end of a 95% interval."""


@dataclass(frozen=True, kw_only=True)
class FloorCauses:
    """Least times by cause. They need not sum to the floor: bytes and arithmetic overlap."""

    memory: float = 0.0
    compute: float = 0.0
    node: float = 0.0
    wire: float = 0.0


@dataclass(frozen=True, kw_only=True)
class ReportStep:
    """The whole step. Intervals are None below 6 rounds."""

    median_us: float
    ci95_us: Interval | None
    p95_us: float
    empty_us: float
    """The step with every operation removed."""
    replays: int
    tok_s: float
    """Tokens a second of all sequences together."""


@dataclass(frozen=True, kw_only=True)
class ReportCeiling:
    """The step's floor, and the speed it would allow."""

    step_us: float
    tok_s: float
    by_floor: FloorCauses


@dataclass(frozen=True, kw_only=True)
class ReportComponent:
    """What one group of operations takes, and the least it could take."""

    name: str
    ops: int
    nodes: int
    shapley_us: float
    ci95_us: Interval | None
    """Of `shapley_us`."""
    leave_one_out_us: float
    alone_us: float
    """Above the empty step."""
    floor_us: FloorCauses
    floor_total_us: float
    x_floor: float | None
    """`shapley_us` over `floor_total_us`; None where there is no floor."""
    share: float
    """`shapley_us` as a fraction of the step."""
    verdict: str | None = None
    absorbed: tuple[str, ...] = ()
    """Names of operations that were fused into operations of this group."""


@dataclass(frozen=True, kw_only=True)
class ReportInteraction:
    """What two groups cost together beyond the sum of each: negative where they overlap."""

    a: str
    b: str
    us: float


@dataclass(frozen=True, kw_only=True)
class ReportAttribution:
    """How the times of the components were found, and that they add up."""

    method: Literal["exact", "permutation"]
    subsets: int
    rounds: int
    sum_us: float
    """Of all `shapley_us`."""
    full_minus_empty_us: float


@dataclass(frozen=True, kw_only=True)
class ReportBytes:
    """One module's weights on one rank, summed over layers."""

    component: str
    module: str
    weight_format: str
    replicated: bool
    """Whether every rank holds all of it, rather than its share."""
    bytes: int
    """Resident."""
    bytes_read_per_step: int


@dataclass(frozen=True, kw_only=True)
class ReportGap:
    """One part of the difference between the ceiling and a real server's step. Parts differ in kind."""

    cause: str
    us: float
    kind: Kind


@dataclass(frozen=True, kw_only=True)
class Report:
    """One run.

    The headline reads `model["name"]`, `deployment["tp"]`, `["batch"]`, `["context"]` and `hardware["name"]`.
    """

    mode: Kind
    """The kind of every time of the step and of its components."""
    group_by: str
    model: Mapping[str, Any]
    deployment: Mapping[str, Any]
    hardware: Mapping[str, Any]
    environment: Mapping[str, Any]
    step: ReportStep
    ceiling: ReportCeiling
    components: Sequence[ReportComponent]
    interactions: Sequence[ReportInteraction]
    attribution: ReportAttribution
    byte_table: Sequence[ReportBytes] = ()
    gap: Sequence[ReportGap] = ()
    measured: Mapping[str, Any] | None = None
    """A real server's numbers, as given."""
    notes: Sequence[str] = ()
    warnings: Sequence[str] = ()
    config: Mapping[str, Any]

    @property
    def kinds(self) -> dict[str, Kind]:
        """Kind by section; the longest matching path counts, and a ratio has its numerator's. Rows of `gap` say."""
        return {
            "step": self.mode,
            "components": self.mode,
            "components.floor_us": Kind.PREDICTED,
            "components.floor_total_us": Kind.PREDICTED,
            "interactions": self.mode,
            "attribution": self.mode,
            "ceiling": Kind.PREDICTED,
            "byte_table": Kind.PREDICTED,
            "measured": Kind.MEASURED,
        }


def as_json(report: Report) -> dict[str, Any]:
    """The report as report.json holds it: dictionaries, lists, strings, finite numbers.

    Raises:
        ValueError: a number is not finite.
        TypeError: a value has no form in JSON. Both name the field.
    """
    content = {"schema": SCHEMA, "mode": report.mode, "kinds": report.kinds, **asdict(report)}
    return {key: _plain(value, key) for key, value in content.items()}


def _plain(value: Any, path: str) -> Any:
    """`value` in JSON's own types; `path` is where it stands, for messages."""
    if isinstance(value, Enum | np.generic):
        value = value.value if isinstance(value, Enum) else value.item()
    if isinstance(value, Mapping):
        return {str(key): _plain(entry, f"{path}.{key}") for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry, f"{path}[{index}]") for index, entry in enumerate(value)]
    if value is not None and not isinstance(value, bool | int | float | str):
        raise TypeError(f"report field {path} is a {type(value).__name__}, which JSON cannot hold")
    if isinstance(value, float) and not isfinite(value):
        raise ValueError(f"report field {path} is {value}, but every number of a report must be finite")
    return value
