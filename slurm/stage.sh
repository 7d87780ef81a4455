# shellcheck shell=bash disable=SC2154 # root is set by whoever sources this
# What the three stages share. A stage sets `root` to the repository's folder, sources this, and calls `stage NAME "$@"`:
# in a batch job that runs, with --local it runs here, else it submits itself.

set -euo pipefail
# shellcheck source=slurm/environment.sh
source "$root/slurm/environment.sh"
# shellcheck source=slurm/submit.sh
source "$root/slurm/submit.sh"
# shellcheck source=slurm/run.sh
source "$root/slurm/run.sh"

readonly stopped=85 ended=75 # exit codes of a run that USR2, or TERM and its like, stopped: convscope/cli/signals.py
readonly most_restarts=3
readonly results=${CONVSCOPE_RESULTS:-results}
readonly stages=(1_sanity 2_quick 3_full)
declare -rA script=([1_sanity]=1_sanity_check.sh [2_quick]=2_quick_sweep.sh [3_full]=3_full_run.sh)
declare -rA sizes=([1_sanity]=--test [2_quick]=--quick [3_full]="")

stage() {
    this=$1
    shift
    parse "$@"
    stand=$PWD
    cd -- "$root"
    if in_job; then
        [[ -n $matrix ]] || check_node
        run_job
    elif [[ -n $here ]]; then
        run_here
    else
        submit
    fi
}

die() {
    printf '%s\n' "${script[$this]}: $1" >&2
    exit 2
}

usage() {
    cat <<END
usage: ./${script[$this]} MODEL ALGORITHM GPU [OPTION …] [FLAG …]
       ./${script[$this]} --matrix FILE | --study FILE [GPU] [OPTION …] [FLAG …]

  --chain          this stage and those after it, each after the one before has succeeded; those before it if missing
  --matrix FILE    a job array over the combinations of a file; GPU for lines that name none
  --study FILE     the same of a study file (examples/study.toml)
  --throttle N     at most N tasks of an array at a time (4)
  --no-requeue     a job that nears its time limit stops, and is not put into the queue again
  --dry-run        print what would be submitted
  --local          run here, without SLURM; GPU may then be cpu or local (whatever is here)
  --gpus 0,1,…     with --local and a file: one process a GPU, of these (all); cpu,cpu: two without a GPU

FLAGs go to run_profile.py as they are. GPUs: $(gpu_names).
END
}

# ---- the command line

