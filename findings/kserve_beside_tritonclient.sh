#!/usr/bin/env bash
# kserve 0.21.0 and tritonclient 2.73.0: a process can import only one of the two gRPC clients.
#
# The guess before: both speak the Open Inference Protocol, and a test or a gateway may import both to compare them.
# What happens: each registers messages of the package `inference` under a file name of its own. protobuf has one pool of
# descriptors for a process, and refuses the second: "duplicate symbol 'inference.ServerLiveRequest'". Either order fails.
# Exits with 1 if the behaviour is another one.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/pip" install -q kserve==0.21.0 'tritonclient[grpc]==2.73.0'
python=$work/venv/bin/python
"$python" -c 'from importlib.metadata import version as v; print(*(f"{n} {v(n)}" for n in ("kserve", "tritonclient", "protobuf")))'
ours=kserve.protocol.grpc.grpc_predict_v2_pb2
theirs=tritonclient.grpc
for module in "$ours" "$theirs"; do
    "$python" -c "import $module"
    echo "alone: $module is imported"
done
for order in "$ours, $theirs" "$theirs, $ours"; do
    if "$python" -c "import $order" 2>"$work/error"; then
        echo "both are imported: the behaviour has changed"
        exit 1
    fi
    said=$(tail -n 1 "$work/error")
    echo "import $order: $said"
    [[ $said == *'duplicate symbol'*'inference.'* ]] || { echo 'another error: the behaviour has changed'; exit 1; }
done
