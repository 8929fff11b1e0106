"""Cosines and sines of the rotary embedding for every position of a context, plain or scaled by YaRN. No torch.

Source of YaRN: Peng et al. 2023, arXiv 2309.00071; the rounding of its bounds and the magnitude factors are those of
transformers (modeling_rope_utils.py) and DeepSeek-V3.
"""

from math import ceil, floor, log, pi

import numpy as np
import numpy.typing as npt

from simulator.model import Attention, ModelSpec

Floats = npt.NDArray[np.float64]


def rope_table(model: ModelSpec, num_positions: int) -> npt.NDArray[np.float32]:
    """float32 [positions, 2, rotary_dim / 2]: cosines, then sines, of position times inverse frequency.

    Angles are computed in float64: float32 loses a radian near position 10^7.
    """
    angles = np.arange(num_positions, dtype=np.float64)[:, None] * inverse_frequencies(model)
    table = np.stack([np.cos(angles), np.sin(angles)], axis=1)
    return np.asarray(table * _table_scale(model), dtype=np.float32)


def inverse_frequencies(model: ModelSpec) -> Floats:
    """float64 [rotary_dim / 2]: radians a position."""
    dim, theta = model.rotary_dim, model.rope_theta
    plain = theta ** (-np.arange(0, dim, 2, dtype=np.float64) / dim)
    if model.rope_scaling_factor == 1.0:
        return plain
    low = max(floor(_dim_of_rotations(model, model.rope_beta_fast)), 0)
    high = min(ceil(_dim_of_rotations(model, model.rope_beta_slow)), dim - 1)
    # dims below `low` turn often enough within the trained context to stay; those above `high` are stretched
    stretched = np.clip((np.arange(dim // 2) - low) / max(high - low, 1e-3), 0.0, 1.0)
    return np.asarray(plain / model.rope_scaling_factor * stretched + plain * (1 - stretched))


def _dim_of_rotations(model: ModelSpec, rotations: float) -> float:
    """The dim whose frequency turns so many times within the original context."""
    ratio = model.rope_original_max_position / (rotations * 2 * pi)
    return model.rotary_dim * log(ratio) / (2 * log(model.rope_theta))


def _magnitude(factor: float, mscale: float) -> float:
    return 1.0 if factor <= 1.0 else 0.1 * mscale * log(factor) + 1.0


def _table_scale(model: ModelSpec) -> float:
    """Factor on cosines and sines: 1 where mscale and mscale_all_dim are alike, as in DeepSeek-V3."""
    factor = model.rope_scaling_factor
    if model.rope_mscale and model.rope_mscale_all_dim:
        return _magnitude(factor, model.rope_mscale) / _magnitude(factor, model.rope_mscale_all_dim)
    return _magnitude(factor, 1.0)


def softmax_scale(model: ModelSpec) -> float:
    """Factor on attention scores before the softmax; in latent attention YaRN enlarges it."""
    if model.attention is Attention.gqa:
        return float(model.head_dim**-0.5)
    mscale = _magnitude(model.rope_scaling_factor, model.rope_mscale_all_dim) if model.rope_mscale_all_dim else 1.0
    return float(model.qk_head_dim**-0.5 * mscale**2)
