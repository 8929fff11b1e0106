"""job=allreduce: a log becomes a fit, a profile, and the share of this model's step."""

import json

import pytest

from tests.imports.test_nccl_tests import log, row
from tests.test_cli import run

LINE = [(size, 20.0 + size / 20.0e3) for size in (1024, 4096, 16_384, 65_536, 262_144)]


def written_log(directory, gpus=8):
    path = directory / "nccl.txt"
    path.write_text(log(*(row(size, us, gpus=gpus) for size, us in LINE), gpus=gpus))
    return path


def test_a_log_is_fitted_and_priced_for_the_step(tmp_path):
    written_log(tmp_path)
    done = run(tmp_path, "job=allreduce", "allreduce.import_log=nccl.txt", "hydra.run.dir=out")
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "out" / "allreduce.json").read_text())
    assert found["payloads"] == [{"bytes": 12_288, "calls": 157}]
    assert found["step_us"] == pytest.approx(157 * (20 + 12_288 / 20e3), rel=0.01)
    assert "157 all-reduces of 12,288 B" in done.stdout


def test_the_fitted_profile_is_used_by_a_prediction(tmp_path):
    written_log(tmp_path)
    run(tmp_path, "job=allreduce", "allreduce.import_log=nccl.txt", "hydra.run.dir=out")
    done = run(
        tmp_path, "--config-dir", str(tmp_path / "out"), "hardware=fitted", "replay=predicted", "hydra.run.dir=p"
    )
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "p" / "report.json").read_text())
    allreduce = next(c for c in report["components"] if c["name"] == "allreduce")
    assert allreduce["shapley_us"] == pytest.approx(157 * (20 + 12_288 / 20e3) + 20, rel=0.01)


@pytest.mark.parametrize(
    ("gpus", "overrides", "message"),
    [
        (4, [], "has 4 ranks, and deployment.tp=8; use deployment.tp=4"),
        (8, ["allreduce.import_log=null"], "must name a log of all_reduce_perf"),
        (8, ["allreduce.import_log=nothing.txt"], "cannot be read: No such file"),
    ],
)
def test_bad_input(gpus, overrides, message, tmp_path):
    written_log(tmp_path, gpus=gpus)
    done = run(tmp_path, "job=allreduce", "allreduce.import_log=nccl.txt", "hydra.run.dir=out", *overrides)
    assert done.returncode == 2
    assert message in done.stderr
    assert not (tmp_path / "out" / "allreduce.json").exists()
