"""The OpenCL devices of this machine, and the state shared by everything that runs on one."""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, Any, Final

from engine.errors import DeviceError, DeviceNotFoundError
from engine.runtime.lifecycle import ForkSafeLock
from engine.startup import dataclass
from engine_opencl.devices.device_check import verdict
from engine_opencl.devices.forks import keep_after_fork
from engine_opencl.devices.in_place import InPlaceRegions, input_alignment
from engine_opencl.devices.nvidia import NVIDIA_PLATFORM, missing_runtime

if TYPE_CHECKING:
    import pyopencl as cl

_log = logging.getLogger("engine.opencl")
_HINT = (
    "install the driver of your GPU, or PoCL, which supports most CPUs: apt install pocl-opencl-icd, or "
    "pip install engine-plugin-opencl[pocl]"
)

_WIDEST_VECTORS: Final = {"Portable Computing Language 3.0": 4}
"""Vector width limits by prefix of the driver's name. PoCL 3.0 aborts its process on vectors of 16."""


PTX: Final = "ptx"
EMULATED: Final = "emulated"
"""Values of `DeviceFacts.matrix_unit`."""
_MATRIX_UNIT_CAPABILITY: Final = 8
"""The compute capability from which PTX has asynchronous copies and products of 16 x 8 x 16 elements."""

_HALF_PRODUCTS = 0b111
"""Flags of `cl_device_fp_config`: subnormal numbers, infinities and NaN, rounding to nearest."""


@dataclass(frozen=True, slots=True)
class DeviceFacts:
    """The properties of a device for lowerings and users.

    Attributes:
        kind: "gpu", "cpu" or "accelerator".
        shares_memory: whether it computes in the host's memory.
        alignment: alignment of sub-buffers in bytes.
        local_bytes: local memory of one work group.
        largest_buffer: maximum size of a buffer in bytes.
        compute_units: on GPUs of any make, parts of 64 to 128 lanes.
        max_work_items: maximum size of a work group along each dimension.
        argument_bytes: maximum size of all arguments of a kernel.
        address_bits: bits of a pointer, and of the number of work items.
        vector_width: width of the float vectors in CPU kernels.
        has_fp64: whether it computes in f64.
        has_half_products: whether its f16 arithmetic is suitable for products: it keeps subnormal numbers below 6e-5,
            such as products of probabilities and small weights.
        matrix_unit: how kernels reach units for products of small matrices of f16: "" if there are none, "ptx" by
            instructions of NVIDIA's PTX, "emulated" by OpenCL C, to test kernels without such a device.
        is_accurate: whether plans leave out kernels that round more than others, as EXECUTION_MODE_HINT=ACCURACY asks.
    """

    name: str
    driver: str
    kind: str
    shares_memory: bool
    alignment: int
    max_work_group: int
    local_bytes: int
    largest_buffer: int
    memory: int
    compute_units: int
    max_work_items: tuple[int, ...] = ()
    argument_bytes: int = 1024
    address_bits: int = 64
    vector_width: int = 4
    has_fp16: bool = False
    has_fp64: bool = False
    has_int8_dot: bool = False
    has_half_products: bool = False
    matrix_unit: str = ""
    is_accurate: bool = False

    @property
    def multiplies_integers(self) -> bool:
        """Whether products of quantized values are integer products; CPUs are faster with vectors of f32."""
        return self.kind == "gpu" and self.has_int8_dot

    @property
    def capabilities(self) -> tuple[str, ...]:
        """The value of OPTIMIZATION_CAPABILITIES. FP16 means f16 arithmetic: every device supports f16 storage."""
        optional = {"FP16": self.has_fp16, "INT8": self.has_int8_dot}
        return ("FP32", *(name for name, is_there in optional.items() if is_there))


