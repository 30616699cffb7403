#!/usr/bin/env bash
# Checks and measures OPENCL on a GPU, in 10 minutes, and prints the tables for docs/performance.md.
#
#   benchmarks/gpu_check.sh                    # in an environment with PyTorch, if it is to be compared
#   benchmarks/gpu_check.sh --wheels FOLDER    # first install the wheels of FOLDER, on a machine without a registry
#   benchmarks/gpu_check.sh --small --no-build # the tests' sizes, a few tests, with the engine that is installed
#
# Options: --limit SECONDS (600), --device NAME (OPENCL), --logs FOLDER (a new one in TMPDIR), which keeps the output and the
# figures of each step. A step that fails or lacks time does not end the others. PYTHON names the interpreter (python3).
# The exit code is 1 if a step failed. OCL_ICD_VENDORS selects an OpenCL runtime, as everywhere.
set -uo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
small=() build=true wheels='' limit=600 device=OPENCL logs=''
usage() {
    sed -n '2,12s/^# \{0,1\}//p' "${BASH_SOURCE[0]}" >&2
    exit 2
}
while [[ $# -gt 0 ]]; do
    case "$1" in
        --small) small=(--small) ;;
        --no-build) build=false ;;
        --wheels | --limit | --device | --logs)
            [[ $# -ge 2 ]] || usage
            declare "${1#--}=$2"
            shift
            ;;
        *) usage ;;
    esac
    shift
done
[[ $limit =~ ^[0-9]+$ ]] || usage
python=${PYTHON:-python3}
logs=${logs:-$(mktemp -d)}
mkdir -p "$logs" && logs=$(cd "$logs" && pwd)
rm -f "$logs"/*.{tsv,json,txt}
: >"$logs/steps.tsv"
failed=0

# Run a command for at most so many seconds, fewer if the limit is near, and keep its outcome.
# The last argument is the pattern of the lines of its output that belong into the table.
step() {
    local name=$1 seconds=$2 said=$3 start=$SECONDS code outcome
    shift 3
    ((seconds > limit - SECONDS)) && seconds=$((limit - SECONDS))
    if ((seconds < 5)); then
        printf '%s\tleft out\t0\tno time was left\n' "$name" >>"$logs/steps.tsv"
        return
    fi
    printf '%s, at most %d s\n' "$name" "$seconds" >&2
    timeout --signal INT --kill-after 15 "$seconds" "$@" >"$logs/${name// /-}.log" 2>&1 </dev/null
    code=$?
    case $code in
        0) outcome=passed ;;
        124 | 137) outcome="FAILED: time is up" ;;
        *) outcome=FAILED ;;
    esac
    [[ $outcome == passed ]] || failed=1
    printf '%s\t%s\t%d\t%s\n' "$name" "$outcome" $((SECONDS - start)) \
        "$(grep -E "$said" "$logs/${name// /-}.log" | tail -n 3 | cut -c 1-200 | tr -d '\t' | paste -sd ';')" >>"$logs/steps.tsv"
}

if [[ -n $wheels ]]; then
    step "wheels" 60 '^ERROR' "$python" -m pip install --quiet --no-index --no-deps --upgrade "$wheels"/*.whl
fi
if $build; then
    step "build" 240 '^(Successfully installed|ERROR|.*error:)' "$python" -m pip install --no-build-isolation --no-deps \
        -e . $(printf -- '-e %s ' ./plugins/*/)
fi

# The runtime of the GPU, not the one for CPUs that the tests take if nothing selects another. Containers often have
# NVIDIA's library without the file that names it.
vendors=/etc/OpenCL/vendors
if [[ ! -e $vendors/nvidia.icd ]] && ldconfig -p | grep -q libnvidia-opencl.so.1; then
    vendors=$logs/vendors
    mkdir -p "$vendors" && echo libnvidia-opencl.so.1 >"$vendors/nvidia.icd"
fi
export OCL_ICD_VENDORS=${OCL_ICD_VENDORS:-$vendors}
ask="
from engine import Core
core = Core()
print(core.get_property('$device', 'FULL_DEVICE_NAME') + ', driver', core.get_property('$device', 'DRIVER_VERSION'))"
step "device" 60 '^(engine|.*Error)' "$python" -c "$ask"
if [[ -s $logs/device.log && $failed == 0 ]]; then
    tail -n 1 "$logs/device.log" >"$logs/device.txt"
    step "doctor" 120 '^problem' "$python" -m engine.cli.main doctor -d "${device%%.*}"
    tests=(plugins/opencl/tests)
    [[ ${#small[@]} -eq 0 ]] || tests=(plugins/opencl/tests/test_device.py -k 'fork or warm or equal')
    step "tests" 180 '(passed|failed|no tests ran|^FAILED|^ERROR)' "$python" -m pytest -q -n auto --dist loadfile \
        -p no:cacheprovider "${tests[@]}"
    export PYTHONPATH=$PWD/benchmarks${PYTHONPATH:+:$PYTHONPATH}
    step "HETERO" 60 '(Error|wrong answers)' "$python" -m comparison.gpu_hetero --device "$device" \
        --json "$logs/hetero.json" "${small[@]}"
    step "faults" 150 'FAILED' "$python" -m comparison.gpu_faults --device "$device" --json "$logs/faults.json"
    quick=()
    [[ ${#small[@]} -eq 0 ]] || quick=(--rounds 1 --seconds 0.01 --rest 0 --peer-device cpu)
    # The case that runs when the time is over is measured to its end.
    step "measuring" "$limit" '(Error|^Not measured)' "$python" benchmarks/opencl.py --gpu --device "$device" \
        --limit "$((limit - SECONDS > 60 ? limit - SECONDS - 40 : 20))" --json "$logs/measured.json" "${small[@]}" "${quick[@]}"
fi
PYTHONPATH=$PWD/benchmarks${PYTHONPATH:+:$PYTHONPATH} "$python" -m comparison.gpu_page "$logs" || failed=1
printf 'in %d s; the output of each step is in %s\n' "$SECONDS" "$logs" >&2
exit "$failed"
