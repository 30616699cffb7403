"""The properties that every device and network has, declared once."""

from __future__ import annotations

from engine.limits import Limits
from engine.properties.config import PropertySet
from engine.properties.declaration import CONFIG, METRIC, NO_LIMIT, Property

# -- metrics of devices and of networks -------------------------------------------------------------------

SUPPORTED_METRICS: Property[tuple[str, ...]] = Property(
    "SUPPORTED_METRICS", tuple, (), METRIC, "The names of all metrics that can be read here."
)
SUPPORTED_CONFIG_KEYS: Property[tuple[str, ...]] = Property(
    "SUPPORTED_CONFIG_KEYS", tuple, (), METRIC, "The names of all config keys, including the executors' keys."
)
AVAILABLE_DEVICES: Property[tuple[str, ...]] = Property(
    "AVAILABLE_DEVICES", tuple, None, METRIC, "The ids of the plugin's devices; the first one is the default."
)
FULL_DEVICE_NAME = Property("FULL_DEVICE_NAME", str, None, METRIC, "The device's name in full, for people.")
OPTIMIZATION_CAPABILITIES: Property[tuple[str, ...]] = Property(
    "OPTIMIZATION_CAPABILITIES",
    tuple,
    (),
    METRIC,
    "The element types that the device computes in natively; EXPORT_IMPORT, from IMPORT_EXPORT_SUPPORT, is added.",
    choices=("FP64", "FP32", "FP16", "BF16", "INT16", "INT8", "INT4", "BIN", "EXPORT_IMPORT"),
)
IMPORT_EXPORT_SUPPORT = Property(
    "IMPORT_EXPORT_SUPPORT", bool, False, METRIC, "Whether compiled networks can be exported and imported."
)
REMOTE_CONTEXT_SUPPORT = Property(
    "REMOTE_CONTEXT_SUPPORT",
    bool,
    False,
    METRIC,
    "Whether `Core.create_context` makes contexts for the device, whose tensors stay in its memory.",
)
IS_REFERENCE = Property(
    "IS_REFERENCE",
    bool,
    False,
    METRIC,
    "Whether the device exists for comparing results, not for speed; a choice among devices takes it last.",
)
ONLY_IF_NAMED = Property(
    "ONLY_IF_NAMED",
    bool,
    False,
    METRIC,
    "Whether the device is used only where it is named, as in `AUTO:DEVICE,CPU`: a choice among all devices of the "
    "machine leaves it out, and does not ask the plugin for its devices.",
)
ANSWERS_UNDEFINED = Property(
    "ANSWERS_UNDEFINED",
    bool,
    True,
    METRIC,
    "Whether the device gives the answers of all devices where ONNX leaves a result undefined, as for NaN among the "
    "numbers of a maximum. If not, a model may compute something else there than on other devices.",
)
NETWORK_NAME = Property("NETWORK_NAME", str, "", METRIC, "The name of the model that was compiled.")
OPTIMAL_NUMBER_OF_INFER_REQUESTS = Property(
    "OPTIMAL_NUMBER_OF_INFER_REQUESTS",
    int,
    1,
    METRIC,
    "How many concurrent requests keep the device busy; the default of AsyncInferQueue.",
    minimum=1,
)
EXECUTION_DEVICES: Property[tuple[str, ...]] = Property(
    "EXECUTION_DEVICES", tuple, None, METRIC, "The devices on which the network runs."
)
LOADED_FROM_CACHE = Property(
    "LOADED_FROM_CACHE", bool, False, METRIC, "Whether the network came from a cache instead of being compiled."
)
COMPILE_SECONDS = Property(
    "COMPILE_SECONDS", float, 0.0, METRIC, "How long compiling or importing the network took, in seconds."
)
EXECUTION_SUMMARY = Property(
    "EXECUTION_SUMMARY",
    dict,
    {},
    METRIC,
    "How the network runs: `device`, `precision`, `fallbacks` (the warnings, including its parts'), the number of "
    "`nodes`, of `reference_nodes` that run on the reference evaluator, and their share, the same for the estimated "
    "`work`, and `parts`: the summaries of the networks on which it runs.",
)
EXECUTION_PRECISION = Property(
    "EXECUTION_PRECISION",
    str,
    "",
    METRIC,
    "The precision that f32 operations of the network are computed in. A network need not have this metric.",
)
EXECUTION_THREADS = Property(
    "EXECUTION_THREADS",
    int,
    0,
    METRIC,
    "How many threads compute one inference while all streams run. A network need not have this metric.",
)
INSTRUCTION_SET = Property(
    "INSTRUCTION_SET",
    str,
    "",
    METRIC,
    "The instruction set of the network's kernels, such as avx2. A network need not have this metric.",
)
CHOICE_IS_FINAL = Property(
    "CHOICE_IS_FINAL",
    bool,
    False,
    METRIC,
    "Whether the network stays on its device, unless that fails; False while devices are compiled for and measured. A "
    "network need not have this metric.",
)
VARYING_LENGTHS: Property[tuple[str, ...]] = Property(
    "VARYING_LENGTHS",
    tuple,
    (),
    METRIC,
    "For each unknown length of the inputs, whether one plan serves all its values, or which operation needs a plan "
    "for each. Reading it may take as long as several first inferences. A network need not have this metric.",
)

