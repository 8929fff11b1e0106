"""Time the kernels of a decode step at GLM-5's shapes (one rank of eight) and compare each with what the card can do.

Usage: PYTHONPATH=. python scripts/bench_kernels.py [--json FILE] [--peers] [--only TEXT] [--tokens 1 8]
Each kernel runs as a chain in one CUDA graph with programmatic dependent launch, over copies of its weights that add up
to more than L2 holds. Beside it, in the same way: a kernel that only reads the same bytes, cuBLAS with BF16 weights
(torch.mm), for the top-k torch.topk, and with --peers humming-kernels where it is installed. All are replayed in turn,
so that a drifting clock meets all alike; printed are medians.

Columns: us a launch; GB/s of the weight's bytes; time over that of the read-only kernel; time of cuBLAS (or torch.topk)
over that of the kernel; error ||out - ref|| / ||ref|| against float32, of which rounding to BF16 alone is 1.7e-3.
Needs a CUDA GPU.
"""

import argparse
import json
import platform
import statistics
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path

import torch
import triton

from kernels.dispatch import dispatch
from kernels.expert_gemm import expert_gemm, expert_gemm_reference
from kernels.gemm import gemm, gemm_reference
from kernels.index_topk import index_topk, index_topk_reference
from kernels.nvfp4 import Nvfp4Tensor, random_nvfp4
from kernels.read_only import read_only, read_only_programs
from kernels.tiling import dispatch_max_tiles, expert_tile_rows, index_topk_workspace_size

ROTATED_BYTES = 220_000_000
"""Bytes of all copies of a weight: several times the L2 of H200 (50 MB) and B200 (126 MB)."""

MIN_CHAIN = 32
REPLAYS = 15
EXPERTS = 256
CHOSEN = 8
TOPK = 2048

