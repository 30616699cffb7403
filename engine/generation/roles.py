"""The inputs and outputs of a language model by role, and what they allow."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from numpy.typing import NDArray

from engine.errors import InputError
from engine.generation.adapted import adapter_inputs
from engine.generation.sampling import Sampling
from engine.plugin_api import Signature

if TYPE_CHECKING:
    from engine.ir import Variable

Array = NDArray[Any]
Tokens = Sequence[int] | Sequence[Sequence[int]] | Array

IDS = "input_ids"
MASK = "attention_mask"
POSITIONS = "position_ids"
COLUMNS = "cache_position"
STARTS = "write_indices"
FILLED = "nonpad_kv_seqlen"
LOGITS = "logits"

RANKS: Final = {IDS: 2, MASK: 2, POSITIONS: 2, COLUMNS: 1, STARTS: 1, FILLED: 1}
"""The ranks of the inputs, by role."""
_STREAMS: Final = 3
"""The positions of a token in models that also see pictures: in time, height and width."""


def checked_rows(tokens: Tokens, vocabulary: int | None, largest: int) -> list[list[int]]:
    """The tokens of each sequence.

    Raises `InputError` if they are not numbers of tokens in the model's vocabulary; of a model that does not state its
    length, if the input cannot hold them: it holds `largest` at most.
    """
    listed = listed_tokens("tokens", tokens)
    is_batch = bool(listed) and isinstance(listed[0], (list, tuple, np.ndarray))
    rows = [list(row) for row in listed] if is_batch else [listed]
    most = largest if vocabulary is None else min(vocabulary - 1, largest)
    for row in rows:
        if not row:
            raise InputError("tokens must not be empty: append one token or more to each sequence")
        for token in row:
            if isinstance(token, bool) or not isinstance(token, (int, np.integer)):
                raise InputError(f"a token is an integer; got {token!r}")
            if not 0 <= token <= most:
                raise InputError(f"token {shown(int(token))} is out of range; expected 0 to {most}")
    return [[int(token) for token in row] for row in rows]


def listed_tokens(name: str, tokens: Any) -> list[Any]:
    """What should be tokens, as a list. Raises `InputError` if it is not a collection, or a text."""
    try:
        given = tokens.tolist() if isinstance(tokens, np.ndarray) else tokens
        found = None if isinstance(given, (str, bytes)) else list(given)
    except TypeError:
        found = None
    if found is None:
        raise InputError(f"{name} is a {type(tokens).__name__}; expected a list of tokens, such as [2]")
    return found


def checked_stop_tokens(tokens: Collection[int], name: str = "stop_tokens") -> frozenset[int]:
    """The tokens that end a sequence. Raises `InputError` for what no token is, which would never end one."""
    listed = listed_tokens(name, tokens)
    for token in listed:
        if isinstance(token, bool) or not isinstance(token, (int, np.integer)):
            raise InputError(f"{name} has {token!r:.80}; expected tokens, which are integers")
    return frozenset(int(token) for token in listed)


def checked_sampling(sampling: Sampling | None) -> Sampling:
    """The options, by default those of the likeliest token. Raises `InputError`."""
    if sampling is not None and not isinstance(sampling, Sampling):
        raise InputError(f"sampling is {sampling!r:.80}; expected a Sampling, such as Sampling(temperature=0.7)")
    return sampling or Sampling()


def largest_token(signature: Signature, ids: str) -> int:
    """The largest number that the input of tokens can hold."""
    return int(np.iinfo(signature.inputs[signature.find_input(ids)].element_type.numpy).max)


def shown(token: int) -> str:
    """A number for a message; Python writes no number of thousands of digits."""
    return str(token) if -(2**64) < token < 2**64 else f"of {token.bit_length()} bits"


def given_names(names: Mapping[str, str] | None, what: str = "names") -> dict[str, str]:
    """Names by role, none by default. Raises `InputError` for anything else."""
    found = {} if names is None else names
    if not isinstance(found, Mapping) or not all(isinstance(each, str) for pair in found.items() for each in pair):
        raise InputError(f"{what} is {names!r:.80}; expected names by role, such as {{'{IDS}': 'tokens'}}")
    return dict(found)


def checked_names(
    signature: Signature,
    names: Mapping[str, str],
    roles: Sequence[str] = (IDS, MASK, POSITIONS),
    further: Collection[str] = (),
    *,
    has_ids: bool = True,
) -> dict[str, str]:
    """The names of the model's inputs and of its logits, by role; roles that the model does not have are left out.

    The inputs of adapters and `further` ones have no role. Without `has_ids`, the model need not take tokens.
    """
    names = given_names(names)
    if unknown := names.keys() - {*roles, LOGITS}:
        raise InputError(f"unknown role `{min(unknown)}` in names; expected {', '.join((*roles, LOGITS))}")
    given = {port.name for port in signature.inputs}
    found = {role: names.get(role, role) for role in roles if names.get(role, role) in given or role in names}
    for role in {*([IDS] if has_ids else []), *names} & set(roles):
        signature.find_input(found.get(role, role))  # raises, listing the inputs
    for role, name in found.items():
        shape, rank = signature.inputs[signature.find_input(name)].shape, RANKS[role]
        is_of_pictures = role == POSITIONS and shape.rank.is_static and len(shape) == 3 and shape[0].accepts(_STREAMS)
        if shape.rank.is_static and len(shape) != rank and not is_of_pictures:
            raise InputError(
                f"{signature.network}: input `{name}` has shape {shape}; expected rank {rank}, as `{role}`"
            )
    found[LOGITS] = names.get(LOGITS, LOGITS)
    signature.find_output(found[LOGITS])
    if others := given - set(found.values()) - adapter_inputs(signature) - set(further):
        raise InputError(
            f"{signature.network}: input `{min(others)}` does not have one of the roles {', '.join(roles)}; if it has "
            "one of them under another name, pass its name in names; if it is a past value, make the model stateful: "
            "engine.passes.MakeStateful"
        )
    if not signature.states:
        raise InputError(f"{signature.network} has no variables; make the model stateful: engine.passes.MakeStateful")
    return found


def is_replaced(variable: Variable) -> bool:
    """Whether each inference replaces the value as a whole, which thus does not keep its past values."""
    return variable.axis is None and variable.written_axis is None


def input_for(signature: Signature, name: str, value: Array) -> Array:
    """The value of an input, in its type; positions in time, height and width are the same for text."""
    port = signature.inputs[signature.find_input(name)]
    if port.shape.rank.is_static and len(port.shape) > value.ndim:
        value = np.broadcast_to(value, (_STREAMS, *value.shape))
    return np.ascontiguousarray(value, port.element_type.numpy)


def room_of(signature: Signature, names: dict[str, str]) -> int | None:
    """The positions of the model's caches; None if they grow.

    Raises `InputError` if they have different lengths, an `attention_mask` of another width, or if the model has an
    input for where to write, and a variable neither grows nor is known to be written.
    """
    variables = [state.variable for state in signature.states]
    written = [(v, int(v.initial.shape[v.written_axis])) for v in variables if v.written_axis is not None]
    where = next((names[role] for role in (COLUMNS, STARTS, FILLED) if role in names), None)
    unknown = [v.name for v in variables if v.axis is None and v.written_axis is None]
    if where is not None and unknown:
        raise InputError(
            f"{signature.network}: input `{where}` says where to write, and it is not known how the model writes "
            f"variable `{unknown[0]}`; expected TensorScatter (linear), or ScatterND or ScatterElements along one "
            "dimension. If that is what it does, name the dimension: MakeStateful([Variable(..., written_axis=...)])"
        )
    if not written:
        return None
    variable, room = written[0]
    for other, length in written:
        if length != room:
            raise InputError(
                f"{signature.network}: variable `{variable.name}` has {room} positions, and `{other.name}` {length}; "
                "expected caches of one length"
            )
    if MASK in names:
        shape = signature.inputs[signature.find_input(names[MASK])].shape
        if shape.rank.is_static and not shape[1].accepts(room):
            raise InputError(
                f"{signature.network}: input `{names[MASK]}` has shape {shape}, and the model's caches have {room} "
                "positions; expected a mask as wide as they are"
            )
    return room


def columns_of(signature: Signature, room: int | None) -> int | None:
    """The most columns of a sequence: the positions of its caches, or the bound of variables that grow."""
    variables = [state.variable for state in signature.states]
    bounds = [v.bound - v.initial.shape[v.axis] for v in variables if v.axis is not None and v.bound is not None]
    return min(bounds if room is None else [*bounds, room], default=None)


def require_any_number(signature: Signature, names: dict[str, str]) -> None:
    """Raise `InputError` if a model takes a fixed number of tokens, so that it cannot compute proposed ones, too."""
    shape = signature.inputs[signature.find_input(names[IDS])].shape
    if shape.rank.is_static and shape[1].is_static:
        raise InputError(
            f"{signature.network}: input `{names[IDS]}` has shape {shape}, a fixed number of tokens; proposed tokens "
            "need a model that takes any number of them"
        )


def require_checking(signature: Signature, names: dict[str, str], proposed: int) -> None:
    """Raise `InputError` if a model gives the logits of one token only, by which no proposed one can be checked."""
    if most_logits(signature, names[LOGITS]) in (0, 1):
        shape = signature.outputs[signature.find_output(names[LOGITS])].shape
        raise InputError(
            f"{signature.network}: output `{names[LOGITS]}` has shape {shape}, not the logits of all tokens, "
            "by which proposed tokens are checked; compile the model without LastPosition, with "
            f"LastPosition(count={proposed + 1}), or leave out draft"
        )


def most_logits(signature: Signature, logits: str) -> int | None:
    """How many tokens the logits of a run are of, at most; None if they are of all, or it is not known."""
    shape = signature.outputs[signature.find_output(logits)].shape
    if shape.rank.is_dynamic:
        return None
    return shape[1].max if len(shape) == 3 else 1


def vocabulary_of(signature: Signature, logits: str) -> int | None:
    """The number of tokens, if the model's output states it."""
    shape = signature.outputs[signature.find_output(logits)].shape
    if shape.rank.is_dynamic or not len(shape) or shape[-1].is_dynamic:
        return None
    return shape[-1].get_length()
