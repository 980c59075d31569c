#!/usr/bin/env bash
# Builds the libFuzzer targets (clang 16, address and undefined-behaviour sanitizers) and runs each for a while.
#
#   scripts/fuzz.sh [SECONDS] [TARGET...]     default: 60 seconds, every target
#
# Exit status 0: no finding. A finding stays in build/fuzz/findings/ and is replayed with
#   build/fuzz/bin/TARGET build/fuzz/findings/FILE
set -euo pipefail
cd "$(dirname "$0")/.."

seconds=${1:-60}
shift || true
case $seconds in
  -h | --help) sed -n '2,7s/^# \{0,1\}//p' scripts/fuzz.sh && exit 0 ;;
  '' | *[!0-9]*) echo "fuzz.sh: '$seconds' is no number of seconds; try --help" >&2 && exit 2 ;;
esac
targets=("$@")
if [ ${#targets[@]} -eq 0 ]; then
  for source in tests/fuzz/*_fuzz.cc; do targets+=("$(basename "$source" .cc)"); done
fi

cmake --preset fuzz >/dev/null
nice cmake --build build/fuzz --target "${targets[@]}"

mkdir -p build/fuzz/findings
status=0
for target in "${targets[@]}"; do
  corpus=build/fuzz/corpus/$target
  mkdir -p "$corpus"
  echo "== $target, $seconds s"
  if ! nice "build/fuzz/bin/$target" "$corpus" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -max_len=65536 \
      -print_final_stats=1 -verbosity=0 -artifact_prefix="build/fuzz/findings/$target-"; then
    echo "== $target: a finding, see build/fuzz/findings/" >&2
    status=1
  fi
done
exit $status
