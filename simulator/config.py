"""The configuration: its schema, and every check that needs more than one field. Imports neither torch nor a GPU.

Choices are enumerations with lower-case members: OmegaConf accepts a member's name, and that is what a user types.

Hydra composes YAML onto these dataclasses, so that a misspelt key or a wrong type fails while composing. `validate`
then collects every impossible combination before any memory is allocated or file written.
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING as MISSING_DEFAULT
from dataclasses import FrozenInstanceError, asdict, dataclass, field, fields
from difflib import get_close_matches
from enum import StrEnum
from math import isfinite
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING, DictConfig, OmegaConf

from simulator.deployment import Deployment
from simulator.errors import BadInputError, Problem
from simulator.hardware import Hardware
from simulator.imports.model_config import read_model_config
from simulator.imports.quant_config import read_recipe
from simulator.model import ModelSpec
from simulator.model_problems import model_problems
from simulator.recipe import Recipe
from simulator.routing import Distribution, Routing
from simulator.schema import dotted_keys, writable_schema
from simulator.shapes import legal_tp_sizes, refusals
from simulator.step.program import Component

MAX_TOKENS = 1024
"""Steps of more tokens are prefill-sized; the kernels' tiles are not chosen for them."""

FROM_CHECKPOINT = "from_checkpoint"
"""Name of the recipe that is read from the checkpoint."""


class Job(StrEnum):
    """What a run does."""

    breakdown = "breakdown"
    ceiling = "ceiling"
    allreduce = "allreduce"


class Replay(StrEnum):
    """How the step is timed."""

    auto = "auto"
    cuda_graph = "cuda_graph"
    cpu = "cpu"
    predicted = "predicted"


class Algorithm(StrEnum):
    """How collectives are done."""

    auto = "auto"
    modelled = "modelled"


class GroupBy(StrEnum):
    """What operations are grouped by for attribution."""

    component = "component"
    op = "op"
    layer_range = "layer_range"


@dataclass(frozen=True, kw_only=True)
class ModelConfig(ModelSpec):
    """A model written out field by field, or the `config.json` to read it from."""

    path: str | None = None


@dataclass(frozen=True, kw_only=True)
class KernelsConfig:
    """Which kernels run, and whether they use programmatic dependent launch."""

    name: str = MISSING
    programmatic_launch: bool = MISSING


@dataclass(frozen=True, kw_only=True)
class CommConfig:
    """Collectives: how, and for modelled ones how long they take beyond their bytes (None: the hardware profile's)."""

    algorithm: Algorithm = MISSING
    latency_us: float | None = None


@dataclass(frozen=True, kw_only=True)
class AllReduceConfig:
    """job=allreduce: where the times of all-reduces come from."""

    import_log: str | None = None
    """A log of nccl-tests' all_reduce_perf."""


@dataclass(frozen=True, kw_only=True)
class AttributionConfig:
    """How time is attributed."""

    group_by: GroupBy = GroupBy.component
    components: list[str] | None = None
    """Attribute only these components one by one; all other operations form the group `rest`."""
    layer_ranges: int = 6
    """Number of equal ranges of layers with group_by=layer_range."""
    max_exact_groups: int = 10
    """Up to so many groups every subset is timed; above, subsets are sampled."""
    permutations: int = 16
    """Sampled orders of the groups, above max_exact_groups."""


@dataclass(frozen=True, kw_only=True)
class MeasureConfig:
    """When a measurement may end."""

    half_width: float = 0.01
    """The 95% interval of the step's median is at most this share of it, to either side."""
    budget_s: float = 20.0
    """Seconds of replaying, after the first round, when it ends in any case, and says so."""
    min_rounds: int = 5
    max_rounds: int = 200


@dataclass(frozen=True, kw_only=True)
class SimulatorConfig:
    """One run."""

    job: Job = Job.breakdown
    replay: Replay = Replay.auto
    model: ModelConfig = MISSING
    recipe: Recipe = MISSING
    deployment: Deployment = field(default_factory=Deployment)
    routing: Routing = field(default_factory=Routing)
    hardware: Hardware = MISSING
    kernels: KernelsConfig = MISSING
    comm: CommConfig = MISSING
    allreduce: AllReduceConfig = field(default_factory=AllReduceConfig)
    attribution: AttributionConfig = field(default_factory=AttributionConfig)
    measure: MeasureConfig = field(default_factory=MeasureConfig)


def register() -> None:
    """Make the schema known to Hydra as `base_config`."""
    ConfigStore.instance().store(name="base_config", node=writable_schema(SimulatorConfig))


def similar_keys(key: str) -> list[str]:
    """Configuration keys that a misspelt one may have meant, best first."""
    return get_close_matches(key, dotted_keys(SimulatorConfig), n=3, cutoff=0.6)


