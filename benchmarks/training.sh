#!/usr/bin/env bash
# The figures of docs/training.md, on one GPU (about six minutes); with two GPUs the scaling rows too.
#   benchmarks/training.sh DIR     writes everything under DIR, one folder a table
set -uo pipefail
out=${1:?say where the results go: benchmarks/training.sh DIR}
mkdir -p "$out"
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
python=${PYTHON:-python}

train() { # folder, then flags
    local folder=$1
    shift
    echo "== $folder: $*"
    "$python" run_training.py --output-dir "$out/$folder" "$@" 2>&1 | tee "$out/$folder.log"
}

if (($("$python" -c 'import torch; print(torch.cuda.device_count())') < 2)); then
    baseline=(--model resnet18 resnet34 --epochs 5 --enable-pytorch-profiler --profile-memory)
    train digits "${baseline[@]}" --batch-size 32
    train digits "${baseline[@]}" --batch-size 32 --compile
    fused=(--model resnet18 resnet34 --epochs 5 --batch-size 32 --fused-optimizer)
    for execution in '' --compile --capture '--compile --capture'; do
        # shellcheck disable=SC2086 # none, one or two flags
        train fused "${fused[@]}" $execution
    done
    train fused_synthetic --dataset synthetic --batch-sizes 32,256 --max-steps 110 --fused-optimizer
    train fused_synthetic --dataset synthetic --batch-sizes 32,256 --max-steps 110 --fused-optimizer --capture
    train bound --dataset synthetic --batch-size 1024 --max-steps 60 --math fp32 --enable-pytorch-profiler
    for algorithm in 'implicit precomp gemm' gemm; do
        train "${algorithm// /_}" --dataset synthetic --batch-size 32 --max-steps 110 --algorithm "$algorithm"
    done
    train bfloat16 --dataset synthetic --batch-sizes 32,256 --max-steps 110 --dtype bfloat16
    train float32 --dataset synthetic --batch-sizes 32,256 --max-steps 110
    train no_energy --dataset synthetic --batch-sizes 32,256 --max-steps 110 --no-energy
    train imagenet --model resnet50 --stem imagenet --dataset synthetic --input-size 224 --batch-sizes 128,6144 --max-steps 60
    train digits "${baseline[@]}" --batch-sizes 16,64,128,256
else
    scaling=(--dataset synthetic --max-steps 300 --batch-sizes "32,256,1024")
    CUDA_VISIBLE_DEVICES=0 train scaling "${scaling[@]}"
    echo "== scaling, 2 processes"
    "$python" -m torch.distributed.run --standalone --nproc-per-node 2 \
        run_training.py --output-dir "$out/scaling" "${scaling[@]}" 2>&1 | tee "$out/scaling_x2.log"
fi
