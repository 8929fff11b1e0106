#!/usr/bin/env bash
# Create .venv at the top of the checkout and install what the simulator needs.
# Usage: bash scripts/setup.sh [dev]      dev: also what the tests need
set -euo pipefail
cd "$(dirname "$0")/.."

PYTHON=${PYTHON:-python3}
if ! "$PYTHON" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))'; then
    echo "error: $("$PYTHON" --version) found; Python 3.11, 3.12 or 3.13 is needed (set PYTHON=/path/to/python)" >&2
    exit 2
fi
# Where this Python already has a torch that will do (a GPU machine's own build), the environment sees and keeps it.
keeps_torch='from importlib.metadata import version; import sys
sys.exit(not tuple(map(int, version("torch").split(".")[:2])) >= (2, 11))'
if "$PYTHON" -c "$keeps_torch" 2>/dev/null; then
    venv_options=(--system-site-packages)
    pip_options=()
else
    venv_options=()
    pip_options=(--constraint constraints.txt)
fi
if [ ! -x .venv/bin/pip ]; then
    "$PYTHON" -m venv "${venv_options[@]}" .venv || {
        echo "error: this Python makes no virtual environment; on Debian: apt-get install python3-venv" >&2
        exit 2
    }
fi
# What is asked for is recorded, so that a second call returns at once, and a change of the project installs again.
wanted=$(cat pyproject.toml constraints.txt)
stamp=.venv/installed-${1:-run}
if [ ! -f "$stamp" ] || [ "$wanted" != "$(cat "$stamp")" ]; then
    install=(.venv/bin/python -m pip install --quiet --disable-pip-version-check "${pip_options[@]}")
    "${install[@]}" --editable .
    if [ "${1:-run}" = dev ]; then
        "${install[@]}" --editable '.[test]'
    fi
    printf '%s' "$wanted" > "$stamp"
fi