parse() {
    names=() flags=() own=()
    dry_run='' here='' chain='' matrix='' study='' gpus='' throttle=4 requeue=yes
    while (($#)); do
        case $1 in
            --matrix=* | --study=* | --throttle=* | --gpus=*)
                set -- "${1%%=*}" "${1#*=}" "${@:2}"
                continue
                ;;
            --matrix | --study | --throttle | --gpus) (($# > 1)) || die "$1 needs a value" ;;&
            --matrix | --study)
                [[ -z $matrix ]] || die "name one file, --matrix FILE or --study FILE"
                matrix=$2 && [[ $1 == --matrix ]] || study=--study
                shift
                ;;
            --throttle) throttle=$2 && shift ;;
            --gpus) gpus=$2 && shift ;;
            --dry-run) dry_run=yes ;;
            --local) here=yes ;;
            --chain) chain=yes ;;
            --no-requeue) requeue='' own=(--no-requeue) ;;
            -h | --help)
                usage
                exit 0
                ;;
            --out*=[!/]*) flags+=("${1%%=*}=$PWD/${1#*=}") ;; # the stages work in the repository's folder
            --out*) flags+=("$1") && [[ $1 == *=* || ${2-/} == /* ]] || set -- "$1" "$PWD/$2" "${@:3}" ;;
            -*) flags+=("$1") ;;
            *) if ((${#flags[@]})) || ((${#names[@]} == 3)); then flags+=("$1"); else names+=("$1"); fi ;;
        esac
        shift
    done
    check_arguments
}

check_arguments() {
    if [[ -n $matrix ]]; then
        ((${#names[@]} <= 1)) || die "${study:---matrix} FILE may be followed by a GPU, not by ${names[*]@Q}"
        [[ -r $matrix ]] || die "${study:---matrix} ${matrix@Q} cannot be read (run_profile.py --list-combinations writes one)"
        [[ $matrix == /* ]] || matrix=$PWD/$matrix
    else
        ((${#names[@]} == 3)) || die "say MODEL ALGORITHM GPU first, then flags (--help lists the options)"
        take_names "${names[@]}"
    fi
    [[ $throttle =~ ^[1-9][0-9]*$ ]] || die "--throttle ${throttle@Q}: a number of tasks, at least 1"
    [[ -z $gpus || -n $here && -n $matrix ]] || die "--gpus goes with --local --matrix FILE"
}

# Sets model, algorithm and gpu, in the spelling that folders and history have.
take_names() {
    local name='[a-z0-9][a-z0-9._-]*'
    [[ -n $1 && $1 != -* && $1 != *[[:cntrl:]]* ]] || die "MODEL ${1@Q} is no name (--list-models lists them)"
    [[ $2 != *[]\)=]* ]] || die "ALGORITHM ${2@Q} is no name: arguments belong to MODEL, in quotes: 'net.py:make,width=2'"
    [[ $2 =~ ^[A-Za-z0-9]+([ _][A-Za-z0-9]+)*$ ]] || die "ALGORITHM ${2@Q} is no name: words, with spaces or underscores between"
    [[ ${3,,} =~ ^$name$ ]] || die "GPU ${3@Q} is no name: letters, digits and ._-"
    model=$(spelled "$1") algorithm=${2,,} gpu=${3,,}
    algorithm=${algorithm//_/ }
}

# A model's name as `check_model` and `placed` of convscope/convolution/names.py spell it: a relative file is of where the
# user stands, and the stages work in the repository's folder. Whether there is such a model is for Python to say.
spelled() { # MODEL
    local LC_ALL=C base arguments='' library bare word='[A-Za-z_][A-Za-z0-9_.]*'
    read -r base <<<"$1"
    if [[ $base =~ ,[A-Za-z_][A-Za-z0-9_]*=.*$ ]]; then
        arguments=${BASH_REMATCH[0]}
        base=${base%"$arguments"}
    fi
    library=${base%%:*}
    read -r bare <<<"${base#*:}"
    [[ $bare == /* || . -ef $root || ${library,,} != hf || ! -d $bare ]] || bare=$PWD/$bare
    [[ $base == /* || . -ef $root || ! $base =~ \.py:|\.pt2$|\.csv$ ]] || base=$PWD/$base
    case ${library,,} in
        timm | hf) base=${library,,}:$bare ;;
        torchvision) base=${base,,} ;;
        *) [[ $base =~ \.py|\.pt2$|\.csv$|^$word:$word$ ]] || base=${base,,} ;;
    esac
    printf '%s%s' "$base" "$arguments"
}

# ---- GPUs

# Reads both gpus.conf; a line counts before all that stand before it, and yours stand behind the repository's.
read_gpus() {
    declare -gA gpu_line=()
    gpu_order=() gpu_options=()
    local file line name number words
    for file in "$root/slurm/gpus.conf" "$config/gpus.conf"; do
        [[ -e $file ]] || continue
        [[ -r $file ]] || die "$file cannot be read"
        number=0
        while IFS= read -r line || [[ -n $line ]]; do # the last line may have no newline
            number=$((number + 1))
            line=${line%$'\r'}
            read -ra words <<<"${line%%#*}"
            ((${#words[@]} == 0)) || take_gpu_line "$file, line $number" "${words[@]}"
        done <"$file"
    done
    for line in "${gpu_options[@]}"; do
        name=${line%%$'\t'*}
        [[ $name == '*' || " ${gpu_order[*]} " == *" $name "* ]] || die "gpus.conf has options for an unknown GPU ${name@Q}"
    done
}

take_gpu_line() { # WHERE WORD …
    local where=$1 name=${2,,} word
    shift 2
    if [[ " ${stages[*]} * " == *" ${1:-none} "* ]]; then
        (($# > 1)) || die "$where: options of sbatch belong after GPU and stage, such as --time=12:00:00"
        for word in "${@:2}"; do
            [[ $word == --?* ]] || die "$where: ${word@Q} is no option of sbatch: write --name or --name=value, without spaces"
            [[ ! ${word%%=*} =~ ^--(array|chdir|dependency|error|job-name|kill-on-invalid-dep|output|parsable|wrap)$ ]] ||
                die "$where: ${word@Q} is for the stage to set"
            gpu_options+=("$name"$'\t'"$1"$'\t'"$word")
        done
    else
        (($# == 3)) && [[ $name =~ ^[a-z0-9][a-z0-9._-]*$ ]] || die "$where: say GPU, constraint, gres and partition (- for nothing), or GPU, stage and options of sbatch"
        [[ -v gpu_line[$name] ]] || gpu_order+=("$name")
        gpu_line[$name]=$*
    fi
}

gpu_names() {
    local name separator=''
    read_gpus
    for name in "${gpu_order[@]}"; do printf '%s%s' "$separator" "$name" && separator=', '; done
}

# Sets constraint, gres and partition of $gpu; read_gpus comes before.
find_gpu() {
    [[ $gpu != local ]] || die "GPU local means what is here: add --local, or name one of $(gpu_names)"
    [[ -v gpu_line[$gpu] ]] || die "unknown GPU ${gpu@Q}: name one of $(gpu_names), or add it to $config/gpus.conf"
    read -r constraint gres partition <<<"${gpu_line[$gpu]}"
}

# Refuses a job that asked for no GPU, or for none of its kind, as `sbatch` by hand does: at once, not after PyTorch.
check_node() {
    local job features needed=()
    [[ $gpu != cpu ]] && job=$(scontrol --oneliner show job "$SLURM_JOB_ID" 2>/dev/null) || return 0
    read_gpus
    find_gpu
    if [[ $constraint != - && $job == *' Features=(null) '* ]]; then
        features=$(scontrol --oneliner show node "${SLURMD_NODENAME:-}" 2>/dev/null) || return 0
        features=,${features##* ActiveFeatures=}
        [[ ${features%% *}, == *",$constraint,"* ]] || needed+=("--constraint=$constraint")
    fi
    [[ $gres == - || $job =~ \ Tres[A-Za-z]+=[^\ ]*gres ]] || needed+=("--gres=$gres")
    ((${#needed[@]} == 0)) || die "this job did not ask for a $gpu: give sbatch ${needed[*]}, or start \
./${script[$this]} ${model@Q} ${algorithm@Q} $gpu by hand, which does"
}

# ---- folders and their history

folder() { # STAGE
    printf '%s/%s/%s_%s_%s%s' "$results" "$1" "$(slug "$model")" "$(slug "$algorithm")" "$gpu" "$(suffix "${flags[@]}")"
}

# A name as it stands in paths: `slug` of convscope/storage/paths.py.
slug() { # NAME
    local LC_ALL=C bare=${1#torchvision:} arguments='' file
    if [[ $bare =~ ,[A-Za-z_][A-Za-z0-9_]*=.*$ ]]; then
        arguments=${BASH_REMATCH[0]}
        bare=${bare%"$arguments"}
    fi
    if [[ $bare =~ \.(py:[^,]+|pt2|csv)$ ]]; then
        file=${bare%"${BASH_REMATCH[0]}"}
        bare=${file##*/}${BASH_REMATCH[0]}
    fi
    bare+=$arguments
    [[ $bare != .* ]] || bare=_${bare#.}
    while [[ $bare =~ [^A-Za-z0-9_.+-]+ ]]; do bare=${bare/"${BASH_REMATCH[0]}"/_}; done
    printf '%s' "$bare"
}

# The end of a folder's name, by flags: `suffix` of convscope/storage/paths.py, options as convscope/cli/fields.py has them.
suffix() { # FLAG …
    local batch=1 dtype=float32 layout=nchw shape='' value
    while (($#)); do
        if [[ $1 == --*=* ]]; then value=${1#*=}; else value=${2-}; fi
        case ${1%%=*} in
            --batch-size) [[ ! $value =~ ^[0-9]{1,9}$ ]] || batch=$((10#$value)) ;;
            --dt | --dty | --dtyp | --dtype) [[ ! $value =~ ^[a-z0-9]{1,20}$ ]] || dtype=$value ;;
            --layo | --layou | --layout) [[ ! $value =~ ^[a-z0-9]{1,20}$ ]] || layout=$value ;;
            --input-sh | --input-sha | --input-shap | --input-shape)
                [[ ! ${value,,} =~ ^([0-9]{1,9})x([0-9]{1,9})$ ]] ||
                    shape=$((10#${BASH_REMATCH[1]}))x$((10#${BASH_REMATCH[2]}))
                ;;
        esac
        shift
    done
    ((batch == 1)) || printf '_b%s' "$batch"
    case $dtype in float32) ;; float16) printf _fp16 ;; bfloat16) printf _bf16 ;; *) printf '_%s' "$dtype" ;; esac
    [[ $layout == nchw ]] || printf '_%s' "$layout"
    [[ -z $shape || ${shape%x*} == "${shape#*x}" ]] || printf '_%s' "$shape"
}

