"""The report on a console: a headline, a table whose rows add up to the step, and what else there is to know. No torch.

Numbers are never wrapped or cut: where the width does not suffice, the bar goes first, then whole columns.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from rich.box import Box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from simulator.report.breakdown import EMPTY_ROW, LEGEND, STEP_ROW, Column, bars, columns, group_label, rows
from simulator.report.record import Report
from simulator.report.sentences import headline, paragraphs, title

PIPED_WIDTH = 100
MIN_BAR_WIDTH, MAX_BAR_WIDTH = 4, 30
GAP = 2

# What a narrow console can do without, in this order; the rest is always shown.
DISPENSABLE = ("alone", "leave_one_out", "ops", "half_width", "x_floor", "floor")

# No lines but one under the header and one above the sum.
_LINES = "    \n    \n ── \n    \n ── \n    \n    \n    \n"
RULES, ASCII_RULES = Box(_LINES), Box(_LINES.replace("─", "-"), ascii=True)

EIGHTHS = " ▏▎▍▌▋▊▉"
ROW_STYLES = {EMPTY_ROW: "dim", STEP_ROW: "bold"}


def print_report(report: Report, console: Console) -> None:
    """Print the whole report; 100 columns wide where the console is not a terminal."""
    with _piped_width(console):
        _print_text(console, headline(report), "bold")
        console.print()
        _print_text(console, title(report))
        console.print(_table(report, console))
        console.print()
        _print_text(console, LEGEND, "dim")
        console.print()
        for paragraph in paragraphs(report):
            _print_text(console, paragraph)
        for warning in report.warnings:
            _print_text(console, f"warning: {warning}", "yellow")
        for note in report.notes:
            _print_text(console, f"note: {note}", "dim")


@contextmanager
def _piped_width(console: Console) -> Iterator[None]:
    """Give a console that is not a terminal its width, for as long as the report is printed."""
    if console.is_terminal:
        yield
        return
    width, console.width = console.width, PIPED_WIDTH
    try:
        yield
    finally:
        console.width = width


def _print_text(console: Console, text: str, style: str = "") -> None:
    # As a Text, so that brackets in names and notes are not taken for markup.
    console.print(Text(text, style=style))


def _table(report: Report, console: Console) -> Table:
    shown = rows(report)
    names = [row.name for row in shown]
    label = group_label(report)
    numbers, bar_width = fit([label, *names], columns(report, shown), console.width)
    ascii_only = console.options.ascii_only
    table = Table(box=ASCII_RULES if ascii_only else RULES, show_edge=False, pad_edge=False, padding=(0, GAP - 1, 0, 0))
    table.add_column(Text(label), no_wrap=True, overflow="ellipsis")
    if bar_width:
        table.add_column("", width=bar_width, no_wrap=True)
    for column in numbers:
        table.add_column(
            Text(column.header), justify="right", no_wrap=True, min_width=_width(column), vertical="bottom"
        )
    for index, (name, length) in enumerate(zip(names, bars(shown), strict=True)):
        bar = [Text(_bar(length, bar_width, ascii_only=ascii_only), style="cyan")] if bar_width else []
        cells = [Text(column.cells[index]) for column in numbers]
        before_step = index == len(names) - 2
        table.add_row(Text(name), *bar, *cells, style=ROW_STYLES.get(name), end_section=before_step)
    return table


def fit(names: Sequence[str], numbers: dict[str, Column], width: int) -> tuple[list[Column], int]:
    """The columns that fit into `width`, and the width of the bar: 0 where it would be too short to read."""
    kept = dict(numbers)
    name_width = max(len(name) for name in names)
    for dropped in (None, *DISPENSABLE):
        kept.pop(dropped or "", None)
        free = width - name_width - sum(GAP + _width(column) for column in kept.values())
        if free >= 0:
            break
    bar_width = min(free - GAP, MAX_BAR_WIDTH)
    return list(kept.values()), bar_width if bar_width >= MIN_BAR_WIDTH else 0


def _width(column: Column) -> int:
    return max(len(text) for text in (*column.header.split("\n"), *column.cells))


def _bar(length: float, width: int, *, ascii_only: bool) -> str:
    """A bar of `length` (0 to 1) of `width`, to an eighth of a character."""
    if ascii_only:
        return "#" * round(length * width)
    full, eighths = divmod(round(length * width * 8), 8)
    return "█" * full + EIGHTHS[eighths].strip()
