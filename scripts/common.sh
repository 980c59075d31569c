# Sourced by the other scripts: where the repository is, how much to run at once, and how to say things.
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
jobs=${BUTTERFLY_JOBS:-$(nproc)}

# A clone in another folder finds the same objects in the cache: paths below the repository count as relative.
export CCACHE_BASEDIR=$root CCACHE_NOHASHDIR=1
# Precompiled headers and ccache: their macros and times are not looked at twice.
export CCACHE_SLOPPINESS=pch_defines,time_macros,include_file_mtime,include_file_ctime

say() { printf '== %s\n' "$*"; }
fail() {
  printf '%s: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}

# configure PRESET [cmake options]: as `cmake --preset`, through ccache where it is installed. Not where it has come since
# the folder was configured first: with other commands everything would be compiled again.
configure() {
  local preset=$1
  shift
  if [ ! -e "$root/build/$preset/CMakeCache.txt" ] && command -v ccache >/dev/null; then set -- -DCMAKE_CXX_COMPILER_LAUNCHER=ccache "$@"; fi
  (cd "$root" && cmake --preset "$preset" "$@")
}

# build PRESET [targets]: everything when no target is named.
build() {
  local preset=$1
  shift
  if [ $# -gt 0 ]; then set -- --target "$@"; fi
  (cd "$root" && cmake --build --preset "$preset" --parallel "$jobs" "$@")
}

# The C++ files that are ours, one per line, relative to the repository.
our_sources() {
  (cd "$root" && find apps examples include src tests tools -type f \( -name '*.cc' -o -name '*.h' \) 2>/dev/null | sort)
}
