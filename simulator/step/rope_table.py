"""Cosines and sines of the rotary embedding for every position of a context. No torch."""

import numpy as np
import numpy.typing as npt


def rope_table(num_positions: int, rope_dim: int, theta: float) -> npt.NDArray[np.float32]:
    """float32 [positions, 2, rope_dim / 2]: cosines, then sines, of position * theta^(-2i / rope_dim).

    Angles are computed in float64: float32 loses a radian near position 10^7.
    """
    inverse_frequency = theta ** (-np.arange(0, rope_dim, 2, dtype=np.float64) / rope_dim)
    angles = np.arange(num_positions, dtype=np.float64)[:, None] * inverse_frequency
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
