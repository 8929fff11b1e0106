"""Splits of decode attention: every SM has work, and no split is smaller than a tile."""

import subprocess
import sys

import pytest

from kernels.tiling import mla_num_splits


@pytest.mark.parametrize(
    "tokens, num_keys, splits",
    [(1, 2048, 64), (1, 202752, 160), (1, 1, 1), (1, 33, 2), (16, 2048, 10), (64, 2048, 3), (1024, 4096, 1)],
)
def test_by_hand(tokens, num_keys, splits):
    assert mla_num_splits(tokens, num_keys) == splits


@pytest.mark.parametrize("tokens", [1, 2, 3, 5, 17, 64, 1024])
@pytest.mark.parametrize("num_keys", [1, 31, 32, 500, 2048, 100_000])
def test_enough_programs_or_the_smallest_splits(tokens, num_keys):
    splits = mla_num_splits(tokens, num_keys)
    assert splits >= 1
    assert tokens * splits >= 132 or splits == -(-num_keys // 32)


def test_module_needs_no_torch():
    code = "import sys; sys.modules['torch'] = None; sys.modules['triton'] = None; import kernels.tiling"
    subprocess.run([sys.executable, "-c", code], check=True)
