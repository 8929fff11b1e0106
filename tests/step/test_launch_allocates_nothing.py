"""No launcher allocates or computes with torch: whatever a capture holds is a Triton kernel on memory given before."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from triton.runtime.interpreter import InterpretedFunction

from simulator.comm.modelled import ModelledCollectives
from simulator.deployment import Deployment
from simulator.hardware import Interconnect
from simulator.step.build import build_step
from simulator.step.launch import bind_triton
from simulator.step.memory import allocate
from tests.configs import model, recipe

VIEWS = {"aten.view", "aten._unsafe_view", "aten.slice", "aten.select", "aten.alias", "aten.detach", "aten.as_strided",
         "aten.unsqueeze", "aten.transpose", "aten.t", "aten.permute", "aten.expand", "aten.squeeze"}  # fmt: skip


class Recorded(TorchDispatchMode):
    """Names of the operations that torch is asked for, views left out."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = str(function).rsplit(".", 1)[0]
        if name not in VIEWS:
            self.names.append(name)
        return function(*args, **(kwargs or {}))


@pytest.mark.skipif(torch.cuda.is_available(), reason="stubs the interpreter, which a GPU machine does not use")
@pytest.mark.parametrize("recipe_name", ["nvidia_glm5", "fp8"])
@pytest.mark.parametrize("name", ["glm5_tiny", "deepseek_v3_tiny", "qwen3_tiny"])
@pytest.mark.parametrize("batch", [1, 20])
def test_launches_ask_torch_for_nothing_but_views(name, recipe_name, batch, monkeypatch):
    step = build_step(model(name), recipe(recipe_name), Deployment(tp=1, batch=batch, context=200))
    memory = allocate(step, torch.device("cpu"), seed=0)
    collectives = ModelledCollectives(wire=Interconnect(latency_us=3.7), launch_us=1.0)
    launches = bind_triton(step, memory, collectives, pdl=False)
    launched = []
    monkeypatch.setattr(
        InterpretedFunction, "__getitem__", lambda self, grid: lambda *args, **kwargs: launched.append(self.fn.__name__)
    )
    for op, launch in zip(step.ops, launches, strict=True):
        with Recorded() as recorded:
            launch()
        assert recorded.names == [], f"{op.label} asks torch for {recorded.names}"
    assert len(launched) >= len(step.ops)
