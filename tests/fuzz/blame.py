"""Nodes with one change: what the operator does not allow is refused at the earliest stage, by an error that names it.

An invalid node must not end as the fault of a pass, a plugin or a device, and the values of an inference not as that of
a device. See `node_changes`.
"""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np

from engine import Core
from engine.errors import (
    Cancelled,
    DeadlineExceeded,
    DeclarationError,
    EngineError,
    InputError,
    OutOfMemoryError,
    UnsupportedError,
)
from engine.ir import TensorType

from .finding import Finding, note
from .node_changes import NAME, Subject, changed

LIMIT = 60.0
MEMORY = 4 << 30
INTERRUPTS = False
IS_KEPT = False
DEADLINE = 2.0
GRACE = 15.0
LARGEST = 1 << 22
"""Elements of a result; results may be huge where an attribute is."""

_devices: tuple[str, ...] = ("TEMPLATE", "CPU", "HETERO")
_core: list[Core] = []


def prepare(devices: tuple[str, ...]) -> None:
    """Choose the devices."""
    global _devices
    _devices = devices
    warnings.simplefilter("ignore")  # of numpy, about overflows and invalid values


def make(seed: int) -> Subject:
    """The subject of a seed."""
    return changed(random.Random(f"blame {seed}"))


def files(seed: int) -> dict[str, bytes]:
    """The model."""
    return {"model.onnx": make(seed).model.SerializeToString()}


def run(seed: int) -> str:
    """Read, compile and run the changed node."""
    note("making the node")
    subject = make(seed)
    if not _core:
        _core.append(Core())
    node = subject.node
    what = f"{node.domain}.{node.op_type}".strip(".") + f" with {subject.change}"
    note(f"reading {what}")
    try:
        model = _core[0].read_model(subject.model.SerializeToString())
    except EngineError as e:
        _require_name(e, "read", what)
        return "read: refused"
    outcome = "run"
    for device in _devices:
        device = "HETERO:CPU,TEMPLATE" if device == "HETERO" else device
        note(f"compiling {what} for {device}")
        try:
            network = _core[0].compile_model(model, device)
        except (UnsupportedError, OutOfMemoryError) as e:
            _require_name(e, f"compile on {device}", what)
            outcome = "compile: refused"
            continue
        except EngineError as e:
            raise Finding(f"compile raises {type(e).__name__}", f"{what}, on {device}: {e}") from e
        if _is_huge(network.outputs):
            return "compiled; results too large"
        note(f"running {what} on {device}")
        given = {name: value for name, value in subject.values.items() if name in network.signature.input_index}
        outcome = _infer(network, given, subject, f"{what}, on {device}")
    return outcome


def _infer(network: Any, given: dict[str, Any], subject: Subject, what: str) -> str:
    request = network.create_infer_request()
    try:
        request.start_async(given, deadline=DEADLINE)
        request.wait(GRACE)
    except (DeadlineExceeded, Cancelled) as e:
        if request.state.name != "IDLE":
            raise Finding("not interruptible", f"{what}: runs {GRACE} s after its deadline") from e
        return "run: deadline"
    except InputError as e:
        _require_name(e, "run", what)
        if subject.is_known and not _depends_on_data(subject.node.op_type):
            raise Finding("refused late", f"{what}: {e}") from e
        return "run: refused"
    except (DeclarationError, UnsupportedError, OutOfMemoryError) as e:
        _require_name(e, "run", what)
        return "run: refused"
    except EngineError as e:
        raise Finding(f"run raises {type(e).__name__}", f"{what}: {e}") from e
    return "run"


def _depends_on_data(op_type: str) -> bool:
    """Whether an operator refuses values that are not integers, which are never constants here."""
    return op_type in ("ImageDecoder", "MaxRoiPool", "NonMaxSuppression", "Resize", "Upsample", "Range")


def _require_name(error: EngineError, stage: str, what: str) -> None:
    if NAME not in str(error):
        raise Finding(f"{stage}: the node is not named", f"{what}: {type(error).__name__}: {error}") from error


def _is_huge(outputs: Sequence[Any]) -> bool:
    shapes = [port.type.shape for port in outputs if isinstance(port.type, TensorType)]
    return any(shape.is_static and np.prod(shape.get_shape(), dtype=float) > LARGEST for shape in shapes)