def from_hydra(composed: DictConfig, overrides: Sequence[str] = ()) -> tuple[SimulatorConfig, list[str]]:
    """Turn a composed configuration into objects, once, at the start; the second part are notes on what was read.

    A model with a path is read from its file; fields among the user's `overrides` win over the file's.

    Raises:
        BadInputError: an override added a field that the schema does not have, or a file cannot be read.
    """
    path = None if OmegaConf.is_missing(composed.model, "path") else composed.model.path
    if not path and (path == "" or OmegaConf.is_missing(composed.model, "name")):
        must = "must name the config.json of a model, or the directory that holds it"
        raise BadInputError(Problem(key="model.path", value="", must=must))
    notes = _read_checkpoint(composed, overrides) if path else []
    try:
        config = OmegaConf.to_object(composed)
    except FrozenInstanceError as error:
        raise BadInputError(f"an override with + adds a field that nothing reads: {error}; remove the +") from None
    if not isinstance(config, SimulatorConfig):
        raise TypeError(f"the composed configuration is a {type(config).__name__}, not a SimulatorConfig")
    if config.recipe.name == FROM_CHECKPOINT and config.model.path is None:
        must = "reads a checkpoint's quantisation and needs model=from_hf model.path=..."
        raise BadInputError(Problem(key="recipe", value=FROM_CHECKPOINT, must=must))
    return config, notes


def _read_checkpoint(composed: DictConfig, overrides: Sequence[str]) -> list[str]:
    """Put the model, and the recipe unless another is named, that a checkpoint describes into `composed`.

    Raises:
        BadInputError: another model was chosen too, or the checkpoint cannot be read.
    """
    path = Path(composed.model.path)
    given = _given(composed.model, ModelConfig, "model", overrides)
    if all(entry.name in given for entry in fields(ModelSpec) if entry.default is MISSING_DEFAULT):
        must = "names a whole model; so does model=...: leave one of them out, or give model=from_hf"
        raise BadInputError(Problem(key="model.path", value=path, must=must))
    spec, notes = read_model_config(path)
    composed.model = OmegaConf.merge(writable_schema(ModelConfig), asdict(spec), given)
    if composed.recipe.name == FROM_CHECKPOINT:
        problems = model_problems(spec)
        if problems:
            raise BadInputError(*problems)
        given = _given(composed.recipe, Recipe, "recipe", overrides)
        recipe, more = read_recipe(path, spec)
        composed.recipe = OmegaConf.merge(writable_schema(Recipe), asdict(recipe), given)
        notes += more
    return notes


def _given(node: DictConfig, schema: type, group: str, overrides: Sequence[str]) -> dict[str, Any]:
    """Values that somebody gave: those that differ from the schema's own, and those that an override names."""
    named = {text.lstrip("+").partition("=")[0] for text in overrides}
    own = {entry.name: entry.default for entry in fields(schema)}
    given = {}
    for name in map(str, node):
        if not OmegaConf.is_missing(node, name):
            value = node[name]
            if value != own.get(name, MISSING_DEFAULT) or f"{group}.{name}" in named:
                given[name] = value
    return given


def validate(config: SimulatorConfig) -> None:
    """Check everything that can be checked without a GPU.

    Raises:
        BadInputError: every problem that was found.
    """
    problems = _not_finite(asdict(config), "")
    if not problems:
        # whether a deployment fits can be asked of a possible model alone
        problems = model_problems(config.model) or _deployment_problems(config)
        problems += [*hardware_problems(config.hardware), *_measurement_problems(config)]
    if problems:
        raise BadInputError(*problems)


def _not_finite(values: Mapping[str, Any], prefix: str) -> list[Problem]:
    """Every number of the configuration that is infinite or not a number."""
    problems = []
    for name, value in values.items():
        if isinstance(value, Mapping):
            problems += _not_finite(value, f"{prefix}{name}.")
        elif isinstance(value, float) and not isfinite(value):
            problems.append(Problem(key=prefix + name, value=value, must="must be a finite number"))
    return problems


def _at_least(key: str, value: float, least: float) -> list[Problem]:
    return [] if value >= least else [Problem(key=key, value=value, must=f"must be at least {least:g}")]


def _above_zero(key: str, value: float | None) -> list[Problem]:
    return [] if value is None or value > 0 else [Problem(key=key, value=value, must="must be above 0")]


def hardware_problems(hardware: Hardware) -> list[Problem]:
    """What cannot be true of any machine."""
    problems = []
    for name in ("num_gpus", "num_sms", "memory_gib", "l2_mb", "bandwidth_gbps"):
        problems += _above_zero(f"hardware.{name}", getattr(hardware, name))
    for dtype, peak in hardware.tflops.items():
        problems += _above_zero(f"hardware.tflops.{dtype}", peak)
    for name in ("read_efficiency", "compute_efficiency"):
        value = getattr(hardware, name)
        if not 0 < value <= 1:
            problems.append(Problem(key=f"hardware.{name}", value=value, must="must be a share above 0 and at most 1"))
    for name in ("node_us", "node_pdl_us"):
        problems += _at_least(f"hardware.{name}", getattr(hardware, name) or 0.0, 0)
    wire = hardware.interconnect
    problems += _at_least("hardware.interconnect.latency_us", wire.latency_us or 0.0, 0)
    return problems + _above_zero("hardware.interconnect.bandwidth_gbps", wire.bandwidth_gbps)


