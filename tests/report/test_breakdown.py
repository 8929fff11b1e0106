"""Rows and columns of a report: they add up, in one unit, in a helpful order."""

import dataclasses

import pytest

from simulator.replay.base import Kind
from simulator.report.breakdown import EMPTY_ROW, STEP_ROW, UNATTRIBUTED_ROW, Unit, add_up, bars, columns, rows, unit_of
from tests.report.reports import make_report


def shown_times(report):
    return [float(cell.replace(",", "")) for cell in columns(report, rows(report))["time"].cells]


@pytest.mark.parametrize("scale", [0.001, 0.03, 0.4, 0.77, 1.0, 13.7])
def test_displayed_times_add_up_to_the_displayed_step(scale):
    *parts, step = shown_times(make_report(scale=scale))
    assert sum(parts) == pytest.approx(step, abs=1e-9)


def test_each_displayed_time_is_within_one_last_digit():
    report = make_report(scale=0.77)
    resolution = unit_of(report).resolution_us / unit_of(report).us
    for row, shown in zip(rows(report), shown_times(report), strict=True):
        assert abs(shown - row.us / unit_of(report).us) < resolution


def test_add_up_with_negative_parts_and_no_negative_zero():
    unit = Unit(name="us", us=1, decimals=0)
    assert add_up([-0.4, 10.7, -3.5], 6.8, unit) == ["0", "11", "-4", "7"]


def test_rows_end_with_the_empty_graph_and_the_step_and_start_with_the_largest():
    names = [row.name for row in rows(make_report())]
    assert names[:3] == ["experts", "allreduce", "projections"]
    assert names[-2:] == [EMPTY_ROW, STEP_ROW]


def test_layer_ranges_keep_the_order_of_the_model():
    report = make_report({"layers 0-38": 100.0, "layers 39-77": 300.0}, group_by="layer_range")
    assert [row.name for row in rows(report)][:2] == ["layers 0-38", "layers 39-77"]


def test_time_that_no_component_holds_is_a_row_of_its_own():
    report = make_report()
    longer = dataclasses.replace(report.step, median_us=report.step.median_us + 500)
    row = next(row for row in rows(dataclasses.replace(report, step=longer)) if row.name == UNATTRIBUTED_ROW)
    assert row.us == pytest.approx(500)


def test_nothing_is_unattributed_where_the_parts_sum_to_the_step():
    assert UNATTRIBUTED_ROW not in [row.name for row in rows(make_report())]


def test_milliseconds_from_ten_thousand_microseconds_on():
    assert unit_of(make_report({"experts": 9_999.0}, empty_us=0)).name == "us"
    assert unit_of(make_report({"experts": 10_000.0}, empty_us=0)).name == "ms"


def test_intervals_are_a_column_only_where_there_are_any():
    measured, predicted = make_report(), make_report(mode=Kind.PREDICTED)
    assert "half_width" in columns(measured, rows(measured))
    assert "half_width" not in columns(predicted, rows(predicted))


def test_bars_are_relative_to_the_longest_and_never_negative():
    lengths = bars(rows(make_report({"experts": 200.0, "norms": 50.0, "head": -1.0}, empty_us=0)))
    assert lengths == [1.0, 0.25, 0.0, 0.0, 0.0]


def test_a_report_without_components_still_has_its_step():
    assert [row.name for row in rows(make_report({"experts": 1.0}, components=[], empty_us=1.0))][-1] == STEP_ROW
