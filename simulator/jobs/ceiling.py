"""job=ceiling: what one step must move, by module, and how fast that lets it be. Runs where torch does not load."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table

from simulator.ceiling import Floor, bandwidth_ceiling_us, step_floor
from simulator.config import SimulatorConfig
from simulator.parameters import Parameters, count_parameters
from simulator.profiles import resolve_hardware
from simulator.report.assemble import byte_table
from simulator.report.record import ReportBytes
from simulator.report.write import json_text, write_files
from simulator.step.build import build_step
from simulator.step.program import DecodeStep, total_cost

CEILING_NAME = "ceiling.json"

PIPED_WIDTH = 100
"""Columns where the output is no terminal."""


@dataclass(frozen=True, kw_only=True)
class Ceiling:
    """One way to bound the step, and what it takes into account beyond the one before."""

    name: str
    takes_in: str
    step_us: float
    tok_s: float


@dataclass(frozen=True, kw_only=True)
class TotalBytes:
    """What one rank holds, and what one step reads and writes."""

    weights: int
    buffers: int
    """Caches, activations and workspaces."""
    moved_per_step: int


def run_ceiling(config: SimulatorConfig, directory: Path, import_notes: Sequence[str] = ()) -> None:
    """Print parameters, bytes by module and ceilings; write them to `directory`/ceiling.json. All predicted."""
    hardware, hardware_note = resolve_hardware(config.hardware, None)
    step = build_step(config.model, config.recipe, config.deployment, config.routing)
    wire = hardware.wire(config.comm.latency_us, num_ranks=config.deployment.tp)
    floor = step_floor(step.ops, hardware, pdl=config.kernels.programmatic_launch, wire=wire)
    ceilings = _ceilings(step, bandwidth_ceiling_us(step.ops, hardware), floor)
    parameters, table, totals = count_parameters(config.model), byte_table(step), _totals(step)
    notes = [note for note in (*import_notes, hardware_note, *step.notes) if note]
    content = json_text(
        {
            "schema": 1,
            "kind": "predicted",
            "model": config.model.name,
            "recipe": asdict(config.recipe),
            "deployment": asdict(config.deployment),
            "hardware": asdict(hardware),
            "parameters": asdict(parameters),
            "byte_table": [asdict(row) for row in table],
            "total_bytes": asdict(totals),
            "ceilings": [asdict(ceiling) for ceiling in ceilings],
            "notes": notes,
        }
    )
    write_files(directory, {CEILING_NAME: content})
    console = Console()
    if not console.is_terminal:
        console = Console(width=PIPED_WIDTH)
    _print(console, config, parameters, _byte_view(table, totals), _ceiling_view(ceilings))
    for note in notes:
        console.print(f"note: {note}", highlight=False, markup=False)
    console.print(f"written to {directory / CEILING_NAME}", soft_wrap=True, highlight=False, markup=False)


def _ceilings(step: DecodeStep, bytes_us: float, floor: Floor) -> list[Ceiling]:
    """From bytes alone to everything the hardware profile knows."""
    without_wire = floor.total_us - floor.wire_us
    bounds = [
        ("bytes", "every byte of the step once, at the datasheet's bandwidth", bytes_us),
        ("nodes", "and an empty graph node for each operation, and arithmetic where it is longer", without_wire),
        ("wire", "and the collectives at the interconnect's latency", floor.total_us),
    ]
    return [
        Ceiling(name=name, takes_in=takes_in, step_us=us, tok_s=step.tokens / us * 1e6)
        for name, takes_in, us in bounds
        if us > 0
    ]


def _totals(step: DecodeStep) -> TotalBytes:
    """Bytes of everything, not of weights alone."""
    moved = total_cost(step.ops)
    return TotalBytes(
        weights=step.weight_bytes, buffers=step.buffer_bytes, moved_per_step=moved.bytes_read + moved.bytes_written
    )


def _print(console: Console, config: SimulatorConfig, parameters: Parameters, *views: Table) -> None:
    deployment = config.deployment
    console.print(
        f"{config.model.name}: {parameters.total / 1e9:,.2f} billion parameters, {parameters.active / 1e9:,.2f} active "
        f"for a token; recipe {config.recipe.name}, TP={deployment.tp}, batch {deployment.num_sequences}, "
        f"context {deployment.max_context:,}",
        highlight=False,
        markup=False,
    )
    for view in views:
        console.print(view)


def _byte_view(table: Sequence[ReportBytes], totals: TotalBytes) -> Table:
    view = Table(title="Memory of one rank, all layers (predicted)", box=box.SIMPLE_HEAD, title_justify="left")
    for name in ("component", "module", "format", "held by"):
        view.add_column(name, no_wrap=True)
    for name in ("resident GB", "moved GB a step"):
        view.add_column(name, justify="right")
    for row in table:
        held = "every rank" if row.replicated else "its share"
        cells = (row.component, row.module, row.weight_format, held, _gb(row.bytes), _gb(row.bytes_read_per_step))
        view.add_row(*cells)
    read = sum(row.bytes_read_per_step for row in table)
    rest = totals.weights - sum(row.bytes for row in table) + totals.buffers
    view.add_row("", "caches, activations, norms", "", "", _gb(rest), _gb(totals.moved_per_step - read))
    view.add_section()
    view.add_row("all", "", "", "", _gb(totals.weights + totals.buffers), _gb(totals.moved_per_step))
    return view


def _ceiling_view(ceilings: Sequence[Ceiling]) -> Table:
    view = Table(title="Ceilings (predicted)", box=box.SIMPLE_HEAD, title_justify="left")
    view.add_column("ceiling")
    view.add_column("takes in")
    view.add_column("step us", justify="right")
    view.add_column("tok/s", justify="right")
    for ceiling in ceilings:
        view.add_row(ceiling.name, ceiling.takes_in, f"{ceiling.step_us:,.0f}", f"{ceiling.tok_s:,.1f}")
    return view


def _gb(num_bytes: Any) -> str:
    return f"{num_bytes / 1e9:,.3f}"
