"""Groups are partitions of the operations, by component, op name, or range of layers."""

import pytest

from simulator.config import AttributionConfig, GroupBy
from simulator.deployment import Deployment
from simulator.grouping import make_groups
from simulator.step.build import build_step
from tests.configs import model, recipe


@pytest.fixture(scope="module")
def step():
    return build_step(model("glm5"), recipe("nvidia_glm5"), Deployment())


CONFIGS = [
    AttributionConfig(),
    AttributionConfig(components=["experts", "allreduce"]),
    AttributionConfig(group_by=GroupBy.op),
    AttributionConfig(group_by=GroupBy.layer_range, layer_ranges=5),
    AttributionConfig(group_by=GroupBy.layer_range, layer_ranges=1000),
]


@pytest.mark.parametrize("config", CONFIGS, ids=str)
def test_every_operation_is_in_exactly_one_group(step, config):
    groups = make_groups(step.ops, config)
    assert sorted(index for group in groups for index in group.ops) == list(range(len(step.ops)))


def test_named_components_stand_alone_and_the_others_are_the_rest(step):
    groups = make_groups(step.ops, AttributionConfig(components=["allreduce", "experts"]))
    assert [group.name for group in groups] == ["experts", "allreduce", "rest"]


def test_layer_ranges_are_even_and_named_by_their_layers(step):
    groups = make_groups(step.ops, AttributionConfig(group_by=GroupBy.layer_range, layer_ranges=6))
    assert [group.name for group in groups] == [
        "outside the layers", "layers 0-12", "layers 13-25", "layers 26-38", "layers 39-51", "layers 52-64",
        "layers 65-77",
    ]  # fmt: skip


def test_components_come_in_the_order_of_a_layer(step):
    names = [group.name for group in make_groups(step.ops, AttributionConfig())]
    assert names == [
        "projections", "indexer", "attention", "router", "dispatch", "experts", "allreduce", "norms", "head",
    ]  # fmt: skip
