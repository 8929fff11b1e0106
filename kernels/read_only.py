"""Read every byte of a tensor as fast as the card can: its time is the measured read bandwidth.

    out[p] = xor of the 32-bit words that program p reads

The words are xor-ed because that is the cheapest use that the compiler cannot leave out; the xor of `out` is the xor of
the tensor, whatever the number of programs.

    x    any shape and dtype, contiguous, 16-byte aligned, a multiple of 16 bytes
    out  [P]  int32, contiguous

Letters: P programs (`read_only_programs`), of which all should be resident at once.
"""

import numpy as np
import torch
import triton
import triton.language as tl

from kernels.launch import enter_grid, launch_options, require

BLOCK = 4096
"""Words of one iteration: four 16-byte loads a thread in flight at 8 warps."""

NUM_WARPS = 8

PROGRAMS_PER_SM = 4
"""What fits at the 64 registers a thread that the unrolled loop takes (test_offline_compile holds it to that).

At least 64 KiB are in flight an SM; 4.8 TB/s over 132 SMs at a latency of 1 us need 36 KB.
"""


def read_only_programs(num_sms: int) -> int:
    """Programs of one wave: the size of `out`."""
    return num_sms * PROGRAMS_PER_SM


def read_only_reference(x: torch.Tensor, num_programs: int) -> torch.Tensor:
    """Words int32 [P]: tile t of BLOCK words belongs to program t mod P."""
    words = x.reshape(-1).view(torch.int32)
    out = np.zeros(num_programs, dtype=np.int32)
    for i_tile, tile in enumerate(words.split(BLOCK)):
        out[i_tile % num_programs] ^= np.bitwise_xor.reduce(tile.cpu().numpy())
    return torch.from_numpy(out).to(x.device)


@triton.jit
def _read_only_kernel(p_x, p_out, num_words, BLOCK: tl.constexpr, PDL: tl.constexpr):
    """Program p reads every P-th tile, so that all programs together walk through the tensor in order."""
    enter_grid(PDL)
    i_p = tl.program_id(0)
    num_programs = tl.num_programs(0)
    o_w = tl.arange(0, BLOCK)
    num_full = num_words // BLOCK
    b_words = tl.zeros((BLOCK,), dtype=tl.int32)
    p_tile = p_x + i_p.to(tl.int64) * BLOCK + o_w
    for _ in range(i_p, num_full, num_programs):
        b_words ^= tl.load(p_tile)  # [BLOCK]
        p_tile += num_programs.to(tl.int64) * BLOCK
    # the program whose turn is next has arrived at the tail
    if num_full % num_programs == i_p:
        in_tail = o_w < num_words % BLOCK
        b_words ^= tl.load(p_tile, mask=in_tail, other=0)  # [BLOCK]
    tl.store(p_out + i_p, tl.xor_sum(b_words, axis=0))


def read_only(*, x: torch.Tensor, out: torch.Tensor, pdl: bool = False) -> None:
    """Read all of x, and write one word a program into `out`.

    Shapes: x contiguous, of any dtype and shape, 16-byte aligned and a multiple of 16 bytes; out int32 [P], P > 0.
    Raises: ValueError for any other shape, dtype or layout.
    """
    require(x.is_contiguous(), f"argument x must be contiguous; got strides {x.stride()}")
    num_bytes = x.numel() * x.element_size()
    require(num_bytes % 16 == 0, f"argument x must be a multiple of 16 bytes; got {num_bytes}")
    require(x.data_ptr() % 16 == 0, f"argument x must be 16-byte aligned; got address {x.data_ptr():#x}")
    require(
        out.dim() == 1 and out.numel() > 0 and out.dtype == torch.int32 and out.is_contiguous(),
        f"argument out must be contiguous int32 [P] with P > 0; got {out.dtype} {list(out.shape)}",
    )
    _read_only_kernel[(out.numel(),)](
        x.reshape(-1).view(torch.int32),
        out,
        num_bytes // 4,
        BLOCK=BLOCK,
        PDL=pdl,
        num_warps=NUM_WARPS,
        **launch_options(pdl=pdl),
    )
