# shellcheck shell=bash disable=SC2154 # stage.sh, which sources this, sets the variables
# Part of a stage that was started by hand: what is to run is checked, then handed to sbatch.

# Whether $model, $algorithm and $gpu can run here, by their names, flags and rules; says why not.
check_here() {
    local wanted
    mapfile -t wanted < <(wanted_stages)
    python -m convscope stages "$model" "$algorithm" "$gpu" --here --stages "${wanted[@]}" --first "$this" -- "${flags[@]}"
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
    CONVSCOPE_SUBMITTED=$(commit)
    export CONVSCOPE_SUBMITTED
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
    work=$(python -m convscope stages "$model" "$algorithm" "$gpu" "${known[@]}" -- "${flags[@]}") || exit 2
    [[ -n $work ]] || return 0
    IFS=$'\t' read -r model algorithm gpu needed retry <<<"$work"
    find_gpu
    for each in $needed; do
        path=$(folder "$each")
        make_folder "$path"
        options=("--job-name=${each}_${path##*/}" "--output=$path/%x_%j.out" "--error=$path/%x_%j.err")
        [[ -z $job ]] || options+=("--dependency=afterok:$job" --kill-on-invalid-dep=yes)
        send "$each" "$model" "$algorithm" "$gpu"
        events+=("$each" "$job" "$model" "$algorithm" "$gpu" "$retry" '')
    done
}

submit_matrix() {
    local part tasks most cut parts needed into=$results/.arrays
    most=$(scontrol show config 2>/dev/null | awk '$1 == "MaxArraySize" { print $3 }' || true)
    [[ $into == /* ]] || into=$root/$into
    cut=(--into "$into" --most "${most:-1001}" --relative-to "$stand")
    [[ ${#names[@]} == 0 ]] || cut+=(--gpu "${names[0],,}")
    [[ -z $dry_run ]] || cut+=(--dry-run)
    parts=$(python -m convscope matrix "$matrix" ${study:+"$study"} "${known[@]}" "${cut[@]}" -- "${flags[@]}") || exit 2
    [[ -n $parts ]] || return 0
    while IFS=$'\t' read -r part gpu tasks needed retry <&3; do
        submit_array "$part" "$tasks"
    done 3<<<"$parts"
}

submit_array() { # FILE TASKS; gpu, needed and retry are set
    local each job='' task cells fields
    find_gpu
    for each in $needed; do
        make_folder "$results/$each"
        options=("--job-name=${each}_$gpu" "--output=$results/$each/%x_%A.out" "--error=$results/$each/%x_%A.err")
        options+=("--array=0-$(($2 - 1))%$throttle")
        [[ -z $job ]] || options+=("--dependency=aftercorr:$job" --kill-on-invalid-dep=yes)
        send "$each" --matrix "$1"
        [[ -n $dry_run ]] || for ((task = 0; task < $2; task++)); do
            IFS=$'\t' read -ra cells
            take_fields "$each" "${cells[@]:3}"
            events+=("$each" "${job}_$task" "${cells[@]:0:2}" "$gpu" "$retry" "${fields[*]}")
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
    local each=$1 entry of_gpu of_stage option said again=()
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
    said=$(mktemp)
    job=$(forget_allocation && "${command[@]}" 2>"$said") || refused "$said"
    cat -- "$said" >&2
    rm -- "$said"
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

# The commit of this checkout, with -dirty where files differ; nothing outside a checkout.
commit() {
    git -C "$root" describe --always --dirty --abbrev=40 '--exclude=*' 2>/dev/null || true
}

# Noted when all are queued: where a later stage of a chain is refused, none of it was.
note_submitted() {
    local at model algorithm gpu given=("${flags[@]}") flags
    [[ -z $dry_run ]] || return 0
    for ((at = 0; at < ${#events[@]}; at += 7)); do
        model=${events[at + 2]} algorithm=${events[at + 3]} gpu=${events[at + 4]}
        read -ra flags <<<"${events[at + 6]}" # fields have no spaces but between words
        flags=("${given[@]}" "${flags[@]}")
        [[ ${events[at + 5]} == - ]] || flags+=("${events[at + 5]}")
        note_event "${events[at]}" "${events[at + 1]}" submitted
    done
}

refused() { # FILE with what sbatch said
    local said
    said=$(<"$1")
    rm -- "$1"
    withdraw
    printf '%s\n' "$said" >&2
    [[ ${said,,} != *limit* && ${said,,} != *policy* && ${said,,} != *account* && ${said,,} != *qos* ]] || die \
        "sbatch refused it (its line is above), nothing is queued: a limit of the site, or the account, quality of service or \
time that was asked for: wait until jobs have ended, or ask for less or for others (options of sbatch in $config/gpus.conf)"
    die "sbatch refused it (its line is above), nothing is queued: GPU $gpu asks for constraint \
${SBATCH_CONSTRAINT-$constraint}, gres ${SBATCH_GRES-$gres}, partition ${SBATCH_PARTITION-$partition}; \
set them in $config/gpus.conf, or SBATCH_CONSTRAINT, SBATCH_GRES, SBATCH_PARTITION"
}

withdraw() {
    [[ -z ${job%%;*} ]] || submitted+=("${job%%;*}") # a signal may come before it is noted
    ((${#submitted[@]} == 0)) || scancel "${submitted[@]}"
    ((${#made[@]} == 0)) || rmdir -- "${made[@]}" 2>/dev/null || true
}
