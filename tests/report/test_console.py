"""The console's view: complete at every width, no number cut, nothing but text where it is piped."""

import dataclasses
import re
from io import BytesIO, StringIO, TextIOWrapper

import pytest
from rich.console import Console

from simulator.replay.base import Kind
from simulator.report.breakdown import columns, rows
from simulator.report.console import print_report
from tests.report.reports import TIMES_US, make_report, text_console


def printed(report, width=100, **options):
    console, file = text_console(width, **options)
    print_report(report, console)
    return file.getvalue()


def table_lines(text, names):
    return [line for line in text.splitlines() if line.startswith(tuple(f"{name}  " for name in names))]


def test_headline_says_what_ran_how_fast_and_where_most_of_it_goes():
    text = printed(make_report(), 200)
    assert text.splitlines()[0].strip() == (
        "glm5, TP=8, batch 1, context 4,096 on rtx_pro_6000_x8: 19.612 ms a step, 51.0 tok/s (measured); "
        "largest: experts 34%, allreduce 22%"
    )


@pytest.mark.parametrize("mode", list(Kind))
def test_kind_is_shown_in_headline_title_and_ceiling(mode):
    text = printed(make_report(mode=mode), 200)
    assert f"tok/s ({mode.value})" in text
    assert f"Step by component: times {mode.value}, floors predicted" in text
    assert "Ceiling (predicted)" in text


@pytest.mark.parametrize("scale", [0.001, 0.4, 1.0, 50.0])
@pytest.mark.parametrize("width", [60, 72, 80, 100, 160])
def test_no_line_is_too_long_and_no_number_cut(width, scale):
    report = make_report(scale=scale)
    text = printed(report, width)
    assert max(len(line.rstrip()) for line in text.splitlines()) <= width
    assert "…" not in text
    table = table_lines(text, TIMES_US)
    assert len(table) == len(TIMES_US)
    shown = rows(report)
    for name in ("time", "share"):
        for row, cell in zip(shown, columns(report, shown)[name].cells, strict=True):
            line = table_lines(text, [row.name])[0]
            assert cell in line[len(row.name) :].split()


@pytest.mark.parametrize("width", [80, 100])
def test_usual_widths_hold_every_column_and_a_bar(width):
    text = printed(make_report(), width)
    row = table_lines(text, ["experts"])[0].split()
    assert row[2:] == ["6.650", "0.067", "33.9", "6.451", "6.783", "2.217", "3.0", "156"]
    assert set(row[1]) == {"█"}


def test_printed_column_adds_up():
    lines = table_lines(printed(make_report()), [*TIMES_US, "empty graph", "step"])
    times = [float(next(cell for cell in line.split() if "." in cell)) for line in lines]
    assert len(times) == len(TIMES_US) + 2
    assert sum(times[:-1]) == pytest.approx(times[-1], abs=1e-9)


def test_piped_output_is_plain_text_of_100_columns():
    text = printed(make_report(), 40, terminal=False)
    assert "\x1b" not in text
    assert all(character.isprintable() or character == "\n" for character in text)
    assert 80 < max(len(line.rstrip()) for line in text.splitlines()) <= 100


def test_printing_leaves_the_width_of_the_console_as_it_was():
    console, _ = text_console(40, terminal=False)
    print_report(make_report(), console)
    assert console.width == 40


@pytest.mark.parametrize("variables", [{}, {"NO_COLOR": "1"}], ids=["colour", "NO_COLOR"])
def test_colour_on_a_terminal_unless_no_color_is_set(variables):
    file = StringIO()
    environment = {"TERM": "xterm-256color", **variables}
    print_report(make_report(), Console(file=file, width=100, force_terminal=True, _environ=environment))
    coloured = re.search(r"\x1b\[[0-9;]*(3[0-8]|9[0-7])[0-9;]*m", file.getvalue())
    assert (coloured is None) == ("NO_COLOR" in variables)


def test_an_ascii_output_gets_ascii():
    raw = BytesIO()
    file = TextIOWrapper(raw, encoding="ascii")
    print_report(make_report(), Console(file=file, width=100, force_terminal=False))
    file.flush()
    assert "####" in raw.getvalue().decode("ascii")


def test_only_interactions_above_one_percent_of_the_step():
    text = printed(make_report())
    assert "experts and allreduce overlap by 0.392 ms" in text
    assert "norms and head" not in text


def test_notes_and_warnings_come_last_with_their_brackets():
    text = printed(make_report())
    assert "note: all-reduces are modelled [4.8 us each]" in text
    assert text.index("warning: the step has two states") > text.index("Ceiling")


def test_verdicts_and_fused_operations_are_told():
    report = make_report()
    parts = [dataclasses.replace(part, verdict="latency_bound") for part in report.components[-2:]]
    text = printed(dataclasses.replace(report, components=[*report.components[:-2], *parts]))
    assert "Verdict latency_bound: norms, head." in text
    assert "experts (swiglu, down)" in text


def test_a_step_of_few_replays_says_that_it_has_no_interval():
    report = make_report()
    step = dataclasses.replace(report.step, ci95_us=None, replays=3)
    text = printed(dataclasses.replace(report, step=step), 200)
    assert "Step (measured): median of 3 replays, too few for an interval, 95th percentile 20.004 ms." in text


def test_a_batch_tells_speed_in_all_and_for_each_sequence():
    text = printed(make_report(deployment={"tp": 8, "batch": 4, "context": 4096}))
    assert "51.0 tok/s in all, 12.7 tok/s a sequence" in text
