#!/usr/bin/env bash
# run.sh SECONDS [TARGET...]: builds all targets and runs each (or those named) for SECONDS, one after the other.
#
# Works with a stable compiler, without cargo-fuzz: LLVM's coverage pass is asked for with -C options, which need no
# nightly; only the address sanitizer would, and the library has next to no unsafe code. Needs a C++ compiler for
# libFuzzer. New inputs go to corpus/TARGET, findings to artifacts/TARGET (both ignored by git); the committed seeds are
# in seeds/TARGET. Exit status 1 if a target found something. Repeat one: target/.../release/TARGET FILE.
set -euo pipefail
cd "$(dirname "$0")"
[[ ${1-} =~ ^[0-9]+$ ]] || { echo "usage: run.sh SECONDS [TARGET...]" >&2 && exit 2; }
seconds=$1
shift
host=$(rustc -vV | sed -n 's/^host: //p')
# --target keeps the flags away from build scripts and procedural macros, which have no libFuzzer.
RUSTFLAGS="--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
  -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table
  -Cllvm-args=-sanitizer-coverage-trace-compares -Clink-dead-code -Cpanic=abort"
RUSTFLAGS=${RUSTFLAGS//$'\n'/} cargo build --locked --release --target "$host" --bins
[ $# -gt 0 ] || set -- elf_plan pe_plan bundle ccob zip_records kpack_toc record_csv writer_ops
status=0
for target; do
  mkdir -p "corpus/$target" "artifacts/$target" "seeds/$target"
  echo "== $target, $seconds s"
  "target/$host/release/$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=1024 -max_len=65536 \
    -print_final_stats=1 -verbosity=0 -artifact_prefix="artifacts/$target/" "corpus/$target" "seeds/$target" || status=1
done
exit $status
