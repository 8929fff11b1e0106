"""Progress bars for long work, silent where nobody watches. No torch."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from simulator.replay.base import Advance, no_progress


@contextmanager
def progress(console: Console) -> Iterator[Advance]:
    """Yield a callable `(what, done, total)`, one bar for each `what`; a total of 0 means unknown.

    The bars vanish at the end. Without a terminal that can redraw a line, nothing is printed.
    """
    if not console.is_interactive:
        yield no_progress
        return
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    # Few redraws: they share the processor with the launches that are being timed.
    with Progress(*columns, console=console, transient=True, refresh_per_second=4) as bars:
        tasks: dict[str, TaskID] = {}

        def advance(what: str, done: int, total: int) -> None:
            if what not in tasks:
                tasks[what] = bars.add_task(what, total=None)
            bars.update(tasks[what], completed=done, total=total or None)

        yield advance
