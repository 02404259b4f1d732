#!/bin/sh
# Write constraints.txt anew: the newest versions that satisfy pyproject.toml, as installed in an empty environment.
set -eu
cd "$(dirname "$0")/.."

python=${1:-python3}
fresh=$(mktemp -d)
trap 'rm -rf "$fresh"' EXIT

"$python" -m venv "$fresh/venv"
"$fresh/venv/bin/python" -m pip install --quiet --disable-pip-version-check -e '.[dev]'
{
    echo "# Versions that development and CI install. Refreshed by: make constraints"
    # Names and versions only: where packages come from is each machine's own affair.
    "$fresh/venv/bin/python" -m pip freeze --exclude-editable | grep -E '^[A-Za-z0-9._-]+==[^ ]+$'
} >"$fresh/constraints.txt"
mv "$fresh/constraints.txt" constraints.txt
