"""Order keys sort as floats do, and give the value and the id back."""

import itertools

import pytest
import torch
import triton
import triton.language as tl

from kernels.order import key_id, key_value, order_key

INF, NAN = float("inf"), float("nan")


@triton.jit
def _keys_kernel(p_values, p_ids, p_keys, p_values_back, p_ids_back, N: tl.constexpr):
    o_n = tl.arange(0, N)
    b_keys = order_key(tl.load(p_values + o_n), tl.load(p_ids + o_n))
    tl.store(p_keys + o_n, b_keys)
    tl.store(p_values_back + o_n, key_value(b_keys))
    tl.store(p_ids_back + o_n, key_id(b_keys))


def keys_of(values: list[float], ids: list[int], device: torch.device) -> tuple[list[int], list[float], list[int]]:
    N = len(values)
    keys = torch.zeros(N, dtype=torch.int64, device=device)
    values_back = torch.zeros(N, device=device)
    ids_back = torch.zeros(N, dtype=torch.int32, device=device)
    _keys_kernel[(1,)](
        torch.tensor(values, device=device), torch.tensor(ids, dtype=torch.int32, device=device), keys, values_back,
        ids_back, N=N,
    )  # fmt: skip
    return keys.tolist(), values_back.tolist(), ids_back.tolist()


def test_order_of_special_values(device):
    values = [NAN, -INF, -3e38, -1.0, -1e-45, 0.0, 1e-45, INF]
    keys, values_back, _ = keys_of(values, [5] * 8, device)
    assert keys == sorted(set(keys))
    assert values_back[0] != values_back[0]
    assert values_back[1:] == torch.tensor(values)[1:].tolist()


def test_equal_values_go_by_lower_id(device):
    keys, _, ids_back = keys_of([0.0, -0.0, 0.0, -0.0], [0, 1, 19_359, 2**31 - 2], device)
    assert keys == sorted(keys, reverse=True)
    assert ids_back == [0, 1, 19_359, 2**31 - 2]


@pytest.mark.parametrize("seed", range(3), ids=lambda seed: f"seed{seed}")
def test_order_of_random_values(seed, device):
    generator = torch.Generator().manual_seed(seed)
    values = torch.randn(16, generator=generator).tolist()
    ids = torch.randint(0, 2**31 - 1, (16,), generator=generator).tolist()
    keys, _, _ = keys_of(values, ids, device)
    for i, j in itertools.combinations(range(16), 2):
        assert (keys[i] > keys[j]) == ((values[i], -ids[i]) > (values[j], -ids[j]))
