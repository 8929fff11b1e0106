"""Logs of all_reduce_perf in several versions' shapes: times read right, implausible rows set aside with the reason."""

import pytest

from simulator.errors import BadInputError
from simulator.imports.nccl_tests import read_log

PARAMETERS = "# nThread 1 nGpus {gpus} minBytes 8 maxBytes 64 step: 2(factor) warmup iters: 1 iters: 20 graph: {graph}"
RANK = "#  Rank {rank:2d} Group  0 Pid {pid} on  node device {rank:2d} [0000:06:00] NVIDIA Something"
NEW = "#    size    count   type  redop   root    time  algbw  busbw  #wrong    time  algbw  busbw  #wrong"
OLD = "#       size         count      type   redop     time   algbw   busbw  error     time   algbw   busbw  error"


def row(size, time_us, *, gpus=8, in_place_us=None, root=True, check="0", width=2):
    in_place_us = in_place_us or time_us
    words = [str(size), str(size // width), "half" if width == 2 else "float", "sum", *(["-1"] if root else [])]
    for value in (time_us, in_place_us):
        algbw = size / value / 1e3
        words += [f"{value:.2f}", f"{algbw:.2f}", f"{algbw * 2 * (gpus - 1) / gpus:.2f}", check]
    return "  ".join(words)


def log(*rows, header=NEW, gpus=8, graph=0, ranks=True, name="all_reduce_perf", end="# Avg bus bandwidth    : 3"):
    lines = [f"# Collective test starting: {name}", PARAMETERS.format(gpus=1 if ranks else gpus, graph=graph)]
    lines += [RANK.format(rank=rank, pid=100 + rank) for rank in range(gpus if ranks else 0)]
    return "\n".join([*lines, "#", header, "#        (B)    (elements)", *rows, end]) + "\n"


def read(tmp_path, text):
    path = tmp_path / "log.txt"
    path.write_text(text)
    return read_log(path)


def times(found):
    return {entry.size_bytes: entry.time_us for entry in found.rows}


def test_a_new_log(tmp_path):
    found = read(tmp_path, log(row(4096, 23.93), row(16384, 18.66, in_place_us=19.2)))
    assert (found.num_gpus, found.in_graph, found.set_aside) == (8, False, ())
    assert times(found) == {4096: 23.93, 16384: 19.2}


def test_an_old_log_without_a_root_and_without_ranks(tmp_path):
    text = log(row(64, 8.49, root=False, check="0e+00", width=4), header=OLD, ranks=False)
    assert times(read(tmp_path, text)) == {64: 8.49}


def test_a_log_of_one_process_a_gpu_counts_its_ranks(tmp_path):
    assert read(tmp_path, log(row(4096, 9.0, gpus=4), gpus=4)).num_gpus == 4


def test_a_log_from_a_graph_with_windows_line_ends_and_a_prompt(tmp_path):
    text = "user@node:~$ ./all_reduce_perf -b 8\n" + log(row(4096, 9.0), graph=10)
    found = read(tmp_path, text.replace("\n", "\r\n"))
    assert found.in_graph
    assert times(found) == {4096: 9.0}


def test_sizes_come_sorted(tmp_path):
    found = read(tmp_path, log(row(16384, 20.0), row(4096, 10.0)))
    assert [entry.size_bytes for entry in found.rows] == [4096, 16384]


IMPLAUSIBLE = [
    ("1024  512  half  sum  -1  0.50  2.05  3.58  0  0.50  2.05  3.58  0", "less than any all-reduce over 8 GPUs"),
    (
        "1024  512  half  sum  -1  5.00  0.20  0.20  0  5.00  0.20  0.20  0",
        r"busbw 0\.20 GB/s, but size and time give 0\.36",
    ),
    ("1024  512  half  sum  -1  5.00  9.20  0.36  0  5.00  0.20  0.36  0", r"algbw 9\.20 GB/s"),
    ("1024  512  half  sum  -1  0.00  0.20  0.36  0  5.00  0.20  0.36  0", "a time of zero"),
    ("1024  512  half  sum  -1  5.00  0.20  0.36  3  5.00  0.20  0.36  0", "counted wrong values"),
    ("1024  100  half  sum  -1  5.00  0.20  0.36  0  5.00  0.20  0.36  0", "100 elements of half are 200 bytes"),
    ("1024  512  half  sum  -1  5.00  0.20", "7 columns instead of 13"),
    ("1024  512  half  sum  -1  5.x0  0.20  0.36  0  5.00  0.20  0.36  0", "not a number"),
]


@pytest.mark.parametrize(("line", "reason"), IMPLAUSIBLE, ids=[reason[:20] for _, reason in IMPLAUSIBLE])
def test_implausible_rows_are_set_aside(line, reason, tmp_path):
    found = read(tmp_path, log(line, row(4096, 9.0)))
    assert times(found) == {4096: 9.0}
    (aside,) = found.set_aside
    with pytest.raises(AssertionError, match=reason):
        raise AssertionError(aside)


WRONG = [
    ("", "is empty"),
    ("some text\n", "has no header with size and count"),
    (log(), "the test hung or was stopped"),
    (log(row(4096, 9.0), name="all_gather_perf"), "is a log of all_gather_perf"),
    (log("1024  512  half  sum  -1  0.00  0.20  0.36  0  5.00  0.20  0.36  0"), "a time of zero"),
]


@pytest.mark.parametrize(("text", "message"), WRONG, ids=[message[:20] for _, message in WRONG])
def test_logs_without_a_usable_row_are_refused(text, message, tmp_path):
    with pytest.raises(BadInputError, match=message):
        read(tmp_path, text)


def test_no_file(tmp_path):
    with pytest.raises(BadInputError, match="No such file"):
        read_log(tmp_path / "nothing.txt")
