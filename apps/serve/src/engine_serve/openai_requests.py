"""What OpenAI's requests ask for, beside the parameters of the generation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

from engine.errors import InputError, UnsupportedError
from engine.generation import Adapter
from engine_serve.generation_parameters import number_of, truth_of

if TYPE_CHECKING:  # KServe, which this module needs for nothing else
    from engine_serve.generative_model import GenerativeModel, Prompt

_MAX_CHOICES: Final = 128
_MAX_TOP: Final = 20
"""How many of the likeliest tokens an answer lists at most, as in OpenAI's chats."""
_MAX_PROMPTS: Final = 2048
_COMPLETION: Final = frozenset(
    {"model", "prompt", "input_ids", "stream", "stream_options", "n", "best_of", "logprobs", "echo"}
)
"""Keys of a completion that are not parameters of the generation."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What completions and chats have in common.

    Attributes:
        choices: how many answers each prompt gets.
        is_stream: whether they are sent as events; `has_usage`: whether these end with the numbers of tokens.
        top: how many of the likeliest tokens have log probabilities, beside the chosen one; None for none.
        parameters: those of the generation.
        structure: what the answers must match.
    """

    choices: int
    is_stream: bool
    has_usage: bool
    top: int | None
    parameters: Mapping[str, Any]
    structure: Structure | None = None


@dataclass(frozen=True, slots=True)
class Structure:
    """A JSON schema, and `what` gave it, for messages."""

    schema: Mapping[str, Any]
    what: str


@dataclass(frozen=True, slots=True)
class CompletionRequest:
    """A request for completions: `prompts` are texts or lists of tokens, which `echo` repeats before their answers."""

    asked: Asked
    prompts: list[str | list[int]]
    echo: bool


def completion_request(body: Mapping[str, Any]) -> CompletionRequest:
    """The request in a body. Raises `InputError` and `UnsupportedError`."""
    given = {key: value for key, value in body.items() if value is not None}
    echo = truth_of("echo", given.get("echo", False))
    logprobs = None if given.get("logprobs", False) is False else given["logprobs"]
    top = None if logprobs is None else number_of("logprobs", logprobs, int, 0, _MAX_TOP)
    if echo and top is not None:
        raise UnsupportedError("`logprobs` of a prompt, with `echo`, are not supported; leave one out")
    asked = asked_of(given, top, {key: value for key, value in given.items() if key not in _COMPLETION})
    if number_of("best_of", given.get("best_of", asked.choices), int, 1, _MAX_CHOICES) != asked.choices:
        raise InputError("the parameter `best_of` is not supported unless it is equal to `n`; leave it out")
    return CompletionRequest(asked, _prompts(given), echo)


def asked_of(given: Mapping[str, Any], top: int | None, parameters: dict[str, Any]) -> Asked:
    """What is common, in a body without omitted keys. Tokens are drawn, as in OpenAI's API, unless the body says."""
    is_stream = truth_of("stream", given.get("stream", False))
    options = given.get("stream_options", {})
    if not isinstance(options, dict) or not isinstance(options.get("include_usage"), bool | None):
        raise InputError("`stream_options` must be an object, and `include_usage` in it true or false")
    # Without obfuscation, which clients ask for by name, events are as long as their texts.
    if unknown := sorted(key for key in options.keys() - {"include_usage"} if (key, options[key]) != _PLAIN_OPTION):
        raise InputError(f"`stream_options` has the unknown key {unknown[0]!r:.80}; expected include_usage")
    if "stream_options" in given and not is_stream:
        raise InputError("`stream_options` is given without `stream`: true; leave it out")
    choices = number_of("n", given.get("n", 1), int, 1, _MAX_CHOICES)
    parameters = {"temperature": 1.0} | {key: each for key, each in parameters.items() if key != _FORMAT}
    has_usage = bool(options.get("include_usage"))
    return Asked(choices, is_stream, has_usage, top, parameters, _structure(given.get(_FORMAT, {"type": "text"})))


_PLAIN_OPTION: Final = ("include_obfuscation", False)
_FORMAT: Final = "response_format"


def _structure(value: Any) -> Structure | None:
    """What a `response_format` asks for."""
    kind = value.get("type") if isinstance(value, dict) else None
    if kind == "text":
        return None
    if kind == "json_object":
        return Structure({"type": "object"}, f"`{_FORMAT}`")
    if kind != "json_schema":
        raise InputError(f"`{_FORMAT}` is {value!r:.80}; expected an object of type text, json_object or json_schema")
    given = value.get(kind)
    schema = given.get("schema") if isinstance(given, dict) else None
    if not isinstance(schema, dict):
        raise InputError(f"`{_FORMAT}.{kind}.schema` is {schema!r:.80}; expected a JSON schema, which is an object")
    return Structure(schema, f"`{_FORMAT}.{kind}.schema`")


def top_of_chat(given: Mapping[str, Any]) -> int | None:
    """How many tokens a chat lists log probabilities of. Raises `InputError`."""
    has_any = truth_of("logprobs", given.get("logprobs", False))
    top = number_of("top_logprobs", given.get("top_logprobs", 0), int, 0, _MAX_TOP)
    if top and not has_any:
        raise InputError("`top_logprobs` is given without `logprobs`: true; set it, or leave it out")
    return top if has_any else None


async def prompts_of(
    model: GenerativeModel, asked: Asked, prompts: list[Prompt], adapter: Adapter | None
) -> list[Prompt]:
    """What is generated: for each prompt its choices, one after another, each drawn with another seed.

    Raises the errors of `GenerativeModel.constraint` and `require_room`.
    """
    constraint = None
    if asked.structure is not None:
        constraint = await model.constraint(asked.structure.schema, asked.structure.what)
    made = [
        replace(_seeded(prompt, choice), top=asked.top, constraint=constraint, adapter=adapter)
        for prompt in prompts
        for choice in range(asked.choices)
    ]
    model.require_room(len(made))
    return made


def _seeded(prompt: Prompt, choice: int) -> Prompt:
    """The prompt of a choice: the first one has the seed of the request, the others those that follow."""
    sampling = prompt.sampling
    if sampling.seed is None or not choice:
        return prompt
    return replace(prompt, sampling=replace(sampling, seed=(sampling.seed + choice) % (1 << 64)))


def model_name(body: Mapping[str, Any]) -> str:
    """The name of the model that a body has. Raises `InputError`."""
    name = body.get("model")
    if not isinstance(name, str) or not name:
        raise InputError(f"`model` is {name!r:.80}; expected the name of a model")
    return name


def prompts_in(key: str, value: Any) -> list[str | list[int]]:
    """A text, tokens, or a list of one kind. Raises `InputError`."""
    if isinstance(value, str):
        return [value]
    if isinstance(value, list) and value:
        if all(type(each) is int for each in value):
            return [value]
        is_tokens = all(isinstance(each, list) and all(type(token) is int for token in each) for each in value)
        if (is_tokens or all(isinstance(each, str) for each in value)) and len(value) <= _MAX_PROMPTS:
            return value
    raise InputError(
        f"`{key}` must be a text, a list of numbers of tokens, or a list of either, of {_MAX_PROMPTS} at most"
    )


def _prompts(given: Mapping[str, Any]) -> list[str | list[int]]:
    """The prompts of a completion."""
    present = [name for name in ("prompt", "input_ids") if name in given]
    if len(present) > 1:
        raise InputError("`prompt` and `input_ids` are both given; leave one out")
    return prompts_in("prompt", given[present[0]] if present else None)
