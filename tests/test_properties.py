import enum
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine import properties
from engine.errors import PluginContractError, PropertyError
from engine.properties import (
    CONFIG,
    DEVICE_CONFIGS,
    METRIC,
    NUM_STREAMS,
    PERF_COUNT,
    Config,
    Property,
    PropertySet,
    describe,
)

FLAG = Property("FLAG", bool, False, CONFIG, "A flag.")
COUNT = Property("COUNT", int, 1, CONFIG, "A count.", minimum=1, maximum=8)
RATE = Property("RATE", float, 0.5, CONFIG, "A rate.", minimum=0)
MODE = Property("MODE", str, "FAST", CONFIG, "A mode.", choices=("FAST", "SMALL"))
NAMES = Property("NAMES", tuple, (), CONFIG, "Some names.")
TABLE = Property("TABLE", dict, {}, CONFIG, "A table.")
FACT = Property("FACT", str, None, METRIC, "A fact.")
ALL = PropertySet(FLAG, COUNT, RATE, MODE, NAMES, TABLE, FACT)
ACCEPTED = [
    (FLAG, True, True),
    (COUNT, 8, 8),
    (RATE, 2, 2.0),
    (MODE, "SMALL", "SMALL"),
    (MODE, "fast", "FAST"),
    (NAMES, ["a", "b"], ("a", "b")),
    (TABLE, {"a": [1, {"b": None}]}, {"a": (1, {"b": None})}),
]
REFUSED = [
    (FLAG, 1, "bool"),
    (FLAG, "YES", "bool"),
    (COUNT, True, "int, 1 to 8"),
    (COUNT, 1.0, "int, 1 to 8"),
    (COUNT, "1", "got '1' (str)"),
    (COUNT, 0, "1 to 8"),
    (COUNT, 9, "1 to 8"),
    (RATE, False, "float"),
    (RATE, float("nan"), "not finite"),
    (RATE, 10**400, "float"),
    (RATE, -0.1, "at least 0"),
    (MODE, "SLOW", "one of FAST, SMALL"),
    (MODE, None, "one of FAST, SMALL"),
    (NAMES, "ab", "tuple of str"),
    (NAMES, ["a", 1], "tuple of str"),
    (NAMES, ["\ud800"], "tuple of str"),
    (TABLE, {1: 2}, "keys must be str"),
    (TABLE, {"a": object()}, "object has no JSON form"),
    (TABLE, {"a": float("inf")}, "not finite"),
    (TABLE, [], "mapping"),
]


@pytest.mark.parametrize("name", [None, 5, [], {}, b"FLAG"])
def test_what_is_no_name_is_no_property(name):
    assert name not in ALL
    assert name not in Config(ALL)
    with pytest.raises(PropertyError, match="allowed: FLAG, COUNT"):
        ALL.require(name)


@pytest.mark.parametrize(("declared", "value", "stored"), ACCEPTED)
def test_a_value_of_the_declared_type_is_stored(declared, value, stored):
    config = Config(ALL, {declared.name: value})
    assert config[declared] == config[declared.name] == stored
    assert type(config[declared]) is type(stored) or declared is TABLE


@pytest.mark.parametrize(("declared", "value", "allowed"), REFUSED)
def test_another_value_is_refused_saying_what_is_allowed(declared, value, allowed):
    with pytest.raises(PropertyError) as caught:
        Config(ALL, {declared.name: value}, where="TINY")
    assert allowed in str(caught.value)
    assert str(caught.value).startswith(f"TINY: property {declared.name} ")


@given(st.sampled_from(list(ALL)), st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
       lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=5))  # fmt: skip
def test_any_value_is_taken_unchanged_or_refused(declared, value):
    try:
        stored = declared.validate(value)
    except PropertyError:
        return
    assert declared.validate(stored) == stored
    if declared.type in (bool, int, str):
        assert stored == value
        assert type(stored) is declared.type is type(value)
    if declared.mutability is CONFIG:
        config = Config(ALL, {declared.name: value})
        assert Config.from_json(ALL, json.loads(json.dumps(config.to_json()))) == config


def test_a_string_enumeration_is_stored_as_its_value():
    class Mode(enum.StrEnum):
        FAST = "FAST"

    assert type(Config(ALL, {"MODE": Mode.FAST})["MODE"]) is str


