#!/bin/bash
# Install what the jobs of `scripts/lab --jobs` need, under .jobs/ (or RANKSCOPE_JOBS): called by scripts/setup --jobs.
#   install.sh [INDEX]    INDEX: take PyTorch from this package index
# One environment on the distribution's Python with every framework, and one with PyTorch alone for each other Python of
# `others` that is there: on PATH, or under pyenv. What is there already is left alone.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
cd "$here/../../.."
jobs=${RANKSCOPE_JOBS:-$PWD/.jobs}
index=${1:-}
# Pinned: the truth of the table depends on its collectives. Lower bounds: jax.shard_map; mpi4py's wheels that find the
# MPI library when they start.
torch=torch==2.13.0
frameworks=(lightning transformers accelerate 'ray[train]' 'jax>=0.8' 'mpi4py>=4.1' deepspeed numpy setuptools)
others=(3.10 3.12 3.13)
began=$SECONDS

say() { printf '%s\n' "$*"; }
up_to_date() { [[ $(cat "$1/rankscope-jobs" 2>/dev/null) == "$2" ]]; }
log=$(mktemp)
trap 'rm -f "$log"' EXIT
pip_install() { # environment, what…
    local venv=$1
    shift
    PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1 \
        "$venv/bin/python" -m pip install --quiet --no-input "$@" >"$log" 2>&1 && return
    tail -n 12 "$log" >&2
    return 1
}

packages=()
# g++ and Python's headers: DeepSpeed builds an extension.
for package in openmpi-bin mpich g++ python3-dev; do
    [[ $(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) == installed ]] || packages+=("$package")
done
if ((${#packages[@]})); then
    say "      distribution packages: ${packages[*]}"
    apt-get -qq update || true
    DEBIAN_FRONTEND=noninteractive apt-get -qq -o DPkg::Lock::Timeout=300 install --yes --no-install-recommends \
        "${packages[@]}" >/dev/null
fi
# Debian calls MPICH's library libmpich.so.12; programs built for the common ABI look for libmpi.so.12.
mkdir -p "$jobs/mpich"
library=$(ldconfig -p | sed -n 's/.*libmpich.so.12 .*=> //p' | head -n 1)
ln -sfn "$library" "$jobs/mpich/libmpi.so.12"

wanted="$torch ${frameworks[*]} $index"
if ! up_to_date "$jobs/main" "$wanted"; then
    say '      environment main: PyTorch and the frameworks (minutes)'
    /usr/bin/python3 -m venv --clear "$jobs/main"
    pip_install "$jobs/main" "$torch" ${index:+--index-url "$index"}
    pip_install "$jobs/main" "$torch" "${frameworks[@]}"
    printf '%s' "$wanted" >"$jobs/main/rankscope-jobs"
fi

# A build of PyTorch for CUDA cannot be imported without its libraries. They are gigabytes, and the same for every Python.
give_cuda_libraries() { # environment
    local site libraries
    site=$("$1/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    if [[ ! -d $jobs/cuda ]]; then
        mapfile -t libraries < <("$1/bin/python" - <<'END'
import importlib.metadata

for wanted in importlib.metadata.requires("torch") or ():
    name, _, marker = wanted.partition(";")
    if ("nvidia" in name or "cuda" in name) and "extra" not in marker:
        print(name.strip())
END
        )
        pip_install "$1" --target "$jobs/cuda.draft" "${libraries[@]}"
        mv "$jobs/cuda.draft" "$jobs/cuda"
    fi
    echo "$jobs/cuda" >"$site/cuda-libraries.pth"
    ln -sfn "$jobs/cuda/nvidia" "$site/nvidia"
}

find_python() { # version
    local candidate
    for candidate in "$(command -v "python$1")" $(compgen -G "${PYENV_ROOT:-$HOME/.pyenv}/versions/$1.*/bin/python" | sort -rV); do
        # A name on PATH may be a shim for a version that is not chosen.
        if "$candidate" -c '' 2>/dev/null; then
            echo "$candidate"
            return
        fi
    done
    return 1
}

for version in "${others[@]}"; do
    venv=$jobs/$version
    wanted="$torch $index"
    up_to_date "$venv" "$wanted" && continue
    if ! python=$(find_python "$version"); then
        say "      no Python $version here: its job is left out"
        continue
    fi
    say "      environment $version: PyTorch"
    "$python" -m venv --clear "$venv"
    pip_install "$venv" --no-deps "$torch" ${index:+--index-url "$index"}
    pip_install "$venv" numpy filelock typing-extensions sympy networkx jinja2 fsspec setuptools
    "$venv/bin/python" -c 'import torch' 2>/dev/null || give_cuda_libraries "$venv"
    "$venv/bin/python" -c 'import torch'
    printf '%s' "$wanted" >"$venv/rankscope-jobs"
done
say "      the jobs' environments are ready ($((SECONDS - began)) s)"
