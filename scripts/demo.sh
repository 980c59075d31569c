#!/usr/bin/env bash
# One small model, three worker processes on this machine, one text.
#   scripts/demo.sh [--no-install] [--prompt TEXT] [--tokens N]
# Installs what the build needs (scripts/setup.sh --minimal), builds the release preset, starts three workers on free
# ports, generates through them, compares with a single process, and stops the workers whatever happens.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

install=yes prompt=$'ROMEO:\n' tokens=120
while [ $# -gt 0 ]; do
  case $1 in
    --no-install) install=no ;;
    --prompt) prompt=${2?} && shift ;;
    --tokens) tokens=${2:?} && shift ;;
    -h | --help) sed -n '2,5s/^# \{0,1\}//p' "$0" && exit 0 ;;
    *) fail "unknown option '$1'; try --help" ;;
  esac
  shift
done

if [ $install = yes ]; then "$root/scripts/setup.sh" --minimal; fi
say "demo: building"
configure release -DBUTTERFLY_TESTS=OFF >/dev/null
build release butterfly

butterfly=$root/build/release/bin/butterfly
model=$root/models/demo.gguf
logs=$(mktemp -d)
workers=()
stop_workers() {
  if [ ${#workers[@]} -gt 0 ]; then
    kill "${workers[@]}" 2>/dev/null || true
    (sleep 5 && kill -KILL "${workers[@]}") >/dev/null 2>&1 &
    wait "${workers[@]}" 2>/dev/null || true
    kill $! 2>/dev/null || true
  fi
  rm -rf "$logs"
}
trap stop_workers EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

# Port 0: the system picks a free one, and the worker says which.
say "demo: starting three workers"
for i in 1 2 3; do
  "$butterfly" worker --listen 127.0.0.1:0 --model-dir "$root/models" 2>"$logs/$i" </dev/null &
  workers+=($!)
done
addresses=''
for i in 1 2 3; do
  address=''
  for _ in $(seq 300); do
    address=$(sed -n 's/.*listening on \(127\.0\.0\.1:[0-9]*\).*/\1/p' "$logs/$i")
    [ -z "$address" ] || break
    kill -0 "${workers[i - 1]}" 2>/dev/null || break
    sleep 0.1
  done
  [ -n "$address" ] || { cat "$logs/$i" >&2; fail "worker $i did not start"; }
  echo "worker $i: pid ${workers[i - 1]}, $address"
  addresses+=${addresses:+,}$address
done

# So small a model is fastest on one node: without --split two workers would stand by.
generate=("$butterfly" generate -m "$model" -p "$prompt" -n "$tokens" --temp 0.8 --top-k 40 --seed 3)
say "demo: butterfly generate -m models/demo.gguf -p ${prompt@Q} -n $tokens --temp 0.8 --top-k 40 --seed 3 --split uniform --workers $addresses"
if ! timeout 120 "${generate[@]}" --split uniform --workers "$addresses" </dev/null | tee "$logs/three"; then
  tail -n 5 "$logs"/[123] >&2
  fail "generate did not end well"
fi
timeout 120 "${generate[@]}" --quiet </dev/null >"$logs/one"
cmp "$logs/one" "$logs/three" || fail "one process writes another text than three workers"
say "demo: one process alone writes the same $(wc -c <"$logs/one") bytes"
