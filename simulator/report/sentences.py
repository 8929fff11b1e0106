"""What a report says in sentences: the headline, and what stands under the table. No torch."""

from collections.abc import Iterable

from simulator.replay.base import Kind
from simulator.report.breakdown import Unit, group_label, unit_of
from simulator.report.record import Interval, Report

LEAST_INTERACTION = 0.01
"""Share of the step below which an interaction is not worth a line."""

MAX_INTERACTIONS = 5


def headline(report: Report) -> str:
    """What was run, how long a step takes, and where most of it goes, in one sentence."""
    deployment, step = report.deployment, report.step
    what = f"{report.model['name']}, TP={deployment['tp']}, batch {deployment['batch']:,}"
    where = f"context {deployment['context']:,} on {report.hardware['name']}"
    speed = f"{unit_of(report).text(step.median_us)} a step, {_tokens(step.tok_s)} ({report.mode.value})"
    largest = sorted(report.components, key=lambda component: -component.shapley_us)[:2]
    shares = ", ".join(f"{component.name} {component.share:.0%}" for component in largest)
    return f"{what}, {where}: {speed}" + (f"; largest: {shares}" if shares else "")


def title(report: Report) -> str:
    """The table's title, which says how its numbers came about."""
    return f"Step by {group_label(report)}: times {report.mode.value}, floors predicted"


def paragraphs(report: Report) -> list[str]:
    """What stands under the table, a line each: step, ceiling, how it was attributed, interactions, verdicts."""
    return [
        *_step_line(report),
        _ceiling_line(report),
        _attribution_line(report),
        *_interaction_lines(report),
        *_verdict_lines(report),
        *_fused_line(report),
    ]


def _step_line(report: Report) -> Iterable[str]:
    step, unit = report.step, unit_of(report)
    sequences = report.deployment["batch"]
    if step.ci95_us is not None or step.replays > 1:
        spread = f"{_interval(step.ci95_us, unit)}, 95th percentile {unit.text(step.p95_us)}"
        yield f"Step ({report.mode.value}): median of {step.replays:,} replays, {spread}."
    if sequences > 1:
        each = _tokens(step.tok_s / sequences)
        yield f"Speed ({report.mode.value}): {_tokens(step.tok_s)} in all, {each} a sequence."


def _interval(interval: Interval | None, unit: Unit) -> str:
    if interval is None:
        return "too few for an interval"
    low, high = (unit.number(end) for end in interval)
    return f"95% interval {low} to {high} {unit.name}"


def _ceiling_line(report: Report) -> str:
    ceiling, unit = report.ceiling, unit_of(report)
    floors = ceiling.by_floor
    causes = (("memory", floors.memory), ("compute", floors.compute), ("nodes", floors.node), ("wire", floors.wire))
    by_cause = ", ".join(f"{cause} {unit.number(us)}" for cause, us in causes)
    speed = f"{unit.text(ceiling.step_us)} a step, {_tokens(ceiling.tok_s)}"
    return f"Ceiling (predicted): {speed}{_reached(report)}. Floors in {unit.name}: {by_cause}."


def _reached(report: Report) -> str:
    """How near the step is to its ceiling; a step executed on a CPU is not held against a GPU's ceiling."""
    if report.mode is Kind.EXECUTED or report.step.median_us <= 0:
        return ""
    return f"; the step reaches {report.ceiling.step_us / report.step.median_us:.0%} of it"


def _attribution_line(report: Report) -> str:
    how, unit = report.attribution, unit_of(report)
    method = "exact Shapley values" if how.method == "exact" else "Shapley values from sampled orders"
    times = f"{_counted(how.subsets, 'subset')}, {_counted(how.rounds, 'round')}"
    total = f"sum {unit.number(how.sum_us)}, full minus empty {unit.text(how.full_minus_empty_us)}"
    return f"Attribution: {method}; {times}; {total}."


def _interaction_lines(report: Report) -> Iterable[str]:
    unit = unit_of(report)
    least_us = LEAST_INTERACTION * report.step.median_us
    notable = [pair for pair in report.interactions if abs(pair.us) > least_us]
    for pair in sorted(notable, key=lambda pair: -abs(pair.us))[:MAX_INTERACTIONS]:
        yield f"Interaction ({report.mode.value}): {pair.a} and {pair.b} {_effect(pair.us, unit)}."
    if len(notable) > MAX_INTERACTIONS:
        yield f"{len(notable) - MAX_INTERACTIONS} more interactions above 1% of the step are in report.json."


def _effect(us: float, unit: Unit) -> str:
    return f"overlap by {unit.text(-us)}" if us < 0 else f"cost {unit.text(us)} more together than each adds"


def _verdict_lines(report: Report) -> Iterable[str]:
    named: dict[str, list[str]] = {}
    for component in report.components:
        if component.verdict is not None:
            named.setdefault(component.verdict, []).append(component.name)
    for verdict, names in named.items():
        yield f"Verdict {verdict}: {', '.join(names)}."


def _fused_line(report: Report) -> Iterable[str]:
    fused = [f"{part.name} ({', '.join(part.absorbed)})" for part in report.components if part.absorbed]
    if fused:
        yield f"Fused, and counted where the larger part is: {'; '.join(fused)}."


def _tokens(tok_s: float) -> str:
    return f"{tok_s:,.0f} tok/s" if tok_s >= 1000 else f"{tok_s:.1f} tok/s"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
