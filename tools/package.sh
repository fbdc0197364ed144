#!/bin/sh
# usage: tools/package.sh VENV
# Builds the sdist, and the wheel from it, into dist/; the sdist builds the same bytes again. Installs the wheel into a
# new environment without the checkout, and runs the demo of the sdist with it.
set -eu
venv=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

rm -rf dist
"$venv/bin/python" -m pip install --quiet build
# Of the build too: the bytes depend on the version of hatchling.
export PIP_CONSTRAINT="$PWD/constraints.txt"
"$venv/bin/python" -m build --outdir dist .

tar -xzf dist/fakexport-*.tar.gz -C "$work"
demo=$(echo "$work"/fakexport-*)
"$venv/bin/python" -m build --outdir "$work/again" "$demo"
for built in dist/*; do cmp "$built" "$work/again/${built#dist/}"; done
unset PIP_CONSTRAINT
wheel=$(echo "$PWD"/dist/fakexport-*.whl)
git ls-files src/fakexport | sed 's,^src/,,' | sort >"$work/expected"
"$venv/bin/python" -m zipfile --list "$wheel" | sed -n 's,^\(fakexport/[^ ]*\).*,\1,p' | sort >"$work/packed"
diff "$work/expected" "$work/packed"

"$venv/bin/python" -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet --constraint "$venv/constraints.txt" "$wheel[transformers]"
rm -r "$demo/src"
make -C "$demo" --old-file .venv/.with-transformers demo CHECK="$work/venv/bin/fakexport check"
