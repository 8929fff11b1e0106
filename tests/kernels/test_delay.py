"""The delayed copy copies, and on a GPU both kernels take the time that they were given."""

import statistics

import pytest
import torch

from kernels.delay import delay, delay_reference, has_timer, spin


def poisoned(x: torch.Tensor) -> torch.Tensor:
    return torch.full_like(x, 77 if x.dtype == torch.int32 else float("nan"))


# correctness


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.int32], ids=["fp16", "fp32", "int32"])
@pytest.mark.parametrize(
    "shape", [(1,), (3, 6144), (5, 7, 11), (4096 * 65 + 3,)], ids=["1", "3x6144", "5x7x11", "more-than-one-wave"]
)
def test_copies(shape, dtype, device):
    x = (torch.randn(shape, generator=torch.Generator().manual_seed(1)) * 100).to(device=device, dtype=dtype)
    out = poisoned(x)
    delay(x=x, out=out, wait_ns=1000)
    assert torch.equal(out, delay_reference(x))


def test_timer_exists_only_on_a_gpu(device):
    assert has_timer() == (device.type == "cuda")


@pytest.mark.skipif(has_timer(), reason="a GPU has the timer")
def test_spin_without_a_timer_writes_zero(device):
    ticks = torch.full((1,), -7, dtype=torch.int64, device=device)
    spin(wait_ns=5000, ticks=ticks)
    assert ticks.item() == 0


# corner


def test_empty_tensor(device):
    x = torch.empty(0, 64, device=device)
    delay(x=x, out=torch.empty_like(x), wait_ns=0)


# contract


def test_second_call_is_bitwise_equal(device, compute_dtype):
    x = torch.randn(3, 500, device=device).to(compute_dtype)
    out = poisoned(x)
    delay(x=x, out=out, wait_ns=0)
    first = out.clone()
    delay(x=x, out=out, wait_ns=0)
    assert torch.equal(first, out)


@pytest.mark.parametrize(
    "argument, bad",
    [
        ("x", {"x": torch.zeros(64, 3).t()}),
        ("x", {"x": torch.empty(2**31, device="meta")}),
        ("out", {"out": torch.zeros(64, 3).t()}),
        ("out", {"out": torch.zeros(3, 64, dtype=torch.float16)}),
        ("out", {"out": torch.zeros(192)}),
        ("wait_ns", {"wait_ns": -1}),
        ("wait_ns", {"wait_ns": 2**31}),
    ],
    ids=["x-strided", "x-too-long", "out-strided", "out-dtype", "out-shape", "negative", "too-long"],
)
def test_wrong_argument_of_delay_is_named(argument, bad):
    with pytest.raises(ValueError, match=f"argument {argument} must"):
        delay(**{"x": torch.zeros(3, 64), "out": torch.zeros(3, 64), "wait_ns": 5, **bad})


@pytest.mark.parametrize(
    "argument, bad",
    [
        ("ticks", {"ticks": torch.zeros(1, dtype=torch.int32)}),
        ("ticks", {"ticks": torch.zeros(2, dtype=torch.int64)}),
        ("wait_ns", {"wait_ns": 2**40}),
    ],
    ids=["ticks-dtype", "ticks-shape", "too-long"],
)
def test_wrong_argument_of_spin_is_named(argument, bad):
    with pytest.raises(ValueError, match=f"argument {argument} must"):
        spin(**{"ticks": torch.zeros(1, dtype=torch.int64), "wait_ns": 5, **bad})


# time


def tolerance_us(wait_us: float) -> float:
    return max(0.02 * wait_us, 0.3)


@pytest.mark.gpu
@pytest.mark.parametrize("pdl", [False, True], ids=["plain", "pdl"])
@pytest.mark.parametrize("wait_us", [0, 20, 500], ids=lambda wait_us: f"{wait_us}us")
def test_spin_counts_what_it_was_asked_for(wait_us, pdl, device):
    ticks = torch.full((1,), -7, dtype=torch.int64, device=device)
    counted = []
    for _ in range(21):
        spin(wait_ns=1000 * wait_us, ticks=ticks, pdl=pdl)
        counted.append(ticks.item() / 1000)
    assert min(counted) >= wait_us
    # the median, since a block that is descheduled sees more
    assert statistics.median(counted) <= wait_us + tolerance_us(wait_us)


def graph_us(launch, num_launches: int) -> float:
    """Median microseconds of a CUDA graph that is a chain of `num_launches` launches."""
    launch()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for _ in range(num_launches):
            launch()
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    times = []
    for _ in range(13):
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        times.append(1000 * begin.elapsed_time(end))
    return statistics.median(times[3:])


@pytest.mark.gpu
@pytest.mark.parametrize("pdl", [False, True], ids=["plain", "pdl"])
@pytest.mark.parametrize("wait_us", [10, 100], ids=lambda wait_us: f"{wait_us}us")
@pytest.mark.parametrize("kernel", ["spin", "delay"])
def test_a_captured_chain_takes_the_sum_of_its_waits(kernel, wait_us, pdl, device, compute_dtype):
    """Two chains whose waits differ by wait_us a kernel: what a graph's node costs is in both and drops out."""
    ticks = torch.zeros(1, dtype=torch.int64, device=device)
    x = torch.randn((1, 6144), device=device).to(compute_dtype)
    out = poisoned(x)

    def launch(wait_ns: int) -> None:
        if kernel == "spin":
            spin(wait_ns=wait_ns, ticks=ticks, pdl=pdl)
        else:
            delay(x=x, out=out, wait_ns=wait_ns, pdl=pdl)

    num_launches = 50
    base_ns = 10_000  # longer than the copy, so that both chains only wait
    short_us = graph_us(lambda: launch(base_ns), num_launches)
    long_us = graph_us(lambda: launch(base_ns + 1000 * wait_us), num_launches)
    assert (long_us - short_us) / num_launches == pytest.approx(wait_us, abs=tolerance_us(wait_us))
    # and each kernel takes no less than it was asked for, and little more for its node
    assert 10 <= short_us / num_launches < 14
    assert kernel == "spin" or torch.equal(out, x)


@pytest.mark.gpu
@pytest.mark.parametrize("pdl", [False, True], ids=["plain", "pdl"])
@pytest.mark.parametrize("shape", [(1, 6144), (1024, 6144)], ids=["M1", "M1024"])
def test_delay_takes_its_time_once(shape, pdl, device, compute_dtype):
    """All programs run at once: a second wave would make it two milliseconds."""
    x = torch.randn(shape, device=device).to(compute_dtype)
    out = poisoned(x)
    delay(x=x, out=out, wait_ns=0, pdl=pdl)
    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    torch.cuda.synchronize()
    begin.record()
    delay(x=x, out=out, wait_ns=1_000_000, pdl=pdl)
    end.record()
    torch.cuda.synchronize()
    assert torch.equal(out, x)
    assert 1.0 <= begin.elapsed_time(end) < 1.5
