#!/usr/bin/env bash
# The figures of docs/inference.md, on one GPU; with two GPUs the scaling rows.
#   benchmarks/inference.sh DIR [PART…]     writes everything under DIR; without a part: goals sweep
# goals: batch 1 and 256 for two seconds each, by which images/s are judged
# sweep: batch 1 to 256 through the engines that a graph launches, and those that are installed
# compiled: compile in three ways, at five batch sizes; aot: both ways, at batch 1 and 256
# most: compile-max, choice: cudnn-best, at batch 1 and 256 (minutes a size); SIZES=… names others
# families: EfficientNet-B0, MobileNetV3, ConvNeXt-Tiny and ViT-S at batch 1 and 256 (ENGINES=… names others)
# server: rates of three runs of a minute each (SECONDS_A_RUN; RATES=100,200 names them)
# scenarios: MLPerf's other three, in one folder with server; gpus: all batches by one GPU and by two
# goals, sweep, compiled, aot, most and choice go into one folder: a cell that is there is not measured again.
set -uo pipefail
out=${1:?say where the results go: benchmarks/inference.sh DIR [PART…]}
shift
mkdir -p "$out"
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
python=${PYTHON:-python}
sizes=1,2,4,8,16,32,64,128,256
model=(--model resnet50 --dtype float16 --layout nhwc --warmup 20)
flags=("${model[@]}" --measure 200 --min-seconds 0.6)

infer() { # folder, name of the log, then flags
    local folder=$1 log=$2
    shift 2
    echo "== $log: $*"
    "$python" run_inference.py --output-dir "$out/$folder" "$@" 2>&1 | tee "$out/$log.log"
}

(($#)) || set -- goals sweep
for part in "$@"; do
    case $part in
        goals) infer batch goals "${flags[@]}" --batch-sizes 1,256 --min-seconds 2 \
            --engines eager,graph,fused,compile-graph,onnxruntime ;;
        sweep)
            infer batch sweep "${flags[@]}" --batch-sizes "$sizes" \
                --engines eager,graph,graph-unfolded,fused,onnxruntime,tensorrt
            ;;
        most) infer batch most "${flags[@]}" --batch-sizes "${SIZES:-1,256}" --engines compile-max ;;
        aot) infer batch aot "${flags[@]}" --batch-sizes "${SIZES:-1,256}" --engines aot,aot-graph ;;
        compiled)
            infer batch compiled "${flags[@]}" --batch-sizes "${SIZES:-1,4,16,64,256}" \
                --engines compile,compile-graph,compile-overhead
            ;;
        families)
            for name in torchvision:efficientnet_b0 torchvision:mobilenet_v3_large torchvision:convnext_tiny \
                timm:vit_small_patch16_224; do
                infer "families/${name##*:}" "${name##*:}" "${flags[@]}" --model "$name" --batch-sizes 1,256 \
                    --engines "${ENGINES:-fused,compile-graph,compile-overhead,compile-max}"
            done
            ;;
        choice) infer batch choice "${flags[@]}" --batch-sizes "${SIZES:-1,256}" --engines cudnn-best ;;
        server)
            infer server server "${model[@]}" --scenario server --engines "${SERVER_ENGINE:-fused}" --slo-ms 15 \
                --batch-sizes 1,4,16,64,128 --min-seconds "${SECONDS_A_RUN:-60}" ${RATES:+--qps "$RATES"}
            ;;
        scenarios)
            for name in single-stream multi-stream offline; do
                batches=()
                [[ $name == offline ]] && batches=(--batch-sizes "${SIZES:-256}")
                infer server "$name" "${model[@]}" --scenario "$name" --min-seconds "${SECONDS_A_RUN:-60}" \
                    --engines "${ENGINES:-eager,graph,fused,onnxruntime}" "${batches[@]}"
            done
            ;;
        gpus)
            infer gpus gpus_1 "${flags[@]}" --batch-sizes "$sizes,512" --engines eager,fused --gpus 1
            infer gpus gpus_2 "${flags[@]}" --batch-sizes "${sizes#1,},512" --engines eager,fused --gpus 2
            ;;
        *)
            echo "unknown part $part: goals sweep compiled aot most choice families server scenarios gpus" >&2
            exit 2
            ;;
    esac
done
