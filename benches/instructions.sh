#!/usr/bin/env bash
# Counts the instructions of small splits and compares them with benches/instructions.txt.
#
#     benches/instructions.sh             # exit status 1 if a count has grown by more than 5 %
#     FATWHEEL_UPDATE_INSTRUCTIONS=1 benches/instructions.sh    # write the counts down
#
# Needs valgrind. Unlike a time, a count does not depend on what else the machine does. What it does depend on:
# - the compiler and Cargo.lock: update the file together with them;
# - the processor's features, but valgrind hides most of them: up to 3.24 it offers a fixed model with AVX2 and
#   without SHA, AVX-512 and VPCLMULQDQ to every program if the real processor has AVX2, so that SHA-256 and CRC-32
#   run in portable code (other kernels are not to be judged by these figures). Without AVX2 the script refuses;
# - scheduling, since a split at -j 1 has threads too: empty polls and wake-ups. Measured below 0.2 % between runs,
#   and the median of three runs is taken.
set -euo pipefail
cd "$(dirname "$0")/.."
limit=5 # per cent
file=benches/instructions.txt

command -v valgrind > /dev/null || { echo "instructions.sh: valgrind is not installed" >&2; exit 2; }
grep -qw avx2 /proc/cpuinfo || { echo "instructions.sh: counts are those of a processor with AVX2" >&2; exit 2; }
cargo bench --quiet --no-run --bench generate 2> /dev/null # builds the program too, as cargo bench measures it
program="${CARGO_TARGET_DIR:-target}/release/fatwheel"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
for kind in plain ccob; do
    flag=$([ $kind = ccob ] && echo --ccob || true)
    cargo bench --quiet --bench generate -- --size 4MiB --object 64KiB --databases 16 $flag --out "$scratch/$kind" > /dev/null
done

# Instructions of the program with these arguments: the median of three runs.
count() {
    for _ in 1 2 3; do
        rm -rf "$scratch/out"
        valgrind --tool=cachegrind --cache-sim=no --cachegrind-out-file=/dev/null "$program" "$@" 2>&1 > /dev/null |
            sed -n 's/.*I *refs: *//p' | tr -d ,
    done | sort -n | sed -n 2p
}

measure() {
    local split=(split -q -j 1 --no-sync --wheel-type torch-fat -o "$scratch/out")
    echo "version $(count --version)"
    echo "demo $(count "${split[@]}" tests/fixtures/wheels/fatdemo-1.0-py3-none-manylinux_2_34_x86_64.whl)"
    echo "demo_windows $(count "${split[@]}" tests/fixtures/wheels/fatdemo-1.0-py3-none-win_amd64.whl)"
    echo "generated_plain $(count "${split[@]}" "$scratch"/plain/*.whl)"
    echo "generated_ccob $(count "${split[@]}" "$scratch"/ccob/*.whl)"
}

if [ -n "${FATWHEEL_UPDATE_INSTRUCTIONS:-}" ]; then
    measure | tee "$file"
    exit
fi
measure > "$scratch/now"
awk -v limit=$limit '
    NR == FNR { before[$1] = $2; next }
    !($1 in before) { printf "%-16s %14d  not in the file\n", $1, $2; bad = 1; next }
    {
        change = 100 * ($2 / before[$1] - 1)
        verdict = change > limit ? "GREW" : change < -limit ? "shrank: update the file" : "ok"
        printf "%-16s %14d %+7.2f %%  %s\n", $1, $2, change, verdict
        if (change > limit) bad = 1
    }
    END { exit bad }
' "$file" "$scratch/now"