class OpenclDevice:
    """One device: its context, created on first use, and a queue for each kind of work."""

    def __init__(self, device_id: str, handle: Any, position: tuple[int, int], memory_kind: str = "staged") -> None:
        keep_after_fork(self)
        self.device_id = device_id
        self.handle: cl.Device = handle
        self.position = position
        """The index of its platform, and its index in the platform, for other processes."""
        self.facts = _facts(handle)
        self._lock = threading.Lock()
        self._context: Any = None
        self.memory_kind = memory_kind
        """"shared", "mapped" or "staged"; see `engine_opencl.memory`."""
        self.in_place_regions = InPlaceRegions(input_alignment(self.facts.driver, self.facts.alignment))

    @property
    def context(self) -> Any:
        """The `cl.Context`: the one of the device in this process, or an application's. Thread-safe."""
        import pyopencl as cl

        require_first_process()
        with self._lock:
            if self._context is None:
                self._context = cl.Context([self.handle])
            return self._context

    def in_context(self, context: Any) -> OpenclDevice:
        """The device in a `cl.Context` of the application."""
        made = OpenclDevice(self.device_id, self.handle, self.position, self.memory_kind)
        made._context = context
        return made

    def new_queue(self, *, profiling: bool = False) -> Any:
        """Make an in-order command queue; with `profiling`, its events record times."""
        import pyopencl as cl

        if profiling:
            return cl.CommandQueue(self.context, self.handle, cl.command_queue_properties.PROFILING_ENABLE)
        return cl.CommandQueue(self.context, self.handle)

    @property
    def identity(self) -> str:
        """The device and driver that a compiled program depends on."""
        return f"{self.facts.name} / {self.facts.driver}"


_first_process: list[int] = []
"""The process that first used the drivers."""
_found: list[OpenclDevice] = []
_finding = ForkSafeLock()


def require_first_process() -> None:
    """Raise `DeviceError` in a fork of a process that has used OpenCL: the driver's threads are missing."""
    if _first_process and _first_process[0] != os.getpid():
        raise DeviceError(
            "OPENCL: this process was forked from one that had used OpenCL, and OpenCL drivers do not survive a fork; "
            'start processes with multiprocessing.get_context("spawn"), or fork before the first use'
        )


def find_devices() -> tuple[OpenclDevice, ...]:
    """All devices, GPUs first.

    Raises `DeviceNotFoundError` with the reason if there is no usable OpenCL device, `DeviceError` after a fork.
    """
    require_first_process()
    with _finding:
        if not _found:
            # Found once: contexts of repeated searches could not share memory, even on the same hardware.
            _found[:] = _find_devices()
        return tuple(_found)


_SETTINGS: Final = {"POCL_WORK_GROUP_SPECIALIZATION": "0"}
"""Environment variables of drivers. PoCL compiles a kernel for its first run, and, without this variable, again for the
program's binary; the variant of the first run, for ranges of few groups, saved no time in networks.
"""


def _find_devices() -> list[OpenclDevice]:
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    try:
        import pyopencl as cl

        _first_process[:] = [os.getpid()]
        platforms = cl.get_platforms()
        found = [
            (device, (p, d)) for p, platform in enumerate(platforms) for d, device in enumerate(_devices_of(platform))
        ]
    except ImportError as e:
        raise DeviceNotFoundError(f"OPENCL: pyopencl cannot be loaded ({e}); {_HINT}") from e
    except Exception as e:  # pyopencl raises driver-dependent errors
        hint = missing_runtime(()) or _HINT
        raise DeviceNotFoundError(f"OPENCL: no OpenCL runtime is installed ({e}); {hint}") from e
    lacking = missing_runtime(platforms)
    if lacking:
        _log.warning("OPENCL: %s", lacking)
    if not found:
        raise DeviceNotFoundError(f"OPENCL: the OpenCL runtimes of this machine report no device; {lacking or _HINT}")
    verdicts = [(device, position, verdict(device, position)) for device, position in found]
    usable = [(device, position, known.memory_kind) for device, position, known in verdicts if not known.failed]
    reasons = [f"{device.name}: {known.failed}" for device, _, known in verdicts if known.failed]
    for reason in reasons:
        _log.info("an OpenCL device cannot be used: %s", reason)
    if not usable:
        raise DeviceNotFoundError(
            f"OPENCL: no OpenCL device of this machine can be used ({'; '.join(reasons)}); {_HINT}"
        )
    order = {cl.device_type.GPU: 0, cl.device_type.ACCELERATOR: 1}
    usable.sort(key=lambda each: order.get(each[0].type, 2))
    return [OpenclDevice(str(number), *each) for number, each in enumerate(usable)]


