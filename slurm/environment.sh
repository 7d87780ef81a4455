# shellcheck shell=bash disable=SC2154 # root is set by whoever sources this
# Puts the right Python on the PATH: `activate` (returns 1 after one line that says what is missing).
#
# From your site.sh or the environment, whichever is set:
#   CONVSCOPE_MODULES  modules to load first ("cuda/12.4 python/3.11")
#   CONVSCOPE_CONDA    a conda environment, by name or path
#   CONVSCOPE_RESULTS  the folder of all results, such as one on scratch; without it results/ in the repository
#   CONVSCOPE_VENV     a virtual environment; without either, .venv in the repository, else the Python that is active

config=${CONVSCOPE_CONFIG:-${XDG_CONFIG_HOME:-${HOME:-/nonexistent}/.config}/convscope}
if [[ -r $config/site.sh ]]; then
    set +eu # its last line may be false, and it may read variables that are not set
    # shellcheck source=/dev/null
    source "$config/site.sh"
    set -eu
fi
[[ -z ${CONVSCOPE_RESULTS:-} ]] || export CONVSCOPE_RESULTS # for Python

complain() {
    printf '%s\n' "environment.sh: $1" >&2
    return 1
}

activate() {
    set +u # activation scripts of others read variables that are not set
    load_modules && enter_environment
    local rc=$?
    set -u
    ((rc == 0)) || return 1
    command -v python >/dev/null || complain "no python on the PATH: run make, or set CONVSCOPE_VENV or CONVSCOPE_CONDA"
}

load_modules() {
    [[ -n ${CONVSCOPE_MODULES:-} ]] || return 0
    local file
    for file in /etc/profile.d/lmod.sh /etc/profile.d/z00_lmod.sh /etc/profile.d/modules.sh; do
        # shellcheck source=/dev/null
        [[ $(type -t module) == function || ! -r $file ]] || source "$file"
    done
    [[ $(type -t module) == function ]] || { complain "CONVSCOPE_MODULES is set, but there is no module command here" || return; }
    local words
    read -ra words <<<"$CONVSCOPE_MODULES"
    module load "${words[@]}" || complain "module load $CONVSCOPE_MODULES failed: module avail lists what there is"
}

enter_environment() {
    if [[ -n ${CONVSCOPE_CONDA:-} ]]; then
        enter_conda
    elif [[ -n ${CONVSCOPE_VENV:-} ]]; then
        enter_venv "$CONVSCOPE_VENV"
    elif [[ -e $root/.venv/bin/activate ]]; then
        enter_venv "$root/.venv"
    fi
}

enter_venv() {
    [[ -r $1/bin/activate ]] || { complain "$1 is no virtual environment: run make, or set CONVSCOPE_VENV" || return; }
    # shellcheck source=/dev/null
    source "$1/bin/activate"
}

enter_conda() {
    local base
    base=${CONVSCOPE_CONDA_BASE:-$("${CONDA_EXE:-conda}" info --base 2>/dev/null)}
    [[ -r $base/etc/profile.d/conda.sh ]] || { complain "CONVSCOPE_CONDA is set, but no conda: set CONVSCOPE_CONDA_BASE" || return; }
    # shellcheck source=/dev/null
    source "$base/etc/profile.d/conda.sh"
    conda activate "$CONVSCOPE_CONDA" || complain "conda activate $CONVSCOPE_CONDA failed: conda env list says what there is"
}

# What measuring needs besides Python, found without importing it.
check_packages() {
    local missing
    missing=$(python -c 'import importlib.util as u, sys
print(*[name for name in sys.argv[1:] if u.find_spec(name) is None])' torch torchvision ai3 pandas) || return 1
    [[ -z $missing ]] || complain "$(command -v python) has no $missing: run make, or set CONVSCOPE_VENV or CONVSCOPE_CONDA"
}