def test_a_choice_in_other_case_is_refused_where_it_could_mean_two():
    units = Property("UNIT", str, "mW", CONFIG, "A unit.", choices=("mW", "MW", "W"))
    assert Config(PropertySet(units), {"UNIT": "MW"})["UNIT"] == "MW"
    with pytest.raises(PropertyError, match="one of mW, MW, W"):
        Config(PropertySet(units), {"UNIT": "mw"})


def test_an_unknown_key_names_the_close_one_and_all_allowed():
    with pytest.raises(PropertyError, match=r"unknown config 'COUNTS'; did you mean COUNT\? allowed: FLAG, COUNT"):
        Config(ALL, {"COUNTS": 1})
    with pytest.raises(PropertyError, match="unknown config 3; allowed"):
        Config(ALL, {3: 1})  # type: ignore[dict-item]
    with pytest.raises(PropertyError, match="unknown config 'X'"):
        Config(ALL)["X"]


def test_a_key_of_the_device_that_another_one_runs_on_is_told_its_place() -> None:
    with pytest.raises(
        PropertyError, match=r"unknown config 'MEMORY_BUDGET'.*; a key of a device .* DEVICE_PROPERTIES"
    ):
        PropertySet(DEVICE_CONFIGS).require("MEMORY_BUDGET", CONFIG)


def test_the_key_that_has_all_words_of_an_unknown_one_is_the_close_one():
    keys = [Property(name, int, 1, CONFIG, "A number.") for name in ("NUM_STREAMS", "INFERENCE_NUM_THREADS")]
    for name in ("NUM_THREADS", "NUM_THREAD"):
        with pytest.raises(PropertyError, match=rf"unknown config '{name}'; did you mean INFERENCE_NUM_THREADS\?"):
            Config(PropertySet(*keys), {name: 2})


def test_a_metric_cannot_be_configured_nor_read_from_a_configuration():
    with pytest.raises(PropertyError, match="FACT is a read-only metric"):
        Config(ALL, {"FACT": "x"})
    with pytest.raises(PropertyError, match="FACT is a read-only metric"):
        Config(ALL)["FACT"]
    assert "FACT" not in Config(ALL)


@pytest.mark.parametrize("values", [[("FLAG", True)], "FLAG", 3])
def test_a_configuration_that_is_no_mapping_is_refused(values):
    for make in (lambda v: Config(ALL, v), Config(ALL).merged, lambda v: Config.from_json(ALL, v)):
        with pytest.raises(PropertyError, match="mapping of names to values"):
            make(values)


def test_merging_overrides_explicit_values_only_and_changes_nothing_in_place():
    base = Config(ALL, {"COUNT": 2, "FLAG": True})
    merged = base.merged(Config(ALL, {"COUNT": 3}))
    assert (merged["COUNT"], merged["FLAG"]) == (3, True)
    assert base["COUNT"] == 2
    with pytest.raises(PropertyError):
        base.merged({"MODE": "SMALL", "COUNT": 99})
    assert dict(base.explicit) == {"COUNT": 2, "FLAG": True}


def test_a_configuration_is_a_mapping_over_all_keys_and_cannot_be_changed():
    config = Config(ALL, {"TABLE": {"a": {"b": [1]}}})
    assert list(config) == ["FLAG", "COUNT", "RATE", "MODE", "NAMES", "TABLE"]
    assert config == {"FLAG": False, "COUNT": 1, "RATE": 0.5, "MODE": "FAST", "NAMES": (), "TABLE": config["TABLE"]}
    with pytest.raises(TypeError):
        config["TABLE"]["a"]["b"] = 2
    with pytest.raises(TypeError):
        config.explicit["FLAG"] = True  # type: ignore[index]


def test_json_carries_the_explicit_values():
    config = Config(ALL, {"TABLE": {"a": [1, {"b": None}]}, "NAMES": ["n"], "RATE": 1})
    text = json.dumps(config.to_json())
    again = Config.from_json(ALL, json.loads(text))
    assert again == config
    assert again.explicit == config.explicit
    with pytest.raises(PropertyError, match="unknown config 'NEW'"):
        Config.from_json(ALL, {"NEW": 1})


