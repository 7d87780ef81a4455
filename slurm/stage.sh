# shellcheck shell=bash disable=SC2154 # root is set by whoever sources this
# What the three stages share. A stage sets `root` to the repository's folder, sources this, and calls `stage NAME "$@"`:
# in a batch job that runs, with --local it runs here, else it submits itself.

set -euo pipefail
# shellcheck source=slurm/environment.sh
source "$root/slurm/environment.sh"

readonly stopped=85 # the exit code of a run that USR2 stopped: convscope/cli/signals.py
readonly most_restarts=3
readonly stages=(1_sanity 2_quick 3_full)
declare -rA script=([1_sanity]=1_sanity_check.sh [2_quick]=2_quick_sweep.sh [3_full]=3_full_run.sh)
declare -rA sizes=([1_sanity]=--test [2_quick]=--quick [3_full]="")

stage() {
    this=$1
    shift
    parse "$@"
    cd -- "$root"
    if in_job; then
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
       ./${script[$this]} --matrix FILE [GPU] [OPTION …] [FLAG …]

  --chain          sanity, quick and full, each after the one before has succeeded
  --matrix FILE    a job array over the combinations of a file; GPU for lines that name none
  --throttle N     at most N tasks of an array at a time (4)
  --no-requeue     a job that nears its time limit stops, and is not put into the queue again
  --dry-run        print what would be submitted
  --local          run here, without SLURM; GPU may then be cpu or local (whatever is here)
  --gpus 0,1,…     with --local --matrix: one process a GPU, of these (all); cpu,cpu: two without a GPU

FLAGs go to run_profile.py as they are. GPUs: $(gpu_names).
END
}

# ---- the command line

