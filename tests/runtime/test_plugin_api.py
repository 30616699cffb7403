"""The contract of `engine.plugin_api`, on which plugins' authors and the core rely."""

import dataclasses
import inspect
import io
import re
import threading
import time
import typing

import numpy as np
import pytest

from engine import ops, plugin_api
from engine.blob import BlobReader, BlobWriter, check_manifest
from engine.core.plugin_calls import compile_network, import_network, query_network
from engine.errors import (
    BlobError,
    BlobFormatError,
    DeviceNotFoundError,
    EngineError,
    InputError,
    PluginContractError,
    PluginError,
    PropertyError,
    UnsupportedError,
)
from engine.ir import Constant, Model, Parameter, Result, SequenceType, f32
from engine.plugin_api import (
    API_VERSION,
    CONFIG,
    METRIC,
    ExecutableNetwork,
    PlacedSubgraph,
    PlacementReport,
    Plugin,
    Property,
    QueryResult,
    RefusalCause,
    RemoteContext,
    RemoteTensor,
    Support,
    SupportLevel,
    SyncInferRequest,
)

LONG = 30.0
TEMPERATURE = Property("TEMPERATURE", float, None, METRIC, "Degrees Celsius.")
TURBO = Property("TURBO", bool, False, CONFIG, "Faster.")


def simple_model():
    parameter = Parameter(f32, [1, "N"], "x")
    parameter.rt_info["layout"] = "NC"
    return Model([Result(parameter, "y")], [parameter], name="simple")


def two_input_model():
    parameters = [Parameter(f32, [1], "a"), Parameter(f32, [2], "b")]
    return Model([Result(p, f"y{i}") for i, p in enumerate(parameters)], parameters, name="two")


def tuned(plugin, **members):
    """A plugin like the given one, with other class members."""
    return type("Tuned", (type(plugin),), members)(None)


def raising(error):
    def method(*_):
        raise error

    return method


# -- metrics and configuration ------------------------------------------------------------------------------


def test_metrics_and_keys_of_a_device_follow_from_its_declarations(plugin):
    device = tuned(plugin, properties=(TEMPERATURE, TURBO), metric=lambda self, name, device_id: 40.5)
    assert "TEMPERATURE" in device.get_metric("SUPPORTED_METRICS")
    assert set(device.get_metric("SUPPORTED_CONFIG_KEYS")) > {"TURBO", "NUM_STREAMS", "EXCLUSIVE_ASYNC_REQUESTS"}
    assert device.get_property("TEMPERATURE") == 40.5
    assert device.get_property("TURBO") is False
    assert device.get_metric("AVAILABLE_DEVICES") == ("0",)
    with pytest.raises(PropertyError, match="TURBO is a config key, not a metric; metrics: SUPPORTED_METRICS"):
        device.get_metric("TURBO")
    with pytest.raises(PropertyError, match="TEMPERATURE is a read-only metric"):
        device.set_config({"TEMPERATURE": 1.0})
    with pytest.raises(PropertyError, match=r"TINY: unknown property 'TURBA'; did you mean TURBO\?"):
        device.get_property("TURBA")


@pytest.mark.parametrize(
    ("answer", "message"),
    [("hot", r"plugin TINY reports an invalid metric: property TEMPERATURE takes float; got 'hot' \(str\)"),
     (None, "TEMPERATURE takes float; got None")],
)  # fmt: skip
def test_a_metric_of_another_type_names_the_plugin(plugin, answer, message):
    device = tuned(plugin, properties=[TEMPERATURE], metric=lambda self, name, device_id: answer)
    with pytest.raises(PluginContractError, match=message):
        device.get_metric("TEMPERATURE")


def test_a_metric_that_fails_is_wrapped_with_its_cause(plugin):
    device = tuned(plugin, metric=raising(OSError("no driver")))
    with pytest.raises(PluginError, match="TINY: metric FULL_DEVICE_NAME failed: OSError: no driver") as caught:
        device.get_metric("FULL_DEVICE_NAME")
    assert isinstance(caught.value.__cause__, OSError)


