"""Every kind of matrix of a model, by its names in a Hugging Face checkpoint. No torch."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from simulator.model import Attention, ModelSpec


@dataclass(frozen=True)
class Matrix:
    """One kind of matrix: its entry in a recipe, and its names in the checkpoint for one layer."""

    entry: str
    names: tuple[str, ...]


def matrices(model: ModelSpec, experts: Iterable[int] = ()) -> Iterator[Matrix]:
    """Every kind of matrix with its names; of the experts, the first, the last, and those asked for.

    The router is left out: it is no linear layer in these models and never quantised. So are kv_b (see recipe.py) and
    the indexer's head gates (see `head_gates`).
    """
    chosen = sorted({0, model.n_routed_experts - 1, *experts} & set(range(model.n_routed_experts)))
    for layer in range(model.num_hidden_layers):
        prefix = f"model.layers.{layer}"
        yield from _attention_matrices(model, layer, f"{prefix}.self_attn")
        if model.is_dense(layer):
            yield from _gated("dense", f"{prefix}.mlp")
            continue
        for expert in chosen:
            yield from _gated("routed", f"{prefix}.mlp.experts.{expert}")
        if model.n_shared_experts:
            yield from _gated("shared", f"{prefix}.mlp.shared_experts")
    yield Matrix("lm_head", ("lm_head",))


def experts_named(texts: Iterable[str]) -> set[int]:
    """Experts that entries of a list name by their number."""
    return {int(number) for text in texts for number in re.findall(r"experts\\?\.(\d{1,9})(?!\d)", text)}


def head_gates(model: ModelSpec) -> list[str]:
    """Names of the indexer's head gates, 2% of its weights: the step holds them in one matrix with the index key's.

    `indexers_proj` is what the ignore lists of zai-org's FP8 checkpoints call them.
    """
    layers = [layer for layer in range(model.num_hidden_layers) if model.has_indexer and model.has_full_indexer(layer)]
    ends = ("indexer.weights_proj", "indexers_proj")
    return [f"model.layers.{layer}.self_attn.{end}" for layer in layers for end in ends]


def _attention_matrices(model: ModelSpec, layer: int, prefix: str) -> Iterator[Matrix]:
    if model.attention is Attention.gqa:
        yield Matrix("attention_in", tuple(f"{prefix}.{name}_proj" for name in "qkv"))
    else:
        yield Matrix("attention_in", (f"{prefix}.q_a_proj", f"{prefix}.kv_a_proj_with_mqa"))
        yield Matrix("attention_q_b", (f"{prefix}.q_b_proj",))
    yield Matrix("attention_out", (f"{prefix}.o_proj",))
    if model.has_indexer and model.has_full_indexer(layer):
        yield Matrix("indexer", (f"{prefix}.indexer.wq_b", f"{prefix}.indexer.wk"))


def _gated(kind: str, prefix: str) -> Iterator[Matrix]:
    yield Matrix(f"{kind}_gate_up", (f"{prefix}.gate_proj", f"{prefix}.up_proj"))
    yield Matrix(f"{kind}_down", (f"{prefix}.down_proj",))


def wrapped_names(name: str) -> tuple[str, ...]:
    """The name, and how checkpoints of multimodal models call the same matrix of their language model."""
    inner = name.removeprefix("model.")
    return name, f"language_model.{name}", f"model.language_model.{inner}"
