#!/usr/bin/env bash
# Unpacks Debian's SLURM packages into .slurm/, for tests/slurm: nothing of the system is changed, no root is needed.
# Where the system has a SLURM of its own nothing is done.
set -euo pipefail
cd -- "$(dirname -- "${BASH_SOURCE[0]}")/../.."

has() {
    local program
    for program; do
        PATH=$PATH:/usr/sbin command -v "$program" >/dev/null || return 1
    done
}

if has slurmctld slurmd munged sbatch; then exit 0; fi
has apt-get dpkg || { echo "install.sh: neither a SLURM nor apt-get here" >&2 && exit 1; }

part=$PWD/.slurm.part
rm -rf "$part"
mkdir -p "$part/lists/partial" "$part/cache/archives/partial"
apt=(apt-get --quiet=2 --yes --no-install-recommends
    -o Dir::State::lists="$part/lists" -o Dir::Cache="$part/cache" -o Debug::NoLocking=1 -o APT::Sandbox::User=)
"${apt[@]}" update
"${apt[@]}" --download-only install slurmctld slurmd slurm-client munge
for package in "$part"/cache/archives/*.deb; do
    dpkg --extract "$package" "$part/root"
done
for program in "$part"/root/usr/sbin/*-wlm; do # alternatives, which no package holds as files
    ln -s "${program##*/}" "${program%-wlm}"
done
rm -rf .slurm
mv "$part/root" .slurm
rm -rf "$part"
