"""Parameter counts of the shipped models against published figures."""

import pytest

from simulator.parameters import count_parameters
from tests.configs import model

PUBLISHED = {
    "glm5": (743.91e9, 40.83e9),
    "deepseek_v3": (671.0e9, 36.6e9),
    "deepseek_v32": (671.9e9, 37.5e9),
    "kimi_k2": (1026.4e9, 31.7e9),
    "glm4_7": (352.8e9, 32.9e9),
    "glm4_5_air": (106.9e9, 12.8e9),
    "qwen3_235b_a22b": (235.1e9, 21.6e9),
}
"""Total and active billions, with the vocabulary projection counted as active and without prediction layers."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_counts_match_the_published_figures(name):
    total, active = PUBLISHED[name]
    counted = count_parameters(model(name))
    assert counted.total == pytest.approx(total, rel=2e-3)
    assert counted.active == pytest.approx(active, rel=5e-3)


def test_glm5_matches_to_the_last_published_digit():
    counted = count_parameters(model("glm5"))
    assert round(counted.total / 1e9, 2) == 743.91
    assert round(counted.active / 1e9, 2) == 40.83


def test_shared_indices_leave_21_of_78_indexers():
    spec = model("glm5_2")
    full = [layer for layer in range(spec.num_hidden_layers) if spec.has_full_indexer(layer)]
    assert full[:5] == [0, 1, 2, 6, 10]
    assert full[-1] == 74
    assert len(full) == 21
    saved = count_parameters(model("glm5")).total - count_parameters(spec).total
    assert saved == 57 * 9_371_904
