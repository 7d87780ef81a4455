#!/usr/bin/env bash
# The runs of docs/example-report.html on one GPU, and the page; what is in DIR already is not measured again.
#   benchmarks/example.sh DIR [PART…]
# Parts: resnet50 models plans conv3d inference page; without any, all of them.
set -uo pipefail
out=${1:?say where the results go: benchmarks/example.sh DIR [PART…]}
shift
mkdir -p "$out"
out=$(cd "$out" && pwd)
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
python=${PYTHON:-python}
(($#)) || set -- resnet50 models plans conv3d inference page

plans() { # model, then flags
    "$python" run_verify.py --plans --model "$1" --rounds 5 --output-dir "$out/plans" "${@:2}"
}

for part in "$@"; do
    case $part in
    resnet50 | models)
        "$python" run_profile.py --study "benchmarks/example/$part.toml" --output-dir "$out/profiles"
        ;;
    plans)
        plans resnet50
        plans resnet50 --energy --dtype float16 --layout nhwc
        plans vgg16 --first 8
        plans densenet121 --first 8
        ;;
    conv3d) bash benchmarks/conv3d.sh "$out/conv3d" batch4 end_to_end ;;
    inference) bash benchmarks/inference.sh "$out/inference" goals sweep ;;
    page)
        "$python" -m convscope report "$out" --public --title "Six CNNs on one GPU" -o "$out/report.html"
        ;;
    *) echo "no part $part: choose resnet50 models plans conv3d inference page" >&2 && exit 2 ;;
    esac
done