def test_import_export_support_follows_from_the_method(plugin):
    assert plugin.get_metric("IMPORT_EXPORT_SUPPORT") is True
    assert tuned(plugin, import_network=Plugin.import_network).get_metric("IMPORT_EXPORT_SUPPORT") is False


def test_defaults_of_a_device_change_as_a_whole_and_reach_networks(plugin):
    plugin.set_config({"PERF_COUNT": True, "NUM_STREAMS": 2})
    with pytest.raises(PropertyError):
        plugin.set_config({"NUM_STREAMS": 3, "PERF_COUNT": "YES"})
    assert plugin.get_config("NUM_STREAMS") == 2
    network = compile_network(plugin, simple_model(), {"PERF_COUNT": False})
    assert (network.get_config("NUM_STREAMS"), network.get_config("PERF_COUNT")) == (2, False)
    assert network.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS") == 2


def test_a_network_answers_for_itself(plugin):
    network = compile_network(plugin, simple_model(), {"DEVICE_ID": "0"})
    assert network.get_metric("NETWORK_NAME") == "simple"
    assert network.get_metric("EXECUTION_DEVICES") == ("TINY.0",)
    assert network.get_metric("LOADED_FROM_CACHE") is False
    assert set(network.get_metric("SUPPORTED_METRICS")) >= {"NETWORK_NAME", "OPTIMAL_NUMBER_OF_INFER_REQUESTS"}
    assert network.get_metric("SUPPORTED_CONFIG_KEYS") == plugin.get_metric("SUPPORTED_CONFIG_KEYS")
    for name in network.get_metric("SUPPORTED_METRICS") + network.get_metric("SUPPORTED_CONFIG_KEYS"):
        network.get_property(name)
    with pytest.raises(PropertyError, match=r"unknown property 'NETWORK'; did you mean NETWORK_NAME\?"):
        network.get_property("NETWORK")
    with pytest.raises(PropertyError, match="unknown metric 'FULL_DEVICE_NAME'"):
        network.get_metric("FULL_DEVICE_NAME")


# -- a plugin's errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "call"),
    [
        ("compile_model", lambda p: compile_network(p, simple_model())),
        ("query_model", lambda p: query_network(p, simple_model())),
        ("import_network", lambda p: import_network(p, exported(p))),
    ],
)
def test_engine_errors_of_a_plugin_pass_and_others_are_wrapped(plugin, method, call):
    own = UnsupportedError("no such kernel")
    with pytest.raises(UnsupportedError) as caught:
        call(tuned(plugin, **{method: raising(own)}))
    assert caught.value is own
    with pytest.raises(PluginError, match=r"plugin TINY: .* failed: KeyError: 'k'") as caught:
        call(tuned(plugin, **{method: raising(KeyError("k"))}))
    assert isinstance(caught.value.__cause__, KeyError)
    with pytest.raises(PluginContractError, match=f"plugin TINY: {method} returned NoneType"):
        call(tuned(plugin, **{method: lambda *_: None}))
    with pytest.raises(KeyboardInterrupt):
        call(tuned(plugin, **{method: raising(KeyboardInterrupt())}))


def test_an_unknown_device_id_lists_the_devices(plugin):
    two = tuned(plugin, device_ids=lambda self: ["a", "b"])
    compile_network(two, simple_model(), {"DEVICE_ID": "b"})
    with pytest.raises(DeviceNotFoundError, match="TINY has no device 'c'; devices: a, b"):
        compile_network(two, simple_model(), {"DEVICE_ID": "c"})
    with pytest.raises(DeviceNotFoundError, match="finds no device"):
        compile_network(tuned(plugin, device_ids=lambda self: []), simple_model())
    with pytest.raises(PluginError, match="device_ids failed: OSError"):
        compile_network(tuned(plugin, device_ids=raising(OSError())), simple_model())


