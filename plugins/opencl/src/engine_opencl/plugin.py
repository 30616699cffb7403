"""The OPENCL plugin: its devices, properties and metrics, compilation, and the import of blobs."""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING

from engine.plugin_api import (
    BlobReader,
    Config,
    CoreHandle,
    ExecutableNetwork,
    Model,
    Plugin,
    QueryResult,
    RemoteContext,
    TargetError,
)
from engine.properties import DEVICE_ID, MEMORY_BUDGET, OWN_TARGET
from engine_opencl.devices.device import OpenclDevice, device_of, find_devices
from engine_opencl.properties import (
    COMPILE_EFFORT,
    DEVICE_MEMORY,
    DEVICE_NAME,
    DRIVER_VERSION,
    EXECUTION_MODE_HINT,
    INFERENCE_PRECISION_HINT,
    KERNEL_TRIAL_SECONDS,
    PLAN_CACHE_SIZE,
    TARGET,
    TRUST_BLOB,
)
from engine_opencl.remote.handles import CONTEXT_HANDLES

if TYPE_CHECKING:
    from engine_opencl.programs.programs import Programs

# The compiler is imported when it is first needed, so that listing devices does not wait for it.


class OpenclPlugin(Plugin):
    """GPUs and other devices with an OpenCL runtime."""

    name = "OPENCL"
    version = "0.1.0"
    api_version = 2
    oldest_blob_version = "0.1"
    properties = (
        COMPILE_EFFORT,
        EXECUTION_MODE_HINT,
        INFERENCE_PRECISION_HINT,
        MEMORY_BUDGET,
        PLAN_CACHE_SIZE,
        DEVICE_NAME,
        KERNEL_TRIAL_SECONDS,
        TRUST_BLOB,
        DRIVER_VERSION,
        DEVICE_MEMORY,
        TARGET,
        OWN_TARGET,
    )

    context_handles = CONTEXT_HANDLES

    def __init__(self, core: CoreHandle) -> None:
        super().__init__(core)
        self._programs: dict[str, Programs] = {}
        self._programs_lock = threading.Lock()

    def programs(self, device: OpenclDevice) -> Programs:
        """The compiled kernels of a device, shared by all networks."""
        from engine_opencl.programs.programs import Programs

        with self._programs_lock:
            if device.device_id not in self._programs:
                self._programs[device.device_id] = Programs(device)
            return self._programs[device.device_id]

    def device_ids(self) -> Sequence[str]:
        """All devices of all runtimes, GPUs first. Raises `DeviceNotFoundError` if there is no runtime."""
        return tuple(device.device_id for device in find_devices())

    def compile_model(self, model: Model, config: Config) -> ExecutableNetwork:
        """A new network from a model, which is not changed."""
        if config[TARGET]:
            from engine_opencl.described_network import DescribedNetwork

            return DescribedNetwork.compiled(self, config, model)
        from engine_opencl.network import OpenclNetwork

        return OpenclNetwork.compiled(self, config, model)

    def import_network(self, blob: BlobReader, config: Config) -> ExecutableNetwork:
        """A network from the sections that `OpenclNetwork.export_sections` wrote."""
        if config[TARGET]:  # which no blob states: only this machine's cache has one for a described device
            from engine_opencl.described_network import DescribedNetwork

            return DescribedNetwork.imported(self, config, blob)
        from engine_opencl.network import OpenclNetwork

        return OpenclNetwork.imported(self, config, blob)

    def create_context(self, device: str, config: Config, handles: Mapping[str, object]) -> RemoteContext:
        """A context for the device, or one made of an application's context and queue."""
        from engine_opencl.remote.context import OpenclContext

        return OpenclContext.created(self, device, config, handles, self.programs)

    def compile_in_context(self, model: Model, config: Config, context: RemoteContext) -> ExecutableNetwork:
        """A new network whose kernels and buffers are in the OpenCL context of `context`."""
        if config[TARGET]:
            raise TargetError(f"OPENCL: {context} is on a device of this machine, and TARGET describes one; omit it")
        from engine_opencl.network import OpenclNetwork

        return OpenclNetwork.compiled(self, config, model, context)

    def import_in_context(self, blob: BlobReader, config: Config, context: RemoteContext) -> ExecutableNetwork:
        """A network from a blob, whose kernels and buffers are in the OpenCL context of `context`."""
        from engine_opencl.network import OpenclNetwork

        return OpenclNetwork.imported(self, config, blob, context)

    def query_model(self, model: Model, config: Config) -> QueryResult:
        """The level of support of each operation, and a reason where it is refused."""
        from engine_opencl.query import query

        if config[TARGET]:
            from engine_opencl.description import described_facts

            facts = described_facts(config[TARGET])
        else:
            facts = device_of(config[DEVICE_ID], config[DEVICE_NAME]).facts
        return query(model, facts, config[INFERENCE_PRECISION_HINT])

    def metric(self, name: str, device_id: str) -> object:
        """The facts about the device; None leaves the declared default."""
        facts = device_of(device_id).facts
        match name:
            case "FULL_DEVICE_NAME":
                return facts.name
            case "OPTIMIZATION_CAPABILITIES":
                return facts.capabilities
            case DRIVER_VERSION.name:
                return facts.driver
            case DEVICE_MEMORY.name:
                return facts.memory
            case OWN_TARGET.name:
                from engine_opencl.description import describe

                return describe(facts)
        return None

    def host_features(self, device_id: str) -> Mapping[str, str | Collection[str]]:
        """The driver, which compiled kernels depend on."""
        return {"driver": device_of(device_id).identity}