def device_of(device_id: str, name: str = "") -> OpenclDevice:
    """The device with this id; for "" the first whose name contains `name`, ignoring case.

    Raises `DeviceNotFoundError`.
    """
    devices = find_devices()
    for device in devices:
        if device_id == device.device_id or (not device_id and name.casefold() in device.facts.name.casefold()):
            return device
    if not device_id:
        listed = ", ".join(f"{device.device_id}: {device.facts.name}" for device in devices)
        raise DeviceNotFoundError(f"OPENCL has no device whose name contains DEVICE_NAME {name!r}; devices: {listed}")
    raise DeviceNotFoundError(
        f"OPENCL has no device {device_id!r}; devices: {', '.join(map(str, range(len(find_devices()))))}"
    )


def _devices_of(platform: Any) -> list[Any]:
    import pyopencl as cl

    try:
        return list(platform.get_devices())
    except cl.RuntimeError:  # a platform without devices raises an error
        return []


def _facts(handle: Any) -> DeviceFacts:
    import pyopencl as cl

    extensions = str(handle.extensions).split()
    kinds = {cl.device_type.GPU: "gpu", cl.device_type.CPU: "cpu"}
    return DeviceFacts(
        name=str(handle.name).strip(),
        driver=f"{handle.platform.name} {handle.driver_version}",
        kind=kinds.get(handle.type & (cl.device_type.GPU | cl.device_type.CPU), "accelerator"),
        shares_memory=bool(handle.host_unified_memory),
        alignment=max(handle.mem_base_addr_align // 8, 64),
        max_work_group=int(handle.max_work_group_size),
        local_bytes=int(handle.local_mem_size),
        largest_buffer=int(handle.max_mem_alloc_size),
        memory=int(handle.global_mem_size),
        compute_units=_compute_units(handle),
        max_work_items=tuple(handle.max_work_item_sizes),
        argument_bytes=int(handle.max_parameter_size),
        address_bits=int(handle.address_bits),
        vector_width=_vector_width(handle),
        has_fp16="cl_khr_fp16" in extensions,
        has_fp64="cl_khr_fp64" in extensions,
        has_half_products="cl_khr_fp16" in extensions and handle.half_fp_config & _HALF_PRODUCTS == _HALF_PRODUCTS,
        has_int8_dot="cl_khr_integer_dot_product" in extensions,
        matrix_unit=PTX if _nvidia_capability(handle) >= _MATRIX_UNIT_CAPABILITY else "",
    )


def _nvidia_capability(handle: Any) -> int:
    """The major compute capability of a device whose driver compiles PTX in OpenCL C; 0 for other devices."""
    if str(handle.platform.name) != NVIDIA_PLATFORM:
        return 0
    return int(handle.compute_capability_major_nv)


_INTEL: Final = "Intel(R) OpenCL"
_EXECUTION_UNITS: Final = 16


def _compute_units(handle: Any) -> int:
    """The number of parts that each run a work group; on GPUs, they are 64 to 128 lanes wide.

    Intel's driver counts execution units of 8 lanes, 16 of which run a work group together.
    """
    import pyopencl as cl

    counted = int(handle.max_compute_units)
    if handle.type & cl.device_type.GPU and str(handle.platform.name).startswith(_INTEL):
        return max(counted // _EXECUTION_UNITS, 1)
    return counted


def _vector_width(handle: Any) -> int:
    """The native vector width: 4, 8 or 16; 4 if the driver vectorizes over work items only."""
    driver = f"{handle.platform.name} {handle.driver_version}"
    most = next((most for start, most in _WIDEST_VECTORS.items() if driver.startswith(start)), 16)
    own = min(max(int(handle.native_vector_width_float), int(handle.preferred_vector_width_float)), most)
    return next((width for width in (16, 8) if width <= own), 4)
