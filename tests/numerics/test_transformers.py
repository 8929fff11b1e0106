"""Our step computes what transformers computes: next-token logits of scaled-down models with the same weights."""

import dataclasses

import pytest
import torch

from kernels.nvfp4 import dequantize_nvfp4, quantize_nvfp4
from tests.numerics.decode import decode
from tests.numerics.models import configurations, random_model, spec_of

transformers = pytest.importorskip("transformers", reason="the comparison needs transformers (pip install '.[test]')")

NAMES = list(configurations(transformers))
LENGTH = 28
"""Positions: below and above the indexer's top-k of 12."""

TRANSFORMERS_LATENT_EPS = 1e-6
"""transformers builds the latents' norms with its default; engines give them rms_norm_eps (FACTS of the model)."""


def sequences(count, vocab):
    generator = torch.Generator().manual_seed(7)
    return torch.randint(0, vocab, (count, LENGTH), generator=generator).tolist()


def expected_logits(model, prompts):
    with torch.no_grad():
        return torch.cat([model(input_ids=torch.tensor([prompt]), use_cache=False).logits for prompt in prompts])


def relative_error(found, expected):
    return float((found - expected).norm() / expected.norm())


@pytest.mark.parametrize("name", NAMES)
def test_logits_equal_in_float32(name, tmp_path):
    """Several sequences of different length in one batch, every position, token by token from an empty cache."""
    model = random_model(name, transformers)
    spec = dataclasses.replace(spec_of(model, tmp_path), latent_norm_eps=TRANSFORMERS_LATENT_EPS)
    prompts = sequences(3, spec.vocab_size)
    found = decode(spec, model.state_dict(), prompts, lag=4)
    expected = expected_logits(model, prompts)
    for position in range(LENGTH):
        assert relative_error(found[:, position], expected[:, position]) < 1e-5, position
    assert torch.equal(found.argmax(-1), expected.argmax(-1))


@pytest.mark.parametrize("name", NAMES)
def test_logits_agree_in_bfloat16(name, tmp_path):
    """Rounding alone separates BF16 from float32; the bound is what eight bits of mantissa leave after three layers.

    Where rounding changes the choice of an expert or of a position, a whole row differs: so the median is held.
    """
    model = random_model(name, transformers)
    with torch.no_grad():
        for tensor in model.state_dict().values():
            tensor.copy_(tensor.to(torch.bfloat16))
    spec = dataclasses.replace(spec_of(model, tmp_path), latent_norm_eps=TRANSFORMERS_LATENT_EPS)
    prompts = sequences(2, spec.vocab_size)
    found = decode(spec, model.state_dict(), prompts, activation="bf16")
    expected = expected_logits(model, prompts)
    errors = (found - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert errors.median() < 3e-2
    top_two = expected.topk(2, dim=-1).values
    is_clear = (top_two[..., 0] - top_two[..., 1]) > 4 * errors * expected.std(dim=-1)
    assert is_clear.float().mean() > 0.3
    agree = (found.argmax(-1) == expected.argmax(-1))[is_clear & (errors < 3e-2)]
    assert agree.all()


@pytest.mark.parametrize("name", ["glm_moe_dsa", "deepseek_v3", "qwen3_moe"])
def test_logits_equal_with_nvfp4_weights(name, tmp_path):
    """The same quantised weights: packed in our step, dequantised in theirs."""
    model = random_model(name, transformers)
    with torch.no_grad():
        for key, tensor in model.state_dict().items():
            if ".mlp." in key and "gate.weight" not in key and tensor.dim() > 1:
                fuse_scales(model.state_dict(), key, tensor)
    spec = dataclasses.replace(spec_of(model, tmp_path), latent_norm_eps=TRANSFORMERS_LATENT_EPS)
    prompts = sequences(2, spec.vocab_size)
    found = decode(spec, model.state_dict(), prompts, recipe_name="nvidia_glm5")
    expected = expected_logits(model, prompts)
    assert relative_error(found, expected) < 1e-5
    assert torch.equal(found.argmax(-1), expected.argmax(-1))


def fuse_scales(state, key, tensor):
    """Round a weight to what NVFP4 can hold, so that quantising it again gives the same codes and scales.

    Gate and up share one tensor scale in our fused matrix, so they are rounded together.
    """
    if "up_proj" in key and "gate_up" not in key:
        return
    if key.endswith("gate_proj.weight"):
        up = state[key.replace("gate_proj", "up_proj")]
        both = stable(torch.cat([tensor, up]))
        tensor.copy_(both[: len(tensor)])
        up.copy_(both[len(tensor) :])
    else:
        tensor.copy_(stable(tensor))


def stable(values):
    """Values that survive quantisation unchanged: quantised until they no longer move."""
    for _ in range(4):
        values = dequantize_nvfp4(quantize_nvfp4(values.contiguous()))
    assert torch.equal(dequantize_nvfp4(quantize_nvfp4(values)), values)
    return values


def test_the_latent_norm_follows_the_engines_unless_told_otherwise(tmp_path):
    model = random_model("glm_moe_dsa", transformers)
    assert spec_of(model, tmp_path).latent_norm_eps is None
