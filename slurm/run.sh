# shellcheck shell=bash disable=SC2154 # stage.sh, which sources this, sets the variables
# Part of a stage that measures, in a job of SLURM or here.

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
    note_changes
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
    local lines cells
    [[ -n ${SLURM_ARRAY_TASK_ID:-} ]] || die "--matrix in a job needs a job array: start ./${script[$this]} by hand"
    mapfile -t lines <"$matrix"
    ((SLURM_ARRAY_TASK_ID < ${#lines[@]})) || die "$matrix has no line for task $SLURM_ARRAY_TASK_ID"
    IFS=$'\t' read -ra cells <<<"${lines[SLURM_ARRAY_TASK_ID]}"
    ((${#cells[@]} >= 3)) || die "$matrix, task $SLURM_ARRAY_TASK_ID: not model, algorithm, GPU"
    take_names "${cells[@]:0:3}"
    take_fields "$this" "${cells[@]:3}"
    flags+=("${fields[@]}")
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

# A job runs the code that is here when it starts: says what has changed since it was submitted.
note_changes() {
    local now changed
    now=$(commit)
    [[ -n ${CONVSCOPE_SUBMITTED:-} && -n $now && $now != "$CONVSCOPE_SUBMITTED" ]] || return 0
    changed=$(git -C "$root" diff --name-only "${CONVSCOPE_SUBMITTED%-dirty}" 2>/dev/null) || changed="not known"
    printf '%s\n' "submitted with commit $CONVSCOPE_SUBMITTED, runs $now; changed since: ${changed//$'\n'/, }"
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
    local restarts=$most_restarts history
    history=$(folder "$this")/jobs.log
    # Not SLURM_RESTART_COUNT, which counts preemptions and lost nodes too.
    ! is_plain "$history" || restarts=$(awk -F'\t' -v job="$1" '$2 == job && $3 == "requeued"' "$history" | wc -l)
    if [[ -z $requeue ]]; then
        printf '%s\n' "${script[$this]}: stopped near the time limit; --no-requeue: submit it again to go on" >&2
    elif ((restarts >= most_restarts)); then
        printf '%s\n' "${script[$this]}: stopped near the time limit after $restarts restarts: submit it again to go on" >&2
    else
        note_event "$this" "$1" requeued
        printf '%s\n' "${script[$this]}: stopped near the time limit; restart $((restarts + 1)) of $most_restarts"
        trap 'exit "$stopped"' TERM # which SLURM may send before scontrol has come back, and to scontrol too
        ! (trap '' TERM && exec scontrol requeue "$1") || exit "$stopped"
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
    local command=(python -m convscope local "$matrix" ${study:+"$study"} --relative-to "$stand" --stages)
    mapfile -t -O "${#command[@]}" command < <(wanted_stages)
    [[ ${#names[@]} == 0 ]] || command+=(--gpu "${names[0],,}")
    [[ -z $gpus ]] || command+=(--gpus "$gpus")
    [[ -z $dry_run ]] || command+=(--dry-run)
    exec "${command[@]}" -- "${flags[@]}"
}
