"""A Hugging Face `config.json` as a ModelSpec: the only place where its field names are translated. No torch.

Every model type has its own small table: which fields it must have, which have a default in its published
implementation, and which must hold a certain value because the step knows no other. Whatever is left over and could
matter is named in a note.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from simulator.errors import BadInputError
from simulator.imports.json_file import Json, read_json_object, real_number, truth, whole_number
from simulator.model import Attention, ModelSpec, Scoring

ALIASES = {
    "num_local_experts": "n_routed_experts",
    "num_experts": "n_routed_experts",
    "moe_topk": "num_experts_per_tok",
}
"""Other names of a field, and the name used here."""

WHOLE = (
    "num_hidden_layers", "hidden_size", "vocab_size", "max_position_embeddings", "num_attention_heads",
    "num_key_value_heads", "head_dim", "q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim",
    "v_head_dim", "index_topk", "index_n_heads", "index_head_dim", "index_topk_freq", "index_skip_topk_offset",
    "intermediate_size", "first_k_dense_replace", "n_routed_experts", "num_experts_per_tok", "n_shared_experts",
    "moe_intermediate_size", "n_group", "topk_group",
)  # fmt: skip
REAL = ("rms_norm_eps", "rope_theta", "partial_rotary_factor", "routed_scaling_factor")
TRUTH = ("rope_interleave", "indexer_rope_interleave", "attention_bias", "use_qk_norm", "norm_topk_prob")

COMMON = ("num_hidden_layers", "hidden_size", "vocab_size", "num_attention_heads", "intermediate_size",
          "num_experts_per_tok", "moe_intermediate_size", "n_routed_experts", "max_position_embeddings")  # fmt: skip
MLA = ("q_lora_rank", "kv_lora_rank", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
INDEXER = ("index_topk", "index_n_heads", "index_head_dim")

SILENT = {
    "architectures", "model_type", "torch_dtype", "dtype", "transformers_version", "initializer_range", "use_cache",
    "bos_token_id", "eos_token_id", "pad_token_id", "attention_dropout", "aux_loss_alpha", "seq_aux", "ep_size",
    "pretraining_tp", "auto_map", "_name_or_path", "quantization_config", "rope_scaling", "rope_parameters",
    "router_aux_loss_coef", "output_router_logits", "num_nextn_predict_layers", "tie_word_embeddings", "scoring_func",
    "topk_method", "hidden_act", "moe_layer_freq", "index_topk_pattern", "use_sliding_window", "sliding_window",
    "decoder_sparse_step", "mlp_only_layers", "max_window_layers",
}  # fmt: skip
"""Fields that are read elsewhere below, or that change nothing in a decode step."""


@dataclass(frozen=True, kw_only=True)
class Family:
    """What one model type asks for."""

    attention: Attention
    required: tuple[str, ...]
    defaults: Mapping[str, Any] = field(default_factory=dict)
    """Values of fields that may be absent, as the published implementation has them."""
    fixed: Mapping[str, Any] = field(default_factory=dict)
    """Properties of the family that no field of its config.json states."""


DEEPSEEK_ROUTER = {"n_group": 8, "topk_group": 4, "norm_topk_prob": True, "routed_scaling_factor": 2.5}
FAMILIES = {
    "glm_moe_dsa": Family(
        attention=Attention.mla,
        required=(*COMMON, *MLA, *INDEXER, "n_shared_experts", "first_k_dense_replace"),
        defaults={
            "rms_norm_eps": 1e-5, "rope_theta": 1e6, "n_group": 1, "topk_group": 1, "norm_topk_prob": True,
            "routed_scaling_factor": 2.5, "indexer_rope_interleave": True, "rope_interleave": True,
            "index_topk_freq": 1, "index_skip_topk_offset": 0,
        },
        fixed={"scoring_func": Scoring.sigmoid},
    ),
    "deepseek_v3": Family(
        attention=Attention.mla,
        required=(*COMMON, *MLA, "n_shared_experts", "first_k_dense_replace"),
        defaults={"rms_norm_eps": 1e-6, "rope_theta": 1e4, "rope_interleave": True, **DEEPSEEK_ROUTER},
        fixed={"scoring_func": Scoring.sigmoid},
    ),
    "glm4_moe": Family(
        attention=Attention.gqa,
        required=(*COMMON, "num_key_value_heads", "head_dim", "n_shared_experts", "first_k_dense_replace"),
        defaults={
            "rms_norm_eps": 1e-5, "rope_theta": 1e4, "partial_rotary_factor": 0.5, "attention_bias": False,
            "use_qk_norm": False, "n_group": 1, "topk_group": 1, "norm_topk_prob": True, "routed_scaling_factor": 1.0,
        },
        fixed={"scoring_func": Scoring.sigmoid, "rope_interleave": False},
    ),
    "qwen3_moe": Family(
        attention=Attention.gqa,
        required=(*COMMON, "num_key_value_heads", "head_dim"),
        defaults={"rms_norm_eps": 1e-6, "rope_theta": 1e4, "attention_bias": False, "norm_topk_prob": False},
        fixed={"scoring_func": Scoring.softmax, "use_qk_norm": True, "rope_interleave": False},
    ),
}  # fmt: skip
FAMILIES["kimi_k2"] = FAMILIES["deepseek_v3"]
FAMILIES["deepseek_v32"] = Family(
    attention=Attention.mla,
    required=(*FAMILIES["deepseek_v3"].required, *INDEXER),
    defaults=FAMILIES["deepseek_v3"].defaults,
    fixed={"scoring_func": Scoring.sigmoid, "indexer_rope_interleave": False},
)

ONLY = {
    "hidden_act": ("silu",), "moe_layer_freq": (1,), "use_sliding_window": (False, None), "decoder_sparse_step": (1,),
    "mlp_only_layers": ([], None), "topk_method": ("noaux_tc", None),
}  # fmt: skip
"""Values of fields that the step knows; any other would be another model."""


def config_file(path: Path) -> Path:
    """The config.json meant by a file or a directory."""
    return path / "config.json" if path.is_dir() else path


def read_model_config(path: Path) -> tuple[ModelSpec, list[str]]:
    """The model that `path` (a config.json, or the directory that holds it) describes, and notes for the reader.

    Raises:
        BadInputError: something is missing, of the wrong type, or not known to the step; the message names it.
    """
    path = config_file(path)
    values = _unwrapped(read_json_object(path))
    model_type = values.get("model_type")
    if model_type not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise BadInputError(f"{path}: model_type={model_type!r} is not known; known are {known}")
    family, notes = FAMILIES[model_type], []
    values = _renamed(values, path)
    _check_only(values, path)
    missing = [name for name in family.required if values.get(name) is None]
    if missing:
        raise BadInputError(
            f"{path}: {', '.join(missing)} missing; a {model_type} model needs {'it' if len(missing) == 1 else 'them'}"
        )
    rope = _rope(values, path)
    absent = {name: value for name, value in family.defaults.items() if name not in values and name not in rope}
    if absent:
        listed = ", ".join(f"{name}={value}" for name, value in absent.items())
        notes.append(f"{path.name} does not say {listed}: the published implementation's values are used")
    fields = {**_typed(values, path), **rope, **absent, **family.fixed}
    if "scoring_func" in values:
        fields["scoring_func"] = _scoring(values["scoring_func"], path)
    fields |= _index_pattern(values, fields["num_hidden_layers"], path)
    notes += _leftovers(values)
    if family.required and "index_topk" in family.required and fields["index_topk"] < 1:
        raise BadInputError(f"{path}: index_topk={fields['index_topk']} must be at least 1 in a {model_type} model")
    name = path.resolve().parent.name if path.stem == "config" else path.stem
    return ModelSpec(name=name or model_type, attention=family.attention, **fields), notes


def _unwrapped(values: Json) -> Json:
    """The language model's part of a multimodal configuration."""
    inner = values.get("text_config")
    if isinstance(inner, dict) and values.get("model_type") not in FAMILIES:
        return {**{name: values[name] for name in ("quantization_config",) if name in values}, **inner}
    return values


