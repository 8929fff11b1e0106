"""Every shipped model as it comes: composed like a command line, checked, built, predicted, and its ceiling printed."""

import json

import pytest

from simulator.config import validate
from simulator.jobs.ceiling import CEILING_NAME, run_ceiling
from simulator.profiles import conf_directory, resolve_hardware
from simulator.replay.predicted import PredictedReplayer
from simulator.step.build import build_step
from tests.configs import composed

SHIPPED = sorted(path.stem for path in (conf_directory() / "model").glob("*.yaml") if path.stem != "from_hf")


@pytest.mark.parametrize("name", SHIPPED)
def test_a_step_is_predicted_and_no_faster_than_its_ceiling(name, tmp_path):
    config, _ = composed(f"model={name}", "hardware=rtx_pro_6000_x8")
    validate(config)
    hardware, _ = resolve_hardware(config.hardware, None)
    step = build_step(config.model, config.recipe, config.deployment, config.routing)
    wire = hardware.wire(config.comm.latency_us, num_ranks=config.deployment.tp)
    replayer = PredictedReplayer(ops=step.ops, hardware=hardware, pdl=config.kernels.programmatic_launch, wire=wire)
    whole = frozenset(range(len(step.ops)))
    predicted_us = float(replayer.measure([whole], enough=lambda _: True, advance=lambda *_: None)[0, 0])
    run_ceiling(config, tmp_path)
    ceilings = json.loads((tmp_path / CEILING_NAME).read_text())["ceilings"]
    assert 0 < ceilings[0]["step_us"] < ceilings[1]["step_us"] < ceilings[2]["step_us"] <= predicted_us * 1.000001
