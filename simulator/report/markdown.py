"""The report as Markdown: what the console shows, and the bytes of the weights. No torch."""

from collections.abc import Iterable, Sequence

from simulator.report.breakdown import LEGEND, bars, columns, group_label, rows
from simulator.report.record import Report
from simulator.report.sentences import headline, paragraphs, title

BAR_WIDTH = 12


def render_markdown(report: Report) -> str:
    """The whole report.md."""
    blocks = [f"# {_escaped(headline(report))}", f"## {_escaped(title(report))}", _step_table(report), LEGEND]
    blocks.append(_bullets(paragraphs(report)))
    if report.byte_table:
        blocks += ["## Weights of one rank (predicted)", _byte_table(report)]
    if report.warnings:
        blocks += ["## Warnings", _bullets(report.warnings)]
    if report.notes:
        blocks += ["## Notes", _bullets(report.notes)]
    return "\n\n".join(blocks) + "\n"


def _step_table(report: Report) -> str:
    shown = rows(report)
    numbers = columns(report, shown)
    names = [_escaped(row.name) for row in shown]
    blocks = ["█" * round(BAR_WIDTH * length) for length in bars(shown)]
    headers = [column.header.replace("-\n", "-").replace("\n", " ") for column in numbers.values()]
    lines = zip(names, blocks, *(column.cells for column in numbers.values()), strict=True)
    return _table([group_label(report), "", *headers], ["---", "---"] + ["---:"] * len(numbers), lines)


def _byte_table(report: Report) -> str:
    lines = (
        (
            _escaped(row.component),
            _escaped(row.module),
            row.weight_format,
            "yes" if row.replicated else "no",
            f"{row.bytes / 1e6:,.1f}",
            f"{row.bytes_read_per_step / 1e6:,.1f}",
        )
        for row in report.byte_table
    )
    headers = ["component", "module", "format", "replicated", "resident MB", "read a step MB"]
    return _table(headers, ["---"] * 4 + ["---:"] * 2, lines)


def _table(headers: Sequence[str], rule: Sequence[str], lines: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (headers, rule, *lines))


def _bullets(texts: Iterable[str]) -> str:
    return "\n".join(f"- {_escaped(text)}" for text in texts)


def _escaped(text: str) -> str:
    """One line of text that Markdown shows as it is, also inside a table."""
    for special in "\\|*<`[":
        text = text.replace(special, f"\\{special}")
    return " ".join(text.split())
