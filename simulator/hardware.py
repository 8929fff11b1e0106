"""What a machine can do at most, and what moving between its GPUs costs: the figures behind floors and predictions.

Values live in `conf/hardware/*.yaml`, each with its source. No torch.
"""

from dataclasses import dataclass, field, replace


@dataclass(frozen=True, kw_only=True)
class Segment:
    """Time of an all-reduce from a payload size on: another algorithm has another latency and bandwidth."""

    from_bytes: int
    latency_us: float
    bandwidth_gbps: float


@dataclass(frozen=True, kw_only=True)
class Interconnect:
    """Time of an all-reduce: latency plus payload bytes over bandwidth, in segments where a fit has several."""

    name: str = ""
    latency_us: float | None = None
    bandwidth_gbps: float | None = None
    """Payload bytes a second of a large all-reduce, in GB/s (10^9); nccl-tests' "algbw"."""
    segments: list[Segment] = field(default_factory=list)
    """From smaller to larger payloads; where there are any, they count instead of the two numbers above."""

    def all_reduce_us(self, payload_bytes: int) -> float:
        """Time of one all-reduce of `payload_bytes` a rank, in microseconds."""
        for segment in reversed(self.segments):
            if payload_bytes >= segment.from_bytes:
                return segment.latency_us + payload_bytes / segment.bandwidth_gbps / 1e3
        transfer_us = payload_bytes / self.bandwidth_gbps / 1e3 if self.bandwidth_gbps else 0.0
        return (self.latency_us or 0.0) + transfer_us


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """One kind of GPU, and the node it stands in. None: not known; `auto` knows nothing until a machine is found."""

    name: str
    source: str = ""
    device: str | None = None
    """Part of the name by which the driver knows this GPU."""
    num_gpus: int | None = None
    num_sms: int | None = None
    memory_gib: float | None = None
    l2_mb: float | None = None
    bandwidth_gbps: float | None = None
    """Memory bandwidth by the datasheet, in GB/s (10^9)."""
    read_efficiency: float = 1.0
    """Share of `bandwidth_gbps` that well-made kernels were measured to read at."""
    tflops: dict[str, float] = field(default_factory=dict)
    """Dense peak by dtype, in 10^12 operations a second."""
    compute_efficiency: float = 1.0
    """Share of `tflops` that large GEMMs were measured to reach."""
    node_us: float | None = None
    """Time an empty kernel takes as one of a chain in a CUDA graph."""
    node_pdl_us: float | None = None
    """The same with programmatic dependent launch."""
    interconnect: Interconnect = field(default_factory=Interconnect)

    def wire(self, latency_us: float | None, *, num_ranks: int) -> Interconnect:
        """The interconnect, with another latency where the user gives one; a rank without peers sends nothing."""
        if num_ranks == 1:
            return Interconnect(name="one rank", latency_us=0.0)
        if latency_us is None:
            return self.interconnect
        return replace(self.interconnect, latency_us=latency_us, segments=[])

    def node_floor_us(self, *, pdl: bool) -> float:
        """The least time a graph node takes on this machine."""
        chosen = self.node_pdl_us if pdl and self.node_pdl_us is not None else self.node_us
        return chosen or 0.0

    def peak_tflops(self, dtype: str) -> float:
        """Peak of a dtype; FP8 and FP4 fall back to BF16 where the chip has no such unit, FP32 to a 16th of BF16."""
        if dtype in self.tflops:
            return self.tflops[dtype]
        bf16 = self.tflops.get("bf16", 0.0)
        return bf16 / 16 if dtype == "fp32" else bf16
