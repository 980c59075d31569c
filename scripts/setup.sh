#!/usr/bin/env bash
# Installs the Debian packages that Butterfly is built from. Run it as root, or as a user with sudo.
#   scripts/setup.sh             what is needed to build, to test, and to check the code
#   scripts/setup.sh --minimal   only what is needed to build and to run
#   scripts/setup.sh --list      print the packages, install nothing
# Does nothing when everything is there already. Downloads the package index only when it has to.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/common.sh"

# One package per line, with the reason it is here.
build_packages='
  g++                 compiles C++20
  cmake               3.25 or later, for the presets
  ninja-build         runs the build
  pkgconf             finds hwloc, PCRE2, utf8proc, LZ4 and zstd
  libfmt-dev          text formatting
  libspdlog-dev       the log on stderr
  libexpected-dev     tl::expected, the base of Result<T>
  libhwloc-dev        processor and memory topology
  libssl-dev          TLS, certificates, SHA-256 of model files
  libprotobuf-dev     control messages between nodes
  protobuf-compiler   their code generator
  liblz4-dev          payloads packed on slow links, quickly
  libzstd-dev         payloads packed on slow links, smaller
  nlohmann-json3-dev  config.json, tokenizer.json, --json
  libcli11-dev        the command line
  libedit-dev         lines that a person types in a conversation
  libmicrohttpd-dev   the HTTP server
  libpcre2-dev        regular expressions of tokenizers
  libutf8proc-dev     tables of Unicode: normal forms, categories, lower case
  libtomlplusplus-dev cluster files, run files'
test_packages='
  libgtest-dev        unit tests
  libgmock-dev        its matchers
  libbenchmark-dev    micro-benchmarks
  python3             the layers and docs tests
  valgrind            counts of instructions and copies
  ccache              makes the second build short
  libopenmpi-dev      ranks of training that mpirun or Slurm starts; a build without it says so
  openmpi-bin         mpirun, for their tests
  mount               small file systems that tests fill
  openssl             a certificate that tests of the server show
  iproute2            networks with slow links, for tests as root
  nftables            links that lose packets, likewise
  mmdebstrap          a bare Debian, in which the build proves that this list is complete
  clang-16            the fuzz targets, and a second opinion on our C++
  libclang-rt-16-dev  libFuzzer and the sanitizers for clang
  clang-format-16     the one formatting
  clang-tidy-16       static checks'

list=$build_packages$test_packages
only_print=no
for argument in "$@"; do
  case $argument in
    --minimal) list=$build_packages ;;
    --list) only_print=yes ;;
    -h | --help) sed -n '2,6s/^# \{0,1\}//p' "$0" && exit 0 ;;
    *) fail "unknown option '$argument' (known: --minimal, --list)" ;;
  esac
done
if [ $only_print = yes ]; then
  echo "$list" | sed 's/^  //'
  exit 0
fi

names=$(echo "$list" | awk '{print $1}')
if ! command -v dpkg-query >/dev/null || ! command -v apt-get >/dev/null; then
  fail "this is no Debian or Ubuntu; install the equivalents of these packages yourself:" $names
fi

is_installed() { [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }
missing=()
for name in $names; do
  is_installed "$name" || missing+=("$name")
done
if [ ${#missing[@]} -eq 0 ]; then
  say "setup: all $(echo "$names" | wc -w) packages are installed"
  exit 0
fi

say "setup: installing ${#missing[@]} Debian packages:"
for name in "${missing[@]}"; do echo "$list" | grep -E "^  ${name//+/\\+} "; done

as_root=()
if [ "$(id -u)" -ne 0 ]; then
  command -v sudo >/dev/null || fail "needs root or sudo. As root, run: apt-get install --no-install-recommends ${missing[*]}"
  as_root=(sudo)
fi
apt() {
  ${as_root[@]+"${as_root[@]}"} env DEBIAN_FRONTEND=noninteractive apt-get -q -o DPkg::Lock::Timeout=300 "$@" </dev/null
}
install_missing() { apt install -y --no-install-recommends "${missing[@]}"; }

# An index that knows every package may still name versions the mirror has dropped: then refresh and try once more.
if apt-cache show --no-all-versions "${missing[@]}" >/dev/null 2>&1 && install_missing; then :; else
  say "setup: refreshing the package index"
  apt update
  install_missing
fi
say "setup: done"
