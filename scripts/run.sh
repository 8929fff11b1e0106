#!/usr/bin/env bash
# Set up, then attribute one GLM-5 decode step: measured on a GPU, predicted where there is none.
# Usage: bash scripts/run.sh [HYDRA_OVERRIDE...]      for example: bash scripts/run.sh deployment.batch=8
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh
exec .venv/bin/python -m simulator "$@"
