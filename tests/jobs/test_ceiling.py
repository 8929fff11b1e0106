"""job=ceiling: bytes by module and ceilings, without torch."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.imports.configs import GLM, write
from tests.test_cli import ENVIRONMENT, ROOT, run


def ceiling(directory, *overrides):
    done = run(directory, "job=ceiling", "hydra.run.dir=out", *overrides)
    assert done.returncode == 0, done.stderr
    return json.loads((directory / "out" / "ceiling.json").read_text()), done.stdout


def test_glm5_reads_the_published_bytes_and_reaches_the_published_ceiling(tmp_path):
    found, shown = ceiling(tmp_path, "hardware=rtx_pro_6000_x8")
    read = sum(row["bytes_read_per_step"] for row in found["byte_table"])
    assert read / 1e9 == pytest.approx(9.19, rel=2e-3)
    assert found["ceilings"][0]["tok_s"] == pytest.approx(192, rel=0.03)
    assert "743.91 billion parameters, 40.83 active" in shown
    replicated = {row["module"] for row in found["byte_table"] if row["replicated"]}
    assert replicated == {"qkv_a", "index_k", "index_q", "router"}
    assert found["kind"] == "predicted"


def test_each_ceiling_is_lower_than_the_one_before(tmp_path):
    found, _ = ceiling(tmp_path)
    speeds = [entry["tok_s"] for entry in found["ceilings"]]
    assert speeds == sorted(speeds, reverse=True)


def test_the_bytes_of_the_table_are_those_of_the_ceiling(tmp_path):
    found, shown = ceiling(tmp_path, "hardware=rtx_pro_6000_x8")
    total = found["total_bytes"]
    assert found["ceilings"][0]["step_us"] == pytest.approx(total["moved_per_step"] / 1792 / 1e3)
    assert sum(row["bytes"] for row in found["byte_table"]) <= total["weights"]
    assert "caches, activations, norms" in shown
    # the whole checkpoint over 8 ranks, with what is replicated: 54.8 GiB
    assert total["weights"] / 2**30 == pytest.approx(54.8, abs=0.1)


def test_one_rank_sends_nothing(tmp_path):
    found, _ = ceiling(tmp_path, "model=glm5_tiny", "deployment.tp=1")
    speeds = [entry["step_us"] for entry in found["ceilings"]]
    assert speeds[2] == speeds[1]


def test_a_checkpoint_has_a_ceiling(tmp_path):
    write(tmp_path, GLM)
    found, _ = ceiling(tmp_path, "model=from_hf", "model.path=config.json", "deployment.tp=2", "deployment.context=64")
    assert found["model"] == tmp_path.name


def test_it_runs_where_torch_does_not_load(tmp_path):
    (tmp_path / "torch.py").write_text("raise ImportError('torch is broken here')\n")
    environment = ENVIRONMENT | {"PYTHONPATH": f"{tmp_path}:{ROOT}"}
    command = [sys.executable, "-m", "simulator", "job=ceiling", "hydra.run.dir=out"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert Path(tmp_path / "out" / "ceiling.json").is_file()
