#!/usr/bin/env bash
# The one formatting, by clang-format-16 and .clang-format.
#   scripts/format.sh         check; names every file that differs
#   scripts/format.sh --fix   rewrite them
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

case "${1:-}" in
  '') mode=(--dry-run --Werror) ;;
  --fix) mode=(-i) ;;
  -h | --help) sed -n '2,4s/^# \{0,1\}//p' "$0" && exit 0 ;;
  *) fail "unknown option '$1'; try --help" ;;
esac
tool=$(command -v clang-format-16) || fail "clang-format-16 is missing; scripts/setup.sh installs it"
cd "$root"
if ! our_sources | xargs -r -P "$jobs" -n 32 "$tool" "${mode[@]}"; then
  fail "the files above differ from .clang-format; scripts/format.sh --fix rewrites them"
fi
say "format: $(our_sources | wc -l) files are as .clang-format says"
