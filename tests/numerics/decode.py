"""Decoding with our step from an empty cache: the driver that moves positions, slots and tokens between steps."""

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


def prepared(
    spec, state, *, batch, context, activation="fp32", chosen="bf16", tp=1, rank=0, collectives=None, tokens_per_step=1
):
    """Step, memory and launches of one rank, with the weights of `state`; caches hold garbage until written.

    `chosen` is a recipe, or the name of a shipped one; index keys are not quantised, as in transformers.
    """
    if isinstance(chosen, str):
        chosen = recipe(chosen, index_cache="bf16")
    deployment = Deployment(tp=tp, batch=batch, context=context, tokens_per_step=tokens_per_step)
    step = build_step(spec, chosen, deployment, FROM_ROUTER, activation=activation, tp_rank=rank)
    memory = allocate(step, torch.device("cpu"), seed=0)
    load(memory, rank_weights(spec, state, rank, tp), whole=rank_weights(spec, state))
    launches = bind_reference(step, memory, collectives or LocalCollectives(tp_size=tp, rank=rank))
    return step, memory, launches


def set_inputs(memory, tokens, positions):
    """Which tokens each sequence feeds, and where they stand: [sequence] or [sequence, token of the step]."""
    tokens, positions = torch.tensor(tokens), torch.tensor(positions)
    batch = len(tokens)
    first_slots = (torch.arange(batch) * (slots_of(memory) // batch)).view(-1, *[1] * (positions.dim() - 1))
    memory.buffers["tokens"].copy_(tokens.flatten())
    memory.buffers["positions"].copy_(positions.flatten())
    memory.buffers["context_lengths"].copy_(positions.flatten() + 1)
    memory.buffers["slots"].copy_((first_slots + positions).flatten())


def slots_of(memory):
    name = next(name for name in memory.buffers if name.endswith(("kv_cache", "key_cache")))
    return memory.buffers[name].shape[0]


def run(memory, launches, tokens, positions):
    """One step; logits [token, padded vocabulary], valid until the next."""
    set_inputs(memory, tokens, positions)
    for launch in launches:
        launch()
    return memory.buffers["logits"]


def decode(spec, state, sequences, *, lag=0, tokens_per_step=1, **options):
    """Logits [sequence, position, vocabulary] of feeding the sequences in one batch, `tokens_per_step` at a time.

    Sequence i starts `i * lag` steps late (repeating its first step until then), so that contexts differ in a batch.
    """
    length = len(sequences[0])
    num_steps = length // tokens_per_step
    assert num_steps * tokens_per_step == length
    _, memory, launches = prepared(
        spec, state, batch=len(sequences), context=length, tokens_per_step=tokens_per_step, **options
    )
    logits = torch.full((len(sequences), length, spec.vocab_size), float("nan"))
    for time in range(num_steps + lag * (len(sequences) - 1)):
        turns = [min(max(time - index * lag, 0), num_steps - 1) for index in range(len(sequences))]
        positions = [list(range(turn * tokens_per_step, (turn + 1) * tokens_per_step)) for turn in turns]
        tokens = [[sequence[p] for p in now] for sequence, now in zip(sequences, positions, strict=True)]
        found = run(memory, launches, tokens, positions).view(len(sequences), tokens_per_step, -1)
        for index, now in enumerate(positions):
            logits[index, now] = found[index, :, : spec.vocab_size]
    assert not logits.isnan().any()
    return logits


def generate(spec, state, prompts, num_tokens, **options):
    """Greedy continuations [sequence][token] of prompts of any length, and the logits of each choice.

    Prompts end together: a shorter one waits at its first token, and then stands at another position than the others.
    """
    longest = max(map(len, prompts))
    _, memory, launches = prepared(spec, state, batch=len(prompts), context=longest + num_tokens, **options)
    sequences, logits = [list(prompt) for prompt in prompts], []
    for time in range(longest + num_tokens - 1):
        positions = [max(time - longest + len(prompt), 0) for prompt in prompts]
        tokens = [sequence[position] for sequence, position in zip(sequences, positions, strict=True)]
        found = run(memory, launches, tokens, positions)
        if time >= longest - 1:
            logits.append(found[:, : spec.vocab_size].clone())
            for sequence, token in zip(sequences, memory.buffers["sampled"].tolist(), strict=True):
                sequence.append(token)
    continuations = [sequence[len(prompt) :] for sequence, prompt in zip(sequences, prompts, strict=True)]
    return continuations, torch.stack(logits, dim=1)
