#!/bin/sh
# usage: tools/venv.sh VENV [PYTHON [TORCH]]
# Makes VENV a working virtual environment with torch in it, and writes VENV/constraints.txt for pip.
#
# Keeps an existing torch: in VENV, or in the interpreter's packages (such as the CUDA build of a GPU machine).
# Otherwise, installs the version in constraints.txt. If TORCH is a version, such as 2.15, installs its newest release
# in any case; if TORCH is `nightly`, installs the latest nightly CPU build.
set -eu
venv=$1
asked_for=${2:-}
only_torch=${3:-}

is_supported() {
    "$1" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 14))' 2>/dev/null
}

# Prints the folder that contains torch, or nothing. Does not import torch, because that takes seconds.
torch_home() {
    "$1" -c '
import importlib.util, pathlib
spec = importlib.util.find_spec("torch")
print(pathlib.Path(spec.origin).parent.parent if spec and spec.origin else "")' 2>/dev/null
}

# Prefers `python3` if it has torch; otherwise 3.11, for which most prebuilt torch files exist.
choose_python() {
    if [ -n "$asked_for" ]; then
        is_supported "$asked_for" && echo "$asked_for" && return
        echo "PYTHON=$asked_for does not run, or is not Python 3.11 to 3.14" >&2
        return 1
    fi
    if is_supported python3 && [ -n "$(torch_home python3)" ]; then
        echo python3
        return
    fi
    for candidate in python3.11 python3.12 python3.13 python3.14 python3; do
        is_supported "$candidate" && echo "$candidate" && return
    done
    echo "fakexport needs Python 3.11 to 3.14; none is on PATH. Name one: make PYTHON=/path/to/python" >&2
    return 1
}

create_venv() {
    python=$(choose_python)
    echo "creating $venv with $("$python" --version)" >&2
    "$python" -m venv --clear "$venv"
    brought_along=$([ -n "$only_torch" ] || torch_home "$python")
    if [ -n "$brought_along" ]; then
        # Not --system-site-packages: that cannot see into an interpreter which is itself a venv's.
        packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
        echo "$brought_along" >"$packages/torch_of_parent.pth"
    fi
}

if ! { is_supported "$venv/bin/python" && "$venv/bin/python" -m pip --version >/dev/null 2>&1; }; then
    create_venv
fi
if [ -z "$(torch_home "$venv/bin/python")" ]; then
    echo "installing torch into $venv; this takes a while, once" >&2
    if [ "$only_torch" = nightly ]; then
        "$venv/bin/python" -m pip install --quiet --pre --index-url https://download.pytorch.org/whl/nightly/cpu torch
    elif [ -n "$only_torch" ]; then
        "$venv/bin/python" -m pip install --quiet "torch==$only_torch.*"
    else
        "$venv/bin/python" -m pip install --quiet --constraint constraints.txt torch
    fi
fi
# Keep an existing torch, and the Triton that a CUDA build installs.
"$venv/bin/python" -c '
import importlib.metadata, importlib.util
for line in open("constraints.txt"):
    name = line.partition("==")[0]
    is_kept = name in ("torch", "triton") and importlib.util.find_spec(name)
    print(f"{name}=={importlib.metadata.version(name)}" if is_kept else line.rstrip())
' >"$venv/constraints.txt"
