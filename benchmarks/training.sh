#!/usr/bin/env bash
# The figures of docs/training.md, on one GPU; with two GPUs the scaling rows.
#   benchmarks/training.sh DIR [PART…]     writes everything under DIR, one folder a table; without a part: all
# baseline: digits at batch 32; captured: launched and captured steps; bound: the profiler beside events
# algorithms: the forward pass by gemm and implicit precomp gemm; types: bfloat16, float32, without energy
# sizes: digits at other batch sizes, and ResNet-50 at 224 pixels
set -uo pipefail
out=${1:?say where the results go: benchmarks/training.sh DIR [PART…]}
shift
mkdir -p "$out"
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
python=${PYTHON:-python}

train() { # folder, then flags
    local folder=$1
    shift
    echo "== $folder: $*"
    "$python" run_training.py --output-dir "$out/$folder" "$@" 2>&1 | tee "$out/$folder.log"
}

if (($("$python" -c 'import torch; print(torch.cuda.device_count())') > 1)); then
    scaling=(--dataset synthetic --max-steps 300 --batch-sizes "32,256,1024")
    CUDA_VISIBLE_DEVICES=0 train scaling "${scaling[@]}"
    echo "== scaling, 2 processes"
    "$python" -m torch.distributed.run --standalone --nproc-per-node 2 \
        run_training.py --output-dir "$out/scaling" "${scaling[@]}" 2>&1 | tee "$out/scaling_x2.log"
    exit
fi
baseline=(--model resnet18 resnet34 --epochs 5 --enable-pytorch-profiler --profile-memory)
synthetic=(--dataset synthetic --max-steps 110)
(($#)) || set -- baseline captured bound algorithms types sizes
for part in "$@"; do
    case $part in
        baseline)
            train digits "${baseline[@]}" --batch-size 32
            train digits "${baseline[@]}" --batch-size 32 --compile
            ;;
        captured)
            fused=(--model resnet18 resnet34 --epochs 5 --batch-size 32 --fused-optimizer)
            for execution in '' --compile --capture '--compile --capture'; do
                # shellcheck disable=SC2086 # none, one or two flags
                train fused "${fused[@]}" $execution
            done
            train fused_synthetic "${synthetic[@]}" --batch-sizes 32,256 --fused-optimizer
            train fused_synthetic "${synthetic[@]}" --batch-sizes 32,256 --fused-optimizer --capture
            ;;
        bound) train bound --dataset synthetic --batch-size 1024 --max-steps 60 --math fp32 --enable-pytorch-profiler ;;
        algorithms)
            for algorithm in 'implicit precomp gemm' gemm; do
                train "${algorithm// /_}" "${synthetic[@]}" --batch-size 32 --algorithm "$algorithm"
            done
            ;;
        types)
            train bfloat16 "${synthetic[@]}" --batch-sizes 32,256 --dtype bfloat16
            train float32 "${synthetic[@]}" --batch-sizes 32,256
            train no_energy "${synthetic[@]}" --batch-sizes 32,256 --no-energy
            ;;
        sizes)
            train digits "${baseline[@]}" --batch-sizes 16,64,128,256
            train imagenet --model resnet50 --stem imagenet --dataset synthetic --input-size 224 --batch-sizes 32,128,256 --max-steps 60
            ;;
        *)
            echo "unknown part $part: baseline captured bound algorithms types sizes" >&2
            exit 2
            ;;
    esac
done
