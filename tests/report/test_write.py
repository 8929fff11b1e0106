"""report.json and report.md: the whole report, or nothing."""

import dataclasses
import json
from pathlib import Path

import numpy as np
import pytest

from simulator.errors import BadInputError
from simulator.replay.base import Kind
from simulator.report.markdown import render_markdown
from simulator.report.record import FloorCauses, as_json
from simulator.report.write import write_report
from tests.report.reports import TIMES_US, make_report


def test_json_round_trip(tmp_path):
    report = make_report()
    path = write_report(tmp_path / "new" / "run", report)
    assert path == tmp_path / "new" / "run" / "report.json"
    assert json.loads(path.read_text(encoding="utf-8")) == as_json(report)
    assert sorted(entry.name for entry in path.parent.iterdir()) == ["report.json", "report.md"]


def test_json_has_the_fields_of_the_schema():
    content = as_json(make_report())
    assert content["schema"] == 1
    assert content["mode"] == "measured"
    assert content["measured"] is None
    assert {"model", "deployment", "hardware", "environment", "step", "ceiling", "gap", "config"} < content.keys()
    component = content["components"][0]
    assert component["floor_us"].keys() == {"memory", "compute", "node", "wire"}
    assert component["ci95_us"] == [pytest.approx(4168.296), pytest.approx(4252.504)]
    assert component["verdict"] is None
    assert content["byte_table"][0]["bytes"] == 42_000_000_000


@pytest.mark.parametrize("mode", list(Kind))
def test_every_section_with_numbers_has_a_kind(mode):
    content = as_json(make_report(mode=mode))
    inputs = {"schema", "model", "deployment", "hardware", "environment", "config"}
    words = {"mode", "kinds", "group_by", "notes", "warnings"}
    assert content.keys() - inputs - words - {"gap"} == {path.split(".")[0] for path in content["kinds"]}
    assert content["kinds"]["step"] == content["kinds"]["components"] == mode
    assert content["kinds"]["components.floor_us"] == content["kinds"]["ceiling"] == "predicted"


@pytest.mark.parametrize("number", [float("nan"), float("inf"), np.float64("nan")])
def test_numbers_that_are_not_finite_are_refused_by_name(tmp_path, number):
    report = make_report()
    wrong = dataclasses.replace(report.components[2], floor_us=FloorCauses(memory=number))
    components = [*report.components[:2], wrong, *report.components[3:]]
    with pytest.raises(ValueError, match=r"report field components\[2\]\.floor_us\.memory is (nan|inf)"):
        write_report(tmp_path, dataclasses.replace(report, components=components))
    assert list(tmp_path.iterdir()) == []


def test_a_step_that_is_not_a_number_is_refused_by_name(tmp_path):
    report = make_report()
    step = dataclasses.replace(report.step, median_us=float("nan"))
    with pytest.raises(ValueError, match=r"report field step\.median_us is nan, but every number"):
        write_report(tmp_path, dataclasses.replace(report, step=step))
    assert list(tmp_path.iterdir()) == []


def test_values_that_json_cannot_hold_are_refused_by_name():
    with pytest.raises(TypeError, match=r"report field config\.path is a .*Path"):
        as_json(make_report(config={"path": Path()}))


def test_numpy_numbers_become_plain_ones():
    content = as_json(make_report(config={"count": np.int64(3), "share": np.float64(0.5)}))
    assert content["config"] == {"count": 3, "share": 0.5}
    assert type(content["config"]["count"]) is int


@pytest.mark.parametrize("failure", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_an_interrupted_write_leaves_nothing(tmp_path, monkeypatch, failure):
    whole = Path.write_text

    def fail_on_json(path, text, encoding):
        whole(path, text[: len(text) // 2], encoding=encoding)
        if "json" in path.name:
            raise failure

    monkeypatch.setattr(Path, "write_text", fail_on_json)
    with pytest.raises((BadInputError, KeyboardInterrupt)):
        write_report(tmp_path, make_report())
    assert list(tmp_path.iterdir()) == []


def test_an_earlier_report_survives_a_failed_write(tmp_path):
    path = write_report(tmp_path, make_report())
    before = path.read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="config"):
        write_report(tmp_path, make_report(config={"half_width": float("nan")}))
    assert path.read_text(encoding="utf-8") == before


def test_a_place_that_cannot_be_written_to_is_named(tmp_path):
    occupied = tmp_path / "file"
    occupied.write_text("", encoding="utf-8")
    with pytest.raises(BadInputError, match=r"hydra\.run\.dir=.*file/run must be a directory .*\(Not a directory\)"):
        write_report(occupied / "run", make_report())


def test_markdown_holds_what_the_console_shows(tmp_path):
    write_report(tmp_path, make_report())
    text = (tmp_path / "report.md").read_text(encoding="utf-8")
    assert text.startswith("# glm5, TP=8, batch 1, context 4,096 on rtx_pro_6000_x8: 19.612 ms a step")
    assert "times measured, floors predicted" in text
    for name in (*TIMES_US, "empty graph", "step"):
        assert f"\n| {name} |" in text
    assert "| experts | experts.gate_up | nvfp4 | no | 42,000.0 | 1,300.0 |" in text
    assert "- the step has two states" in text


def test_markdown_table_survives_a_bar_in_a_name():
    report = make_report({"layers|dense": 100.0})
    assert "| layers\\|dense |" in render_markdown(report)