def test_a_query_must_answer_for_the_models_operations_and_no_others(plugin):
    parameter = Parameter(f32, [2], "x")
    model = Model([ops.Relu(parameter)], [parameter])
    (relu,) = (n.friendly_name for n in model.ordered_nodes() if n.op_type == "Relu")

    def ask(answer):
        return query_network(tuned(plugin, query_model=lambda self, model, config: answer), model)

    refused = Support.refused(RefusalCause.ELEMENT_TYPE, f"{relu}: f32 is not supported; use f16")
    result = ask(QueryResult({relu: refused}, (frozenset({relu}),)))
    assert not result.is_supported
    assert result.at(SupportLevel.REFUSED) == {relu: refused}
    assert result[relu].cause == "element type"
    for wrong in (
        QueryResult({}),
        QueryResult({relu: refused, "other": refused}),
        QueryResult({relu: refused}, (frozenset({relu, "other"}),)),
    ):
        with pytest.raises(PluginContractError, match="must report exactly the model's operations"):
            ask(wrong)


def test_a_query_may_report_a_placement_that_can_be(plugin):
    parameter = Parameter(f32, [2], "x")
    model = Model([ops.Relu(parameter, friendly_name="relu")], [parameter])
    subgraph = PlacedSubgraph(0, "CPU", ("relu",))
    report = PlacementReport(("CPU",), "potential", "auto", "priority", (subgraph,), (), 1, sources={"relu": "user"})

    def ask(placement):
        answer = QueryResult({"relu": Support.native()}, placement=placement)
        return query_network(tuned(plugin, query_model=lambda self, model, config: answer), model)

    assert ask(report).placement is report
    with pytest.raises(PluginContractError, match=r"plugin TINY: .* inconsistent placement: the lower bound is 2"):
        ask(dataclasses.replace(report, lower_bound=2))
    with pytest.raises(PluginContractError, match="placement must be PlacementReport"):
        ask({"subgraphs": []})


@pytest.mark.parametrize("create", [lambda self: None, raising(OSError("no memory"))])
def test_a_request_that_cannot_be_created_is_a_plugin_error(plugin, create):
    network = compile_network(plugin, simple_model())
    type(network).create_infer_request_impl, kept = create, type(network).create_infer_request_impl
    try:
        for use in (network.create_infer_request, lambda: network([1])):
            with pytest.raises(PluginError, match="plugin TINY: create_infer_request_impl"):
                use()
    finally:
        type(network).create_infer_request_impl = kept


@pytest.mark.parametrize("ids", [None, "0", 5, [0], ("0", 1), ("",)], ids=repr)
def test_wrong_device_ids_are_refused_alike_wherever_they_are_used(plugin, ids):
    wrong = tuned(plugin, device_ids=lambda self: ids)
    for use in (lambda: compile_network(wrong, simple_model()), lambda: wrong.get_metric("AVAILABLE_DEVICES")):
        with pytest.raises(PluginContractError, match=r"plugin TINY: device_ids returned .*expected a list of ids"):
            use()


def test_a_device_without_a_full_name_has_its_own(plugin):
    assert plugin.get_metric("FULL_DEVICE_NAME") == "TINY"


@pytest.mark.parametrize(
    ("nodes", "atoms"),
    [(None, ()), ({"a": True}, ()), ({"a": Support.native()}, ("a",)), ({"a": Support.native()}, [frozenset("a")])],
)
def test_a_query_result_of_other_types_is_refused_where_it_is_made(nodes, atoms):
    with pytest.raises(PluginContractError, match="a QueryResult"):
        QueryResult(nodes, atoms)


def test_a_query_that_changes_the_model_is_found(plugin):
    def query(self, model, config):
        model.remove_result(model.result(0))
        return QueryResult({})

    with pytest.raises(PluginContractError, match="query_model changed `simple`"):
        query_network(tuned(plugin, query_model=query), simple_model())


class _Uninitialised(ExecutableNetwork):
    def __init__(self):
        pass

    def create_infer_request_impl(self):
        raise NotImplementedError


class _Loose(ExecutableNetwork):
    def create_infer_request_impl(self):
        return type("Loose", (_Ones,), {"__init__": lambda self: None})()


