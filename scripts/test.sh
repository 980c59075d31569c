#!/usr/bin/env bash
# Everything a change has to pass on this machine: packages, formatting, a build, every test.
#   scripts/test.sh [--no-install] [--no-format] [--preset P] [--label REGEX] [--name REGEX] [--target T]... [--build-only] [--werror]
# --preset chooses among release (default), debug, asan-ubsan, tsan and tiny; --label and --name restrict the tests as
# ctest -L and -R do; --target builds only what is named, and what that needs; --werror takes warnings for errors. BUTTERFLY_JOBS sets how many compilers and tests run at once.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

preset=release install=yes format=yes tests=yes werror=OFF chosen=() targets=()
while [ $# -gt 0 ]; do
  case $1 in
    --no-install) install=no ;;
    --no-format) format=no ;;
    --build-only) tests=no ;;
    --werror) werror=ON ;;
    --preset) preset=${2:?} && shift ;;
    --label) chosen+=(-L "${2:?}") && shift ;;
    --name) chosen+=(-R "${2:?}") && shift ;;
    --target) targets+=("${2:?}") && shift ;;
    -h | --help) sed -n '2,5s/^# \{0,1\}//p' "$0" && exit 0 ;;
    *) fail "unknown option '$1'; try --help" ;;
  esac
  shift
done

summary=()
# step NAME COMMAND...: runs it, notes how it went and how long it took; a failure ends the script with the summary.
step() {
  local name=$1 started=$SECONDS status=0
  shift
  "$@" || status=$?
  summary+=("$(printf '%-8s %-6s %4d s' "$name" "$([ $status -eq 0 ] && echo passed || echo FAILED)" $((SECONDS - started)))")
  [ $status -eq 0 ] || finish $status
}
finish() {
  say "summary ($preset)"
  printf '%s\n' "${summary[@]}"
  exit "$1"
}

run_tests() {
  local log=$root/build/$preset/Testing/Temporary/LastTest.log status=0
  rm -f "$log"
  (cd "$root" && ctest --preset "$preset" --parallel "$jobs" --no-tests=error ${chosen[@]+"${chosen[@]}"}) || status=$?
  [ -f "$log" ] && summary+=("$(count_cases "$log")")
  return $status
}
# ctest counts programs; the cases are inside, in GoogleTest's and unittest's closing lines.
count_cases() {
  awk '/^\[  PASSED  \]/ {passed += $4} /^\[  SKIPPED \] [0-9]+ test/ {skipped += $4} /^\[  FAILED  \] [0-9]+ test/ {failed += $4}
       /^Ran [0-9]+ tests? in/ {passed += $2} /^FAILED \(/ {gsub(/[^0-9]+/, " "); n = split($0, bad, " "); for (i = 1; i <= n; ++i) {failed += bad[i]; passed -= bad[i]}}
       END {printf "cases: %d passed, %d failed, %d skipped", passed, failed, skipped}' "$1"
}

if [ $install = yes ]; then step setup "$root/scripts/setup.sh"; fi
if [ $format = yes ]; then step format "$root/scripts/format.sh"; fi
step configure configure "$preset" -DBUTTERFLY_TESTS=ON -DBUTTERFLY_WERROR=$werror
step build build "$preset" ${targets[@]+"${targets[@]}"}
if [ $tests = yes ]; then step tests run_tests; fi
finish 0
