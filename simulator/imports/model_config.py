"""A Hugging Face `config.json` as a ModelSpec: the only place where its field names are translated. No torch.

Every model type has its own small table (`families.py`): which fields it must have, which have a default in its
published implementation, and which must hold a certain value because the step knows no other. Whatever is left over and
could matter is named in a note.
"""

from pathlib import Path
from typing import Any

from simulator.errors import BadInputError
from simulator.imports.families import ALIASES, ELSEWHERE, FAMILIES, NO_MATTER, ONLY, REAL, WHOLE, Family
from simulator.imports.json_file import Json, read_json_object, real_number, truth, whole_number
from simulator.imports.rope_config import rope_fields
from simulator.model import ModelSpec, Scoring

PATTERN_LETTERS = {"full": "F", "shared": "S", "F": "F", "S": "S"}
"""How files say that a layer has an indexer of its own, or uses the choice of an earlier one."""

SPARSE_ATTENTION = {"indexed_attention", "deepseek_sparse_attention"}
FULL_ATTENTION = {"full_attention"}


def config_file(path: Path) -> Path:
    """The config.json meant by a file or a directory."""
    return path / "config.json" if path.is_dir() else path


def language_model(values: Json) -> Json:
    """The language model's part of a multimodal configuration; of any other configuration, all of it."""
    inner = values.get("text_config")
    return inner if isinstance(inner, dict) and values.get("model_type") not in list(FAMILIES) else values


def read_model_config(path: Path) -> tuple[ModelSpec, list[str]]:
    """The model that `path` (a config.json, or the directory that holds it) describes, and notes for the reader.

    Raises:
        BadInputError: something is missing, of the wrong type, or not known to the step; the message names it.
    """
    path = config_file(path)
    values = language_model(read_json_object(path))
    model_type = values.get("model_type")
    if not isinstance(model_type, str) or model_type not in FAMILIES:
        raise BadInputError(f"{path}: model_type={model_type!r} is not known; known are {', '.join(FAMILIES)}")
    family = FAMILIES[model_type]
    values = _renamed(values, path)
    _check_only(values, family, path)
    missing = [name for name in family.required if values.get(name) is None]
    if missing:
        them = "it" if len(missing) == 1 else "them"
        raise BadInputError(f"{path}: {', '.join(missing)} missing; a {model_type} model needs {them}")
    rope, notes = rope_fields(values, path)
    absent = {name: value for name, value in family.defaults.items() if values.get(name) is None and name not in rope}
    if absent:
        listed = ", ".join(f"{name}={value}" for name, value in absent.items())
        notes.append(f"{path.name} does not say {listed}: the published implementation's values are used")
    fields = {**_typed(values, family, path), **rope, **absent, **family.fixed}
    if values.get("scoring_func") is not None:
        fields["scoring_func"] = _scoring(values["scoring_func"], path)
    for counted in ("n_routed_experts", "index_topk"):
        if fields.get(counted, 1) < 1:
            raise BadInputError(f"{path}: {counted}={fields[counted]} must be at least 1 in a {model_type} model")
    if "index_topk" in fields:
        pattern, more = _index_pattern(values, fields, path)
        fields["index_topk_pattern"] = pattern
        notes += more
    _check_layers(values, fields, path)
    name = path.resolve().parent.name if path.stem == "config" else path.stem
    spec = ModelSpec(name=name or model_type, attention=family.attention, **fields)
    return spec, notes + _leftovers(values, family)


def _renamed(values: Json, path: Path) -> dict[str, Any]:
    renamed = dict(values)
    for alias, name in ALIASES.items():
        value = renamed.pop(alias, None)
        if value is None:
            continue
        if renamed.get(name) is None:
            renamed[name] = value
        if renamed[name] != value:
            raise BadInputError(f"{path}: {alias}={value} and {name}={renamed[name]} contradict each other")
    return renamed


def _check_only(values: Json, family: Family, path: Path) -> None:
    for name, known in {**ONLY, **family.only}.items():
        if name in values and values[name] not in known:
            raise BadInputError(f"{path}: {name}={values[name]!r} is not known to the step; known: {known[0]!r}")


def _typed(values: Json, family: Family, path: Path) -> dict[str, Any]:
    """The fields that the family has, each of its type."""
    fields: dict[str, Any] = {}
    for name in (*family.required, *family.defaults):
        if values.get(name) is not None:
            read = whole_number if name in WHOLE else real_number if name in REAL else truth
            fields[name] = read(values, name, path)
    return fields


def _scoring(value: object, path: Path) -> Scoring:
    if value not in [scoring.value for scoring in Scoring]:
        known = " or ".join(scoring.value for scoring in Scoring)
        raise BadInputError(f"{path}: scoring_func={value!r} must be {known}")
    return Scoring(str(value))


