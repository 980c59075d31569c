#!/usr/bin/env bash
# Proves that scripts/setup.sh --minimal installs all that the program needs: makes a bare Debian 12 in a folder
# (mmdebstrap), runs scripts/demo.sh there from a copy of the tracked files, and removes the folder again.
#   scripts/bare.sh [--configure-only] [--tests] [--werror] [--without PACKAGE]... [--keep]
# --configure-only stops after configuring. --tests runs scripts/test.sh there, too. --werror takes warnings for errors.
# --without takes packages off first, one after the other, and expects configuring to fail without each. Needs root;
# where it is not root, or mmdebstrap is missing, it says that it skipped and succeeds.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

configure_only=no tests=no keep=no flags=() without=()
while [ $# -gt 0 ]; do
  case $1 in
    --configure-only) configure_only=yes ;;
    --tests) tests=yes ;;
    --without) without+=("${2:?}") && shift ;;
    --werror) flags=(CXXFLAGS=-Werror) ;;
    --keep) keep=yes ;;
    -h | --help) sed -n '2,8s/^# \{0,1\}//p' "$0" && exit 0 ;;
    *) fail "unknown option '$1'; try --help" ;;
  esac
  shift
done

skip() { say "bare: skipped, $*" && exit 0; }
[ "$(id -u)" -eq 0 ] || skip "it needs root"
command -v mmdebstrap >/dev/null || skip "mmdebstrap is missing; scripts/setup.sh installs it"

bare=$(mktemp -d "${TMPDIR:-/tmp}/butterfly-bare-XXXXXX")
remove() {
  # What ran inside may take a moment to end, and a mount that it uses is busy; what does not end is only detached from.
  for _ in {1..20}; do
    mountpoint -q "$bare" || break
    umount -R "$bare" 2>/dev/null || sleep 0.25
  done
  if mountpoint -q "$bare"; then umount -R -l "$bare"; fi
  if [ $keep = yes ]; then say "bare: kept in $bare"; else rm -rf --one-file-system "$bare"; fi
}
trap remove EXIT
trap 'exit 130' INT
trap 'exit 143' TERM

say "bare: making Debian 12 in $bare"
sources=()
for file in /etc/apt/sources.list /etc/apt/sources.list.d/*; do [ -s "$file" ] && sources+=("$file"); done
options=()
for file in /etc/apt/apt.conf.d/*; do
  if grep -qE '^ *Acquire::' "$file"; then options+=(--aptopt="$file"); fi
done
mmdebstrap --quiet --variant=apt ${options[@]+"${options[@]}"} bookworm "$bare" ${sources[@]+"${sources[@]}"} >/dev/null
# A root that is a mount point, without which it has no network namespaces.
mount --bind "$bare" "$bare"
mkdir -p "$bare/butterfly" "$bare/proc" "$bare/sys"
mount -t proc proc "$bare/proc"
mount -t sysfs -o ro sysfs "$bare/sys"
(cd "$root" && git ls-files -z | tar -c --null -T - -f -) | tar -x -C "$bare/butterfly"
# The names of the mirrors are the host's to resolve.
cp /etc/resolv.conf /etc/hosts "$bare/etc/" 2>/dev/null || true

inside() { chroot "$bare" env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 BUTTERFLY_JOBS="$jobs" ${flags[@]+"${flags[@]}"} "$@"; }
began=$SECONDS
if [ "$configure_only" = yes ] || [ ${#without[@]} -gt 0 ]; then
  inside /butterfly/scripts/setup.sh --minimal >"$bare/log" 2>&1 || { tail -n 30 "$bare/log"; fail "setup.sh --minimal failed"; }
  configure_inside() { inside bash -c 'cd /butterfly && rm -rf build && cmake --preset release -DBUTTERFLY_TESTS=OFF'; }
  configure_inside >"$bare/log" 2>&1 || { tail -n 30 "$bare/log"; fail "it does not configure in a bare Debian 12"; }
  say "bare: configured in $((SECONDS - began)) s"
  for package in ${without[@]+"${without[@]}"}; do
    inside dpkg --remove --force-depends "$package" >/dev/null 2>&1 || fail "no package $package to take off"
    if configure_inside >"$bare/log" 2>&1; then fail "it configures without $package too"; fi
    say "bare: without $package: $(grep -iE "could not find|unable to find|missing:|no package '|not found" "$bare/log" | head -n 1 | cut -c1-100)"
    inside apt-get install -y --no-install-recommends "$package" >/dev/null 2>&1 || fail "$package cannot be put back"
  done
fi
if [ $configure_only = no ]; then
  inside /butterfly/scripts/demo.sh
  say "bare: from nothing installed to the text in $((SECONDS - began)) s"
fi
if [ $tests = yes ]; then
  mount --bind /dev "$bare/dev"
  mount --bind /dev/pts "$bare/dev/pts"
  mount --bind /dev/shm "$bare/dev/shm"
  began=$SECONDS
  inside /butterfly/scripts/test.sh
  say "bare: scripts/test.sh in $((SECONDS - began)) s"
fi