def _renamed(values: Json, path: Path) -> dict[str, Any]:
    renamed = dict(values)
    for alias, name in ALIASES.items():
        if alias not in renamed:
            continue
        value = renamed.pop(alias)
        if renamed.setdefault(name, value) != value:
            raise BadInputError(f"{path}: {alias}={value} and {name}={renamed[name]} contradict each other")
    return renamed


def _check_only(values: Json, path: Path) -> None:
    for name, known in ONLY.items():
        if name in values and values[name] not in known:
            raise BadInputError(f"{path}: {name}={values[name]!r} is not known to the step; known: {known[0]!r}")


def _typed(values: Json, path: Path) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for names, read in ((WHOLE, whole_number), (REAL, real_number), (TRUTH, truth)):
        for name in names:
            if values.get(name) is not None:
                fields[name] = read(values, name, path)
    return fields


def _scoring(value: object, path: Path) -> Scoring:
    if value not in [scoring.value for scoring in Scoring]:
        known = " or ".join(scoring.value for scoring in Scoring)
        raise BadInputError(f"{path}: scoring_func={value!r} must be {known}")
    return Scoring(value)


def _rope(values: Json, path: Path) -> dict[str, float | int]:
    """Rotary fields from `rope_parameters` (newer files) or `rope_theta` and `rope_scaling` (older ones)."""
    nested = values.get("rope_parameters") or values.get("rope_scaling") or {}
    if not isinstance(nested, dict):
        raise BadInputError(f"{path}: rope_scaling={nested!r} must be an object")
    kind = nested.get("rope_type", nested.get("type", "default"))
    if kind not in ("default", "yarn"):
        raise BadInputError(f"{path}: rope type {kind!r} is not known; known are default and yarn")
    fields: dict[str, float | int] = {}
    for name in ("rope_theta", "partial_rotary_factor"):
        if name in nested:
            fields[name] = real_number(nested, name, path)
    if kind == "yarn":
        missing = [name for name in ("factor", "original_max_position_embeddings") if name not in nested]
        if missing:
            raise BadInputError(f"{path}: rope_scaling of type yarn lacks {', '.join(missing)}")
        fields["rope_scaling_factor"] = real_number(nested, "factor", path)
        fields["rope_original_max_position"] = whole_number(nested, "original_max_position_embeddings", path)
        for name in ("beta_fast", "beta_slow", "mscale", "mscale_all_dim"):
            if name in nested:
                fields[f"rope_{name}"] = real_number(nested, name, path)
    return fields


