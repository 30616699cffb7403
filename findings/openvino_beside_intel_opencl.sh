#!/usr/bin/env bash
# What importing OpenVINO does to Intel's OpenCL runtime for CPUs in the same process; both are packages of pip.
# Expected: nothing. The CPU stays a platform of OpenCL, whichever of the two is loaded first.
set -euo pipefail
openvino=2026.4.1 pyopencl=2026.1.4 opencl=2026.2.0 compiler=2026.2.0 tbb=2023.2.0 numpy=2.4.6
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet "openvino==$openvino" "pyopencl==$pyopencl" "intel-opencl-rt==$opencl" \
    "intel-cmplr-lib-rt==$compiler" "tbb==$tbb" "numpy==$numpy"
# The packages put their libraries here, where the loader of OpenCL does not look by itself.
mkdir "$folder/vendors"
echo "$folder/venv/lib/libintelocl.so" >"$folder/vendors/intel.icd"
cat >"$folder/platforms.py" <<'PYTHON'
import ctypes
import sys

for name in ("libintlc.so.5", "libimf.so", "libirng.so", "libsvml.so"):
    ctypes.CDLL(f"{sys.prefix}/lib/{name}", ctypes.RTLD_GLOBAL)
if "tbb" in sys.argv:
    ctypes.CDLL(f"{sys.prefix}/lib/libtbb.so.12", ctypes.RTLD_GLOBAL)
if "openvino" in sys.argv:
    import openvino
import pyopencl

try:
    print([platform.name for platform in pyopencl.get_platforms()])
except pyopencl.LogicError as e:
    print(e)
PYTHON
export OCL_ICD_VENDORS="$folder/vendors"
echo "openvino $openvino, intel-opencl-rt $opencl, pyopencl $pyopencl"
alone=$("$folder/venv/bin/python" "$folder/platforms.py")
after=$("$folder/venv/bin/python" "$folder/platforms.py" openvino)
before=$("$folder/venv/bin/python" "$folder/platforms.py" tbb openvino)
echo "without openvino:                            $alone"
echo "after import openvino:                       $after"
echo "the same, but Intel's libtbb is loaded first: $before"
# Both bring a library of the name libtbb.so.12: the first one that a process loads serves both, and OpenVINO's is too old
# for the runtime, which the loader of OpenCL then leaves out without a word.
[[ $alone == *Intel* && $after == *PLATFORM_NOT_FOUND* && $before == *Intel* ]]