def _deployment_problems(config: SimulatorConfig) -> list[Problem]:
    deployment = config.deployment
    problems = []
    for name in ("tp", "batch", "context", "tokens_per_step"):
        problems += _at_least(f"deployment.{name}", getattr(deployment, name), 1)
    problems += _at_least("deployment.seed", deployment.seed, 0)
    for name in ("weight_layers", "cache_layers"):
        value = getattr(deployment, name)
        if value is not None:
            problems += _at_least(f"deployment.{name}", value, 1)
    problems = problems or _batch_problems(config)
    return problems or _tensor_parallel_problems(config)


def _batch_problems(config: SimulatorConfig) -> list[Problem]:
    """Whether the sequences of the batch, their contexts and their tokens go together."""
    deployment, limit = config.deployment, config.model.max_position_embeddings
    contexts = deployment.contexts
    if contexts is not None and not contexts:
        return [Problem(key="deployment.contexts", value=contexts, must="must name the context of each sequence")]
    if contexts is not None and deployment.batch not in (1, len(contexts)):
        must = f"has {len(contexts)} sequences and deployment.batch={deployment.batch}"
        return [Problem(key="deployment.contexts", value=contexts, must=must, suggestion="leave deployment.batch out")]
    key = "deployment.context" if contexts is None else "deployment.contexts"
    problems = []
    for context in sorted(set(deployment.sequence_contexts)):
        if context > limit:
            must = f"must be at most the model's max_position_embeddings={limit}"
            problems.append(Problem(key=key, value=context, must=must))
        if context < deployment.tokens_per_step:
            must = f"must hold the tokens of the step: at least deployment.tokens_per_step={deployment.tokens_per_step}"
            problems.append(Problem(key=key, value=context, must=must))
    tokens = deployment.num_sequences * deployment.tokens_per_step
    if tokens > MAX_TOKENS:
        single = deployment.tokens_per_step == 1
        what = "deployment.batch" if single else "deployment.batch x deployment.tokens_per_step"
        problems.append(Problem(key=what, value=tokens, must=f"must be at most {MAX_TOKENS}"))
    return problems


def _tensor_parallel_problems(config: SimulatorConfig) -> list[Problem]:
    """Why this tensor-parallel size cannot hold the model, with those that could."""
    reasons = refusals(config.model, config.recipe, config.deployment.tp)
    if not reasons:
        return []
    legal = legal_tp_sizes(config.model, config.recipe)
    if legal:
        sizes = ", ".join(map(str, legal))
        must = f"does not fit model {config.model.name}: " + "; ".join(refusal.reason for refusal in reasons)
        return [Problem(key="deployment.tp", value=config.deployment.tp, must=must, suggestion=f"use {sizes}")]
    return [
        Problem(
            key="model",
            value=config.model.name,
            must=f"does not fit recipe {config.recipe.name} at any tensor-parallel size: {refusal.reason}",
            suggestion="change model." + refusal.field.split(" ")[0] + " or take recipe=bf16",
        )
        for refusal in reasons
    ]


def _measurement_problems(config: SimulatorConfig) -> list[Problem]:
    attribution, measure = config.attribution, config.measure
    known = [component.value for component in Component]
    problems = [
        Problem(
            key="attribution.components",
            value=name,
            must="is no component",
            suggestion=f"components are {', '.join(known)}",
        )
        for name in attribution.components or []
        if name not in known
    ]
    problems += _at_least("attribution.layer_ranges", attribution.layer_ranges, 1)
    problems += _at_least("attribution.permutations", attribution.permutations, 4)
    problems += _at_least("measure.min_rounds", measure.min_rounds, 1)
    problems += _at_least("measure.max_rounds", measure.max_rounds, measure.min_rounds)
    if not 0 < measure.half_width < 1:
        problems.append(
            Problem(key="measure.half_width", value=measure.half_width, must="must be between 0 and 1, such as 0.01")
        )
    if measure.budget_s <= 0:
        problems.append(Problem(key="measure.budget_s", value=measure.budget_s, must="must be above 0 seconds"))
    if attribution.max_exact_groups > 12:
        must = "must be at most 12: 2^12 subsets are timed already"
        problems.append(Problem(key="attribution.max_exact_groups", value=attribution.max_exact_groups, must=must))
    if config.routing.exponent < 0:
        must = "must be 0 (uniform) or more"
        problems.append(Problem(key="routing.exponent", value=config.routing.exponent, must=must))
    if config.routing.path is not None and config.routing.distribution is not Distribution.file:
        problems.append(
            Problem(key="routing.path", value=config.routing.path, must="is read with routing.distribution=file alone")
        )
    if config.job is Job.allreduce and config.allreduce.import_log is None:
        must = "must name a log of all_reduce_perf: times are imported and fitted, not measured, in this version"
        problems.append(Problem(key="allreduce.import_log", value=None, must=must))
    if config.comm.latency_us is not None and config.comm.latency_us < 0:
        problems.append(
            Problem(key="comm.latency_us", value=config.comm.latency_us, must="must be 0 or more microseconds")
        )
    return problems