def _index_pattern(values: Json, fields: Json, path: Path) -> tuple[str, list[str]]:
    """Which layers have an indexer, where a file says it layer by layer; empty where frequency and offset say it.

    As in transformers, `indexer_types` decides before `index_topk_pattern`, and that before frequency and offset.
    """
    said = {}
    for name in ("indexer_types", "index_topk_pattern"):
        if values.get(name) is not None:
            said[name] = _letters(values[name], name, fields["num_hidden_layers"], path)
    if not said:
        return "", []
    if len(set(said.values())) > 1:
        raise BadInputError(f"{path}: indexer_types and index_topk_pattern contradict each other")
    (name, pattern), *_ = said.items()
    frequency, offset = fields.get("index_topk_freq", 1), fields.get("index_skip_topk_offset", 0)
    followed = "".join(
        "F" if frequency >= 1 and max(layer - offset + 1, 0) % frequency == 0 else "S" for layer in range(len(pattern))
    )
    if pattern == followed:
        return "", []
    if values.get("index_topk_freq") is None:
        return pattern, []
    return pattern, [f"{name} and index_topk_freq={frequency} name other layers: {name} is used, as in transformers"]


def _letters(value: object, name: str, num_layers: int, path: Path) -> str:
    """One letter a layer: F(ull) or S(hared)."""
    entries = list(value) if isinstance(value, str | list) else []
    if not entries or any(not isinstance(entry, str) or entry not in PATTERN_LETTERS for entry in entries):
        raise BadInputError(f"{path}: {name} must be the letters F (full) and S (shared), or a list of full and shared")
    if len(entries) != num_layers:
        what = "letters" if isinstance(value, str) else "entries"
        wanted = f"must have one for each of num_hidden_layers={num_layers}"
        raise BadInputError(f"{path}: {name} has {len(entries)} {what}; it {wanted}")
    pattern = "".join(PATTERN_LETTERS[entry] for entry in entries)
    if not pattern.startswith("F"):
        raise BadInputError(f"{path}: {name} must begin with F: layer 0 has no earlier choice to share")
    return pattern


def _check_layers(values: Json, fields: Json, path: Path) -> None:
    """What newer files say layer by layer, or sum up, must be what the other fields say."""
    num_layers, num_dense = fields["num_hidden_layers"], fields.get("first_k_dense_replace", 0)
    kinds = values.get("mlp_layer_types")
    if kinds is not None and not _is_dense_then_sparse(kinds, num_layers, num_dense):
        must = f"must be dense in the first {num_dense} layers and sparse in the other {num_layers - num_dense}"
        raise BadInputError(f"{path}: mlp_layer_types {must}: the step knows no other order")
    kinds = values.get("layer_types")
    known = SPARSE_ATTENTION if "index_topk" in fields else FULL_ATTENTION
    if kinds is not None and (not isinstance(kinds, list) or any(kind not in known for kind in map(str, kinds))):
        raise BadInputError(f"{path}: layer_types must be {' or '.join(sorted(known))} in every layer")
    width = values.get("qk_head_dim")
    if width is not None and "qk_nope_head_dim" in fields:
        parts = fields["qk_nope_head_dim"] + fields["qk_rope_head_dim"]
        if width != parts:
            raise BadInputError(f"{path}: qk_head_dim={width!r} must be qk_nope_head_dim + qk_rope_head_dim = {parts}")


def _is_dense_then_sparse(kinds: object, num_layers: int, num_dense: int) -> bool:
    if not isinstance(kinds, list) or len(kinds) != num_layers:
        return False
    return all(kind == ("dense" if layer < num_dense else "sparse") for layer, kind in enumerate(kinds))


def _leftovers(values: Json, family: Family) -> list[str]:
    """Notes on what is in the file and not in the step."""
    notes = []
    if values.get("num_nextn_predict_layers"):
        count = values["num_nextn_predict_layers"]
        notes.append(f"num_nextn_predict_layers={count}: multi-token-prediction layers are not part of the step")
    if values.get("tie_word_embeddings"):
        notes.append("tie_word_embeddings=true: memory counts the embedding and the vocabulary projection separately")
    if values.get("moe_router_dtype") is not None:
        dtype = values["moe_router_dtype"]
        notes.append(f"moe_router_dtype={dtype}: the router's weights are held as the recipe says, its logits in FP32")
    known = {*family.required, *family.defaults, *family.only, *family.no_matter, *ONLY, *ELSEWHERE, *NO_MATTER}
    unknown = sorted(name for name in values if name not in known and values[name] is not None)
    if unknown:
        notes.append(f"not understood in the model's config.json, and left out: {', '.join(unknown)}")
    return notes