@pytest.mark.parametrize(
    ("compile_model", "message"),
    [
        (lambda self, model, config: _Uninitialised(), r"_Uninitialised.__init__ must call super\(\).__init__\(plugin"),
        (lambda self, model, config: _Loose(self, dict(config), model), "got Tuned and dict"),
        (lambda self, model, config: _Loose(None, config, model), "got NoneType and Config"),
        (lambda self, model, config: _Loose(self, config, None), "a network's source must be the model or"),
    ],
)
def test_a_network_that_is_not_initialised_is_told_so(plugin, compile_model, message):
    with pytest.raises(PluginContractError, match=message):
        compile_network(tuned(plugin, compile_model=compile_model), simple_model())


def test_a_request_that_is_not_initialised_is_told_so(plugin):
    network = compile_network(
        tuned(plugin, compile_model=lambda self, model, config: _Loose(self, config, model)), simple_model()
    )
    for use in (network.create_infer_request, lambda: network([1])):
        with pytest.raises(PluginContractError, match=r"Loose.__init__ must call super\(\).__init__\(network\)"):
            use()


@pytest.mark.parametrize("index", [1, "y"])
def test_an_output_that_there_is_not_is_named(make_network, x, index):
    for store in (lambda r: r.store_output(index, x), lambda r: r.output_buffer(index, x.shape)):
        with pytest.raises(PluginContractError, match=rf"a stage set output {index!r}; expected an index in 0..0"):
            make_network(start_pipeline=store)([x])


# -- calling a network --------------------------------------------------------------------------------------


def test_a_network_is_called_with_a_mapping_a_list_or_one_array(plugin, x):
    network = compile_network(plugin, simple_model())
    for inputs in ({"x": x}, {0: x}, [x], (x,), x):
        np.testing.assert_array_equal(network(inputs)["y"], x * 2)
    two = compile_network(plugin, two_input_model())
    one, other = np.ones(1, np.float32), np.ones(2, np.float32)
    assert [v.size for v in two([one, other]).values()] == [1, 2]
    with pytest.raises(InputError, match=r"got 1 inputs, expected 2 \(a, b\)"):
        two(one)


def test_a_call_keeps_nothing_of_the_call_before(plugin):
    two = compile_network(plugin, two_input_model())
    one, other = np.ones(1, np.float32), np.ones(2, np.float32)
    two([one, other])
    with pytest.raises(InputError, match=r"input `b` .* is missing"):
        two({"a": one})


def test_calls_in_threads_at_once_use_requests_of_their_own(plugin, make_network, x):
    meeting = threading.Barrier(4)
    network = make_network(start_pipeline=lambda request: meeting.wait(LONG))
    results = {}
    threads = [
        threading.Thread(target=lambda i=i: results.__setitem__(i, network({"x": x + i})["y"])) for i in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    for i in range(4):
        np.testing.assert_array_equal(results[i], (x + i) * 2)
    network.hooks.clear()
    before = network.next_request_id()
    for _ in range(10):
        network(x)
    assert network.next_request_id() == before + 1


def test_creating_requests_is_thread_safe_and_their_ids_are_unique(make_network, x):
    network = make_network()
    inside, overlaps = [], []
    create = network.create_infer_request_impl

    def watched():
        overlaps.extend(inside)
        inside.append(1)
        request = create()
        time.sleep(0.001)  # time for another thread to come in
        inside.pop()
        return request

    network.create_infer_request_impl = watched
    requests, lock = [], threading.Lock()

    def work():
        for _ in range(10):
            request = network.create_infer_request()
            with lock:
                requests.append(request)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LONG)
    assert {request.request_id for request in requests} == set(range(40))
    assert overlaps == []


def test_networks_with_exclusive_requests_share_one_executor_per_device(plugin, x):
    exclusive = {"EXCLUSIVE_ASYNC_REQUESTS": True}
    first, second = (compile_network(plugin, simple_model(), exclusive) for _ in range(2))
    assert first.task_executor is second.task_executor
    assert compile_network(plugin, simple_model()).task_executor is not first.task_executor
    requests = [network.create_infer_request() for network in (first, second)]
    for request in requests:
        request.start_async(x)
    for request in requests:
        request.wait(LONG)
        np.testing.assert_array_equal(request.results[0], x * 2)


