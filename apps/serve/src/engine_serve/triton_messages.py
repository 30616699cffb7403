"""Messages of Triton's gRPC extensions that KServe's service lacks, by the numbers of their fields.

They are in a pool of their own, because a client of Triton's in the same process may define messages of these names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from google.protobuf.descriptor_pb2 import (  # type: ignore[import-untyped]
    FieldDescriptorProto as Field,
)
from google.protobuf.descriptor_pb2 import FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool  # type: ignore[import-untyped]
from google.protobuf.message_factory import GetMessageClass  # type: ignore[import-untyped]

_PACKAGE: Final = "inference"
_SCALARS: Final = {
    "string": Field.TYPE_STRING,
    "bool": Field.TYPE_BOOL,
    "int32": Field.TYPE_INT32,
    "int64": Field.TYPE_INT64,
    "uint32": Field.TYPE_UINT32,
    "uint64": Field.TYPE_UINT64,
}
_ENUMS: Final[Mapping[str, tuple[str, ...]]] = {
    "DataType": (
        *("TYPE_INVALID", "TYPE_BOOL", "TYPE_UINT8", "TYPE_UINT16", "TYPE_UINT32", "TYPE_UINT64", "TYPE_INT8"),
        *("TYPE_INT16", "TYPE_INT32", "TYPE_INT64", "TYPE_FP16", "TYPE_FP32", "TYPE_FP64", "TYPE_STRING", "TYPE_BF16"),
    ),
    "InstanceKind": ("KIND_AUTO", "KIND_GPU", "KIND_CPU", "KIND_MODEL"),
}
"""The values, from 0."""
_MESSAGES: Final[Mapping[str, str]] = {
    "NamedModel": "1 name string, 2 version string",
    "StatisticDuration": "1 count uint64, 2 ns uint64",
    "InferStatistics": (
        "1 success StatisticDuration, 2 fail StatisticDuration, 3 queue StatisticDuration, "
        "4 compute_input StatisticDuration, 5 compute_infer StatisticDuration, 6 compute_output StatisticDuration, "
        "7 cache_hit StatisticDuration, 8 cache_miss StatisticDuration"
    ),
    "InferBatchStatistics": (
        "1 batch_size uint64, 2 compute_input StatisticDuration, 3 compute_infer StatisticDuration, "
        "4 compute_output StatisticDuration"
    ),
    "ModelStatistics": (
        "1 name string, 2 version string, 3 last_inference uint64, 4 inference_count uint64, 5 execution_count uint64, "
        "6 inference_stats InferStatistics, 7 batch_stats InferBatchStatistics*"
    ),
    "ModelStatisticsResponse": "1 model_stats ModelStatistics*",
    "Latest": "1 num_versions uint32",
    "All": "",
    "Specific": "1 versions int64*",
    "ModelVersionPolicy": "1 latest Latest, 2 all All, 3 specific Specific",
    "ModelInput": "1 name string, 2 data_type DataType, 4 dims int64*",
    "ModelOutput": "1 name string, 2 data_type DataType, 3 dims int64*",
    "ModelInstanceGroup": "1 name string, 4 kind InstanceKind, 2 count int32",
    "ModelDynamicBatching": "2 max_queue_delay_microseconds uint64",
    "ModelSequenceBatching": "1 max_sequence_idle_microseconds uint64",
    "ModelTransactionPolicy": "1 decoupled bool",
    "ModelConfig": (
        "1 name string, 2 platform string, 3 version_policy ModelVersionPolicy, 4 max_batch_size int32, "
        "5 input ModelInput*, 6 output ModelOutput*, 7 instance_group ModelInstanceGroup*, "
        "11 dynamic_batching ModelDynamicBatching, 13 sequence_batching ModelSequenceBatching, 17 backend string, "
        "19 model_transaction_policy ModelTransactionPolicy"
    ),
    "ModelConfigResponse": "1 config ModelConfig",
    "SharedMemoryRegion": "1 name string, 2 key string, 3 offset uint64, 4 byte_size uint64",
    "RegionsEntry": "1 key string, 2 value SharedMemoryRegion",
    "SystemSharedMemoryStatusResponse": "1 regions RegionsEntry*",
    "Empty": "",
}
"""The fields of each message: number, name and type; `*` for repeated ones. Their names are those of the JSON form."""


def _pool() -> DescriptorPool:
    file = FileDescriptorProto(name="triton_extensions.proto", package=_PACKAGE, syntax="proto3")
    for name, values in _ENUMS.items():
        enum = file.enum_type.add(name=name)
        for place, value in enumerate(values):
            enum.value.add(name=value, number=place)
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for number, field, kind in map(str.split, filter(None, fields.split(", "))):
            _add_field(message, int(number), field, kind)
    pool = DescriptorPool()
    pool.Add(file)
    return pool


def _add_field(message: Any, number: int, name: str, kind: str) -> None:
    label = Field.LABEL_REPEATED if kind.endswith("*") else Field.LABEL_OPTIONAL
    kind = kind.rstrip("*")
    field = message.field.add(name=name, json_name=name, number=number, label=label)
    if kind in _SCALARS:
        field.type = _SCALARS[kind]
    else:
        field.type = Field.TYPE_ENUM if kind in _ENUMS else Field.TYPE_MESSAGE
        field.type_name = f".{_PACKAGE}.{kind}"


_POOL: Final = _pool()


def _class(name: str) -> Any:
    return GetMessageClass(_POOL.FindMessageTypeByName(f"{_PACKAGE}.{name}"))


NAMED_MODEL: Final = _class("NamedModel")
"""`ModelStatisticsRequest` and `ModelConfigRequest`, which have the same fields."""
STATISTICS: Final = _class("ModelStatisticsResponse")
CONFIGURATION: Final = _class("ModelConfigResponse")
REGION: Final = _class("SharedMemoryRegion")
"""`SystemSharedMemoryRegisterRequest`, and the requests for status and unregistering, which have its first field."""
REGIONS: Final = _class("SystemSharedMemoryStatusResponse")
EMPTY: Final = _class("Empty")
