"""What every part of a step's build looks up: model, recipe, deployment, this rank's shapes, routing. No torch."""

from dataclasses import dataclass

from simulator.deployment import Deployment
from simulator.model import ModelSpec
from simulator.recipe import Recipe
from simulator.routing import ExpertIds, Routing
from simulator.shapes import RankShapes
from simulator.step.draft import Draft


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What every part of the build needs to look up."""

    draft: Draft
    model: ModelSpec
    recipe: Recipe
    deployment: Deployment
    shapes: RankShapes
    routing: Routing
    expert_ids: ExpertIds
    slots_per_sequence: int

    @property
    def attends_to_all(self) -> bool:
        """Whether the context is short enough that an indexer has nothing to choose."""
        return not self.model.has_indexer or self.deployment.max_context <= self.model.index_topk

    @property
    def keys_per_token(self) -> int:
        """Cached positions that attention reads for one token at most."""
        return self.keys_of(self.deployment.max_context)

    @property
    def num_keys(self) -> int:
        """The same, summed over all tokens."""
        return sum(map(self.keys_of, self.deployment.token_contexts))

    @property
    def num_slots(self) -> int:
        """Rows of a layer's cache."""
        return self.deployment.num_sequences * self.slots_per_sequence

    def keys_of(self, context: int) -> int:
        """Positions that attention reads of a context."""
        return min(context, self.model.index_topk or context)

    def weight_layer(self, layer: int) -> int:
        """The layer whose weights this layer uses: layers of one kind share in turn when not all are held."""
        held = self.deployment.weight_layers or self.model.num_hidden_layers
        first = 0 if self.model.is_dense(layer) else self.model.num_dense_layers
        return first + (layer - first) % held

    def cache_layer(self, layer: int) -> int:
        """The layer whose caches this layer uses."""
        return layer % (self.deployment.cache_layers or self.model.num_hidden_layers)
