"""Progress bars: seen on a terminal, silent elsewhere."""

from io import StringIO

from rich.console import Console

from simulator.report.progress import progress


def test_nothing_is_printed_without_a_terminal():
    file = StringIO()
    with progress(Console(file=file, force_terminal=False)) as advance:
        advance("capture", 1, 2)
    assert file.getvalue() == ""


def test_a_terminal_shows_what_is_done_and_of_how_many():
    file = StringIO()
    console = Console(file=file, width=100, force_terminal=True, _environ={"TERM": "xterm"})
    with progress(console) as advance:
        advance("build [rank 0]", 3, 78)
        advance("measure", 5, 0)
    text = file.getvalue()
    assert "build [rank 0]" in text
    assert "3/78" in text.replace(" ", "")
    assert "5/?" in text.replace(" ", "")
