"""The discrete-event model against steps whose time is known in closed form."""

import numpy as np
import pytest

from kernels.cost import Cost
from simulator.hardware import Hardware, Interconnect
from simulator.replay.base import Kind, no_progress
from simulator.replay.predicted import PredictedReplayer, predict_op_us
from simulator.step.calls import Operand, Spin
from simulator.step.program import Component, Op

IDEAL = Hardware(name="ideal", bandwidth_gbps=1000.0, tflops={"bf16": 100.0}, node_us=0.0)


def spin(name, wait_us, *, stream=0, waits_for=(), component=Component.EXPERTS):
    call = Spin(wait_us=wait_us, ticks=Operand("ticks"))
    return Op(
        name=name, component=component, call=call, cost=Cost(delay_us=wait_us), stream=stream, waits_for=waits_for
    )


def measure(ops, *subsets, hardware=IDEAL, **options):
    replayer = PredictedReplayer(ops=tuple(ops), hardware=hardware, **options)
    samples = replayer.measure([frozenset(s) for s in subsets], enough=lambda _: True, advance=no_progress)
    assert samples.shape == (1, len(subsets))
    return samples[0]


def test_one_stream_adds_up_exactly():
    ops = [spin("a", 3.0), spin("b", 5.0), spin("c", 7.0)]
    np.testing.assert_array_equal(measure(ops, {0, 1, 2}, {0, 2}, {1}, set()), [15.0, 10.0, 5.0, 0.0])


def test_two_streams_take_as_long_as_the_longer_branch():
    ops = [
        spin("fork", 2.0),
        spin("main", 10.0),
        spin("side", 4.0, stream=1, waits_for=(0,)),
        spin("join", 1.0, waits_for=(2,)),
    ]
    full, without_main, without_side, without_fork = measure(ops, {0, 1, 2, 3}, {0, 2, 3}, {0, 1, 3}, {1, 2, 3})
    assert (full, without_main, without_side, without_fork) == (13.0, 7.0, 13.0, 11.0)


def test_a_removed_operation_hands_on_what_it_waited_for():
    ops = [
        spin("main", 8.0),
        spin("side", 1.0, stream=1, waits_for=(0,)),
        spin("side_after", 2.0, stream=1),
        spin("join", 0.0, waits_for=(2,)),
    ]
    assert measure(ops, {0, 2, 3})[0] == 10.0


def test_an_operation_takes_its_node_plus_the_larger_of_bytes_and_arithmetic():
    hardware = Hardware(
        name="h", bandwidth_gbps=1000.0, read_efficiency=0.5, tflops={"bf16": 100.0}, node_us=1.0, node_pdl_us=0.25
    )
    memory_bound = Op(
        name="a",
        component=Component.EXPERTS,
        call=Spin(wait_us=0, ticks=Operand("ticks")),
        cost=Cost(bytes_read=1_000_000, flops={"bf16": 1_000_000}),
    )
    assert predict_op_us(memory_bound, hardware, pdl=False) == pytest.approx(1.0 + 2.0)
    assert predict_op_us(memory_bound, hardware, pdl=True) == pytest.approx(0.25 + 2.0)


def test_a_collective_takes_the_wire_time_alone():
    wire = Interconnect(latency_us=3.7, bandwidth_gbps=100.0)
    op = Op(
        name="allreduce",
        component=Component.ALLREDUCE,
        call=Spin(wait_us=0, ticks=Operand("ticks")),
        cost=Cost(bytes_read=12_288, bytes_written=12_288, wire_bytes=12_288),
    )
    assert predict_op_us(op, IDEAL, pdl=False, wire=wire) == pytest.approx(3.7 + 0.12288)


def test_predictions_say_so():
    assert PredictedReplayer(ops=(), hardware=IDEAL).kind is Kind.PREDICTED


def test_a_rank_without_peers_sends_nothing():
    hardware = Hardware(name="h", interconnect=Interconnect(latency_us=27.0, bandwidth_gbps=10.0))
    assert hardware.wire(None, num_ranks=1).all_reduce_us(12_288) == 0.0
    assert hardware.wire(None, num_ranks=8).all_reduce_us(0) == 27.0
    assert hardware.wire(3.7, num_ranks=8).all_reduce_us(0) == 3.7
