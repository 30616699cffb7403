"""The package openvino: found when it is first needed, and configured so that it computes what the model says."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from engine.errors import DeviceError, DeviceNotFoundError, EngineError, UnsupportedError
from engine.ir import Model, Node, TensorType
from engine.plugin_api import Config, ElementType, ValueType
from engine.properties import INFERENCE_NUM_THREADS, NUM_STREAMS, PERF_COUNT
from engine.startup import dataclass

if TYPE_CHECKING:
    from engine.lowering import HandedModel

_INSTALL: Final = 'pip install "engine-plugin-openvino[runtime]"'
_NAMES: Final = {"bool": "boolean", "f8e4m3fn": "f8e4m3"}
"""OpenVINO's names of element types, where they differ from the engine's."""
_NOT_TAKEN: Final = frozenset({"f8e8m0", "string"})
"""Element types that OpenVINO has, but converts wrong, or hardly computes with."""


@dataclass(frozen=True, slots=True)
class Compiled:
    """A model that OpenVINO has compiled.

    Attributes:
        network: OpenVINO's object.
        inputs: OpenVINO's index of each input of the model; None for one that it has dropped, since nothing depends on
            its values.
    """

    network: Any
    inputs: tuple[int | None, ...]

    def has_direct_outputs(self) -> bool:
        """Whether an output is an input, after OpenVINO's simplifications: it is then not written into a tensor that is
        set for it after those of the inputs."""
        for result in self.network.get_runtime_model().get_results():
            source = result.input(0).get_source_output().get_node().get_rt_info()
            if "layerType" not in source or source["layerType"].astype(str) == "Input":
                return True
        return False


_computes_in: list[int] = []
"""The process in which OpenVINO first compiled or ran a model, whose threads it has; empty before that."""


class Runtime:
    """OpenVINO's core, which all threads share. It is loaded by the first method that needs it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._core: Any = None
        self._known: dict[str, frozenset[str]] = {}
        self.module: Any = None

    def core(self) -> Any:
        """The core. Raises `DeviceNotFoundError` if the package is not installed or cannot be loaded."""
        with self._lock:
            if self._core is None:
                try:
                    import openvino
                except Exception as e:  # a shared library may be missing, too
                    raise DeviceNotFoundError(
                        f"OPENVINO needs the package openvino, which cannot be imported ({e}); install it: {_INSTALL}"
                    ) from e
                self.module, self._core = openvino, openvino.Core()
            return self._core

    @property
    def version(self) -> str:
        """The version of the package, such as 2026.4.1."""
        self.core()
        return str(self.module.__version__).split("-")[0]

    def device_ids(self) -> tuple[str, ...]:
        """OpenVINO's devices, CPU first; its GPU.1 is the id GPU-1, since ids have no dots."""
        names = [str(name).replace(".", "-") for name in self.core().available_devices]
        return tuple(sorted(names, key=lambda name: name != "CPU"))

    def type_of(self, element_type: ElementType) -> Any:
        """OpenVINO's element type; None if it has none."""
        self.core()
        if element_type.name in _NOT_TAKEN:
            return None
        return getattr(self.module.Type, _NAMES.get(element_type.name, element_type.name), None)

    def settings(self, device: str, config: Config) -> dict[str, Any]:
        """The configuration in OpenVINO's terms, without what the device does not know."""
        precision = config["INFERENCE_PRECISION_HINT"]
        wanted: dict[str, Any] = {name: config[name] for name in ("INFERENCE_PRECISION_HINT", "PERFORMANCE_HINT")}
        wanted[PERF_COUNT.name] = config[PERF_COUNT]
        if precision == "f32":
            wanted |= dict.fromkeys(("KV_CACHE_PRECISION", "KEY_CACHE_PRECISION", "VALUE_CACHE_PRECISION"), precision)
            wanted["DYNAMIC_QUANTIZATION_GROUP_SIZE"] = 0
        wanted |= {each.name: config[each] for each in (NUM_STREAMS, INFERENCE_NUM_THREADS) if config[each]}
        if device not in self._known:  # the binding keeps the names that each call of get_property makes
            self._known[device] = frozenset(self.core().get_property(device, "SUPPORTED_PROPERTIES"))
        return {name: value for name, value in wanted.items() if name in self._known[device]}

    def why_not(self, model: Model, device: str, settings: Mapping[str, Any]) -> str:
        """Why OpenVINO does not run a whole model, by its answer to a query; empty if it does."""
        from engine.lowering import hand_over  # imported here, since listing devices does not need it

        try:
            with hand_over(model, as_file=True) as given:  # weights of a file are mapped
                read = self._read(model, given)
                taken = self.core().query_model(read, device, dict(settings))
            missing = [each.friendly_name for each in read.get_ops() if each.friendly_name not in taken]
            return f"OpenVINO {self.version} on {device} does not run {', '.join(missing[:5])}" if missing else ""
        except UnsupportedError as e:
            return str(e)
        except Exception as e:  # RuntimeError, and classes of the package that have no common base
            return f"OpenVINO {self.version} on {device}: {reason(e)}"

    def compile(self, model: Model, device: str, settings: Mapping[str, Any], *, as_file: bool = True) -> Compiled:
        """Hand a model over, and compile it. Raises `UnsupportedError` with OpenVINO's reason, or if it has other
        inputs or outputs than the model."""
        from engine.lowering import hand_over

        require_threads()
        try:
            with hand_over(model, as_file=as_file) as given:
                network = self.core().compile_model(self._read(model, given), device, dict(settings))
                inputs = self._ports("inputs", given.inputs, model.parameters, network.inputs)
                outputs = self._ports("outputs", given.outputs, model.results, network.outputs)
        except EngineError:
            raise
        except Exception as e:  # as above
            raise UnsupportedError(f"OpenVINO {self.version} on {device}: {reason(e)}") from e
        if outputs != tuple(range(len(model.results))):
            raise UnsupportedError(
                f"OpenVINO {self.version} has {len(network.outputs)} of the outputs {', '.join(given.outputs)}, "
                "or has them in another order"
            )
        return Compiled(network, inputs)

    def _read(self, model: Model, given: HandedModel) -> Any:
        """OpenVINO's model. Raises `UnsupportedError` if it types a value, also between nodes, otherwise."""
        read = self.core().read_model(given.source)
        found = {name: port for op in read.get_ops() for port in op.outputs() for name in port.get_names()}
        for value in (value for node in model.ordered_nodes() for value in node.outputs):
            if value.name in found:
                self._check(value.name, value.type, found[value.name])
        return read

    def _ports(
        self, kind: str, names: Sequence[str], nodes: Sequence[Node], found: Sequence[Any]
    ) -> tuple[int | None, ...]:
        """OpenVINO's index of each of these inputs or outputs. Raises `UnsupportedError` if it types one otherwise.

        They are in order. If OpenVINO has dropped some, the others are found by their names, which it keeps except for
        an input that it has made an output.
        """
        if len(found) == len(names):
            indices: tuple[int | None, ...] = tuple(range(len(names)))
        else:
            named = {name: index for index, port in enumerate(found) for name in port.get_names()}
            indices = tuple(map(named.get, names))
        if len(found) != sum(index is not None for index in indices):
            raise UnsupportedError(f"OpenVINO {self.version} has {kind} with other names than {', '.join(names)}")
        for name, node, index in zip(names, nodes, indices, strict=True):
            if index is not None:
                self._check(name, node.output(0).type if node.num_outputs else node.input_value(0).type, found[index])
        return indices

    def _check(self, name: str, expected: ValueType, port: Any) -> None:
        if not isinstance(expected, TensorType):
            return
        if port.element_type != self.type_of(expected.element_type) or not _agree(expected, port.partial_shape):
            told = f"{port.element_type.to_string()}{port.partial_shape.to_string()}"
            raise UnsupportedError(f"OpenVINO {self.version} says that `{name}` is {told}; the model says {expected}")


