"""Per-rank sizes, legal tensor-parallel sizes, and what engines pad."""

import pytest

from simulator.shapes import legal_tp_sizes, rank_shapes, refusals
from tests.configs import model, recipe


def test_glm5_at_tp8_has_the_sizes_engines_use():
    shapes = rank_shapes(model("glm5"), recipe("nvidia_glm5"), 8)
    assert (shapes.num_heads_local, shapes.q_b_width_local, shapes.o_proj_input_local) == (8, 2048, 2048)
    assert (shapes.qkv_a_width, shapes.dense_width_local, shapes.expert_width_local) == (2624, 1536, 256)
    assert (shapes.vocab_local, shapes.vocab_padded) == (19_360, 154_880)


def test_a_rank_cannot_hold_part_of_an_fp4_block():
    odd = model("glm5", moe_intermediate_size=1856)
    (refusal,) = refusals(odd, recipe("experts_only"), 8)
    assert refusal.reason == "moe_intermediate_size=1856 / 8 = 232 must be a multiple of the NVFP4 block 16"
    assert legal_tp_sizes(odd, recipe("experts_only")) == [1, 2, 4]


def test_without_fp4_the_same_width_is_legal():
    assert not refusals(model("glm5", moe_intermediate_size=1856), recipe("bf16"), 8)


def test_an_expert_width_of_five_blocks_is_legal_and_padded_to_whole_tiles():
    shapes = rank_shapes(model("glm5", moe_intermediate_size=640), recipe("experts_only"), 8)
    assert (shapes.expert_width_unpadded_local, shapes.expert_width_local) == (80, 128)


@pytest.mark.parametrize(
    ("vocab", "tp", "padded"),
    [(154_880, 8, 154_880), (154_881, 8, 155_136), (49_954, 8, 50_176), (151_936, 1, 151_936)],
)
def test_a_vocabulary_is_padded_only_where_ranks_or_tiles_do_not_divide_it(vocab, tp, padded):
    shapes = rank_shapes(model("glm5", vocab_size=vocab), recipe("bf16"), tp)
    assert shapes.vocab_padded == padded == shapes.vocab_local * tp


def test_hidden_size_must_hold_whole_blocks_at_any_tp():
    assert legal_tp_sizes(model("glm5", hidden_size=6152), recipe("nvidia_glm5")) == []


def test_an_illegal_size_names_the_legal_ones():
    with pytest.raises(ValueError, match=r"num_attention_heads=64 / 3 = 21.3333 is not whole.*legal sizes: \[1, 2, 4"):
        rank_shapes(model("glm5"), recipe("bf16"), 3)
