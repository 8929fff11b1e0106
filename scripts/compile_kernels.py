"""Compile every kernel of GLM-5's decode step for a GPU that is not here, and list what each needs.

Usage: python scripts/compile_kernels.py ARCH [ARCH...] [--batch 1 64] [--recipe nvidia_glm5]
ARCH is the compute capability times ten: 90 (H100, H200), 100 (B200), 120 (RTX PRO 6000, RTX 5090).
Exits with 1 where a kernel spills registers or needs more shared memory than a block of that GPU may have.
"""

import argparse
import sys

import torch
from omegaconf import OmegaConf
from triton.backends.compiler import GPUTarget

from kernels.offline import OfflineKernel, compile_for
from simulator.comm.modelled import ModelledCollectives
from simulator.deployment import Deployment
from simulator.hardware import Interconnect
from simulator.model import ModelSpec
from simulator.profiles import conf_directory
from simulator.recipe import Recipe
from simulator.schema import writable_schema
from simulator.step.build import build_step
from simulator.step.launch import bind_triton
from simulator.step.memory import allocate

MAX_SPILL_BYTES = 16
"""Stack bytes of a thread that are let pass: a register or two saved outside the main loop."""


def compile_step(arch: int, batch: int, context: int, recipe_name: str, *, pdl: bool) -> list[OfflineKernel]:
    """All distinct kernels of a step of five GLM-5 layers (three dense, two of experts), compiled for one GPU."""
    model_file = OmegaConf.load(conf_directory() / "model" / "glm5.yaml")
    model = OmegaConf.to_object(OmegaConf.merge(writable_schema(ModelSpec), model_file, {"num_hidden_layers": 5}))
    recipe_file = OmegaConf.load(conf_directory() / "recipe" / f"{recipe_name}.yaml")
    recipe = OmegaConf.to_object(OmegaConf.merge(writable_schema(Recipe), recipe_file))
    step = build_step(model, recipe, Deployment(batch=batch, context=context))
    memory = allocate(step, torch.device("meta"), seed=0)
    collectives = ModelledCollectives(wire=Interconnect(latency_us=3.7), launch_us=1.0, pdl=pdl)
    launches = bind_triton(step, memory, collectives, pdl=pdl)

    def launch_all() -> None:
        for launch in launches:
            launch()

    return compile_for(GPUTarget("cuda", arch, 32), launch_all)


def main() -> int:
    """Compile, print a line a kernel, and say which do not fit."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("arch", type=int, nargs="+", choices=(90, 100, 120))
    parser.add_argument("--batch", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--recipe", default="nvidia_glm5")
    parser.add_argument("--no-pdl", action="store_true", help="without programmatic dependent launch")
    arguments = parser.parse_args()
    unfit = 0
    print(f"{'arch':>4} {'batch':>5} {'kernel':32} {'warps':>5} {'registers':>9} {'spill B':>7} {'shared B':>8}")
    for arch in arguments.arch:
        for batch in arguments.batch:
            kernels = compile_step(arch, batch, arguments.context, arguments.recipe, pdl=not arguments.no_pdl)
            for kernel in kernels:
                fits = kernel.fits() and kernel.spill_bytes <= MAX_SPILL_BYTES
                unfit += not fits
                print(
                    f"{arch:>4} {batch:>5} {kernel.name:32} {kernel.num_warps:>5} {kernel.num_registers:>9} "
                    f"{kernel.spill_bytes:>7} {kernel.shared_bytes:>8}{'' if fits else '  DOES NOT FIT'}"
                )
    return 1 if unfit else 0


if __name__ == "__main__":
    sys.exit(main())