def _agree(expected: TensorType, found: Any) -> bool:
    if expected.shape.rank.is_dynamic or found.rank.is_dynamic:
        return True
    lengths = [None if each.is_dynamic else each.get_length() for each in found]
    return len(lengths) == len(expected.shape) and all(
        length is None or dim.accepts(length) for dim, length in zip(expected.shape, lengths, strict=True)
    )


def require_threads() -> None:
    """Raise `DeviceError` in a process that was forked after OpenVINO had computed: it would wait forever there for
    threads that exist only in the parent."""
    if not _computes_in:
        _computes_in.append(os.getpid())
    if _computes_in[0] != os.getpid():
        raise DeviceError(
            f"OPENVINO was used in process {_computes_in[0]} before this one was forked from it, and its threads "
            "do not exist here; start processes by multiprocessing's `spawn`, fork before a model is compiled for "
            "OPENVINO, or use ISOLATED:OPENVINO"
        )


def device_name(device_id: str) -> str:
    """OpenVINO's name of a device."""
    return device_id.replace("-", ".")


def reason(error: Exception) -> str:
    """An error of OpenVINO in one line, without the places in its sources."""
    lines = [line.strip() for line in str(error).splitlines()]
    told = [line for line in lines if line and not line.startswith(("Exception from src", "Caught exception: "))]
    return " ".join(told or lines)[:400] or type(error).__name__
