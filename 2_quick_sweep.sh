#!/usr/bin/env bash
#SBATCH --job-name=2_quick
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=4
#SBATCH --mem=16G
#SBATCH --time=02:00:00
#SBATCH --signal=USR2@180
#SBATCH --requeue
#SBATCH --open-mode=append
# Stage 2 of 3: ten input sizes, to see that it scales as it should.
# Started by hand it submits itself (--help), asking for what slurm/gpus.conf says; given to sbatch from this folder
# it runs, and sbatch must be asked: `sbatch --constraint=gpul40s --gres=gpu:1 2_quick_sweep.sh vgg16 gemm l40s`.
root=$(cd -- "$(dirname -- "$0")" && pwd)
[[ ${0##*/} != slurm_script ]] || root=${SLURM_SUBMIT_DIR:?} # SLURM runs a copy of this file
# shellcheck source=slurm/stage.sh
source "$root/slurm/stage.sh" || { echo "2_quick_sweep.sh: $root is not the repository's folder: submit from there" >&2 && exit 2; }
stage 2_quick "$@"
