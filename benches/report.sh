#!/usr/bin/env bash
# The README's table of figures, as markdown on standard output.
#
#     benches/report.sh [WHEEL...] > figures.md
#     FATWHEEL_SIZES=512MiB,2GiB benches/report.sh    # if 6 GiB are too many
#
# Takes some 20 minutes with 6 GiB; needs as many bytes of free disk as the largest size, and removes all it writes.
set -euo pipefail
cd "$(dirname "$0")/.."
exec cargo bench --quiet --bench figures -- report --sizes "${FATWHEEL_SIZES:-512MiB,2GiB,6GiB}" "$@"
