#!/usr/bin/env bash
# What is done, queued, running and failed: --help lists the options.
set -euo pipefail
root=$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")
# shellcheck source=slurm/environment.sh
source "$root/slurm/environment.sh"
activate || exit 2
cd -- "$root"
exec python -m convscope status "$@"
