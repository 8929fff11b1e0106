"""What a checkpoint says about its quantisation, as a recipe. No torch.

Read are ModelOpt's `hf_quant_config.json` (or the same inside config.json), compressed-tensors' `quantization_config`
with its targets and ignore lists, and block-scaled FP8. Each matrix of each layer is looked up by its name in the
checkpoint; a recipe has one format a kind of matrix, so layers that differ are refused by name.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from simulator.errors import BadInputError
from simulator.imports.json_file import Json, read_json_object
from simulator.imports.matrix_names import Matrix, experts_named, head_gates, matrices, wrapped_names
from simulator.imports.model_config import config_file, language_model
from simulator.imports.name_patterns import NamePatterns, ancestors, module_globs, targets, unknown_entries
from simulator.model import ModelSpec
from simulator.recipe import Recipe, WeightFormat

FormatOf = Callable[[str], WeightFormat]
"""The format of a matrix by its name in the checkpoint."""

FORMATS = {"NVFP4": WeightFormat.nvfp4, "FP8": WeightFormat.fp8, "FP8_PB_WO": WeightFormat.fp8}
"""ModelOpt's algorithm names that the kernels know."""

FP8_BLOCK = [128, 128]

UNDERSTOOD = {
    "quant_method", "quant_algo", "group_size", "exclude_modules", "ignore", "quantized_layers", "config_groups",
    "modules_to_not_convert", "ignored_layers", "weight_block_size", "kv_cache_quant_algo", "kv_cache_scheme",
    # of no matter to what is stored, or said again elsewhere
    "producer", "format", "quantization_status", "global_compression_ratio", "version", "fmt", "scale_fmt",
    "activation_scheme", "sparsity_config", "transform_config",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A quantisation as it was understood."""

    format_of: FormatOf
    lists: Sequence[NamePatterns]
    """Whose entries should each name a matrix."""
    notes: Sequence[str] = ()


def read_recipe(path: Path, model: ModelSpec) -> tuple[Recipe, list[str]]:
    """The recipe of the checkpoint at `path` (a config.json or its directory), and notes for the reader.

    A checkpoint that says nothing about quantisation is unquantised.

    Raises:
        BadInputError: a method, pattern or mixture that is not understood; the message names it.
    """
    path = config_file(path)
    whole = read_json_object(path)
    inner = language_model(whole)
    is_wrapped = inner is not whole
    beside = path.parent / "hf_quant_config.json"
    sources = [(path, whole.get("quantization_config"))]
    if is_wrapped:
        sources.append((path, inner.get("quantization_config")))
    if beside.is_file():
        described = read_json_object(beside).get("quantization")
        if described is None:
            raise BadInputError(f"{beside} lacks the object quantization")
        sources.append((beside, described))
    found = [(source, described) for source, described in sources if described is not None]
    if not found:
        return Recipe(name="from_checkpoint"), [f"{path.name} names no quantisation: all weights are unquantised"]
    (source, described), *others = found
    recipe, notes = _read(model, described, source, is_wrapped=is_wrapped)
    for other, again in others:
        second, _ = _read(model, again, other, is_wrapped=is_wrapped)
        differing = [
            entry.name for entry in fields(Recipe) if getattr(recipe, entry.name) != getattr(second, entry.name)
        ]
        if differing:
            notes.append(f"{other.name} says otherwise of {', '.join(differing)}: {source.name} is believed")
    return recipe, notes


def _read(model: ModelSpec, described: object, source: Path, *, is_wrapped: bool) -> tuple[Recipe, list[str]]:
    """The recipe of one description."""
    if not isinstance(described, dict):
        raise BadInputError(f"{source}: the quantisation must be an object, not {described!r}")
    reading = _reader(described, source)

    def format_of(name: str) -> WeightFormat:
        if not is_wrapped:
            return reading.format_of(name)
        # the list that names the matrix in any of its spellings speaks of it
        spellings = [n for n in wrapped_names(name) if any(listed.matches(n) for listed in reading.lists)]
        return reading.format_of(spellings[0] if spellings else name)

    asked = list(matrices(model, experts_named(text for listed in reading.lists for text in listed.texts)))
    recipe = _recipe(asked, format_of, source)
    names = [name for matrix in asked for name in matrix.names] + head_gates(model)
    spelt = [spelling for name in names for spelling in wrapped_names(name)] if is_wrapped else names
    unmatched = [text for listed in reading.lists for text in listed.unmatched(spelt)]
    notes = [*reading.notes, *_notes(described, recipe, source)]
    unknown = unknown_entries(unmatched, model.num_hidden_layers)
    if unknown:
        notes.append(
            f"{source.name} lists what is no matrix of this model: {', '.join(unknown[:8])}{_more(unknown, 8)}"
        )
    if any(format_of(name) is not recipe.indexer for name in head_gates(model)):
        notes.append(
            f"{source.name} keeps the indexer's head gates (weights_proj) apart; the step holds them with the index "
            f"key, in {recipe.indexer.value}"
        )
    return recipe, notes


def _more(entries: Sequence[str], shown: int) -> str:
    return f" and {len(entries) - shown} more" if len(entries) > shown else ""


def _notes(described: Json, recipe: Recipe, source: Path) -> list[str]:
    """What the checkpoint says that the step does otherwise, or does not know."""
    notes = []
    formats = {value for entry in fields(Recipe) if isinstance(value := getattr(recipe, entry.name), WeightFormat)}
    for name in ("kv_cache_quant_algo", "kv_cache_scheme"):
        if described.get(name) is not None:
            notes.append(f"{source.name} has a {name}: the step keeps keys and values in BF16 all the same")
    if formats & {WeightFormat.nvfp4, WeightFormat.fp8}:
        notes.append("weights are read as the checkpoint has them; activations stay in BF16, whatever it says of them")
    if WeightFormat.fp8 in formats and described.get("weight_block_size") != FP8_BLOCK:
        notes.append("FP8 weights are held with one scale a block of 128 x 128, whatever the checkpoint's granularity")
    unknown = sorted(name for name in described if name not in UNDERSTOOD and described[name] not in (None, {}, []))
    if unknown:
        notes.append(f"not understood of the quantisation in {source.name}, and left out: {', '.join(unknown)}")
    return notes


def _reader(described: Json, source: Path) -> Reading:
    """How to look up a matrix's format, by the method that wrote the checkpoint."""
    method = described.get("quant_method", "modelopt" if "quant_algo" in described else None)
    if method == "modelopt" or (isinstance(method, str) and method.startswith("modelopt")):
        return _modelopt(described, source)
    if method == "compressed-tensors":
        return _compressed_tensors(described, source)
    if method == "fp8":
        return _block_fp8(described, source)
    raise BadInputError(f"{source}: quant_method={method!r} is not known; known are modelopt, compressed-tensors, fp8")


def _modelopt(described: Json, source: Path) -> Reading:
    if "quant_algo" not in described:
        # ModelOpt's unified form has the same groups as compressed-tensors
        return _compressed_tensors(described, source)
    algorithm = described["quant_algo"]
    if algorithm == "MIXED_PRECISION":
        layers = _object(described, "quantized_layers", source)
        formats = {prefix: _algorithm(_object(layers, prefix, source).get("quant_algo"), source) for prefix in layers}
        listed = NamePatterns(exact=frozenset(formats), inside=True)
        return Reading(format_of=lambda name: _nearest(name, formats), lists=[listed])
    chosen = _algorithm(algorithm, source)
    if chosen is WeightFormat.nvfp4 and described.get("group_size", 16) != 16:
        raise BadInputError(f"{source}: group_size={described['group_size']!r} must be 16 with NVFP4")
    excluded = module_globs(_names(described, "exclude_modules", source) + _names(described, "ignore", source))
    return Reading(format_of=lambda name: WeightFormat.bf16 if excluded.matches(name) else chosen, lists=[excluded])


def _compressed_tensors(described: Json, source: Path) -> Reading:
    groups = _object(described, "config_groups", source)
    ignored = targets(_names(described, "ignore", source), source)
    chosen: dict[str, WeightFormat] = {}
    notes = []
    for name in groups:
        group = _object(groups, name, source)
        scheme = _scheme(_object(group, "weights", source), f"config_groups.{name}.weights", source)
        if group.get("targets") is None:
            notes.append(f"{source.name}: config_groups.{name} names no targets: all linear layers are taken")
        for target in _names(group, "targets", source) or ["Linear"]:
            if chosen.setdefault(target, scheme) is not scheme:
                raise BadInputError(f"{source}: config_groups give {target} two formats")
    # compressed-tensors prefers exact names to expressions, and both to classes; among equals the first by spelling
    order = sorted(chosen, key=lambda text: (text == "Linear", text.startswith("re:"), text))
    wanted = [(targets([text], source), chosen[text]) for text in order]

    def format_of(name: str) -> WeightFormat:
        if ignored.matches(name):
            return WeightFormat.bf16
        return next((scheme for listed, scheme in wanted if listed.matches(name)), WeightFormat.bf16)

    return Reading(format_of=format_of, lists=[ignored, *(listed for listed, _ in wanted)], notes=notes)


def _block_fp8(described: Json, source: Path) -> Reading:
    block = described.get("weight_block_size")
    if block != FP8_BLOCK:
        raise BadInputError(f"{source}: weight_block_size={block!r} must be {FP8_BLOCK}, the block of the FP8 kernels")
    names = _names(described, "modules_to_not_convert", source) + _names(described, "ignored_layers", source)
    # the vocabulary projection is no decoder layer, and no published FP8 checkpoint converts it
    kept = module_globs([*names, "lm_head"])
    return Reading(format_of=lambda name: WeightFormat.bf16 if kept.matches(name) else WeightFormat.fp8, lists=[kept])


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


def _object(values: Json, name: str, source: Path) -> Json:
    value = values.get(name)
    if not isinstance(value, dict) or not value:
        raise BadInputError(f"{source}: {name} must be a non-empty object")
    return value


def _names(values: Json, name: str, source: Path) -> list[str]:
    listed = values.get(name)
    if listed is None:
        return []
    if not isinstance(listed, list) or not all(isinstance(entry, str) for entry in listed):
        raise BadInputError(f"{source}: {name} must be a list of names")
    return listed


def _nearest(name: str, formats: Mapping[str, WeightFormat]) -> WeightFormat:
    """The format of the module itself, or of the nearest that holds it; what is not listed is not quantised."""
    return next((formats[module] for module in (name, *ancestors(name)) if module in formats), WeightFormat.bf16)


def _recipe(asked: Sequence[Matrix], format_of: FormatOf, source: Path) -> Recipe:
    """One format for each kind of matrix, the same in every layer."""
    found: dict[str, tuple[WeightFormat, str]] = {}
    for matrix in asked:
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
