"""Writes a report into the run's directory: report.json, and report.md beside it. Whole or not at all. No torch."""

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from simulator.errors import BadInputError, Problem
from simulator.report.markdown import render_markdown
from simulator.report.record import Report, as_json

JSON_NAME = "report.json"
MARKDOWN_NAME = "report.md"


def write_report(directory: Path, report: Report) -> Path:
    """Write both files and return the path of report.json, which comes last: where it is, the report is whole.

    Raises:
        BadInputError: the directory cannot be written to.
        ValueError: a number of the report is not finite; nothing is written.
    """
    as_text = json_text(as_json(report))
    write_files(directory, {MARKDOWN_NAME: render_markdown(report), JSON_NAME: as_text})
    return directory / JSON_NAME


def json_text(values: Mapping[str, Any]) -> str:
    """Values as JSON; not-a-number and infinity are refused, since JSON has neither."""
    return json.dumps(values, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def write_files(directory: Path, contents: Mapping[str, str]) -> None:
    """Write text files into `directory`, all of them or none; the last name is the last to appear.

    Raises:
        BadInputError: the directory cannot be written to.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
        _write_all(directory, contents)
    except OSError as error:
        reason = error.strerror or str(error)
        must = f"must be a directory that the report can be written to ({reason})"
        raise BadInputError(Problem(key="hydra.run.dir", value=directory, must=must)) from error


def _write_all(directory: Path, contents: Mapping[str, str]) -> None:
    """Write all files beside their places first, then move them there, in order."""
    temporary = {name: directory / f".{name}.{os.getpid()}.tmp" for name in contents}
    try:
        for name, text in contents.items():
            temporary[name].write_text(text, encoding="utf-8")
        for name, path in temporary.items():
            path.replace(directory / name)
    finally:
        for path in temporary.values():
            path.unlink(missing_ok=True)
