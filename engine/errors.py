"""The errors that `engine` raises. Every error that a user can cause is an `EngineError`."""

from __future__ import annotations


class EngineError(Exception):
    """Base of every error of the SDK; catch this to catch all of them."""


class ModelError(EngineError):
    """A model is wrong: it cannot be read, or its graph is not a valid one."""


class ModelReadError(ModelError):
    """A model file, stream or byte string cannot be read as an ONNX model."""


class ExternalDataError(ModelReadError):
    """External tensor data is missing, too short, or lies outside the model's folder."""


class ModelWriteError(ModelError):
    """A model cannot be expressed or written as ONNX."""


class GraphError(ModelError):
    """A graph is malformed: a cycle, a dangling port, a port that does not exist, a duplicated name."""


class TypeInferenceError(ModelError):
    """The element types or shapes that a node is given cannot be taken by its operator."""


class OperatorSpecError(TypeInferenceError):
    """An attribute or a rank of a node is not one that its operator allows; the message names both."""


class UnsupportedError(EngineError):
    """A device, or the engine, does not support what a model asks for; the message names node and reason."""


class UnknownOperatorError(UnsupportedError, AttributeError):
    """An operator's name is not in the operator set; the message names close matches."""


class PassError(EngineError):
    """A transformation pass failed or broke its contract; the message names the pass and the node."""


class PropertyError(EngineError):
    """A property is unknown, read-only, or given a value that it cannot take."""


class PluginError(EngineError):
    """A plugin cannot be found, loaded or used."""


class DeviceNotFoundError(PluginError):
    """No plugin answers for a device name, or the plugin has no such device."""


class PluginLoadError(PluginError):
    """A plugin was found and failed to import, to be created, or has another API version."""


class PluginConflictError(PluginError):
    """Two plugins claim one device name."""


class PluginContractError(PluginError):
    """A plugin returned or did something that the plugin API does not allow."""


class BlobError(EngineError):
    """A compiled blob cannot be written or read."""


class BlobFormatError(BlobError):
    """Bytes are not a blob, are truncated, or contradict their own header and manifest."""


class BlobCorruptError(BlobError):
    """A section's content does not have the hash that the manifest records."""


class BlobIncompatibleError(BlobError):
    """A blob is sound and cannot be used here: another device, version or instruction set."""


class InferError(EngineError):
    """An inference request failed."""


class InputError(InferError):
    """A tensor given to a request has a wrong name, element type, rank or shape, or is missing."""


class Busy(InferError):
    """A request is running, or a queue with the `reject` policy is full."""


class Cancelled(InferError):
    """A request was cancelled before it finished."""


class DeadlineExceeded(InferError, TimeoutError):
    """A deadline or a wait's timeout passed before the request finished."""


class CallbackError(InferError):
    """A completion callback raised; the original exception is the cause."""


class DeviceError(InferError):
    """A device failed while running; the original exception is the cause."""


class NativeCoreError(EngineError):
    """The native core is not installed, or cannot be loaded here."""


class PlanError(EngineError):
    """A native plan cannot be built: the message names step, kernel and operand."""


class PartitionError(EngineError):
    """A graph cannot be partitioned as asked, or a partition is none: the message names nodes and subgraphs."""


class OutOfMemoryError(EngineError, MemoryError):
    """Memory that a model or a plan needs cannot be had."""