def test_indices_of_inputs_and_outputs(plugin):
    two = compile_network(plugin, two_input_model())
    assert [two.input_index(port.name) for port in two.inputs] == [0, 1]
    assert two.output_index("y1") == 1
    with pytest.raises(InputError, match="no input 'c'; inputs: a, b"):
        two.input_index("c")
    assert repr(two) == "<TINY network `two` (a: f32[1], b: f32[2]) -> (y0: f32[1], y1: f32[2])>"


# -- export and import --------------------------------------------------------------------------------------


def exported(plugin, config=None, **overridden):
    """A blob that the tiny plugin wrote, whatever `plugin` changes about it."""
    tiny = next(kind for kind in type(plugin).__mro__ if kind.__name__ == "TinyPlugin")
    network = compile_network(tiny(None), simple_model(), config)
    for name, value in overridden.items():
        setattr(network, name, value)
    stream = io.BytesIO()
    network.export_model(stream)
    return BlobReader(stream.getvalue())


def test_an_imported_network_has_the_same_interface_and_the_merged_configuration(plugin, x):
    blob = exported(plugin, {"NUM_STREAMS": 2, "PERF_COUNT": True})
    network = import_network(plugin, blob, {"PERF_COUNT": False})
    assert network.name == network.get_metric("NETWORK_NAME") == "simple"
    assert [str(port) for port in network.inputs] == ["x: f32[1,N] (NC)"]
    assert [str(port) for port in network.outputs] == ["y: f32[1,N]"]
    assert (network.get_config("NUM_STREAMS"), network.get_config("PERF_COUNT")) == (2, False)
    np.testing.assert_array_equal(network(x)["y"], x * 2)


def test_the_manifest_says_what_is_needed_to_import(plugin):
    manifest = exported(plugin, requirements=lambda: {"isa": ["avx2"]}).manifest
    assert (manifest.device, manifest.plugin_name, manifest.plugin_version) == ("TINY", "TINY", "1.2.3")
    assert (manifest.api_version, manifest.engine_version) == (str(API_VERSION), plugin_api.engine_version())
    assert check_manifest(manifest, device="TINY", available={"isa": ["avx2", "fma"]}).compatible
    assert not check_manifest(manifest, device="TINY", available=plugin.host_features("0")).compatible


def test_export_to_a_path_and_to_what_cannot_be_written(plugin, tmp_path, x):
    network = compile_network(plugin, simple_model())
    network.export_model(tmp_path / "net.blob")
    assert import_network(plugin, BlobReader(tmp_path / "net.blob"))(x)["y"][0, 1] == 2
    with pytest.raises(BlobError):
        network.export_model(tmp_path / "missing" / "net.blob")
    with pytest.raises(PluginError, match="export a network to int; expected a path or a binary stream"):
        network.export_model(3)
    network.export_sections = raising(RuntimeError("lost"))
    with pytest.raises(PluginError, match="exporting a network failed: RuntimeError: lost"):
        network.export_model(tmp_path / "net.blob")
    assert import_network(plugin, BlobReader(tmp_path / "net.blob"))(x)["y"][0, 1] == 2
    assert [file.name for file in tmp_path.iterdir()] == ["net.blob"]


def test_a_device_without_export_says_so(plugin):
    network = compile_network(plugin, simple_model())
    network.export_sections = lambda writer: ExecutableNetwork.export_sections(network, writer)
    with pytest.raises(UnsupportedError, match="TINY cannot export"):
        network.export_model(io.BytesIO())
    with pytest.raises(UnsupportedError, match="TINY cannot import"):
        import_network(tuned(plugin, import_network=Plugin.import_network), exported(plugin))


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"config": {"NUM_STREAMS": "2"}}, PropertyError),
        ({"config": {"FUTURE_KEY": 2}}, PropertyError),
        ({"inputs": [{"name": "x"}]}, BlobFormatError),
        ({"inputs": [{"name": "x", "type": {"tensor": "f99", "shape": []}}]}, BlobFormatError),
        ({"metadata": {"network_name": 3}}, BlobFormatError),
        ({"metadata": {}}, BlobFormatError),
        ({"metadata": {"network_name": "n", "variables": {}}}, BlobFormatError),
        ({"metadata": {"network_name": "n", "model_identity": 3}}, BlobFormatError),
    ],
)
def test_a_manifest_with_wrong_contents_is_refused(plugin, changes, error):
    writer = BlobWriter(dataclasses.replace(exported(plugin).manifest, **changes))
    writer.add_section("factor", b"2")
    stream = io.BytesIO()
    writer.write(stream)
    with pytest.raises(error):
        import_network(plugin, BlobReader(stream.getvalue()))


