#!/usr/bin/env bash
# pybind11 3.1.0, GCC: a source that only includes pybind11/pybind11.h compiles to hundreds of kilobytes.
#
# The guess before: the library is headers, mostly templates, so an object that uses none of it is nearly empty, and
# splitting bindings into more files shortens a build.
# What happens: the vtable of error_already_set, whose first virtual function is defined inline, is emitted in every
# object, and with it the code that it needs: a large part of pybind11's runtime. Each source costs seconds.
# Exits with 1 if the behaviour is another one. Needs g++ and Python's headers.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q pybind11==3.1.0
echo '#include <pybind11/pybind11.h>' >"$work/with.cpp"
echo '#include <Python.h>' >"$work/without.cpp"
read -ra include < <("$work/venv/bin/python" -m pybind11 --includes)
for name in with without; do
    g++ -std=c++17 -O2 -fvisibility=hidden -fPIC "${include[@]}" -c "$work/$name.cpp" -o "$work/$name.o"
done
g++ --version | head -n 1
"$work/venv/bin/pip" show pybind11 | grep '^Version'
text() { size "$1" | awk 'NR == 2 { print $1 }'; }
echo "bytes of code and constants: $(text "$work/without.o") with Python.h alone, $(text "$work/with.o") with pybind11.h"
found=$(nm -C "$work/with.o" | grep -c 'vtable for pybind11::error_already_set' || true)
[[ $found -gt 0 ]] || { echo 'no vtable: the behaviour has changed'; exit 1; }
[[ $(text "$work/without.o") -lt 1000 && $(text "$work/with.o") -gt 50000 ]] || { echo 'the behaviour has changed'; exit 1; }