# Sets fields to the flags that stand in a line of a matrix, behind model, algorithm and GPU.
take_fields() { # STAGE FIELD …
    local of_stage=$1 field words
    shift
    fields=()
    for field in "$@"; do
        [[ $field =~ ^[a-z][a-z_]*=[A-Za-z0-9][A-Za-z0-9.,_\ -]*$ ]] || die "${field@Q} is no setting: write option=value, such as batch_size=8"
        [[ $field != num_sizes=* || -z ${sizes[$of_stage]} ]] || continue # the other stages have their own number
        read -ra words <<<"${field#*=}"
        field=${field%%=*}
        fields+=("--${field//_/-}")
        [[ ${words[*]} == true ]] || fields+=("${words[@]}")
    done
}

note_event() { # STAGE JOB EVENT: one line of convscope/cluster/history.py's HISTORY
    local path quoted='' now
    path=$(folder "$1")
    mkdir -p -- "$path"
    path+=/jobs.log
    if [[ -L $path || -e $path ]] && ! is_plain "$path"; then
        printf '%s\n' "${script[$1]}: $path is no plain file: not noted there: job $2 $3" >&2
        return
    fi
    ((${#own[@]} + ${#flags[@]} == 0)) || printf -v quoted '%q ' "${own[@]}" "${flags[@]}"
    TZ=UTC printf -v now '%(%FT%TZ)T' -1
    printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$now" "$2" "$3" "$model" "$algorithm" "$gpu" "${quoted% }" >>"$path"
}

# Others may write in a folder of results: a link of theirs leads to another file of yours, a pipe keeps you waiting.
is_plain() { # FILE
    [[ ! -L $1 && -f $1 ]]
}
