#!/usr/bin/env bash
# The figures of docs/conv3d.md, on one GPU: CosmoFlow by every implementation, batch 4 and 16, stress tests, end to end.
#   benchmarks/conv3d.sh DIR [PART…]     writes everything under DIR, one folder a table
# Parts: batch4 batch16 stress end_to_end fp32 fp16 sets; without any, the first four.
# IMPLEMENTATIONS=gemm,torch,… measures these alone. benchmarks/conv3d_tables.py prints the tables of the folders.
set -uo pipefail
out=${1:?say where the results go: benchmarks/conv3d.sh DIR}
shift
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
python=${PYTHON:-python}
kernels='direct,direct merged,direct merged buffered,direct tiled,gemm ncdhw,gemm tiled,gemm pipelined,gemm split-k,gemm'
quick=(--measure 50 --budget 0.3)
(($#)) || set -- batch4 batch16 stress end_to_end

study() { # folder, then flags
    local folder=$1
    shift
    echo "== $folder: $*"
    "$python" run_conv3d.py --output-dir "$out/$folder" ${IMPLEMENTATIONS:+--implementation "$IMPLEMENTATIONS"} "$@" \
        2>&1 | tee "$out/$folder.log"
}

for part in "$@"; do
    case $part in
    batch4) study batch4 --verify --compare --roofline --plots "${quick[@]}" ;;
    batch16) study batch16 --batch-size 16 --verify --compare --roofline --plots "${quick[@]}" ;;
    stress) study stress --stress 500 --implementation "$kernels" ;;
    end_to_end) study end_to_end --end-to-end --plots "${quick[@]}" ;;
    fp32) study fp32 --math fp32 --verify --compare --roofline "${quick[@]}" ;;
    fp16) study fp16 --dtype float16 --verify --compare --roofline "${quick[@]}" ;;
    sets)
        for set in cosmoflow7 unet3d c3d r3d_18 model:torchvision:mc3_18; do
            study "${set##*:}" --params "$set" --verify --compare --roofline "${quick[@]}"
        done
        ;;
    *) echo "no part $part: choose batch4 batch16 stress end_to_end fp32 fp16 sets" >&2 && exit 2 ;;
    esac
done
