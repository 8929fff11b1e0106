"""Which experts a step hits. The plan is data, fixed before the step is built, so that it can be stated and repeated.

Synthetic router weights route unlike a trained model (a few experts win almost every token), and removing a component
must not change which experts the others read. So the router computes its own choice, as a real one does, while
dispatch follows this plan, unless the router's own choice is asked for.
"""

import json
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import numpy as np
import numpy.typing as npt

from simulator.errors import BadInputError, Problem

ExpertIds = npt.NDArray[np.int32]


class Distribution(StrEnum):
    """How tokens choose their experts."""

    uniform = "uniform"
    zipf = "zipf"
    file = "file"
    from_router = "from_router"


@dataclass(frozen=True, kw_only=True)
class Routing:
    """How experts are chosen: by a distribution, by a recording, or by the router itself."""

    distribution: Distribution = Distribution.uniform
    exponent: float = 1.0
    """Of zipf: the r-th most popular expert is chosen with a weight of r^-exponent; popularity differs by layer."""
    path: str | None = None
    """Of file: recorded expert ids, .npy or .json, [layers, tokens, top_k] or [tokens, top_k] for all layers."""


def plan_expert_ids(
    routing: Routing, *, num_layers: int, tokens: int, num_experts: int, top_k: int, seed: int
) -> ExpertIds:
    """Experts of each token in each MoE layer, distinct for each token: int32 [layers, tokens, top_k].

    A plan of the router's own choice is drawn uniformly too: it serves for byte counts alone.

    Raises:
        BadInputError: a recording cannot be read, or does not fit the model.
    """
    if routing.distribution is Distribution.file:
        recorded = read_expert_ids(routing.path, num_experts=num_experts, top_k=top_k)
        layers = np.arange(num_layers)[:, None] % recorded.shape[0]
        return np.asarray(recorded[layers, np.arange(tokens)[None, :] % recorded.shape[1]])
    generator = np.random.default_rng(seed)
    # the smallest of independent exponential times are a draw without replacement, weighted by their rates
    times = generator.standard_exponential((num_layers, tokens, num_experts), dtype=np.float32)
    if routing.distribution is Distribution.zipf:
        weights = np.arange(1, num_experts + 1, dtype=np.float32) ** -routing.exponent
        times /= generator.permuted(np.tile(weights, (num_layers, 1)), axis=1)[:, None, :]
    return np.argpartition(times, top_k - 1, axis=-1)[..., :top_k].astype(np.int32)


def read_expert_ids(path: str | None, *, num_experts: int, top_k: int) -> ExpertIds:
    """Recorded expert ids, int32 [layers, tokens, top_k].

    Raises:
        BadInputError: no such file, a pickle, no integers, the wrong shape, ids out of range, or an expert twice.
    """
    if path is None:
        raise BadInputError(
            Problem(key="routing.path", value=None, must="must name a .npy or .json file of expert ids")
        )
    ids = _load(Path(path))

    def refuse(must: str) -> BadInputError:
        return BadInputError(Problem(key="routing.path", value=path, must=must))

    if ids.size == 0:
        raise refuse("holds no expert ids")
    if ids.dtype.kind not in "iu":
        raise refuse(f"must hold whole numbers, not {ids.dtype}")
    if ids.ndim == 2:
        ids = ids[None]
    if ids.ndim != 3 or ids.shape[2] != top_k:
        raise refuse(f"must have shape [layers, tokens, {top_k}] or [tokens, {top_k}], not {list(ids.shape)}")
    if ids.min() < 0 or ids.max() >= num_experts:
        raise refuse(f"has expert ids from {ids.min()} to {ids.max()}; the model has 0 to {num_experts - 1}")
    if (np.diff(np.sort(ids, axis=-1), axis=-1) == 0).any():
        raise refuse("chooses one expert twice for the same token")
    return ids.astype(np.int32)


def _load(path: Path) -> npt.NDArray[np.generic]:
    try:
        if path.suffix == ".npy":
            return np.asarray(np.load(path, allow_pickle=False))
        return np.asarray(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, EOFError, MemoryError, RecursionError) as error:
        # an empty file ends too early; a header may claim more than any memory holds
        reason = str(error).partition("\n")[0] or type(error).__name__
        must = f"cannot be read as expert ids: {reason}"
        raise BadInputError(Problem(key="routing.path", value=str(path), must=must)) from None


def distinct_experts(ids: ExpertIds) -> int:
    """Number of experts that at least one token of one layer chose; `ids` is [tokens, top_k]."""
    return int(np.unique(ids).size)


def expected_distinct_experts(num_experts: int, top_k: int, tokens: int) -> float:
    """Closed form for uniform routing: E (1 - (1 - k/E)^tokens)."""
    return num_experts * (1 - (1 - top_k / num_experts) ** tokens)


def describe_load(routing: Routing, ids: ExpertIds, num_experts: int) -> str:
    """One sentence on a plan [layers, tokens, top_k]: distinct experts and how uneven the load is."""
    _, tokens, top_k = ids.shape
    expected = expected_distinct_experts(num_experts, top_k, tokens)
    if routing.distribution is Distribution.from_router:
        return (
            "routing: by the router itself, whose synthetic weights choose unlike a trained model's (a few experts may "
            f"win most tokens): times of experts are those of this choice; bytes assume {expected:.1f} distinct experts"
        )
    distinct = np.mean([distinct_experts(layer) for layer in ids])
    counts = np.stack([np.bincount(layer.ravel(), minlength=num_experts) for layer in ids])
    peak = counts.max(axis=1).mean() / max(tokens * top_k / num_experts, 1e-9)
    how = {
        Distribution.uniform: "uniform",
        Distribution.zipf: f"zipf with exponent {routing.exponent:g}",
        Distribution.file: f"as recorded in {routing.path},",
    }[routing.distribution]
    return (
        f"routing: {how} over {num_experts} experts, {tokens} tokens x {top_k} choices hit {distinct:.1f} distinct "
        f"experts a layer on average (uniform in closed form: {expected:.1f}); the busiest gets {peak:.1f} times the "
        "mean load"
    )