# -- configuration ----------------------------------------------------------------------------------------

NUM_STREAMS = Property(
    "NUM_STREAMS",
    int,
    0,
    CONFIG,
    "How many inferences of a network run at once; 0 lets the device choose.",
    minimum=0,
    maximum=1024,
)
INFERENCE_NUM_THREADS = Property(
    "INFERENCE_NUM_THREADS",
    int,
    0,
    CONFIG,
    "How many host threads a network may compute on; 0 lets the device choose.",
    minimum=0,
    maximum=4096,
)
EXCLUSIVE_ASYNC_REQUESTS = Property(
    "EXCLUSIVE_ASYNC_REQUESTS",
    bool,
    False,
    CONFIG,
    "Background inferences of all networks with this setting run one after the other on the device.",
)
DEVICE_ID = Property("DEVICE_ID", str, "", CONFIG, "Which of the plugin's devices to use; empty selects the first.")
PERF_COUNT = Property("PERF_COUNT", bool, False, CONFIG, "Record when each stage and node of an inference runs.")
PERFORMANCE_HINT = Property(
    "PERFORMANCE_HINT",
    str,
    "LATENCY",
    CONFIG,
    "The performance goal of the device, unless other settings decide.",
    choices=("LATENCY", "THROUGHPUT"),
)
CACHE_DIR = Property(
    "CACHE_DIR",
    str,
    "",
    CONFIG,
    "The folder that caches compiled networks. If it is not set, networks of models in files are cached in the user's "
    "cache folder; if it is set to an empty string, nothing is cached.",
    is_local=True,
)
REPEATABLE = Property(
    "REPEATABLE",
    bool,
    False,
    CONFIG,
    "Whether the same values of an input give the same bits of their results with any number of threads, in any "
    "stream, at any position of a batch, beside any others, and in any division of a sequence into runs. A device that "
    "has this property guarantees it, or refuses the model. It costs speed.",
)
ALLOW_SHARED_CACHE = Property(
    "ALLOW_SHARED_CACHE",
    bool,
    False,
    CONFIG,
    "Whether a cache folder is used that other users of this machine can change. They can then replace the networks "
    "and programs that this process runs. Otherwise, such a folder is neither read nor written.",
    is_local=True,
)
ENABLE_MMAP = Property(
    "ENABLE_MMAP",
    bool,
    False,
    CONFIG,
    "Map a blob's file instead of reading it. This is fast, but if another process truncates the file while the "
    "network exists, this process is killed.",
    is_local=True,
)
MAX_FOLDED_BYTES = Property(
    "MAX_FOLDED_BYTES",
    int,
    Limits().folded_bytes,
    CONFIG,
    "How many bytes of results one compilation may compute from constants in advance, in total, or 8 times the bytes "
    "of the model's constants if that is more. Operations beyond it run in each inference; sparse constants that take "
    "more in dense form are refused.",
    minimum=0,
)
MAX_FOLDED_WORK = Property(
    "MAX_FOLDED_WORK",
    int,
    Limits().folded_work,
    CONFIG,
    "How much one compilation may compute from constants in advance, in units of about one nanosecond that are "
    "estimated from operators and lengths, plus 128 for each byte of the model's constants. Operations beyond it run "
    "in each inference.",
    minimum=0,
)
MAX_TENSOR_BYTES = Property(
    "MAX_TENSOR_BYTES",
    int,
    Limits().tensor_bytes,
    CONFIG,
    "The largest result in bytes that one operation may produce; a larger one is an error that names the operation. "
    "0: as much as memory is available to the process.",
    minimum=0,
)
MEMORY_BUDGET = Property(
    "MEMORY_BUDGET",
    int,
    NO_LIMIT,
    CONFIG,
    "How much memory a network may take on the device while it infers, as the peak of its `memory_forecast`. One that "
    "would take more is an error that says what would fit. HETERO gives a device only the operations that fit. A "
    "device need not have this key.",
    minimum=1,
    is_local=True,
    is_bytes=True,
)
DEVICE_PRIORITIES = Property(
    "DEVICE_PRIORITIES",
    str,
    "",
    CONFIG,
    'For a device that runs on others: their names, best first, as after the colon of "HETERO:OPENCL,CPU".',
)

