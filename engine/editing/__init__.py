"""Changes of whole models that an application asks for: other shapes, a part of a model, a file.

These implement the methods of `Model` of the same names; see ADR 20.
"""

from engine.editing.constants import make_input, make_inputs, set_constant
from engine.editing.extraction import add_output, extract
from engine.editing.half_weights import with_half_weights
from engine.editing.pickling import pickled, unpickled
from engine.editing.reshape import reshape, set_batch
from engine.editing.saving import save

__all__ = [
    "add_output", "extract", "make_input", "make_inputs", "pickled", "reshape", "save", "set_batch", "set_constant",
    "unpickled", "with_half_weights",
]  # fmt: skip
