"""What a checkpoint says about its quantisation, as a recipe. No torch.

Read are ModelOpt's `hf_quant_config.json` (or the same inside config.json), compressed-tensors' `quantization_config`
with its targets and ignore lists, and block-scaled FP8. Each matrix of each layer is looked up by its name in the
checkpoint; a recipe has one format a kind of matrix, so layers that differ are refused by name.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from simulator.errors import BadInputError
from simulator.imports.json_file import Json, read_json_object
from simulator.imports.model_config import config_file
from simulator.model import Attention, ModelSpec
from simulator.recipe import Recipe, WeightFormat

FormatOf = Callable[[str], WeightFormat]
"""The format of a matrix by its name in the checkpoint."""

FORMATS = {"NVFP4": WeightFormat.nvfp4, "FP8": WeightFormat.fp8, "FP8_PB_WO": WeightFormat.fp8}
"""ModelOpt's algorithm names that the kernels know."""

FP8_BLOCK = [128, 128]


@dataclass(frozen=True)
class Matrix:
    """One kind of matrix: its entry in a recipe, and its names in the checkpoint for one layer."""

    entry: str
    layer: int | None
    names: tuple[str, ...]


def read_recipe(path: Path, model: ModelSpec) -> tuple[Recipe, list[str]]:
    """The recipe of the checkpoint at `path` (a config.json or its directory), and notes for the reader.

    A checkpoint that says nothing about quantisation is unquantised.

    Raises:
        BadInputError: a method, pattern or mixture that is not understood; the message names it.
    """
    path = config_file(path)
    beside = path.parent / "hf_quant_config.json"
    described = read_json_object(path).get("quantization_config")
    source = path
    if described is None and beside.is_file():
        source, described = beside, read_json_object(beside).get("quantization")
    if described is None:
        return Recipe(name="from_checkpoint"), [f"{path.name} names no quantisation: all weights are unquantised"]
    if not isinstance(described, dict):
        raise BadInputError(f"{source}: the quantisation must be an object, not {described!r}")
    format_of, notes = _reader(described, source)
    return _recipe(model, format_of, source), notes


def _reader(described: Json, source: Path) -> tuple[FormatOf, list[str]]:
    """How to look up a matrix's format, by the method that wrote the checkpoint."""
    method = described.get("quant_method", "modelopt" if "quant_algo" in described else None)
    if method == "modelopt" or (isinstance(method, str) and method.startswith("modelopt")):
        return _modelopt(described, source)
    if method == "compressed-tensors":
        return _compressed_tensors(described, source)
    if method == "fp8":
        return _block_fp8(described, source)
    raise BadInputError(f"{source}: quant_method={method!r} is not known; known are modelopt, compressed-tensors, fp8")


def _modelopt(described: Json, source: Path) -> tuple[FormatOf, list[str]]:
    algorithm = described.get("quant_algo")
    if algorithm == "MIXED_PRECISION":
        layers = _object(described, "quantized_layers", source)
        formats = {prefix: _algorithm(_object(layers, prefix, source).get("quant_algo"), source) for prefix in layers}
        return lambda name: _longest_prefix(name, formats), _fp8_note(formats.values())
    chosen = _algorithm(algorithm, source)
    if chosen is WeightFormat.nvfp4 and described.get("group_size", 16) != 16:
        raise BadInputError(f"{source}: group_size={described['group_size']!r} must be 16 with NVFP4")
    excluded = _names(described, "exclude_modules" if "exclude_modules" in described else "ignore", source)
    return lambda name: WeightFormat.bf16 if _globbed(name, excluded) else chosen, _fp8_note([chosen])


def _compressed_tensors(described: Json, source: Path) -> tuple[FormatOf, list[str]]:
    groups = _object(described, "config_groups", source)
    ignored = [_pattern(text, source) for text in _names(described, "ignore", source)]
    targets: list[tuple[Callable[[str], bool], WeightFormat]] = []
    notes = []
    for name in groups:
        group = _object(groups, name, source)
        chosen = _scheme(_object(group, "weights", source), f"config_groups.{name}.weights", source)
        if "targets" not in group:
            notes.append(f"{source.name}: config_groups.{name} names no targets: all linear layers are taken")
        wanted = _names(group, "targets", source) or ["Linear"]
        targets += [(_pattern(text, source), chosen) for text in wanted]

    def format_of(name: str) -> WeightFormat:
        if any(matches(name) for matches in ignored):
            return WeightFormat.bf16
        return next((chosen for matches, chosen in targets if matches(name)), WeightFormat.bf16)

    return format_of, notes


def _block_fp8(described: Json, source: Path) -> tuple[FormatOf, list[str]]:
    block = described.get("weight_block_size")
    if block != FP8_BLOCK:
        raise BadInputError(f"{source}: weight_block_size={block!r} must be {FP8_BLOCK}, the block of the FP8 kernels")
    excluded = _names(
        described, "modules_to_not_convert" if "modules_to_not_convert" in described else "ignored_layers", source
    )

    def format_of(name: str) -> WeightFormat:
        # the vocabulary projection is no decoder layer, and no published FP8 checkpoint converts it
        kept = name == "lm_head" or any(name == module or name.startswith(f"{module}.") for module in excluded)
        return WeightFormat.bf16 if kept else WeightFormat.fp8

    return format_of, []


