"""The main job: build the step, time subsets of it, attribute its time to components, report."""

import gc
import time
from collections.abc import Sequence
from math import isfinite
from pathlib import Path

from rich.console import Console

from simulator.attribution import attribute, half_width_fraction
from simulator.capacity import cache_warm_warning
from simulator.config import MeasureConfig, SimulatorConfig
from simulator.grouping import make_groups
from simulator.machine import environment, find_gpu
from simulator.profiles import resolve_hardware
from simulator.replay.base import Kind, Samples, Subset
from simulator.replay.choose import choose_replay, make_replayer
from simulator.report.assemble import Findings, assemble
from simulator.report.console import print_report
from simulator.report.progress import progress
from simulator.report.write import write_report
from simulator.shapley import Design, design_subsets
from simulator.step.build import build_step
from simulator.step.program import Group


def run_breakdown(config: SimulatorConfig, directory: Path, import_notes: Sequence[str] = ()) -> None:
    """Attribute one decode step; writes report.json and report.md into `directory` and prints the table."""
    gpu = find_gpu()
    replay = choose_replay(config.replay, gpu)
    hardware, hardware_note = resolve_hardware(config.hardware, gpu.name if gpu else None)
    step = build_step(config.model, config.recipe, config.deployment, config.routing)
    groups = make_groups(step.ops, config.attribution)
    design = design_subsets(
        len(groups),
        max_exact_groups=config.attribution.max_exact_groups,
        num_permutations=config.attribution.permutations,
        seed=config.deployment.seed,
    )
    with progress(Console(stderr=True)) as advance:
        replayer = make_replayer(replay, config, step, hardware, gpu, advance)
        try:
            stop = StopRule(config.measure, full_column=design.columns[design.full])
            samples = replayer.measure(subsets_of(groups, design), enough=stop.is_enough, advance=advance)
        finally:
            replayer.close()
    warnings: list[str | None] = []
    if replayer.kind is not Kind.PREDICTED:
        warnings.append(stop.warning(samples))
    if replayer.kind is Kind.MEASURED:
        warnings.append(cache_warm_warning(step, config.deployment, hardware))
    findings = Findings(
        config=config,
        step=step,
        hardware=hardware,
        wire=hardware.wire(config.comm.latency_us, num_ranks=config.deployment.tp),
        groups=groups,
        attribution=attribute(design, samples, seed=config.deployment.seed),
        kind=replayer.kind,
        nodes_of_op=replayer.nodes_of_op,
        environment=environment(gpu),
        notes=[note for note in (*import_notes, hardware_note, *replayer.notes, *step.notes) if note],
        warnings=[warning for warning in warnings if warning],
    )
    report = assemble(findings)
    path = write_report(directory, report)
    console = Console()
    print_report(report, console)
    console.print(f"written to {path}", soft_wrap=True, highlight=False)
    del replayer
    gc.collect()


def subsets_of(groups: Sequence[Group], design: Design) -> list[Subset]:
    """The operations that each subset of groups keeps."""
    return [
        frozenset().union(*(group.ops for bit, group in enumerate(groups) if mask >> bit & 1)) for mask in design.masks
    ]


class StopRule:
    """Ends a measurement when the step is known well enough, or the budget is spent."""

    def __init__(self, config: MeasureConfig, *, full_column: int) -> None:
        """The clock starts with the first round: what comes before it is preparation."""
        self.config = config
        self.full_column = full_column
        self.started_s: float | None = None
        self.budget_spent = False

    def is_enough(self, samples: Samples) -> bool:
        """Whether the interval of the step's median is narrow enough, or time is up."""
        rounds = len(samples)
        self.started_s = self.started_s or time.monotonic()
        if rounds >= self.config.min_rounds and self.half_width(samples) <= self.config.half_width:
            return True
        self.budget_spent = time.monotonic() - self.started_s >= self.config.budget_s
        return self.budget_spent or rounds >= self.config.max_rounds

    def half_width(self, samples: Samples) -> float:
        """Half the interval of the step's median, as a share of it."""
        return half_width_fraction(samples[:, self.full_column])

    def warning(self, samples: Samples) -> str | None:
        """What to tell the reader where the goal was not reached."""
        reached = self.half_width(samples)
        if reached <= self.config.half_width:
            return None
        why = f"measure.budget_s={self.config.budget_s:g}" if self.budget_spent else "measure.max_rounds"
        known = (
            f"known to +-{reached:.1%}" if isfinite(reached) else "without an interval of its own (6 rounds give one)"
        )
        goal = f"the goal is +-{self.config.half_width:.1%}"
        return f"{why} ended the measurement after {len(samples)} rounds: the step is {known}; {goal}"
