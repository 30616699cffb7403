"""The networks that batches run on, and the check that requests in a batch do not affect each other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import field

import numpy as np

from engine.plugin_api import (
    AsyncInferRequest,
    CoreHandle,
    DeviceError,
    ExecutableNetwork,
    InputError,
    Port,
    UnsupportedError,
)
from engine.runtime.random_inputs import random_inputs
from engine.runtime.values import Array
from engine.startup import dataclass
from engine_batch.batched_model import BatchedModel
from engine_batch.collector import Item, split
from engine_batch.log import logger
from engine_batch.target import Target

_FACTOR = 64.0
"""Every other request of a check has values that are larger by this factor, so that a common scale would be noticed."""
_COMPARED = 2
"""How many requests of a batch are compared with the same requests alone."""
_COMPARED_DISCRETE = 8
"""How many are compared if an output has no real numbers: a few integers, such as a class, may be equal by chance."""


@dataclass
class Networks:
    """Networks for batches of one model.

    Attributes:
        unit: the batch of each request if it is fixed; None if requests may have any.
        rows: the batch of `full`.
        full: for full batches.
        rest: for other numbers of rows, or if `is_one_by_one`, for single requests.
    """

    unit: int | None
    rows: int
    full: ExecutableNetwork
    rest: ExecutableNetwork
    is_one_by_one: bool
    _idle: dict[int, list[AsyncInferRequest]] = field(default_factory=dict)

    @classmethod
    def compiled(cls, core: CoreHandle, model: BatchedModel, target: Target) -> Networks:
        """Compile for full batches, and for the rest. Raises the errors of the device."""
        full = core.compile_model(model.full, target.device, target.config)
        is_one_by_one = False
        try:
            rest = core.compile_model(model.any_rows, target.device, target.config)
        except UnsupportedError as e:
            if model.unit is None:
                raise
            is_one_by_one = True
            logger.info("%s: batches that are not full run one by one: %s", model.single.name, e)
            rest = core.compile_model(model.single, target.device, target.config)
        return cls(model.unit, model.rows, full, rest, is_one_by_one)

    def run(self, items: Sequence[Item]) -> None:
        """Run items as one batch, and give each its outputs. Raises the errors of the device."""
        rows = sum(item.rows for item in items)
        network = self.full if rows == self.rows else self.rest
        if self.is_one_by_one and network is self.rest and len(items) > 1:
            for item in items:
                self.run([item])
            return
        inputs = [
            np.concatenate(parts) if len(parts) > 1 else parts[0]
            for parts in zip(*(i.inputs for i in items), strict=True)
        ]
        outputs = self._infer(network, inputs, items)
        for port, output in zip(network.outputs, outputs, strict=True):
            if not isinstance(output, np.ndarray) or not output.ndim or output.shape[0] != rows:
                found = list(output.shape) if isinstance(output, np.ndarray) else type(output).__name__
                raise DeviceError(
                    f"{network.name}: output `{port.name}` is {found} for a batch of {rows}: its first dimension is "
                    "not the batch"
                )
        split(outputs, items)

    def _infer(self, network: ExecutableNetwork, inputs: list[Array], items: Sequence[Item]) -> list[Array]:
        idle = self._idle.setdefault(id(network), [])
        try:
            request = idle.pop()
        except IndexError:  # checking first would race with other threads
            request = network.create_infer_request()
        try:
            result = request.infer(inputs)
            outputs = [result[index] for index in range(len(network.outputs))]
            for item in items if network.is_profiling else ():
                item.profile = list(request.profiling_info.nodes)
            return outputs
        finally:
            request.clear_tensors()
            idle.append(request)

    def release(self) -> None:
        """Drop idle requests, and have the networks release their memory."""
        self._idle.clear()
        for network in (self.full, self.rest):
            network.release_memory()

    # -- the check ------------------------------------------------------------------------------------------

    def check_random(self, ports: Sequence[Port]) -> bool:
        """Check with random requests. False if that proves too little: if the lengths of inputs are not known, the
        model does not allow random values, or has integers as inputs, whose random values are 0 and 1.

        Raises `UnsupportedError` if requests affect each other, and the errors of the device.
        """
        unit = self.unit or 1
        if self.rows < 2 * unit:
            return True  # a batch is one request
        shapes = {}
        for port in ports:
            dims = list(port.shape)[1:]
            if any(dim.is_dynamic for dim in dims):
                return False
            shapes[port.name] = (unit, *(dim.min for dim in dims))
        try:
            made = [random_inputs(ports, seed=seed, shapes=shapes) for seed in range(1, self._compared + 1)]
        except InputError:
            return False
        values = [[each[port.name] for port in ports] for each in made]
        for larger in values[1::2]:
            for index, port in enumerate(ports):
                if port.element_type.is_real and port.element_type.bits >= 16:
                    larger[index] = larger[index] * larger[index].dtype.type(_FACTOR)
        try:
            self.check([Item(values[number % len(values)], unit, None) for number in range(self.rows // unit)])
        except InputError as e:  # random values are not allowed here, such as indices
            logger.info("%s: the first batch will be checked, since random values cannot be: %s", self.full.name, e)
            return False
        return all(port.element_type.is_real for port in ports)

    @property
    def _compared(self) -> int:
        kinds = {port.element_type.is_real for port in self.full.outputs}
        return _COMPARED if kinds == {True} else _COMPARED_DISCRETE

    def check(self, items: Sequence[Item]) -> bool:
        """Compare a batch of items with the first that differ from one another, each alone.

        False if no two differ, which proves nothing: equal requests also have a common largest value, for example.
        Raises `UnsupportedError` if an item has another result in the batch.
        """
        together = [Item(item.inputs, item.rows, None) for item in items]
        self.run(together)
        numbers = _first_different(items, self._compared)
        for number in numbers if len(numbers) > 1 else range(min(2, len(items))):
            alone = Item(items[number].inputs, items[number].rows, None)
            self.run([alone])
            assert alone.outputs is not None
            outputs = together[number].outputs
            assert outputs is not None
            for port, single, batched in zip(self.full.outputs, alone.outputs, outputs, strict=True):
                if (why := difference(single, batched)) is not None:
                    raise UnsupportedError(
                        f"model `{self.full.name}`: requests in a batch affect each other: output `{port.name}` of a "
                        f"request in a batch {why} from the output of the request alone; compile it for the device "
                        "itself, "
                        "or set BATCH_CHECK=NO if this is meant"
                    )
        return len(numbers) > 1


def _first_different(items: Sequence[Item], count: int) -> list[int]:
    """The numbers of the first `count` items with rows whose inputs differ from one another."""
    found: list[int] = []
    for number, item in enumerate(items):
        if len(found) == count:
            break
        if item.rows and not any(_are_equal(item, items[other]) for other in found):
            found.append(number)
    return found


def _are_equal(one: Item, other: Item) -> bool:
    return all(np.array_equal(ours, theirs) for ours, theirs in zip(one.inputs, other.inputs, strict=True))


def difference(single: Array, batched: Array) -> str | None:
    """How much a result in a batch differs from the result of a request alone, beyond rounding; None if it does not.

    Rounding differs since kernels may add in another order: less than the square root of the machine epsilon, of the
    largest value. Rounding may also change one in a hundred of many integers, such as the classes of pixels, and one
    quantized value of few.
    """
    if single.shape != batched.shape:
        return f"differs in shape ({list(batched.shape)})"
    if single.dtype.kind not in "fcV" or not single.size:
        count = int(np.count_nonzero(single != batched))
        few = 1 if single.dtype.kind in "iu" and single.dtype.itemsize <= 2 else 0
        return f"differs in {count} of {single.size} elements" if count > max(few, single.size // 100) else None
    epsilon = float(np.finfo(single.dtype).eps) if single.dtype.kind != "V" else 2.0**-7
    wide = [np.asarray(value, np.complex128 if single.dtype.kind == "c" else np.float64) for value in (single, batched)]
    with np.errstate(invalid="ignore"):
        gap = np.abs(wide[0] - wide[1])
    gap[(wide[0] == wide[1]) | (np.isnan(wide[0]) & np.isnan(wide[1]))] = 0
    finite = np.abs(wide[0][np.isfinite(wide[0])])
    scale = float(finite.max(initial=0.0)) or 1.0
    worst = float(gap.max(initial=0.0)) if not np.isnan(gap).any() else float("inf")
    return f"differs by {worst:.3g}" if worst > np.sqrt(epsilon) * scale else None
