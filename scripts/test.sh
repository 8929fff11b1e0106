#!/usr/bin/env bash
# Set up, then check style, types, import directions, and run the tests.
# Usage: bash scripts/test.sh [PYTEST_ARGUMENT...]
set -euo pipefail
cd "$(dirname "$0")/.."
bash scripts/setup.sh dev
export PATH="$PWD/.venv/bin:$PATH"
ruff check .
ruff format --check .
mypy
lint-imports
pytest "$@"
