"""What a report says in words and rows, before it is set on a console or in Markdown. No torch.

The displayed times of components and of the empty graph are rounded so that they add up to the displayed step.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import floor

from simulator.replay.base import Kind
from simulator.report.record import Interval, Report, ReportComponent

EMPTY_ROW = "empty graph"
STEP_ROW = "step"
UNATTRIBUTED_ROW = "unattributed"

LEGEND = (
    "leave-one-out: what the step saves without it; alone: what it takes with nothing else in the step; "
    "floor: the least that the hardware allows."
)


@dataclass(frozen=True, kw_only=True)
class Unit:
    """The unit that all times of one report are shown in: four or five digits of the step."""

    name: str
    us: int
    decimals: int

    @property
    def resolution_us(self) -> float:
        """The smallest difference that is shown."""
        return float(self.us / 10**self.decimals)

    def number(self, us: float) -> str:
        """A time without its unit, for a column that names it."""
        return f"{round(us / self.us, self.decimals) + 0.0:,.{self.decimals}f}"

    def text(self, us: float) -> str:
        """A time with its unit."""
        return f"{self.number(us)} {self.name}"


@dataclass(frozen=True, kw_only=True)
class Row:
    """One line of the table; None where a number does not apply."""

    name: str
    us: float
    share: float
    half_width_us: float | None = None
    leave_one_out_us: float | None = None
    alone_us: float | None = None
    floor_us: float | None = None
    x_floor: float | None = None
    ops: int | None = None


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of numbers as text: its header, in two lines where it is long, and a cell for each row."""

    header: str
    cells: tuple[str, ...]


def unit_of(report: Report) -> Unit:
    """Milliseconds from 10,000 us a step on, microseconds below."""
    step_us = report.step.median_us
    if step_us >= 10_000:
        return Unit(name="ms", us=1000, decimals=3 if step_us < 100_000 else 2)
    return Unit(name="us", us=1, decimals=0 if step_us >= 1000 else 1 if step_us >= 100 else 2)


def group_label(report: Report) -> str:
    """What the rows are, in words."""
    return report.group_by.replace("_", " ")


def largest_first(report: Report) -> list[ReportComponent]:
    """Components by time, but ranges of layers in the order of the model."""
    if report.group_by.startswith("layer"):
        return list(report.components)
    return sorted(report.components, key=lambda component: -component.shapley_us)


def rows(report: Report) -> list[Row]:
    """Components, what is not attributed if that shows, the empty graph, and last the step: the sum of the others."""
    unit, step = unit_of(report), report.step
    parts = [_component_row(component) for component in largest_first(report)]
    missing_us = step.median_us - step.empty_us - sum(part.us for part in parts)
    if abs(missing_us) >= unit.resolution_us / 2:
        parts.append(Row(name=UNATTRIBUTED_ROW, us=missing_us, share=_ratio(missing_us, step.median_us)))
    parts.append(Row(name=EMPTY_ROW, us=step.empty_us, share=_ratio(step.empty_us, step.median_us)))
    total = Row(
        name=STEP_ROW,
        us=step.median_us,
        share=1.0,
        half_width_us=_half_width(step.ci95_us),
        floor_us=report.ceiling.step_us,
        x_floor=_ratio(step.median_us, report.ceiling.step_us) if report.ceiling.step_us else None,
        ops=sum(component.ops for component in report.components),
    )
    shown = [*parts, total]
    # a step executed on a CPU is not held against the floors of a GPU
    return [replace(row, floor_us=None, x_floor=None) for row in shown] if report.mode is Kind.EXECUTED else shown


def columns(report: Report, shown: Sequence[Row]) -> dict[str, Column]:
    """The columns of `shown` by name, in their order; what applies to no row is left out."""
    unit = unit_of(report)
    cells: dict[str, tuple[str, list[str]]] = {
        "time": (unit.name, add_up([row.us for row in shown[:-1]], shown[-1].us, unit)),
        "half_width": ("+-", [_time(row.half_width_us, unit) for row in shown]),
        "share": ("% of\nstep", [f"{100 * row.share + 0.0:.1f}" for row in shown]),
        "leave_one_out": ("leave-\none-out", [_time(row.leave_one_out_us, unit) for row in shown]),
        "alone": ("alone", [_time(row.alone_us, unit) for row in shown]),
        "floor": (f"floor\n{unit.name}", [_time(row.floor_us, unit) for row in shown]),
        "x_floor": ("x\nfloor", ["" if row.x_floor is None else f"{row.x_floor:,.1f}" for row in shown]),
        "ops": ("ops", ["" if row.ops is None else f"{row.ops:,}" for row in shown]),
    }
    for name, empty in (
        ("half_width", all(row.half_width_us is None for row in shown)),
        ("floor", all(row.floor_us is None for row in shown)),
        ("x_floor", all(row.x_floor is None for row in shown)),
    ):
        if empty:
            del cells[name]
    return {name: Column(header=header, cells=tuple(texts)) for name, (header, texts) in cells.items()}


def bars(shown: Sequence[Row]) -> list[float]:
    """Length of each row's bar, 1.0 for the longest; none for the step, which is their sum."""
    longest = max((row.share for row in shown[:-1]), default=0.0)
    return [max(0.0, _ratio(row.share, longest)) for row in shown[:-1]] + [0.0]


def add_up(parts_us: Sequence[float], total_us: float, unit: Unit) -> list[str]:
    """Parts and total as text, each within one last digit, so that the shown parts sum to the shown total exactly.

    Everything is rounded down, and what then lacks goes to the parts that lost most.
    """
    scaled = [part / unit.resolution_us for part in parts_us]
    counts = [floor(part) for part in scaled]
    total = round(total_us / unit.resolution_us)
    by_loss = sorted(range(len(scaled)), key=lambda index: counts[index] - scaled[index])
    for index in by_loss[: max(0, total - sum(counts))]:
        counts[index] += 1
    return [unit.number(count * unit.resolution_us) for count in (*counts, total)]


def _component_row(component: ReportComponent) -> Row:
    return Row(
        name=component.name,
        us=component.shapley_us,
        share=component.share,
        half_width_us=_half_width(component.ci95_us),
        leave_one_out_us=component.leave_one_out_us,
        alone_us=component.alone_us,
        floor_us=component.floor_total_us,
        x_floor=component.x_floor,
        ops=component.ops,
    )


def _half_width(interval: Interval | None) -> float | None:
    return None if interval is None else (interval[1] - interval[0]) / 2


def _time(us: float | None, unit: Unit) -> str:
    return "" if us is None else unit.number(us)


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0
