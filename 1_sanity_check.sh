#!/usr/bin/env bash
#SBATCH --job-name=1_sanity
#SBATCH --nodes=1
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=4
#SBATCH --mem=16G
#SBATCH --time=00:15:00
#SBATCH --signal=USR2@180
#SBATCH --requeue
#SBATCH --open-mode=append
# Stage 1 of 3: one input size, to see that a combination works.
# Started by hand it submits itself (--help), asking for what slurm/gpus.conf says; given to sbatch from this folder
# it runs, and sbatch must be asked: `sbatch --constraint=gpul40s --gres=gpu:1 1_sanity_check.sh vgg16 gemm l40s`.
root=$(cd -- "$(dirname -- "$0")" && pwd)
[[ ${0##*/} != slurm_script ]] || root=${SLURM_SUBMIT_DIR:?} # SLURM runs a copy of this file
# shellcheck source=slurm/stage.sh
source "$root/slurm/stage.sh" || { echo "1_sanity_check.sh: $root is not the repository's folder: submit from there" >&2 && exit 2; }
stage 1_sanity "$@"
