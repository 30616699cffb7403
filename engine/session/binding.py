"""`IOBinding`: values that stay bound to the inputs and outputs of a session."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from engine.errors import InputError
from engine.session.values import OrtValue, array_at, feeds_of, require_host, wrapped

if TYPE_CHECKING:
    from engine.plugin_api import ExecutableNetwork
    from engine.runtime import AsyncInferRequest, Port


class Bound(Protocol):
    """The members of a session that a binding needs."""

    @property
    def network(self) -> ExecutableNetwork:
        """The network that runs the bound inputs and outputs."""

    @property
    def input_ports(self) -> Mapping[str, Port]:
        """The inputs, and the initializers that may have other values, by name."""


class IOBinding:
    """The inputs and outputs of `InferenceSession.run_with_iobinding`; made by `InferenceSession.io_binding`.

    Bound arrays are used in place. An output without memory of its own is a new array in each run. Memory is the
    host's; other devices raise `UnsupportedError`. For one thread at a time.
    """

    def __init__(self, session: Bound) -> None:
        self._network = session.network
        self._ports = session.input_ports
        self.request: AsyncInferRequest = self._network.create_infer_request()
        self._inputs: dict[str, Any] = {}
        self._outputs: dict[int, OrtValue | None] = {}
        self._results: list[OrtValue] = []

    # -- inputs -------------------------------------------------------------------------------------------

    def bind_cpu_input(self, name: str, arr_on_cpu: NDArray[Any]) -> None:
        """Bind an array. Raises `InputError` if the model does not have the input, or the array does not fit it."""
        self.request.set_input_tensor(name, feeds_of({name: arr_on_cpu}, self._ports)[name])
        self._inputs[name] = arr_on_cpu

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Bind a value, as `bind_cpu_input` does."""
        self.bind_cpu_input(name, ortvalue.value)

    def bind_input(
        self, name: str, device_type: str, device_id: int, element_type: Any, shape: Sequence[int], buffer_ptr: int
    ) -> None:
        """Bind memory of the host at an address, which must outlive the binding."""
        require_host(device_type)
        self.bind_cpu_input(name, array_at(buffer_ptr, element_type, shape))

    def clear_binding_inputs(self) -> None:
        """Unbind all inputs. Outputs stay bound."""
        self._inputs.clear()
        self.request.clear_tensors()
        self._bind_outputs()

    # -- outputs ------------------------------------------------------------------------------------------

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """Ask for an output: a new array in each run, or with an address this memory, which must outlive the binding.

        Raises `InputError` if the model does not have the output.
        """
        require_host(device_type)
        if buffer_ptr is None:
            self._bind(name, None)
            return
        if element_type is None or shape is None:
            raise InputError(f"output `{name}`: memory at an address needs element_type and shape")
        self._bind(name, OrtValue(array_at(buffer_ptr, element_type, shape)))

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Have runs write an output into a tensor."""
        self._bind(name, ortvalue)

    def _bind(self, name: str, value: OrtValue | None) -> None:
        index = self._network.output_index(name)
        self.request.set_output_tensor(index, None if value is None else value.numpy())
        self._outputs[index] = value

    def _bind_outputs(self) -> None:
        for index, value in self._outputs.items():
            self.request.set_output_tensor(index, None if value is None else value.numpy())

    def clear_binding_outputs(self) -> None:
        """Unbind all outputs, and forget the results of the last run."""
        for index in self._outputs:
            self.request.set_output_tensor(index, None)
        self._outputs.clear()
        self._results = []

    # -- results ------------------------------------------------------------------------------------------

    def require_outputs(self) -> None:
        """Raise `InputError` if no output is bound."""
        if not self._outputs:
            raise InputError("no output is bound; call bind_output for each that the run should return")

    def take_results(self) -> None:
        """Keep the outputs of the run that has finished."""
        results, ports = self.request.results, self._network.outputs
        self._results = [wrapped(results[index], ports[index]) for index in self._outputs]

    def get_outputs(self) -> list[OrtValue]:
        """The outputs of the last run, in the order in which they were bound."""
        return list(self._results)

    def copy_outputs_to_cpu(self) -> list[Any]:
        """Copies of the outputs of the last run: arrays, or lists for sequences."""
        return [np.array(each.value) if each.is_tensor() else each.value for each in self._results]

    def synchronize_inputs(self) -> None:
        """Do nothing: memory of the host needs no waiting."""

    def synchronize_outputs(self) -> None:
        """Do nothing: `run_with_iobinding` returns when outputs are written."""
