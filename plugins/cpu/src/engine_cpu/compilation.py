"""The circumstances that a network was compiled for, as its blob records them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Final

from engine.errors import BlobFormatError
from engine.native import built_isas, cores, packed_weight_formats
from engine.plugin_api import BlobReader, Config
from engine.properties import INFERENCE_NUM_THREADS, NUM_STREAMS
from engine.startup import dataclass
from engine_cpu.instruction_sets import ARCHITECTURE

SECTION: Final = "compilation"
PACKED: Final = "packed/"
"""The prefix of the names of sections with packed weights."""
_MAX_THREADS: Final = 4096


@dataclass(frozen=True, slots=True)
class Compilation:
    """The configuration that a network was compiled for, which determines weight formats, and its kernel choices.

    If it `is_source`, an import lowers the graph for the machine there instead.
    """

    isa: str
    precision: str
    threads: int
    choices: dict[str, str]
    is_accurate: bool
    rounds_weights: bool
    saves_memory: bool = False
    is_source: bool = False
    is_repeatable: bool = False

    @property
    def hint(self) -> str:
        """The value of INFERENCE_PRECISION_HINT for which it was compiled."""
        return "bf16" if self.rounds_weights else self.precision

    def to_json(self) -> bytes:
        """Encode the fields as UTF-8 JSON, for the section of a blob."""
        return json.dumps(asdict(self)).encode()

    @classmethod
    def of(cls, blob: BlobReader, *, is_for_here: bool = True) -> Compilation:
        """The circumstances that a blob states, which may be another machine's. Raises `BlobFormatError`."""
        try:
            read = json.loads(bytes(blob.section(SECTION)))
            made = cls(
                read["isa"],
                read["precision"],
                read["threads"],
                dict(read["choices"]),
                read["is_accurate"],
                read.get("rounds_weights", False),
                read.get("saves_memory", False),
                read.get("is_source", False),
                read.get("is_repeatable", False),
            )
            texts = (made.isa, made.precision, *made.choices, *made.choices.values())
            if (
                all(isinstance(text, str) for text in texts)
                and (made.isa in built_isas() or not is_for_here)
                and isinstance(made.threads, int)
                and isinstance(made.is_accurate, bool)
                and isinstance(made.rounds_weights, bool)
                and isinstance(made.saves_memory, bool)
                and isinstance(made.is_source, bool)
                and isinstance(made.is_repeatable, bool)
                and 1 <= made.threads <= _MAX_THREADS
            ):
                return made
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as e:
            raise BlobFormatError(f"section {SECTION} of the blob is damaged: {e}") from e
        raise BlobFormatError(f"section {SECTION} of the blob is damaged: {str(read)[:80]}")


def requirements_of(isa: str) -> Mapping[str, str | Sequence[str]]:
    """The requirements on a machine: the instruction set of kernels and weights, the version of the weight formats."""
    return {"architecture": ARCHITECTURE, "isa": [isa], "packed weights": packed_weight_formats()}


def threads_of(config: Config, available: int | None = None) -> int:
    """The number of threads of one inference while all streams run, for which kernels are chosen.

    `available`: the cores of the machine, if it is another one.
    """
    count = cores() if available is None else available
    threads = min(config[INFERENCE_NUM_THREADS] or count, count)
    return max(1, int(threads) // (config[NUM_STREAMS] or 1))


def most_threads_of(config: Config) -> int:
    """The most threads of one inference: all cores, since it may be alone; see `CoreSet::lease`.

    If the user limits the threads of the network, each stream has a part of them, even when it is alone, since a lease
    does not know which streams belong to one network.
    """
    return threads_of(config) if config[INFERENCE_NUM_THREADS] else cores()