def test_two_inputs_of_one_name_are_refused_by_the_model_or_the_network(plugin):
    parameters = [Parameter(f32, [1], "a"), Parameter(SequenceType(), friendly_name="a")]
    with pytest.raises(EngineError):
        compile_network(plugin, Model([Result(p, f"y{i}") for i, p in enumerate(parameters)], parameters))


# -- the one file -------------------------------------------------------------------------------------------


def mentioned(hint):
    """The classes that a type hint mentions."""
    arguments = typing.get_args(hint)
    if not arguments:
        return {hint} if isinstance(hint, type) else set()
    return {found for argument in arguments if not isinstance(argument, list) for found in mentioned(argument)} | {
        found for argument in arguments if isinstance(argument, list) for part in argument for found in mentioned(part)
    }


def test_the_overview_of_the_contract_has_every_hook_and_says_which_are_required():
    """It is what a vendor reads first: a hook that is missing there is not implemented."""
    listed, name = {}, ""
    for line in plugin_api.__doc__.splitlines():
        cells = [cell.strip(" `") for cell in line.split("|")[1:-1]]
        if len(cells) == 4 and cells[1].isidentifier() and cells[1] != "hook":
            name = cells[0] or name
            listed[name, cells[1]] = cells[2]
    hooks = {}
    for contract in (Plugin, ExecutableNetwork, SyncInferRequest, RemoteContext, RemoteTensor):
        for hook, member in vars(contract).items():
            member = member.fget if isinstance(member, property) else member
            if inspect.isfunction(member) and not hook.startswith("_"):
                word = re.match(r"Required\.|Optional[.,]|", inspect.getdoc(member))[0].strip(".,").lower()
                assert (word == "required") == getattr(member, "__isabstractmethod__", False), hook
                if word:
                    hooks[contract.__name__, hook] = word
    assert listed == hooks


@pytest.mark.parametrize(
    "contract",
    [Plugin, ExecutableNetwork, SyncInferRequest, plugin_api.CoreHandle, QueryResult, RemoteContext, RemoteTensor],
)
def test_everything_that_signatures_mention_can_be_imported_from_the_contract(contract):
    names = {name: getattr(plugin_api, name) for name in plugin_api.__all__}
    found = {kind for hint in typing.get_type_hints(contract, localns=names).values() for kind in mentioned(hint)}
    for name, member in vars(contract).items():
        function = member.fget if isinstance(member, property) else member
        if inspect.isfunction(function) and not name.startswith("_"):
            for hint in typing.get_type_hints(function, localns=names).values():
                found |= mentioned(hint)
    ours = {kind for kind in found if kind.__module__.startswith("engine.")}
    assert ours, "the test finds no signature"
    missing = {kind.__name__ for kind in ours if getattr(plugin_api, kind.__name__, None) is not kind}
    assert missing == set()
    assert {kind.__name__ for kind in ours} <= set(plugin_api.__all__)


def test_a_network_is_called_without_inputs_where_it_takes_none(plugin):
    constant = Constant(np.ones(2, np.float32))
    network = compile_network(plugin, Model([Result(constant, "y")], name="none"), {})
    network.create_infer_request_impl = lambda: _Ones(network)
    assert network()["y"].tolist() == [1, 1]
    with pytest.raises(InputError, match=r"`x`.*missing"):
        compile_network(plugin, simple_model(), {})()
    assert network.get_property("PERF_COUNT") is False
    with pytest.raises(PropertyError, match=r"unknown property \[\]"):
        network.get_property([])


class _Ones(SyncInferRequest):
    def start_pipeline(self):
        self.store_output(0, np.ones(2, np.float32))