Launch = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One kernel at one shape: the chain of its launches, those of its peers, and the error of its result."""

    kernel: str
    shape: str
    tokens: int
    num_bytes: int
    launches: list[Launch]
    peers: dict[str, list[Launch]]
    error: float


@dataclass(slots=True, kw_only=True)
class Row:
    """One line of the table; times in microseconds a launch."""

    kernel: str
    shape: str
    tokens: int
    num_bytes: int
    us: float
    read_only_us: float
    error: float
    peers_us: dict[str, float] = field(default_factory=dict)


def capture(launches: list[Launch]) -> torch.cuda.CUDAGraph:
    """A graph of the launches, each after the one before it; all have run once, so that they are compiled."""
    for launch in launches:
        launch()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for launch in launches:
            launch()
    return graph


def median_us(chains: dict[str, list[Launch]]) -> dict[str, float]:
    """Microseconds a launch of each chain, the chains replayed in turn."""
    graphs = {name: capture(launches) for name, launches in chains.items()}
    samples: dict[str, list[float]] = {name: [] for name in chains}
    for i_replay in range(REPLAYS + 2):
        for name, graph in graphs.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            graph.replay()
            end.record()
            end.synchronize()
            if i_replay >= 2:
                samples[name].append(start.elapsed_time(end) * 1e3 / len(chains[name]))
    return {name: statistics.median(values) for name, values in samples.items()}


def num_copies(num_bytes: int) -> int:
    """Copies of a weight that together pass L2."""
    return max(2, -(-ROTATED_BYTES // num_bytes))


def rotated(launches: list[Launch]) -> list[Launch]:
    """A chain over all copies, long enough for the graph's own start not to count."""
    return launches * -(-MIN_CHAIN // len(launches))


def relative_error(out: torch.Tensor, expected: torch.Tensor) -> float:
    """||out - expected|| / ||expected||."""
    return ((out.float() - expected).norm() / expected.norm()).item()


def random_rows(tokens: int, width: int) -> torch.Tensor:
    """Standard normal BF16 rows."""
    return torch.randn(tokens, width, device="cuda").bfloat16()


def cublas(x: torch.Tensor, n: int) -> list[Launch]:
    """torch.mm over BF16 weights of the shape, rotating."""
    num_bytes = 2 * n * x.shape[1]
    weights = [random_rows(n, x.shape[1]) for _ in range(num_copies(num_bytes))]
    out = torch.empty(x.shape[0], n, dtype=x.dtype, device=x.device)
    return rotated([partial(torch.mm, x, weight.T, out=out) for weight in weights])


def reading(num_bytes: int) -> list[Launch]:
    """The read-only kernel over buffers of as many bytes, rotating."""
    sms = torch.cuda.get_device_properties(0).multi_processor_count
    out = torch.empty(read_only_programs(sms), dtype=torch.int32, device="cuda")
    words = -(-num_bytes // 16) * 4
    copies = [torch.ones(words, dtype=torch.int32, device="cuda") for _ in range(num_copies(num_bytes))]
    return rotated([partial(read_only, x=x, out=out, pdl=True) for x in copies])


def humming(x: torch.Tensor, weights: list[torch.Tensor]) -> list[Launch]:
    """humming-kernels' NVFP4 layer over weights quantised by itself."""
    from humming.layer import HummingLayer  # noqa: PLC0415 - a peer that need not be installed

    n, k = weights[0].shape
    launches = []
    for weight in weights:
        layer = HummingLayer(n, k, weight_config={"dtype": "float4e2m1", "group_size": 16}, torch_dtype=x.dtype)
        layer = layer.to(x.device)
        layer.load_from_unquantized(weight)
        layer.finish_load()
        launches.append(partial(layer, x))
    return rotated(launches)


def gemm_case(name: str, n: int, k: int, tokens: int, *, nvfp4: bool, peers: bool) -> Case:
    """kernels/gemm.py with an NVFP4 or a BF16 weight [n, k]."""
    x = random_rows(tokens, k)
    out = torch.empty(tokens, n, dtype=x.dtype, device="cuda")
    num_bytes = n * k * 9 // 16 if nvfp4 else 2 * n * k
    weights: list[torch.Tensor | Nvfp4Tensor] = [
        random_nvfp4((n, k), std=k**-0.5, generator=None, device="cuda")
        if nvfp4
        else (torch.randn(n, k, device="cuda") * k**-0.5).bfloat16()
        for _ in range(num_copies(num_bytes))
    ]
    gemm(x=x, weight=weights[0], out=out)
    others = {"cublas_bf16": cublas(x, n)}
    if peers and nvfp4:
        try:
            others["humming"] = humming(x, [random_rows(n, k) for _ in range(num_copies(num_bytes))])
        except (ImportError, RuntimeError, TypeError, ValueError, AttributeError) as error:
            print(f"humming-kernels is left out: {type(error).__name__}: {error}", file=sys.stderr)
    return Case(
        kernel=name,
        shape=f"{n} x {k}",
        tokens=tokens,
        num_bytes=num_bytes,
        launches=rotated([partial(gemm, x=x, weight=weight, out=out, pdl=True) for weight in weights]),
        peers=others,
        error=relative_error(out, gemm_reference(x=x, weight=weights[0])),
    )


def expert_case(name: str, n: int, k: int, tokens: int, *, of_tokens: bool) -> Case:
    """kernels/expert_gemm.py: each launch of the chain uses other experts, all 256 in turn."""
    rows = tokens * CHOSEN
    x = random_rows(tokens if of_tokens else rows, k)
    rows_per_token = CHOSEN if of_tokens else 1
    weight = random_nvfp4((EXPERTS, n, k), std=k**-0.5, generator=None, device="cuda")
    tile_rows = expert_tile_rows(tokens, CHOSEN, EXPERTS)
    max_tiles = dispatch_max_tiles(tokens, CHOSEN, EXPERTS, tile_rows)
    out = torch.empty(rows, n, dtype=x.dtype, device="cuda")
    copies = max(1, -(-ROTATED_BYTES // weight.num_bytes))
    weights = [weight] + [
        random_nvfp4((EXPERTS, n, k), std=1.0, generator=None, device="cuda") for _ in range(copies - 1)
    ]
    launches, error, distinct = [], 0.0, []
    for i_set in range(max(1, EXPERTS // rows)):
        order = torch.randperm(EXPERTS, generator=torch.Generator().manual_seed(0))
        ids = order.roll(-i_set * rows)[:rows].view(tokens, CHOSEN).to(torch.int32).cuda()
        tiles = {
            "sorted_rows": torch.empty(max_tiles * tile_rows, dtype=torch.int32, device="cuda"),
            "tile_experts": torch.empty(max_tiles, dtype=torch.int32, device="cuda"),
        }
        dispatch(expert_ids=ids, num_experts=EXPERTS, tile_rows=tile_rows, **tiles)
        distinct.append(ids.unique().numel())
        for each in weights:
            launches.append(
                partial(
                    expert_gemm, x=x, weight=each, **tiles, tile_rows=tile_rows, rows_per_token=rows_per_token, out=out,
                    pdl=True,
                )
            )  # fmt: skip
        if i_set == 0:
            launches[0]()
            chosen = ids.long().flatten()
            few = Nvfp4Tensor(
                codes=weight.codes[chosen], block_scales=weight.block_scales.view(torch.uint8)[chosen].view(
                    torch.float8_e4m3fn
                ), tensor_scale=weight.tensor_scale[chosen],
            )  # fmt: skip
            places = torch.arange(rows, dtype=torch.int32, device="cuda").view(tokens, CHOSEN)
            expected = expert_gemm_reference(x=x, weight=few, expert_ids=places, rows_per_token=rows_per_token)
            error = relative_error(out, expected)
    return Case(
        kernel=name,
        shape=f"{distinct[0]} experts, {n} x {k}",
        tokens=tokens,
        num_bytes=distinct[0] * n * k * 9 // 16,
        launches=rotated(launches),
        peers={},
        error=error,
    )


def topk_case(positions: int, tokens: int) -> Case:
    """kernels/index_topk.py; the error is the share of wrong positions."""
    copies = [torch.randn(tokens, positions, device="cuda") for _ in range(8)]
    context = torch.full((tokens,), positions, dtype=torch.int32, device="cuda")
    selected = torch.full((tokens, TOPK), -7, dtype=torch.int32, device="cuda")
    size = index_topk_workspace_size(tokens, positions, TOPK)
    workspace = torch.empty(size, dtype=torch.int32, device="cuda")
    launch = partial(index_topk, context_lengths=context, selected=selected, workspace=workspace)
    launch(logits=copies[0])
    expected = index_topk_reference(copies[0], context, TOPK)
    values, ids = torch.topk(copies[0], TOPK, dim=1)
    return Case(
        kernel="index_topk",
        shape=f"S = {positions}",
        tokens=tokens,
        num_bytes=4 * tokens * positions,
        launches=rotated([partial(launch, logits=logits, pdl=True) for logits in copies]),
        peers={"torch_topk": rotated([partial(torch.topk, x, TOPK, dim=1, out=(values, ids)) for x in copies])},
        error=(selected != expected).float().mean().item(),
    )


NVFP4_SHAPES = {
    "shared_gate_up": (512, 6144), "shared_down": (6144, 256), "dense_gate_up": (3072, 6144),
    "dense_down": (6144, 1536), "nvfp4 2 MB": (2048, 2048), "nvfp4 57 MB": (16384, 6144),
    "nvfp4 151 MB": (32768, 8192),
}  # fmt: skip
BF16_SHAPES = {
    "qkv_a": (2624, 6144), "q_b": (2048, 2048), "o_proj": (6144, 2048), "index_q": (4096, 2048),
    "index_k": (160, 6144), "router": (256, 6144), "lm_head": (19360, 6144),
}  # fmt: skip
EXPERT_SHAPES = {"routed_gate_up": (512, 6144, True), "routed_down": (6144, 256, False)}
TOPK_SHAPES = {"index_topk 4096": 4096, "index_topk 8192": 8192, "index_topk 65536": 65_536}


def cases(tokens: list[int], only: str, *, peers: bool) -> list[Callable[[], Case]]:
    """What makes each case whose name contains `only`: one at a time is held in memory."""
    makers: list[tuple[str, Callable[[], Case]]] = []
    for m in tokens:
        for name, (n, k) in NVFP4_SHAPES.items():
            makers.append((name, partial(gemm_case, name, n, k, m, nvfp4=True, peers=peers)))
        for name, (n, k, of_tokens) in EXPERT_SHAPES.items():
            makers.append((name, partial(expert_case, name, n, k, m, of_tokens=of_tokens)))
        for name, (n, k) in BF16_SHAPES.items():
            makers.append((name, partial(gemm_case, name, n, k, m, nvfp4=False, peers=False)))
        for name, positions in TOPK_SHAPES.items():
            makers.append((name, partial(topk_case, positions, m)))
    return [maker for name, maker in makers if only in name]


def measure(case: Case) -> Row:
    """Time a case beside the read-only kernel and its peers."""
    times = median_us({"kernel": case.launches, "read_only": reading(case.num_bytes), **case.peers})
    return Row(
        kernel=case.kernel,
        shape=case.shape,
        tokens=case.tokens,
        num_bytes=case.num_bytes,
        us=times["kernel"],
        read_only_us=times["read_only"],
        error=case.error,
        peers_us={name: times[name] for name in case.peers},
    )


def line(row: Row) -> str:
    """The row as the table shows it."""
    peers = "  ".join(f"{name} {us:.2f} us ({us / row.us:.2f}x)" for name, us in row.peers_us.items())
    return (
        f"{row.kernel:16} {row.shape:24} {row.tokens:>3} {row.num_bytes / 1e6:>8.2f} {row.us:>8.2f} "
        f"{row.num_bytes / row.us / 1e3:>6.0f} {row.us / row.read_only_us:>6.2f} {row.error:>9.1e}  {peers}"
    )


def main() -> int:
    """Measure, print a line a case, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, default=Path("bench_kernels.json"))
    parser.add_argument("--peers", action="store_true", help="add humming-kernels where it is installed")
    parser.add_argument("--only", default="", help="kernels whose name contains this")
    parser.add_argument("--tokens", type=int, nargs="+", default=[1, 8])
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        print("bench_kernels.py needs a CUDA GPU; torch sees none", file=sys.stderr)
        return 1
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = False
    print(f"{'kernel':16} {'shape':24} {'M':>3} {'MB':>8} {'us':>8} {'GB/s':>6} {'x read':>6} {'error':>9}  peers")
    rows = []
    for make in cases(arguments.tokens, arguments.only, peers=arguments.peers):
        rows.append(measure(make()))
        print(line(rows[-1]), flush=True)
        torch.cuda.empty_cache()
    report = {
        "gpu": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "python": platform.python_version(),
        "command": " ".join(["python", *sys.argv]),
        "rows": [asdict(row) for row in rows],
    }
    arguments.json.write_text(json.dumps(report, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
