#!/bin/sh
# Installs a wheel of aleator with its pinned packages into a new virtual environment. The Dockerfile and `make wheel` run it.
#
#   deploy/install.sh VENV CONSTRAINTS WHEEL [EXTRAS]
#
# TORCH_INDEX: address of a further package index for torch, for example that of builds without CUDA, which are much smaller:
# their versions end in +cpu and come before the plain ones. Empty: torch comes from where the other packages come from.
set -eu
venv=$1 constraints=$2 wheel=$3 extras=${4:-}
"${PYTHON:-python3}" -m venv "$venv"
"$venv/bin/pip" install --quiet --no-cache-dir -c "$constraints" ${TORCH_INDEX:+--extra-index-url "$TORCH_INDEX"} torch
"$venv/bin/pip" install --quiet --no-cache-dir -c "$constraints" "$wheel${extras:+[$extras]}"
