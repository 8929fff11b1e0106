"""Order keys: one integer that sorts (value, id) pairs by value, larger first, and equal values by lower id.

    key = order(value) * 2^32 + (2^31 - 1 - id)

The order of a float32 is its bits as a signed integer, with the magnitude bits of negative numbers inverted; both zeros
are one value and NaN is below -inf. One max over keys then finds the best value and its id together, the same on every
run, and a NaN in the input cannot make it return an id that does not exist.
"""

import triton
import triton.language as tl

EXCLUDED_KEY = tl.constexpr(-(2**63))
"""Below the key of every pair with an id below 2^31 - 1."""

NAN_KEY = tl.constexpr(-(2**63) + 2**31 - 1)
"""The key of (NaN, 0)."""


@triton.jit
def order_key(b_values, o_ids):
    """Keys (int64) of float32 values with ids 0 .. 2^31 - 2; the shapes broadcast."""
    is_nan = b_values != b_values  # noqa: PLR0124 - how Triton asks for NaN
    b_values = tl.where(b_values == 0.0, 0.0, b_values)
    b_bits = b_values.to(tl.int32, bitcast=True)
    b_order = b_bits ^ ((b_bits >> 31) & 0x7FFFFFFF)
    b_order = tl.where(is_nan, -(2**31), b_order.to(tl.int64))
    return (b_order << 32) | (0x7FFFFFFF - o_ids).to(tl.int64)


@triton.jit
def key_value(b_keys):
    """Float32 values of keys; NaN for EXCLUDED_KEY."""
    b_order = (b_keys >> 32).to(tl.int32)
    return (b_order ^ ((b_order >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def key_id(b_keys):
    """Int32 ids of keys."""
    return 0x7FFFFFFF - (b_keys & 0x7FFFFFFF).to(tl.int32)
