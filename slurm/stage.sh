# shellcheck shell=bash disable=SC2154 # root is set by whoever sources this
# What the three stages share. A stage sets `root` to the repository's folder, sources this, and calls `stage NAME "$@"`:
# in a batch job that runs, with --local it runs here, else it submits itself.

set -euo pipefail
# shellcheck source=slurm/environment.sh
source "$root/slurm/environment.sh"

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
       ./${script[$this]} --matrix FILE [GPU] [OPTION …] [FLAG …]

  --chain          this stage and those after it, each after the one before has succeeded; those before it if missing
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
    local name='[a-z0-9][a-z0-9._-]*'
    [[ ${1,,} =~ ^(torchvision:)?$name$ ]] || die "MODEL ${1@Q} is no name: letters, digits and ._- (--list-models lists them)"
    [[ $2 =~ ^[A-Za-z0-9]+([ _][A-Za-z0-9]+)*$ ]] || die "ALGORITHM ${2@Q} is no name: words, with spaces or underscores between"
    [[ ${3,,} =~ ^$name$ ]] || die "GPU ${3@Q} is no name: letters, digits and ._-"
    model=${1,,} algorithm=${2,,} gpu=${3,,}
    algorithm=${algorithm//_/ }
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
    local bare=${model#torchvision:}
    printf '%s/%s/%s_%s_%s' "$results" "$1" "$bare" "${algorithm// /_}" "$gpu"
}

note_event() { # STAGE JOB EVENT: one line of convscope/cluster/progress.py's HISTORY
    local path quoted='' now
    path=$(folder "$1")
    mkdir -p -- "$path"
    ((${#own[@]} + ${#flags[@]} == 0)) || printf -v quoted '%q ' "${own[@]}" "${flags[@]}"
    TZ=UTC printf -v now '%(%FT%TZ)T' -1
    printf '%s\t%s\t%s\t%s\t%s\t%s\t%s\n' "$now" "$2" "$3" "$model" "$algorithm" "$gpu" "${quoted% }" >>"$path/jobs.log"
}

# ---- checking and submitting

# Whether $model, $algorithm and $gpu can run here, by their names, flags and rules; says why not.
check_here() {
    local wanted
    mapfile -t wanted < <(wanted_stages)
    python -m convscope check "$model" "$algorithm" "$gpu" --here --stages "${wanted[@]}" --first "$this" -- "${flags[@]}"
}

submit() {
    local known wanted
    [[ -n $dry_run ]] || command -v sbatch >/dev/null || die \
        "no sbatch on the PATH: go to the cluster's login node (or load its SLURM module), or run here with --local"
    read_gpus
    activate || exit 2
    [[ -n $dry_run ]] || one_at_a_time
    mapfile -t wanted < <(wanted_stages)
    known=(--stages "${wanted[@]}" --first "$this" --known-gpus "${gpu_order[@]}")
    submitted=() events=() made=() job=''
    trap 'withdraw; exit 130' INT TERM HUP
    if [[ -n $matrix ]]; then submit_matrix; else submit_one; fi
    trap - INT TERM HUP
    note_submitted
    ((${#submitted[@]} == 0)) || printf '%s\n' "${submitted[-1]}"
}

wanted_stages() {
    if [[ -n $chain ]]; then printf '%s\n' "${stages[@]}"; else printf '%s\n' "$this"; fi
}

submit_one() {
    local each job='' path needed work
    work=$(python -m convscope check "$model" "$algorithm" "$gpu" "${known[@]}" -- "${flags[@]}") || exit 2
    [[ -n $work ]] || return 0
    IFS=$'\t' read -r model algorithm gpu needed retry <<<"$work"
    find_gpu
    for each in $needed; do
        path=$(folder "$each")
        make_folder "$path"
        options=("--job-name=${each}_${path##*/}" "--output=$path/%x_%j.out" "--error=$path/%x_%j.err")
        [[ -z $job ]] || options+=("--dependency=afterok:$job" --kill-on-invalid-dep=yes)
        send "$each" "$model" "$algorithm" "$gpu"
        events+=("$each" "$job" "$model" "$algorithm" "$gpu" "$retry")
    done
}

submit_matrix() {
    local part tasks most cut parts needed into=$results/.arrays
    most=$(scontrol show config 2>/dev/null | awk '$1 == "MaxArraySize" { print $3 }' || true)
    [[ $into == /* ]] || into=$root/$into
    cut=(--into "$into" --most "${most:-1001}")
    [[ ${#names[@]} == 0 ]] || cut+=(--gpu "${names[0],,}")
    [[ -z $dry_run ]] || cut+=(--dry-run)
    parts=$(python -m convscope matrix "$matrix" "${known[@]}" "${cut[@]}" -- "${flags[@]}") || exit 2
    [[ -n $parts ]] || return 0
    while IFS=$'\t' read -r part gpu tasks needed retry <&3; do
        submit_array "$part" "$tasks"
    done 3<<<"$parts"
}

submit_array() { # FILE TASKS; gpu, needed and retry are set
    local each job='' task model algorithm
    find_gpu
    for each in $needed; do
        make_folder "$results/$each"
        options=("--job-name=${each}_$gpu" "--output=$results/$each/%x_%A.out" "--error=$results/$each/%x_%A.err")
        options+=("--array=0-$(($2 - 1))%$throttle")
        [[ -z $job ]] || options+=("--dependency=aftercorr:$job" --kill-on-invalid-dep=yes)
        send "$each" --matrix "$1"
        [[ -n $dry_run ]] || for ((task = 0; task < $2; task++)); do
            IFS=$'\t' read -r model algorithm _
            events+=("$each" "${job}_$task" "$model" "$algorithm" "$gpu" "$retry")
        done <"$1"
    done
}

# From the check of what is queued to the last event noted: else two submissions at once queue the same. A file system
# without locks is no reason to submit nothing.
one_at_a_time() {
    { mkdir -p -- "$results" && exec {lock}>>"$results/.submitting"; } 2>/dev/null || die "$results cannot be written"
    ! command -v flock >/dev/null || flock --wait 120 --conflict-exit-code 9 "$lock" || (($? != 9)) ||
        die "another submission has held $results/.submitting for two minutes: nothing is queued"
}

make_folder() { # FOLDER
    [[ -z $dry_run && ! -d $1 ]] || return 0
    mkdir -p -- "$1" && made+=("$1")
}

# Hands a stage to sbatch with $options; sets job. What SBATCH_* already says is left to it.
send() { # STAGE ARGUMENT …
    local each=$1 entry of_gpu of_stage option again=()
    shift
    [[ -v SBATCH_CONSTRAINT || $constraint == - ]] || options+=("--constraint=$constraint")
    [[ -v SBATCH_GRES || $gres == - ]] || options+=("--gres=$gres")
    [[ -v SBATCH_PARTITION || $partition == - ]] || options+=("--partition=$partition")
    for entry in "${gpu_options[@]}"; do
        IFS=$'\t' read -r of_gpu of_stage option <<<"$entry"
        [[ $of_gpu != "$gpu" && $of_gpu != '*' || $of_stage != "$each" && $of_stage != '*' ]] || options+=("$option")
    done
    [[ -n $requeue ]] || options+=(--no-requeue)
    [[ $retry == - ]] || again=("$retry")
    local command=(sbatch --parsable "${options[@]}" "${script[$each]}" "$@" "${own[@]}" "${flags[@]}" "${again[@]}")
    if [[ -n $dry_run ]]; then
        printf '%s\n' "${command[*]@Q}"
        job="JOB_OF_$each"
        return
    fi
    job=$(forget_allocation && "${command[@]}") || refused
    job=${job%%;*} # on a federation: number;cluster
    submitted+=("$job")
    printf '%s\n' "$each: job $job, logs under $results/$each/, ./check_status.sh tells how it stands"
}

# In an allocation (salloc, srun, a job) its variables would count as requests of the new job: SLURM_MEM_PER_CPU and others.
forget_allocation() {
    local name
    [[ -n ${SLURM_JOB_ID:-} ]] || return 0
    for name in "${!SLURM_@}" "${!SLURMD_@}"; do
        [[ $name == SLURM_CONF || $name == SLURM_CLUSTERS ]] || unset "$name"
    done
}

# Noted when all are queued: where a later stage of a chain is refused, none of it was.
note_submitted() {
    local at model algorithm gpu given=("${flags[@]}") flags
    [[ -z $dry_run ]] || return 0
    for ((at = 0; at < ${#events[@]}; at += 6)); do
        model=${events[at + 2]} algorithm=${events[at + 3]} gpu=${events[at + 4]} flags=("${given[@]}")
        [[ ${events[at + 5]} == - ]] || flags+=("${events[at + 5]}")
        note_event "${events[at]}" "${events[at + 1]}" submitted
    done
}

refused() {
    withdraw
    die "sbatch refused it (its line is above), nothing is queued: GPU $gpu asks for constraint \
${SBATCH_CONSTRAINT-$constraint}, gres ${SBATCH_GRES-$gres}, partition ${SBATCH_PARTITION-$partition}; \
set them in $config/gpus.conf, or SBATCH_CONSTRAINT, SBATCH_GRES, SBATCH_PARTITION"
}

withdraw() {
    [[ -z ${job%%;*} ]] || submitted+=("${job%%;*}") # a signal may come before it is noted
    ((${#submitted[@]} == 0)) || scancel "${submitted[@]}"
    ((${#made[@]} == 0)) || rmdir -- "${made[@]}" 2>/dev/null || true
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
    local log job messages rc=0
    [[ -z $here$chain$dry_run ]] || die "--local, --chain and --dry-run are for starting by hand, not for a job"
    if [[ -n $matrix ]]; then take_task; fi
    job=${SLURM_ARRAY_JOB_ID:+${SLURM_ARRAY_JOB_ID}_${SLURM_ARRAY_TASK_ID}}
    job=${job:-$SLURM_JOB_ID}
    log=$(folder "$this")/${SLURM_JOB_NAME//\//_}_$SLURM_JOB_ID
    note_event "$this" "$job" started
    pass_end_on
    # The tasks of an array have one log between them, and sbatch by hand one of its own: each goes to its folder.
    if [[ ! /dev/stdout -ef $log.out || ! /dev/stderr -ef $log.err ]]; then
        printf '%s\n' "$job: $log.out"
        exec >>"$log.out" 2>>"$log.err"
    fi
    # Noted at once: SLURM kills what has not ended KillWait after TERM, and the step may take longer over a size.
    trap 'note_event "$this" "$job" "ended 143"; wait; exit 143' TERM
    messages=$(wc -c <"$log.err")
    measure || rc=$?
    if ((rc == stopped)); then
        requeue "$job"
    elif ((rc)) && (($(wc -c <"$log.err") == messages)); then
        printf '%s\n' "${script[$this]}: exit code $rc and no message: see $log.out" >&2
    fi
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
    # What srun itself says ("Exited with exit code 85") is no fault of the run and goes to the log.
    srun --ntasks=1 --cpus-per-task="${SLURM_CPUS_PER_TASK:-1}" --export=ALL \
        --error="$log.err" --open-mode=append "${profile[@]}" 2>&1 &
    wait "$!"
}

# The run begins no size that would outlast the job. Newer SLURMs say when that ends, older ones when they are asked.
pass_end_on() {
    local end=${SLURM_JOB_END_TIME:-}
    [[ -n $end ]] || end=$(SLURM_TIME_FORMAT=%s scontrol --oneliner show job "$job" 2>/dev/null |
        sed -n 's/.* EndTime=\([0-9]*\) .*/\1/p') || true
    [[ $end =~ ^[0-9]+$ ]] && ((end > $(printf '%(%s)T' -1))) || end=''
    export CONVSCOPE_END_S=$end
}

# Of a task of an array that task alone: the number of one of them ($SLURM_JOB_ID) is also that of the whole array.
requeue() { # JOB; returns where the job is not to go on
    local restarts
    # Not SLURM_RESTART_COUNT, which counts preemptions and lost nodes too.
    restarts=$(awk -F'\t' -v job="$1" '$2 == job && $3 == "requeued"' "$(folder "$this")/jobs.log" | wc -l)
    if [[ -z $requeue ]]; then
        printf '%s\n' "${script[$this]}: stopped near the time limit; --no-requeue: submit it again to go on" >&2
    elif ((restarts >= most_restarts)); then
        printf '%s\n' "${script[$this]}: stopped near the time limit after $restarts restarts: submit it again to go on" >&2
    else
        note_event "$this" "$1" requeued
        printf '%s\n' "${script[$this]}: stopped near the time limit; restart $((restarts + 1)) of $most_restarts"
        trap 'exit "$stopped"' TERM # which SLURM may send before scontrol has come back
        ! scontrol requeue "$1" || exit "$stopped"
    fi
}

run_here() {
    local each rc told=''
    activate && check_packages || exit 2
    [[ -z $matrix ]] || run_matrix_here
    [[ -n $dry_run ]] || check_here || exit 2
    for each in $(wanted_stages); do
        profile_command "$each"
        if [[ -n $dry_run ]]; then
            printf '%s\n' "${profile[*]@Q}"
            continue
        fi
        [[ -z $told ]] || exit "$ended"
        [[ $gpu == local ]] || note_event "$each" "local-$$" started
        rc=0
        run_logged "$each" || rc=$?
        [[ $gpu == local ]] || note_event "$each" "local-$$" "ended $rc"
        ((rc == 0)) || exit "$rc"
    done
}

# Runs $profile, logged as a job's is; sets told where a signal has asked for the end, which is passed on.
run_logged() { # STAGE
    local log name out err loggers=() child rc=0 waiting=yes
    name=$(folder "$1")
    # Which GPU is here, and so the folder, is known only to the run.
    [[ $gpu == local ]] && log=${name%/*} || log=$name
    mkdir -p -- "$log"
    log+=/${1}_${name##*/}_local${CONVSCOPE_BATCH:-$$}
    if [[ /dev/stdout -ef $log.out ]]; then # a batch keeps the logs of its stages
        exec {out}>&1 {err}>&2
    else
        exec {out}> >(keep_log "$log.out") && loggers+=("$!")
        exec {err}> >(keep_log "$log.err" >&2) && loggers+=("$!")
    fi
    # In the background, for bash runs a trap only when a command in the foreground has ended.
    "${profile[@]}" 1>&"$out" 2>&"$err" &
    child=$!
    # A terminal sends INT to the run too, for which a second INT is the end at once: it gets TERM from here.
    trap 'told=yes waiting=yes; kill -TERM "$child" 2>/dev/null || :' INT TERM HUP QUIT
    trap 'told=yes waiting=yes; kill -USR2 "$child" 2>/dev/null || :' USR2
    while [[ -n $waiting ]]; do
        waiting='' rc=0
        wait "$child" || rc=$?
    done
    exec {out}>&- {err}>&-
    ((${#loggers[@]} == 0)) || wait "${loggers[@]}" || :
    # A run that the signal met before it could answer has lost nothing either.
    [[ -z $told ]] || ((rc <= 128)) || rc=$ended
    return "$rc"
}

keep_log() { # FILE; copies its input there and on, to the end of the input
    trap '' INT TERM HUP QUIT USR2
    exec tee --append --output-error=warn-nopipe -- "$1"
}

run_matrix_here() {
    local command=(python -m convscope local "$matrix" --stages)
    mapfile -t -O "${#command[@]}" command < <(wanted_stages)
    [[ ${#names[@]} == 0 ]] || command+=(--gpu "${names[0],,}")
    [[ -z $gpus ]] || command+=(--gpus "$gpus")
    [[ -z $dry_run ]] || command+=(--dry-run)
    exec "${command[@]}" -- "${flags[@]}"
}
