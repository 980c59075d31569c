#!/usr/bin/env bash
# clang-tidy-16 with .clang-tidy over our sources, headers by way of the files that include them.
#   scripts/tidy.sh [--preset P] [--minutes M] [--since COMMIT] [FILE...]
# Needs a configured build (default: release) for its compile commands. --since looks only at files changed since COMMIT.
# Stops after M minutes (default 20) and then says how many files were left; that is a failure too.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

preset=release minutes=20 since='' chosen=()
while [ $# -gt 0 ]; do
  case $1 in
    --preset) preset=${2:?} && shift ;;
    --minutes) minutes=${2:?} && shift ;;
    --since) since=${2:?} && shift ;;
    -h | --help) sed -n '2,5s/^# \{0,1\}//p' "$0" && exit 0 ;;
    -*) fail "unknown option '$1'; try --help" ;;
    *) chosen+=("$1") ;;
  esac
  shift
done

tool=$(command -v clang-tidy-16) || fail "clang-tidy-16 is missing; scripts/setup.sh installs it"
database=$root/build/$preset/compile_commands.json
[ -f "$database" ] || fail "no $database; configure first: cmake --preset $preset"
cd "$root"

# Ours and compiled: generated code is not in these folders. Tests are held to the compiler's warnings instead: macros
# of the test framework drown what a static check has to say.
files=$(sed -n 's|^ *"file": "'"$root"'/\(.*\)",\{0,1\}$|\1|p' "$database" | grep -E '^(apps|examples|src)/' | grep -vE '_(test|bench)\.cc$' | sort -u)
if [ -n "$since" ]; then files=$(grep -Fx -f <(git diff --name-only "$since" --) <<<"$files" || true); fi
if [ ${#chosen[@]} -gt 0 ]; then files=$(printf '%s\n' "${chosen[@]}"); fi
[ -n "$files" ] || { say "tidy: nothing to check"; exit 0; }

results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
export tool results preset deadline=$((SECONDS + minutes * 60)) started=$SECONDS
check_one() {
  local name=${1//\//_} left=$((deadline - started - SECONDS))
  [ "$left" -gt 0 ] || { touch "$results/$name.late"; return 0; }
  # g++'s own warning options are unknown to clang.
  if ! timeout "$left" "$tool" --quiet -p "build/$preset" --extra-arg=-Wno-unknown-warning-option "$1" >"$results/$name.out" 2>"$results/$name.err"; then
    [ -s "$results/$name.out" ] || { touch "$results/$name.late"; cat "$results/$name.err"; return 0; }
    touch "$results/$name.bad"
    cat "$results/$name.out"
  fi
}
export -f check_one
printf '%s\n' $files | xargs -P "$jobs" -I{} bash -c 'check_one {}'

count() { find "$results" -name "$1" | wc -l; }
say "tidy: $(wc -l <<<"$files") files, $(count '*.bad') with findings, $(count '*.late') not reached"
[ "$(count '*.bad')" -eq 0 ] && [ "$(count '*.late')" -eq 0 ]