@pytest.mark.parametrize(
    ("declared", "text", "value"),
    [
        (FLAG, "Yes", True),
        (FLAG, "0", False),
        (COUNT, "4", 4),
        (RATE, "0.25", 0.25),
        (MODE, "SMALL", "SMALL"),
        (NAMES, "a, b", ("a", "b")),
        (NAMES, "", ()),
        (TABLE, '{"a": 1}', {"a": 1}),
    ],
)
def test_text_of_a_command_line_is_parsed(declared, text, value):
    assert declared.parse(text) == value


@pytest.mark.parametrize(
    ("declared", "text"), [(FLAG, "maybe"), (COUNT, "4.0"), (COUNT, "9"), (RATE, "nan"), (MODE, "quick"), (TABLE, "{"),
                           (TABLE, "[" * 100_000), (COUNT, "9" * 5000)]
)  # fmt: skip
def test_text_that_is_no_value_is_refused(declared, text):
    with pytest.raises(PropertyError, match=declared.name):
        declared.parse(text)


@pytest.mark.parametrize(
    "arguments",
    [
        ("lower", int, 1, CONFIG, "Doc."),
        ("TWO WORDS", int, 1, CONFIG, "Doc."),
        ("X", list, [], CONFIG, "Doc."),
        ("X", int, None, CONFIG, "Doc."),
        ("X", int, "1", CONFIG, "Doc."),
        ("X", int, 1, CONFIG, ""),
        ("X", int, 1, CONFIG, "Doc.", ("a",)),
        ("X", str, "a", CONFIG, "Doc.", ("b",)),
        ("X", str, "a", CONFIG, "Doc.", None, 1),
        ("X", int, 1, CONFIG, "Doc.", None, None, None, True),
    ],
)
def test_a_declaration_that_contradicts_itself_is_refused(arguments):
    with pytest.raises(PluginContractError):
        Property(*arguments)


def test_sets_refuse_a_name_twice_and_let_a_device_refine_a_common_property():
    with pytest.raises(PluginContractError, match="FLAG is declared twice"):
        PropertySet(FLAG, FLAG)
    narrow = Property("COUNT", int, 2, CONFIG, "Fewer.", minimum=2, maximum=3)
    assert ALL.combined([narrow]).names == ALL.names
    assert Config(ALL.combined([narrow]))["COUNT"] == 2
    with pytest.raises(PluginContractError, match="COUNT is declared as a config of str, and elsewhere"):
        ALL.combined([Property("COUNT", str, "", CONFIG, "Other.")])


def test_every_device_takes_the_keys_that_the_engine_promises():
    names = set(properties.DEVICE_PROPERTIES.names)
    assert names >= {"DEVICE_ID", "PERF_COUNT", "NUM_STREAMS", "INFERENCE_NUM_THREADS", "PERFORMANCE_HINT", "CACHE_DIR"}
    assert names >= {"SUPPORTED_METRICS", "SUPPORTED_CONFIG_KEYS", "FULL_DEVICE_NAME", "AVAILABLE_DEVICES"}
    assert names >= {"OPTIMIZATION_CAPABILITIES", "IMPORT_EXPORT_SUPPORT", "EXCLUSIVE_ASYNC_REQUESTS", "ENABLE_MMAP"}
    config = Config(properties.DEVICE_PROPERTIES, {"PERF_COUNT": True})
    assert (config[PERF_COUNT], config[NUM_STREAMS]) == (True, 0)


@pytest.mark.parametrize(
    ("name", "most"),
    [
        ("MAX_FOLDED_BYTES", None),
        ("MAX_FOLDED_WORK", None),
        ("MAX_TENSOR_BYTES", None),
        ("NUM_STREAMS", 1024),
        ("INFERENCE_NUM_THREADS", 4096),
    ],
)
def test_0_is_the_least_that_every_device_takes(name, most):
    """For most of them 0 has a meaning of its own: the device chooses, there is no limit, or nothing is computed."""
    for value in (0, 1 << 40 if most is None else most):
        assert Config(properties.DEVICE_PROPERTIES, {name: value})[name] == value
    for value in (-1, *([] if most is None else [most + 1])):
        with pytest.raises(PropertyError, match=f"property {name} "):
            Config(properties.DEVICE_PROPERTIES, {name: value})


def test_the_documentation_lists_every_property_with_what_it_allows():
    text = describe(ALL)
    assert "| `COUNT` | int, 1 to 8 | `1` | A count. |" in text
    assert "| `FACT` | str |  | A fact. |" in text
    assert len(text.splitlines()) == 2 + len(ALL)
