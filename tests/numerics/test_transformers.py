"""Our step computes what transformers computes: next-token logits of scaled-down models with the same weights."""

import pytest
import torch

from tests.numerics.decode import decode, generate
from tests.numerics.models import comparison, configurations, random_model, spec_of
from tests.numerics.rounding import round_weights

transformers = pytest.importorskip("transformers", reason="the comparison needs transformers (pip install '.[test]')")

NAMES = list(configurations(transformers))
LENGTH = 28
"""Positions: below and above the indexer's top-k of 12."""

NUM_TOKENS_VERIFIED = 7
"""Of one step: the second step has tokens on both sides of the top-k."""


def random_tokens(count, length, vocab):
    generator = torch.Generator().manual_seed(7)
    return torch.randint(0, vocab, (count, length), generator=generator).tolist()


def expected_logits(model, prompts):
    with torch.no_grad():
        return torch.cat([model(input_ids=torch.tensor([prompt]), use_cache=False).logits for prompt in prompts])


def row_errors(found, expected):
    return (found - expected).norm(dim=-1) / expected.norm(dim=-1)


def assert_equal_logits(found, expected):
    """Every position of every sequence by itself."""
    assert row_errors(found, expected).max() < 1e-5
    assert torch.equal(found.argmax(-1), expected.argmax(-1))


@pytest.mark.parametrize("name", NAMES)
def test_logits_equal_in_float32(name, tmp_path):
    """Several sequences of different length in one batch, every position, token by token from an empty cache."""
    model, spec = comparison(name, transformers, tmp_path)
    prompts = random_tokens(3, LENGTH, spec.vocab_size)
    found = decode(spec, model.state_dict(), prompts, lag=4)
    assert_equal_logits(found, expected_logits(model, prompts))


@pytest.mark.parametrize("name", NAMES)
def test_greedy_text_is_what_transformers_generates_with_its_own_cache(name, tmp_path):
    """Prompts of different length in one batch of ours; one by one through prefill, cache and decode of theirs."""
    model, spec = comparison(name, transformers, tmp_path)
    prompts = [prompt[:length] for prompt, length in zip(random_tokens(3, 14, 320), (3, 8, 14), strict=True)]
    texts, found = generate(spec, model.state_dict(), prompts, num_tokens=10)
    for index, prompt in enumerate(prompts):
        text, expected = generated(model, prompt, num_tokens=10)
        assert texts[index] == text
        assert_equal_logits(found[index], expected)


def generated(model, prompt, num_tokens):
    cache, fed, text, logits = None, prompt, [], []
    with torch.no_grad():
        for _ in range(num_tokens):
            out = model(input_ids=torch.tensor([fed]), cache=cache, use_cache=True)
            cache = out.past_key_values
            logits.append(out.logits[0, -1])
            fed = [int(logits[-1].argmax())]
            text += fed
    return text, torch.stack(logits)


@pytest.mark.parametrize("name", ["glm_moe_dsa", "glm_moe_dsa-shared", "deepseek_v3", "qwen3_moe"])
def test_several_tokens_a_step_are_verified_as_one_by_one(name, tmp_path):
    """Each token sees the cache and the tokens before it in its step, in a batch of different contexts."""
    model, spec = comparison(name, transformers, tmp_path)
    prompts = random_tokens(3, LENGTH, spec.vocab_size)
    found = decode(spec, model.state_dict(), prompts, lag=1, tokens_per_step=NUM_TOKENS_VERIFIED)
    assert_equal_logits(found, expected_logits(model, prompts))


@pytest.mark.parametrize("name", NAMES)
def test_logits_agree_in_bfloat16(name, tmp_path):
    """Our step in BF16 is as near to float32 as transformers' own BF16 is: rounding alone separates them.

    Where rounding changes the choice of an expert or of a position a whole row differs, in either, so that medians are
    compared. The likeliest token must be the same in every other row where it leads by more than rounding takes back.
    """
    model, spec = comparison(name, transformers, tmp_path, prepare=round_to_bfloat16)
    prompts = random_tokens(3, LENGTH, spec.vocab_size)
    found = decode(spec, model.state_dict(), prompts, lag=4, activation="bf16")
    expected = expected_logits(model, prompts)
    errors = row_errors(found, expected)
    theirs = row_errors(expected_logits(model.bfloat16(), prompts).float(), expected)
    assert errors.median() < 3e-2
    assert errors.median() < 1.3 * theirs.median()
    best, second = expected.topk(2, dim=-1).values.unbind(-1)
    # errors of up to 3% of a row in two of its entries, each three times as large as the row's average one
    is_clear = (errors < 3e-2) & (best - second > 6 * 3e-2 * expected.std(dim=-1))
    assert is_clear.float().mean() > 0.3
    assert torch.equal(found.argmax(-1)[is_clear], expected.argmax(-1)[is_clear])


def round_to_bfloat16(state):
    for tensor in state.values():
        tensor.copy_(tensor.to(torch.bfloat16))


@pytest.mark.parametrize("name", ["glm_moe_dsa", "deepseek_v3", "deepseek_v32", "glm4_moe", "qwen3_moe"])
@pytest.mark.parametrize("recipe_name", ["nvidia_glm5", "all_linear", "fp8"])
def test_logits_equal_with_quantised_weights(name, recipe_name, tmp_path):
    """The same quantised weights: packed in our step, dequantised to float32 in theirs."""
    part = ".mlp." if recipe_name == "nvidia_glm5" else None
    changed = []

    def prepare(state):
        changed.append(round_weights(state, "fp8" if recipe_name == "fp8" else "nvfp4", part))

    model, spec = comparison(name, transformers, tmp_path, prepare=prepare)
    assert changed[0] > 0.02
    prompts = random_tokens(2, LENGTH, spec.vocab_size)
    found = decode(spec, model.state_dict(), prompts, lag=4, chosen=recipe_name)
    assert_equal_logits(found, expected_logits(model, prompts))


def test_the_latent_norm_follows_the_engines_unless_told_otherwise(tmp_path):
    """The one place where the step departs from transformers by default, and what it does to the logits."""
    model = random_model("glm_moe_dsa", transformers)
    spec = spec_of(model, tmp_path)
    assert spec.latent_norm_eps is None
    prompts = random_tokens(1, LENGTH, spec.vocab_size)
    found = decode(spec, model.state_dict(), prompts)
    assert row_errors(found, expected_logits(model, prompts)).median() > 1e-4
