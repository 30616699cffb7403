"""A device that fails as its input says: it crashes, exits, hangs, leaks, or dies while it holds locks; its models."""

from __future__ import annotations

import ctypes
import os
import signal
import threading
import time
from typing import Any, Final

import numpy as np
from engine_template import TemplatePlugin
from engine_template.network import TemplateNetwork
from engine_template.request import TemplateInferRequest

from engine import ops
from engine.ir import Constant, Parameter, Result, f32
from engine.plugin_api import BlobReader, Config, ExecutableNetwork, Model, PluginError, SyncInferRequest

FINE: Final = 0
SEGFAULT: Final = 1
KILLED: Final = 2
EXIT: Final = 3
HANG: Final = 4
HANG_WITH_GIL: Final = 5
LEAK: Final = 6
DIE_WITH_LOCKS: Final = 7
SLOW: Final = 8
RAISE: Final = 9
SLOW_AND_DEAF: Final = 10

TARGET: Final = f"{__name__}:FaultyPlugin"
"""The plugin, as another process imports it."""

_lock = threading.Lock()
_leaked: list[np.ndarray] = []


class FaultyPlugin(TemplatePlugin):
    """TEMPLATE, with requests that fail."""

    name = "FAULTY"

    def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
        """Fails for models of certain names."""
        if model.name == "crash":
            os.kill(os.getpid(), signal.SIGSEGV)
        if model.name == "hang":
            time.sleep(1000)
        if model.name == "crash again" and os.environ.get("FAULTY_COMPILE"):
            os._exit(7)
        return FaultyNetwork.compiled(self, config, model)

    def import_network(self, blob: BlobReader, config: Config) -> ExecutableNetwork:
        """A network whose requests fail."""
        return FaultyNetwork.imported(self, config, blob)


class BrokenPlugin(TemplatePlugin):
    """Fails when it is created."""

    name = "BROKEN"

    def __init__(self, core: object) -> None:
        raise PluginError("the driver is missing")


class DyingPlugin(TemplatePlugin):
    """Ends its process when it is created."""

    name = "DYING"

    def __init__(self, core: object) -> None:
        os._exit(5)


class FaultyNetwork(TemplateNetwork):
    """Makes requests that fail."""

    def create_infer_request_impl(self) -> SyncInferRequest:
        """A request that fails as the first element of its first input says."""
        return FaultyRequest(self, self.program)


class FaultyRequest(TemplateInferRequest):
    """Fails as its first input says."""

    def start_pipeline(self) -> None:
        """Fail, or compute."""
        _fail(int(np.asarray(self.inputs[0]).flat[0]), self)
        super().start_pipeline()


def _fail(how: int, request: SyncInferRequest) -> None:
    if how == SEGFAULT:
        ctypes.string_at(0)
    elif how == KILLED:
        os.kill(os.getpid(), signal.SIGKILL)
    elif how == EXIT:
        os._exit(3)
    elif how == HANG:
        time.sleep(1000)
    elif how == HANG_WITH_GIL:
        ctypes.PyDLL(None).sleep(1000)  # a call through PyDLL keeps the lock of the interpreter
    elif how == LEAK:
        _leaked.append(np.ones(20 << 20, np.uint8))
    elif how == DIE_WITH_LOCKS:
        with _lock:
            os.kill(os.getpid(), signal.SIGKILL)
    elif how == SLOW:
        for _ in range(200):
            request.check_cancelled()
            time.sleep(0.01)
    elif how == SLOW_AND_DEAF:
        time.sleep(2)
    elif how == RAISE:
        raise RuntimeError("the driver said no")


def doubling(name: str = "doubling", shape: tuple[Any, ...] = (4,)) -> Model:
    """y = 2 x, whose first element says how FAULTY fails."""
    x = Parameter(f32, list(shape), "x")
    return Model([Result(ops.Mul(x, Constant(np.float32(2))), "y")], [x], name=name)


def values(how: int = 0, shape: tuple[int, ...] = (4,)) -> np.ndarray:
    """An input with which the device fails in a certain way."""
    made = np.full(shape, 3, np.float32)
    made.flat[0] = how
    return made
