"""The errors that `engine` raises. Every error that a user can cause is an `EngineError`."""

from __future__ import annotations

from typing import Final

MAX_MESSAGE: Final = 2000
"""The most characters of a message; the middle of a longer one is left out."""
_END: Final = 500
"""Characters of the end that are kept: what was expected, and the way out."""


class EngineError(Exception):
    """Base class of every error of the SDK; catch it to catch all of them.

    A message has at most `MAX_MESSAGE` characters: names that a file states may be as long as the file.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*(_shortened(arg) if isinstance(arg, str) else arg for arg in args))


class ModelError(EngineError):
    """A model is invalid: it cannot be read, or its graph is not valid."""


class ModelReadError(ModelError):
    """A model file, stream or byte string cannot be read as an ONNX model."""


class ExternalDataError(ModelReadError):
    """External tensor data is missing, too short, or outside the model's folder."""


class ModelWriteError(ModelError):
    """A model cannot be expressed or written as ONNX."""


class GraphError(ModelError):
    """A graph is malformed: a cycle, a dangling port, a port that does not exist, a duplicated name."""


class TypeInferenceError(ModelError):
    """The element types or shapes of a node's inputs are not allowed by its operator."""

    node: object = None
    """The node, if the error was raised by the validation of a model."""


class OperatorSpecError(TypeInferenceError):
    """An attribute or a rank is not allowed by the node's operator; the message gives its value and what is allowed."""


class PreprocessingError(ModelError):
    """A step before an input or after an output does not fit; the message names the step, what it got and expected."""


class UnsupportedError(EngineError):
    """A device, or the engine, does not support something that a model uses; the message gives node and reason."""


class TargetError(UnsupportedError):
    """A network is compiled for another machine: which does not exist, or for which the device cannot compile, or whose
    network this machine cannot run; the message lists what there is."""


class MissingPartError(UnsupportedError, ImportError):
    """Something needs a part of the engine that this distribution leaves out."""


class NotOnHostError(UnsupportedError, BufferError):
    """The memory of a remote tensor cannot be accessed by the host, so it is neither an array nor a DLPack tensor."""


class UnknownOperatorError(UnsupportedError, AttributeError):
    """An operator is not in the operator set; the message lists similar names."""


class PassError(EngineError):
    """A transformation pass failed or violated its contract; the message names the pass and the node."""


class AdapterError(EngineError):
    """A low-rank adapter cannot be read, or does not fit a network; the message names the adapter and the module."""


class PropertyError(EngineError):
    """A property is unknown or read-only, or the value for it is not allowed."""


class PluginError(EngineError):
    """A plugin cannot be found, loaded or used."""


class DeviceNotFoundError(PluginError):
    """No plugin provides the device, or the plugin has no device of this id."""


class PluginLoadError(PluginError):
    """A plugin was found, but importing or creating it failed."""


class PluginApiError(PluginLoadError):
    """A plugin was written for a version of the plugin API that this engine does not run: older or newer."""


class PluginConflictError(PluginError):
    """Two plugins claim the same device name."""


class PluginContractError(PluginError):
    """A plugin violated the plugin API, for example by an invalid return value."""


class ExtensionError(EngineError):
    """An extension cannot be loaded or is not valid: the message names it and says what to change."""


class ExtensionConflictError(ExtensionError):
    """Two extensions define one operator, or an extension defines one that the engine has."""


class MissingExtensionError(ExtensionError):
    """A model uses an operator of an extension that was not added to the core."""


class BlobError(EngineError):
    """A compiled blob cannot be written or read."""


class BlobFormatError(BlobError):
    """The data is not a blob, is truncated, or contradicts its own header or manifest."""


class BlobCorruptError(BlobError):
    """A section's content does not match its hash in the manifest."""


class BlobIncompatibleError(BlobError):
    """A blob is intact, but is for another device, version or instruction set."""


class BlobSignatureError(BlobError):
    """A blob's signature is wrong, or missing where one is required; or a key cannot be used."""


class BlobTransformError(BlobError):
    """A blob's sections cannot be restored: the key or the transform is missing, wrong, or cannot be used."""


class InferError(EngineError):
    """An inference request failed; most failures have a class of their own below this one."""


class InputError(InferError):
    """A tensor given to a request has a wrong name, element type, rank or shape, or is missing."""


class DeclarationError(ModelError, InferError):
    """An inference computed another shape than the model declares for a value; the message names output and node."""


class StateError(InferError):
    """The values that a request keeps between inferences cannot be changed in this way, or exceed their bound."""


class Busy(InferError):
    """A request is running, or a queue with the `reject` policy is full."""


class Cancelled(InferError):
    """A request was cancelled before it finished."""


class DeadlineExceeded(InferError, TimeoutError):
    """A deadline or a wait's timeout passed before the request finished."""


class ContextClosed(InferError):
    """A remote context was closed, and it or one of its tensors was used."""


class CallbackError(InferError):
    """A completion callback raised; the original exception is the cause."""


class DeviceError(InferError):
    """A device failed while running; the original exception is the cause."""


class NativeCoreError(EngineError):
    """The native core is not installed or cannot be loaded."""


class PlanError(EngineError):
    """A native plan cannot be built: the message names step, kernel and operand."""


class PartitionError(EngineError):
    """A graph cannot be partitioned as requested, or a partition is invalid: the message names nodes and subgraphs."""


class ServingError(EngineError):
    """A server refused something; the subclasses and the message say what."""


class RepositoryError(ServingError):
    """A model repository, or a configuration in it, is not valid; the message names the file and what is expected."""


class NotServedError(ServingError):
    """The server has no model, or no version of it, with this name."""


class NotReadyError(ServingError):
    """A model cannot be used yet, or could not be loaded, or the server is shutting down; the message says which."""


class NotAllowedError(ServingError):
    """The server was started so that clients may not do this; the message names the option."""


class TooLargeError(ServingError):
    """A request has more bytes, or more rows, than the server or the model accepts."""


class OutOfMemoryError(EngineError, MemoryError):
    """Memory for a model or a plan cannot be allocated."""


class MemoryBudgetError(OutOfMemoryError):
    """A network does not fit into the MEMORY_BUDGET of its device; the message says what would.

    Attributes:
        needed: the bytes that it takes; 0 if they are not known.
    """

    def __init__(self, *args: object, needed: int = 0) -> None:
        super().__init__(*args)
        self.needed = needed


class EngineWarning(RuntimeWarning):
    """Something that a user should know and that is not an error: where a network runs slowly, or not as asked for.

    Issued by Python's `warnings`, whose filters show it, hide it, or make it an error.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*(_shortened(arg) if isinstance(arg, str) else arg for arg in args))


def _shortened(message: str) -> str:
    """The message, without its middle if it is too long."""
    if len(message) <= MAX_MESSAGE:
        return message
    note = f" ... ({len(message)} characters in all) ... "
    return message[: MAX_MESSAGE - _END - len(note)] + note + message[-_END:]


def with_message(error: EngineError, message: str) -> EngineError:
    """An error of the same class with another message; of the nearest class of the SDK for one of a plugin's own."""
    kind: type[EngineError] = next(each for each in type(error).__mro__ if each.__module__ == __name__)
    return kind(message)
