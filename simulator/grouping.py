"""What operations are grouped by when their time is attributed. No torch."""

import itertools
from collections.abc import Sequence

from simulator.config import AttributionConfig, GroupBy
from simulator.step.program import Component, Group, Op, group_ops

REST = "rest"
OUTSIDE = "outside the layers"


def make_groups(ops: Sequence[Op], config: AttributionConfig) -> list[Group]:
    """The partition of `ops` that the configuration asks for, in the order of a layer."""
    if config.group_by is GroupBy.op:
        return group_ops(ops, [op.name for op in ops])
    if config.group_by is GroupBy.layer_range:
        return group_ops(ops, layer_range_names(ops, config.layer_ranges))
    named = config.components or [component.value for component in Component]
    groups = group_ops(ops, [op.component if op.component in named else REST for op in ops])
    order = [*(component.value for component in Component), REST]
    return sorted(groups, key=lambda group: order.index(group.name))


def layer_range_names(ops: Sequence[Op], num_ranges: int) -> list[str]:
    """For each operation the range of layers it is in: ranges of nearly equal size, named by first and last layer."""
    num_layers = 1 + max((op.layer for op in ops if op.layer is not None), default=-1)
    num_ranges = max(1, min(num_ranges, num_layers))
    bounds = [index * num_layers // num_ranges for index in range(num_ranges + 1)]
    names = {
        layer: f"layers {first}-{after - 1}"
        for first, after in itertools.pairwise(bounds)
        for layer in range(first, after)
    }
    return [OUTSIDE if op.layer is None else names[op.layer] for op in ops]
