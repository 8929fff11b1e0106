"""Entry point: `python -m simulator [OVERRIDES]`. Composes the configuration, checks it, runs one job.

Exit codes: 0 ok, 1 failure, 2 bad input, 130 interrupted. A user's mistake ends in sentences, not in a traceback.
"""

import errno
import os
import re
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.errors import HydraException
from omegaconf.errors import OmegaConfBaseException

from simulator import config as configuration
from simulator.errors import BadInputError
from simulator.jobs.allreduce import run_allreduce
from simulator.jobs.ceiling import run_ceiling
from simulator.profiles import conf_directory

EXIT_FAILURE = 1
EXIT_BAD_INPUT = 2
EXIT_INTERRUPTED = 130

HYDRA_NOISE = (
    "full_key",
    "object_type",
    "reference_type",
    "Set the environ",
    "provider=",
    "Config search",
    "To append",
)
"""Starts of lines in Hydra's messages that say nothing about the user's mistake."""

UNWRITABLE = {errno.EACCES, errno.ENOENT, errno.ENOTDIR, errno.EEXIST, errno.EROFS, errno.EPERM, errno.ENOSPC}
"""Errors of creating or writing the run directory that a user can mend by naming another."""


def run_job(composed: Any) -> None:
    """Run one job of the composed configuration."""
    hydra_config = HydraConfig.get()
    config, notes = configuration.from_hydra(composed, hydra_config.overrides.task)
    configuration.validate(config)
    directory = Path(hydra_config.runtime.output_dir)
    if config.job is configuration.Job.ceiling:
        run_ceiling(config, directory, notes)
        return
    if config.job is configuration.Job.allreduce:
        run_allreduce(config, directory)
        return
    from simulator.jobs.breakdown import run_breakdown  # noqa: PLC0415 (torch loads here, for no other job)

    run_breakdown(config, directory, notes)


def sentence_of(error: BaseException) -> str:
    """What a composition error says, with the cause that Hydra wraps, in one sentence."""
    lines = [line.strip() for part in (error, error.__cause__) if part for line in str(part).splitlines()]
    sentence = "; ".join(dict.fromkeys(line for line in lines if line and not line.startswith(HYDRA_NOISE)))
    unknown = re.match(r"Could not override '([^']+)'", sentence)
    similar = configuration.similar_keys(unknown[1]) if unknown else []
    return f"{sentence}; did you mean {' or '.join(similar)}?" if similar else sentence


def exit_code_of(work: Callable[[], None]) -> int:
    """Run `work` and tell the user at once what went wrong, if anything did; returns the exit code."""
    try:
        work()
    except BadInputError as error:
        return fail(str(error), EXIT_BAD_INPUT)
    except (HydraException, OmegaConfBaseException) as error:
        return fail(sentence_of(error), EXIT_BAD_INPUT)
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        return fail(f"cannot write {error.filename}: {error.strerror}; give another hydra.run.dir=", EXIT_BAD_INPUT)
    return 0


def fail(message: str, code: int) -> int:
    """Write one error to standard error; returns `code`."""
    sys.stderr.write(f"error: {message}\n")
    return code


def main() -> None:
    """Entry point of the package.

    Every job of a sweep runs, whatever became of those before; the exit code is the highest of all jobs.
    """
    configuration.register()
    # makes Hydra raise instead of printing and exiting with 1, so that a user's mistake gets exit code 2
    os.environ.setdefault("HYDRA_FULL_ERROR", "1")
    codes = []

    @hydra.main(version_base="1.3", config_path=str(conf_directory()), config_name="config")
    def run(composed: Any) -> None:
        try:
            codes.append(exit_code_of(lambda: run_job(composed)))
        except Exception:
            traceback.print_exc()
            codes.append(EXIT_FAILURE)

    try:
        codes.append(exit_code_of(run))
    except KeyboardInterrupt:
        codes.append(fail("interrupted; no report was written for the running job", EXIT_INTERRUPTED))
    sys.exit(max(codes))


if __name__ == "__main__":
    main()
