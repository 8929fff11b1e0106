"""Decoding token by token with our step, from an empty cache."""

import torch

from simulator.comm.local import LocalCollectives
from simulator.deployment import Deployment
from simulator.routing import Distribution, Routing
from simulator.step.build import build_step
from simulator.step.memory import allocate
from simulator.step.reference import bind_reference
from tests.configs import recipe
from tests.numerics.weights import load, rank_weights

FROM_ROUTER = Routing(distribution=Distribution.from_router)


def prepared(spec, state, *, batch, context, activation="fp32", recipe_name="bf16", tp=1, rank=0, collectives=None):
    """Step, memory and launches of one rank, with the weights of `state`; caches hold garbage until written."""
    chosen = recipe(recipe_name, index_cache="bf16")
    deployment = Deployment(tp=tp, batch=batch, context=context)
    step = build_step(spec, chosen, deployment, FROM_ROUTER, activation=activation, tp_rank=rank)
    memory = allocate(step, torch.device("cpu"), seed=0)
    load(memory, rank_weights(spec, state, rank, tp))
    launches = bind_reference(step, memory, collectives or LocalCollectives(tp_size=tp, rank=rank))
    return step, memory, launches


def set_inputs(memory, tokens, positions):
    """Which token each sequence feeds, and where it stands."""
    batch = len(tokens)
    slots_per_sequence = slots_of(memory) // batch
    memory.buffers["tokens"].copy_(torch.tensor(tokens))
    memory.buffers["positions"].copy_(torch.tensor(positions))
    memory.buffers["context_lengths"].copy_(torch.tensor(positions) + 1)
    memory.buffers["slots"].copy_(torch.arange(batch) * slots_per_sequence + torch.tensor(positions))


def slots_of(memory):
    name = next(name for name in memory.buffers if name.endswith(("kv_cache", "key_cache")))
    return memory.buffers[name].shape[0]


def decode(spec, state, sequences, *, lag=0, **options):
    """Logits [sequence, position, vocabulary] of feeding the sequences token by token in one batch.

    Sequence i starts `i * lag` steps late (repeating its first token until then), so that contexts differ in a batch.
    """
    length = len(sequences[0])
    _, memory, launches = prepared(spec, state, batch=len(sequences), context=length, **options)
    logits = torch.full((len(sequences), length, spec.vocab_size), float("nan"))
    for time in range(length + lag * (len(sequences) - 1)):
        positions = [min(max(time - index * lag, 0), length - 1) for index in range(len(sequences))]
        set_inputs(memory, [seq[p] for seq, p in zip(sequences, positions, strict=True)], positions)
        for launch in launches:
            launch()
        for index, position in enumerate(positions):
            logits[index, position] = memory.buffers["logits"][index, : spec.vocab_size]
    assert not logits.isnan().any()
    return logits
