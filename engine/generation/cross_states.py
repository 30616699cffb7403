"""`with_cross_states`: an encoder that also computes the keys and values of the decoder's cross-attention."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

import numpy as np

from engine.errors import GraphError

if TYPE_CHECKING:
    from engine.ir import Model, Output

_CROSS: Final = re.compile(r"present\.\d+\.encoder\.(key|value)")
_HIDDEN: Final = ("encoder_hidden_states", "last_hidden_state")
_SAME: Final = {"encoder_attention_mask": "attention_mask"}


def with_cross_states(encoder: Model, decoder: Model) -> Model:
    """The encoder, changed in place, with the keys and values of `decoder` as further outputs.

    Optimum exports a decoder twice: `decoder_model.onnx` computes the keys and values of cross-attention from
    `encoder_hidden_states` for the first tokens, and `decoder_with_past_model.onnx` takes them from there. After this,
    the second one is enough, for the first tokens too, and the weights of the first are dropped but for these
    projections.

    Args:
        encoder: its output is `last_hidden_state`, or another one alone.
        decoder: the decoder for the first tokens, with outputs such as `present.0.encoder.key`. It is not changed.

    Raises `GraphError` if the decoder has no such outputs, if they depend on its tokens, or if the encoder has no
    output for them or one of another shape.
    """
    names = [result.friendly_name for result in decoder.results if _CROSS.fullmatch(result.friendly_name)]
    if not names:
        raise GraphError(
            f"model `{decoder.name}` has no outputs such as `present.0.encoder.key`; expected the decoder for the "
            "first tokens, which Optimum calls decoder_model.onnx"
        )
    part = decoder.extract(None, names)
    for result in part.results:
        _take_batch_of_data(result.input_value(0))
    part = part.extract(None, names)  # without what only computed the number of sequences
    sources = {parameter: _source(encoder, parameter.friendly_name) for parameter in part.parameters}
    for parameter, source in sources.items():
        if not parameter.output(0).shape.compatible(source.shape):
            raise GraphError(
                f"model `{encoder.name}` gives {source.type} for the decoder's `{parameter.friendly_name}`, which is "
                f"{parameter.output(0).type}; expected the encoder of this decoder"
            )
    for parameter, source in sources.items():
        parameter.output(0).replace(source)
    for result in list(part.results):
        value = result.input_value(0)
        part.remove_result(result)
        encoder.add_result(value, result.friendly_name)
    return encoder


def _take_batch_of_data(value: Output) -> None:
    """Let a projection keep the number of sequences of what it projects.

    Exporters write `keys.view(batch, -1, heads, size)` with the batch of the decoder's tokens, for which all layers
    below would be computed.
    """
    from engine.ir import Constant

    node = value.node
    while node.op_type in ("Transpose", "Identity"):
        node = node.input_value(0).node
    if node.op_type != "Reshape" or node.attributes.get("allowzero"):
        return
    joined = node.input_value(1).node
    if joined.op_type != "Concat" or not joined.num_inputs or isinstance(joined.input_value(0).node, Constant):
        return
    rest = [each.node for each in joined.input_values[1:] if each is not None]
    lengths = [each.data.ravel().tolist() for each in rest if isinstance(each, Constant)]
    if len(lengths) == len(rest) == 3 and lengths[0] == [-1]:
        shape = np.array([0, *(length for each in lengths for length in each)], np.int64)
        node.input(1).replace_source_output(Constant(shape))


def _source(encoder: Model, name: str) -> Output:
    if name == _HIDDEN[0]:
        results = encoder.results
        found = [each for each in results if each.friendly_name in _HIDDEN] or results
        if len(found) == 1:
            return found[0].input_value(0)
    inputs = {each.friendly_name: each for each in encoder.parameters}
    if (known := _SAME.get(name)) in inputs and known is not None:
        return inputs[known].output(0)
    raise GraphError(
        f"model `{encoder.name}` has no value for the decoder's input `{name}`, on which its keys and values of "
        f"cross-attention depend; expected `{_HIDDEN[1]}`"
    )