TARGET = Property(
    "TARGET",
    str,
    "",
    CONFIG,
    "The machine that a network is compiled for: a CPU, such as x86-64:avx2 or x86-64:avx512,cores=8,l2=2MiB; or "
    "source, for any, so that the network is lowered where it is imported. Empty: this machine. A network that this "
    "machine cannot run can be exported, but refuses requests.",
)
TARGETS: Property[tuple[str, ...]] = Property(
    "TARGETS", tuple, (), METRIC, "The targets that TARGET can name, without cores and caches."
)
OWN_TARGET = Property(
    "OWN_TARGET", str, "", METRIC, "The value of TARGET that describes this device, for compiling on another machine."
)

DEVICE_CONFIGS = Property(
    "DEVICE_PROPERTIES",
    dict,
    {},
    CONFIG,
    'For a device that runs on others: configuration for single devices of the list: {"CPU": {"COMPILE_EFFORT": '
    '"quick"}}. The part of a blob for a device has its own configuration, which this one overrides.',
    is_local=True,
)

EXECUTOR_PROPERTIES = PropertySet(NUM_STREAMS, INFERENCE_NUM_THREADS, EXCLUSIVE_ASYNC_REQUESTS)
"""The config keys of the executors on which requests run."""

LIMIT_PROPERTIES = PropertySet(MAX_FOLDED_BYTES, MAX_FOLDED_WORK, MAX_TENSOR_BYTES)
"""The config keys that limit what a model may take of the machine."""

FORWARDED_PROPERTIES = PropertySet(
    PERF_COUNT,
    PERFORMANCE_HINT,
    *EXECUTOR_PROPERTIES,
    CACHE_DIR,
    ALLOW_SHARED_CACHE,
    ENABLE_MMAP,
    *LIMIT_PROPERTIES,
)
"""The config keys that a device which runs whole networks on others passes on to them."""

CONFIG_PROPERTIES = PropertySet(DEVICE_ID, *FORWARDED_PROPERTIES)
"""The config keys that every device takes."""

DEVICE_PROPERTIES = PropertySet(
    SUPPORTED_METRICS,
    SUPPORTED_CONFIG_KEYS,
    AVAILABLE_DEVICES,
    FULL_DEVICE_NAME,
    OPTIMIZATION_CAPABILITIES,
    IMPORT_EXPORT_SUPPORT,
    REMOTE_CONTEXT_SUPPORT,
    IS_REFERENCE,
    ONLY_IF_NAMED,
    ANSWERS_UNDEFINED,
    *CONFIG_PROPERTIES,
)
"""The metrics of every device."""

NETWORK_METRICS = PropertySet(
    SUPPORTED_METRICS,
    SUPPORTED_CONFIG_KEYS,
    NETWORK_NAME,
    OPTIMAL_NUMBER_OF_INFER_REQUESTS,
    EXECUTION_DEVICES,
    EXECUTION_SUMMARY,
    LOADED_FROM_CACHE,
    COMPILE_SECONDS,
)
"""The metrics of every compiled network."""