parse() {
    names=() flags=() own=()
    dry_run='' here='' chain='' matrix='' gpus='' throttle=4 requeue=yes
    while (($#)); do
        case $1 in
            --matrix=* | --throttle=* | --gpus=*)
                set -- "${1%%=*}" "${1#*=}" "${@:2}"
                continue
                ;;
            --matrix | --throttle | --gpus) (($# > 1)) || die "$1 needs a value" ;;&
            --matrix) matrix=$2 && shift ;;
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
        ((${#names[@]} <= 1)) || die "--matrix FILE may be followed by a GPU, not by ${names[*]@Q}"
        [[ -r $matrix ]] || die "--matrix ${matrix@Q} cannot be read (run_profile.py --list-combinations writes one)"
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
    local name='[A-Za-z0-9][A-Za-z0-9._-]*'
    [[ $1 =~ ^(torchvision:)?$name$ ]] || die "MODEL ${1@Q} is no name: letters, digits and ._- (--list-models lists them)"
    [[ $2 =~ ^[A-Za-z0-9]+([ _][A-Za-z0-9]+)*$ ]] || die "ALGORITHM ${2@Q} is no name: words, with spaces or underscores between"
    [[ $3 =~ ^$name$ ]] || die "GPU ${3@Q} is no name: letters, digits and ._-"
    model=${1,,} algorithm=${2,,} gpu=${3,,}
    algorithm=${algorithm//_/ }
}

# ---- GPUs

gpu_files() {
    local file
    for file in "$config/gpus.conf" "$root/slurm/gpus.conf"; do
        [[ ! -r $file ]] || cat -- "$file"
    done
}

gpu_names() {
    gpu_files | awk '!/^#/ && NF && !seen[$1]++ { printf "%s%s", separator, $1; separator = ", " }'
}

# Sets constraint, gres and partition of $gpu.
find_gpu() {
    local name _
    while read -r name constraint gres partition _; do
        [[ $name != "$gpu" ]] || return 0
    done < <(gpu_files)
    [[ $gpu != local ]] || die "GPU local means what is here: add --local, or name one of $(gpu_names)"
    die "unknown GPU ${gpu@Q}: name one of $(gpu_names), or add it to $config/gpus.conf"
}

# ---- folders and their history

folder() { # STAGE
    local bare=${model#torchvision:}
    printf 'results/%s/%s_%s_%s' "$1" "$bare" "${algorithm// /_}" "$gpu"
}

note_event() { # STAGE JOB EVENT: one line of convscope/cluster/progress.py's HISTORY
    local path quoted='' now
    path=$(folder "$1")
    mkdir -p -- "$path"
    ((${#own[@]} + ${#flags[@]} == 0)) || printf -v quoted '%q ' "${own[@]}" "${flags[@]}"
    TZ=UTC printf -v now '%(%FT%TZ)T' -1
    printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$now" "$2" "$3" "$model" "$algorithm" "$gpu" "${quoted% }" >>"$path/jobs.log"
}

# ---- submitting

submit() {
    [[ -n $dry_run ]] || command -v sbatch >/dev/null || die \
        "no sbatch on the PATH: go to the cluster's login node (or load its SLURM module), or run here with --local"
    submitted=()
    if [[ -n $matrix ]]; then submit_matrix; else submit_one; fi
    ((${#submitted[@]} == 0)) || printf '%s\n' "${submitted[-1]}"
}

wanted_stages() {
    if [[ -n $chain ]]; then printf '%s\n' "${stages[@]}"; else printf '%s\n' "$this"; fi
}

submit_one() {
    local each job='' path
    find_gpu
    for each in $(wanted_stages); do
        path=$(folder "$each")
        [[ -n $dry_run ]] || mkdir -p -- "$path"
        options=("--job-name=${path//\//_}" "--output=$path/%x_%j.out" "--error=$path/%x_%j.err")
        options[0]=${options[0]/=results_/=}
        [[ -z $job ]] || options+=("--dependency=afterok:$job" --kill-on-invalid-dep=yes)
        send "$each" "$model" "$algorithm" "$gpu"
        [[ -n $dry_run ]] || note_event "$each" "$job" submitted
    done
}

submit_matrix() {
    local last=$this part tasks most cut parts
    [[ -z $chain ]] || last=3_full
    activate || exit 2
    most=$(scontrol show config 2>/dev/null | awk '$1 == "MaxArraySize" { print $3 }' || true)
    cut=(--stage "$last" --into "$root/results/.arrays" --most "${most:-1001}")
    [[ ${#names[@]} == 0 ]] || cut+=(--gpu "${names[0],,}")
    [[ -z $dry_run ]] || cut+=(--dry-run)
    parts=$(python -m convscope matrix "$matrix" "${cut[@]}" -- "${flags[@]}") || exit 2
    [[ -n $parts ]] || return 0
    while IFS=$'\t' read -r part gpu tasks <&3; do
        submit_array "$part" "$tasks"
    done 3<<<"$parts"
}

submit_array() { # FILE TASKS; $gpu is set
    local each job=''
    find_gpu
    for each in $(wanted_stages); do
        [[ -n $dry_run ]] || mkdir -p -- "results/$each"
        options=("--job-name=${each}_$gpu" "--output=results/$each/%x_%A.out" "--error=results/$each/%x_%A.err")
        options+=("--array=0-$(($2 - 1))%$throttle")
        [[ -z $job ]] || options+=("--dependency=aftercorr:$job" --kill-on-invalid-dep=yes)
        send "$each" --matrix "$1"
        [[ -n $dry_run ]] || note_tasks "$each" "$job" "$1"
    done
}

note_tasks() { # STAGE JOB FILE
    local task=0 model algorithm gpu
    while IFS=$'\t' read -r model algorithm gpu; do
        note_event "$1" "$2_$task" submitted
        task=$((task + 1))
    done <"$3"
}

# Hands a stage to sbatch with $options; sets job. What SBATCH_* already says is left to it.
send() { # STAGE ARGUMENT …
    local each=$1
    shift
    [[ -v SBATCH_CONSTRAINT || $constraint == - ]] || options+=("--constraint=$constraint")
    [[ -v SBATCH_GRES || $gres == - ]] || options+=("--gres=$gres")
    [[ -v SBATCH_PARTITION || $partition == - ]] || options+=("--partition=$partition")
    [[ -n $requeue ]] || options+=(--no-requeue)
    local command=(sbatch --parsable "${options[@]}" "${script[$each]}" "$@" "${own[@]}" "${flags[@]}")
    if [[ -n $dry_run ]]; then
        printf '%s\n' "${command[*]@Q}"
        job="JOB_OF_$each"
        return
    fi
    job=$("${command[@]}") || refused
    job=${job%%;*} # on a federation: number;cluster
    submitted+=("$job")
    printf '%s\n' "$each: job $job, logs under results/$each/, ./check_status.sh tells how it stands"
}

refused() {
    ((${#submitted[@]} == 0)) || scancel "${submitted[@]}"
    die "sbatch refused it (its line is above), nothing is queued: GPU $gpu asks for constraint \
${SBATCH_CONSTRAINT-$constraint}, gres ${SBATCH_GRES-$gres}, partition ${SBATCH_PARTITION-$partition}; \
set them in $config/gpus.conf, or SBATCH_CONSTRAINT, SBATCH_GRES, SBATCH_PARTITION"
}

# ---- running

# Sets profile: the command that measures $model, $algorithm, $gpu in a stage.
profile_command() { # STAGE
    profile=(python -u run_profile.py --model "$model" --algorithm "$algorithm")
    [[ -z ${sizes[$1]} ]] || profile+=("${sizes[$1]}")
    case $gpu in
        cpu) profile+=(--device cpu --gpu cpu) ;;
        local) ;;
        *) profile+=(--gpu "$gpu") ;;
    esac
    # The queue chooses the card, also of a job that is put back: each row names the one it was measured on.
    if [[ $gpu != cpu ]] && in_job; then profile+=(--any-card); fi
    profile+=("${flags[@]}")
}

# The name of the batch script, too, for an interactive job has a number but is no stage.
in_job() {
    [[ -n ${SLURM_JOB_ID:-} && ${0##*/} == slurm_script ]]
}

run_job() {
    local log job rc=0
    [[ -z $here$chain$dry_run ]] || die "--local, --chain and --dry-run are for starting by hand, not for a job"
    if [[ -n $matrix ]]; then take_task; fi
    job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}}
    job=${job:-$SLURM_JOB_ID}
    log=$(folder "$this")/${SLURM_JOB_NAME//\//_}_$SLURM_JOB_ID
    note_event "$this" "$job" started
    # The tasks of an array have one log between them, and sbatch by hand one of its own: each goes to its folder.
    if [[ ! /dev/stdout -ef $log.out ]]; then
        printf '%s\n' "$job: $log.out"
        exec >>"$log.out" 2>>"$log.err"
    fi
    # Noted at once: SLURM kills what has not ended KillWait after TERM, and the step may take longer over a size.
    trap 'note_event "$this" "$job" "ended 143"; wait; exit 143' TERM
    measure || rc=$?
    if ((rc == stopped)); then requeue "$job"; fi
    note_event "$this" "$job" "ended $rc"
    exit "$rc"
}

take_task() {
    local lines fields
    [[ -n ${SLURM_ARRAY_TASK_ID:-} ]] || die "--matrix in a job needs a job array: start ./${script[$this]} by hand"
    mapfile -t lines <"$matrix"
    ((SLURM_ARRAY_TASK_ID < ${#lines[@]})) || die "$matrix has no line for task $SLURM_ARRAY_TASK_ID"
    IFS=$'\t' read -ra fields <<<"${lines[SLURM_ARRAY_TASK_ID]}"
    ((${#fields[@]} == 3)) || die "$matrix, task $SLURM_ARRAY_TASK_ID: not model, algorithm, GPU"
    take_names "${fields[@]}"
}

# Only steps get SLURM's warning signal (no "B:"), so Python must be one. srun forgets the job's CPUs since 22.05.
# In the background, for a trap waits until a command in the foreground has ended, but interrupts `wait`.
measure() {
    profile_command "$this"
    activate && check_packages || return 2
    srun --ntasks=1 --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" --export=ALL "${profile[@]}" &
    wait "$!"
}

requeue() { # JOB; returns where the job is not to go on
    local restarts=${SLURM_RESTART_COUNT:-0}
    if [[ -z $requeue ]]; then
        printf '%s\n' "${script[$this]}: stopped near the time limit; --no-requeue: submit it again to go on" >&2
    elif ((restarts >= most_restarts)); then
        printf '%s\n' "${script[$this]}: stopped near the time limit after $restarts restarts: submit it again to go on" >&2
    else
        note_event "$this" "$1" requeued
        printf '%s\n' "${script[$this]}: stopped near the time limit; restart $((restarts + 1)) of $most_restarts" >&2
        trap 'exit "$stopped"' TERM # which SLURM may send before scontrol has come back
        ! scontrol requeue "$SLURM_JOB_ID" || exit "$stopped"
    fi
}

run_here() {
    local each rc=0
    activate && check_packages || exit 2
    [[ -z $matrix ]] || run_matrix_here
    trap : INT TERM USR2 # they are Python's; what it ended with is noted below
    for each in $(wanted_stages); do
        profile_command "$each"
        if [[ -n $dry_run ]]; then
            printf '%s\n' "${profile[*]@Q}"
            continue
        fi
        [[ $gpu == local ]] || note_event "$each" "local-$$" started
        "${profile[@]}" || rc=$?
        [[ $gpu == local ]] || note_event "$each" "local-$$" "ended $rc"
        ((rc == 0)) || exit "$rc"
    done
}

run_matrix_here() {
    local command=(python -m convscope local "$matrix" --stages)
    mapfile -t -O "${#command[@]}" command < <(wanted_stages)
    [[ ${#names[@]} == 0 ]] || command+=(--gpu "${names[0],,}")
    [[ -z $gpus ]] || command+=(--gpus "$gpus")
    [[ -z $dry_run ]] || command+=(--dry-run)
    exec "${command[@]}" -- "${flags[@]}"
}