def _index_pattern(values: Json, num_layers: int, path: Path) -> dict[str, str]:
    """GLM-5.2's explicit form of shared indices: one letter a layer, F(ull) or S(hared)."""
    pattern = values.get("index_topk_pattern")
    if pattern is None:
        return {}
    if not isinstance(pattern, str) or set(pattern) - {"F", "S"}:
        raise BadInputError(f"{path}: index_topk_pattern={pattern!r} must be text of the letters F and S")
    if len(pattern) != num_layers:
        wanted = f"must have one letter for each of num_hidden_layers={num_layers}"
        raise BadInputError(f"{path}: index_topk_pattern has {len(pattern)} letters; it {wanted}")
    if not pattern.startswith("F"):
        raise BadInputError(f"{path}: index_topk_pattern must begin with F: layer 0 has no earlier choice to share")
    return {"index_topk_pattern": pattern}


def _leftovers(values: Json) -> list[str]:
    """Notes on what is in the file and not in the step."""
    notes = []
    if values.get("num_nextn_predict_layers"):
        count = values["num_nextn_predict_layers"]
        notes.append(f"num_nextn_predict_layers={count}: multi-token-prediction layers are not part of the step")
    if values.get("tie_word_embeddings"):
        notes.append("tie_word_embeddings=true: memory counts the embedding and the vocabulary projection separately")
    known = {*WHOLE, *REAL, *TRUTH, *SILENT}
    unknown = sorted(name for name in values if name not in known)
    if unknown:
        notes.append(f"not understood in the model's config.json, and left out: {', '.join(unknown)}")
    return notes