def _algorithm(algorithm: object, source: Path) -> WeightFormat:
    if algorithm is None:
        return WeightFormat.bf16
    if not isinstance(algorithm, str) or algorithm not in FORMATS:
        raise BadInputError(f"{source}: quant_algo={algorithm!r} is not known; known are {', '.join(FORMATS)}")
    return FORMATS[algorithm]


def _scheme(weights: Json, where: str, source: Path) -> WeightFormat:
    bits, kind, group = weights.get("num_bits"), weights.get("type"), weights.get("group_size")
    if (bits, kind, group) == (4, "float", 16):
        return WeightFormat.nvfp4
    if (bits, kind) == (8, "float"):
        return WeightFormat.fp8
    found = f"num_bits={bits!r}, type={kind!r}, group_size={group!r}"
    raise BadInputError(f"{source}: {where} has {found}; known are 4-bit float in groups of 16 (NVFP4) and 8-bit float")


def _fp8_note(formats: Any) -> list[str]:
    if WeightFormat.fp8 not in formats:
        return []
    return ["FP8 weights are held with one scale a block of 128 x 128, whatever the checkpoint's granularity"]


def _object(values: Json, name: str, source: Path) -> Json:
    value = values.get(name)
    if not isinstance(value, dict) or not value:
        raise BadInputError(f"{source}: {name} must be a non-empty object")
    return value


def _names(values: Json, name: str, source: Path) -> list[str]:
    listed = values.get(name) or []
    if not isinstance(listed, list) or not all(isinstance(entry, str) for entry in listed):
        raise BadInputError(f"{source}: {name} must be a list of names")
    return listed


def _longest_prefix(name: str, formats: Mapping[str, WeightFormat]) -> WeightFormat:
    matching = [prefix for prefix in formats if name == prefix or name.startswith(f"{prefix}.")]
    return formats[max(matching, key=len)] if matching else WeightFormat.bf16


def _globbed(name: str, patterns: list[str]) -> bool:
    """ModelOpt's rule: a pattern names a module, with wildcards, and everything inside it."""
    return any(fnmatchcase(name, pattern) or fnmatchcase(name, f"{pattern}.*") for pattern in patterns)


def _pattern(text: str, source: Path) -> Callable[[str], bool]:
    """compressed-tensors' rule: a class name, a module's name, or `re:` and a regular expression from the start."""
    if text == "Linear":
        return lambda name: True
    if not text.startswith("re:"):
        return lambda name: name == text or name.startswith(f"{text}.")
    try:
        compiled = re.compile(text[3:])
    except re.error as error:
        raise BadInputError(f"{source}: {text!r} is no regular expression: {error}") from None
    return lambda name: compiled.match(name) is not None


def _recipe(model: ModelSpec, format_of: FormatOf, source: Path) -> Recipe:
    """One format for each kind of matrix, the same in every layer."""
    found: dict[str, tuple[WeightFormat, str]] = {}
    for matrix in matrices(model):
        for name in matrix.names:
            chosen = format_of(name)
            known, first = found.setdefault(matrix.entry, (chosen, name))
            if chosen is not known:
                raise BadInputError(
                    f"{source}: {first} is {known.value} and {name} is {chosen.value}; a recipe has one format for all "
                    f"matrices of its entry {matrix.entry}"
                )
    formats: dict[str, Any] = {entry: chosen for entry, (chosen, _) in found.items()}
    return Recipe(name="from_checkpoint", **formats)


def matrices(model: ModelSpec) -> Iterator[Matrix]:
    """Every kind of matrix with its names in a Hugging Face checkpoint; experts are spoken for by the first and last.

    The router is left out: it is no linear layer in these models and never quantised. So is kv_b (see recipe.py).
    """
    for layer in range(model.num_hidden_layers):
        prefix = f"model.layers.{layer}"
        yield from _attention_matrices(model, layer, f"{prefix}.self_attn")
        if model.is_dense(layer):
            yield from _gated(layer, "dense", f"{prefix}.mlp")
            continue
        for expert in (0, model.n_routed_experts - 1):
            yield from _gated(layer, "routed", f"{prefix}.mlp.experts.{expert}")
        if model.n_shared_experts:
            yield from _gated(layer, "shared", f"{prefix}.mlp.shared_experts")
    yield Matrix("lm_head", None, ("lm_head",))


def _attention_matrices(model: ModelSpec, layer: int, prefix: str) -> Iterator[Matrix]:
    if model.attention is Attention.gqa:
        yield Matrix("attention_in", layer, tuple(f"{prefix}.{name}_proj" for name in "qkv"))
    else:
        yield Matrix("attention_in", layer, (f"{prefix}.q_a_proj", f"{prefix}.kv_a_proj_with_mqa"))
        yield Matrix("attention_q_b", layer, (f"{prefix}.q_b_proj",))
    yield Matrix("attention_out", layer, (f"{prefix}.o_proj",))
    if model.has_indexer and model.has_full_indexer(layer):
        names = ("wq_b", "wk", "weights_proj")
        yield Matrix("indexer", layer, tuple(f"{prefix}.indexer.{name}" for name in names))


def _gated(layer: int, kind: str, prefix: str) -> Iterator[Matrix]:
    yield Matrix(f"{kind}_gate_up", layer, (f"{prefix}.gate_proj", f"{prefix}.up_proj"))
    yield Matrix(f"{kind}_down", layer, (f"{prefix}.down_proj",))
