"""The command line: what it prints and how it exits, on right and on wrong input."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "COLUMNS": "100"}


def run(directory, *overrides):
    command = [sys.executable, "-m", "simulator", *overrides]
    return subprocess.run(command, cwd=directory, env=ENVIRONMENT, capture_output=True, text=True, check=False)


def reports(directory):
    return sorted(directory.rglob("report.json"))


BAD_INPUT = [
    (["deployment.batch=0"], "deployment.batch=0 must be at least 1"),
    (["deployment.batch=2000"], "deployment.batch=2000 must be at most 1024"),
    (["deployment.context=-5"], "deployment.context=-5 must be at least 1"),
    (["deployment.context=300000"], "must be at most the model's max_position_embeddings=202752"),
    (["deployment.tp=3"], "num_attention_heads=64 / 3 = 21.3333 is not whole"),
    (["deployment.tp=128"], "use 1, 2, 4, 8, 16, 32, 64"),
    (["deployment.contexts=[4096,0]"], "deployment.contexts=0 must hold the tokens of the step: at least"),
    (["deployment.contexts=[]"], "must name the context of each sequence"),
    (["deployment.contexts=[5,6]", "deployment.batch=3"], "has 2 sequences and deployment.batch=3"),
    (["deployment.tokens_per_step=4", "deployment.context=3"], "at least deployment.tokens_per_step=4"),
    (["routing.distribution=file"], "routing.path=None must name a .npy or .json file"),
    (["routing.path=x.npy"], "is read with routing.distribution=file alone"),
    (["routing.exponent=-1"], "routing.exponent=-1.0 must be 0 (uniform) or more"),
    (["model=from_hf"], "model.path= must name the config.json"),
    (["model=from_hf", "model.path=nowhere"], "nowhere does not exist"),
    (["recipe=from_checkpoint"], "needs model=from_hf model.path=..."),
    (["model.hidden_size=6150"], "hidden_size=6150 must be a multiple of the NVFP4 block 16"),
    (["attribution.components=[experts,attn]"], "attribution.components=attn is no component; components are"),
    (["deployment.btach=1"], "did you mean deployment.batch"),
    (["deployment.batch=many"], "Value 'many' of type 'str' could not be converted to Integer"),
    (["model=glm6"], "Available options in 'model':"),
    (["replay=gpu"], "expected one of [auto, cuda_graph, cpu, predicted]"),
    (["+batch=1"], "adds a field that nothing reads"),
    (["hydra.run.dir=/proc/nowhere/run"], "cannot write /proc/nowhere"),
    (["measure.half_width=0"], "measure.half_width=0.0 must be between 0 and 1"),
    (["hardware.bandwidth_gbps=-1"], "hardware.bandwidth_gbps=-1.0 must be above 0"),
    (["hardware.read_efficiency=0"], "hardware.read_efficiency=0.0 must be a share above 0 and at most 1"),
    (["hardware.interconnect.latency_us=-1"], "hardware.interconnect.latency_us=-1.0 must be at least 0"),
    (["deployment.seed=-1"], "deployment.seed=-1 must be at least 0"),
    (["model.rope_theta=0"], "model.rope_theta=0.0 must be above 0"),
    (["model.rms_norm_eps=nan"], "model.rms_norm_eps=nan must be a finite number"),
    (["replay=cpu", "recipe=bf16"], "GiB are free; use deployment.weight_layers="),
]


@pytest.mark.parametrize(("overrides", "message"), BAD_INPUT, ids=lambda value: "-".join(value)[:40])
def test_bad_input_is_told_in_a_sentence(overrides, message, tmp_path):
    done = run(tmp_path, *overrides)
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "Traceback" not in done.stderr
    assert not reports(tmp_path)


def test_all_problems_are_told_at_once(tmp_path):
    done = run(tmp_path, "deployment.batch=0", "deployment.context=0")
    assert "deployment.batch=0" in done.stderr
    assert "deployment.context=0" in done.stderr


def test_the_default_run_predicts_glm5(tmp_path):
    done = run(tmp_path, "replay=predicted", "hardware=rtx_pro_6000_x8")
    assert done.returncode == 0, done.stderr
    assert "predicted" in done.stdout
    (path,) = reports(tmp_path)
    report = json.loads(path.read_text())
    assert report["mode"] == "predicted"
    assert report["attribution"]["subsets"] == 512
    shares = sum(component["shapley_us"] for component in report["components"])
    assert shares == pytest.approx(report["step"]["median_us"] - report["step"]["empty_us"], rel=1e-9)


def test_every_operation_of_a_small_model_is_executed(tmp_path):
    done = run(
        tmp_path,
        "model=glm5_tiny",
        "replay=cpu",
        "measure.min_rounds=1",
        "measure.max_rounds=1",
        "deployment.context=128",
    )
    assert done.returncode == 0, done.stderr
    report = json.loads(reports(tmp_path)[0].read_text())
    assert report["mode"] == "executed"
    assert {component["name"] for component in report["components"]} >= {"experts", "indexer", "attention", "head"}
    assert "without an interval" in " ".join(report["warnings"])


def test_a_sweep_writes_one_directory_a_job_and_goes_on_after_a_bad_one(tmp_path):
    done = run(tmp_path, "-m", "replay=predicted", "deployment.batch=1,0,64")
    assert done.returncode == 2
    assert "deployment.batch=0 must be at least 1" in done.stderr
    assert [path.parent.name for path in reports(tmp_path)] == ["0", "2"]


def test_an_interrupt_leaves_no_report(tmp_path):
    command = [sys.executable, "-m", "simulator", "model=glm5_tiny", "replay=cpu", "measure.budget_s=600"]
    process = subprocess.Popen(
        command, cwd=tmp_path, env=ENVIRONMENT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not list(tmp_path.rglob("config.yaml")) and time.monotonic() < deadline:
        time.sleep(0.1)
    time.sleep(3)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "interrupted" in errors
    assert "Traceback" not in errors
    assert not reports(tmp_path)


def test_help_needs_no_torch(tmp_path):
    blocked = tmp_path / "torch.py"
    blocked.write_text("raise ImportError('torch is broken here')\n")
    environment = ENVIRONMENT | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    for flags in (["--help"], ["--cfg", "job"]):
        command = [sys.executable, "-m", "simulator", *flags]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
