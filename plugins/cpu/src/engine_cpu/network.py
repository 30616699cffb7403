"""The executable network: the transformed graph, its packed weights, and a program per set of input shapes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from engine.errors import UnsupportedError
from engine.ir import Constant, MapType, Model, Node, SequenceType, TensorType
from engine.ir.walk import all_nodes
from engine.lowering import GraphNetwork, PreparedGraph, RefusalCause, check_mode, check_precision, read_graph
from engine.native import Plan, cores, default_isa, return_free_memory
from engine.onnx.skeleton import INLINE_BYTES
from engine.ops import find_op
from engine.ops.reference import compile_node
from engine.passes.runtime_info import is_operation
from engine.plugin_api import BlobReader, BlobWriter, Config, MemoryForecast, Plugin, Port, SyncInferRequest
from engine.properties import (
    ALLOW_SHARED_CACHE,
    CACHE_DIR,
    EXECUTION_PRECISION,
    EXECUTION_THREADS,
    INSTRUCTION_SET,
    MEMORY_BUDGET,
    NO_LIMIT,
    NUM_STREAMS,
    TARGET,
    VARYING_LENGTHS,
)
from engine.properties.target import SOURCE
from engine_cpu.blob_check import KERNELS, PLANS, is_compiled_again, plans_here
from engine_cpu.cache_formats import CACHE_FORMATS
from engine_cpu.compilation import PACKED, SECTION, Compilation, most_threads_of, requirements_of, threads_of
from engine_cpu.compiler import Compiler, logger
from engine_cpu.instruction_sets import kernels_of, needed_isa, why_lower
from engine_cpu.length_report import describe_lengths
from engine_cpu.lowering import LOWERINGS, CpuGraph
from engine_cpu.machine import Machine
from engine_cpu.precision import is_accurate, multiplies_bytes, precision_of, remark_on
from engine_cpu.program import Program
from engine_cpu.programs import Programs
from engine_cpu.properties import (
    ALLOW_REFERENCE,
    ARENA_BYTES,
    COMPILE_EFFORT,
    DYNAMIC_QUANTIZATION_GROUP_SIZE,
    EXPORT_PACKED_WEIGHTS,
    INFERENCE_PRECISION_HINT,
    KV_CACHE_PRECISION,
    LOWERED_PLANS,
    NAIVE_ARENA_BYTES,
    PLAN_CACHE_SIZE,
    PLANS_PER_SHAPE,
    REFERENCE_STEPS,
)
from engine_cpu.repeatability import check_made_repeatable, check_repeatable, is_repeatable
from engine_cpu.request import CpuInferRequest
from engine_cpu.stored_program import WHY_NOT, why_not_stored, write_program
from engine_cpu.transform import prepare_model
from engine_cpu.tuning import DEFAULT_L2_BYTES, EFFORTS, CpuTuner
from engine_cpu.tuning_cache import TuningCache
from engine_cpu.weights import WeightLimit, WeightStore, mark_weights

_LARGE = 32 << 20
"""The bytes of weights from which on freed memory is returned after compiling."""
_ANY_ISA = "generic"
"""What a blob says that is lowered where it is imported."""
_NAMED = 3
"""How many nodes a message names."""


class CpuNetwork(GraphNetwork):
    """Compilation transforms the graph and, if all lengths are known, lowers it to a program."""

    metrics = (
        REFERENCE_STEPS, ARENA_BYTES, NAIVE_ARENA_BYTES, PLANS_PER_SHAPE, LOWERED_PLANS, VARYING_LENGTHS,
        EXECUTION_PRECISION, EXECUTION_THREADS, INSTRUCTION_SET,
    )  # fmt: skip

    @classmethod
    def compiled(cls, plugin: Plugin, config: Config, model: Model, stated: Config) -> CpuNetwork:
        """Compile `model` within its memory budget.

        `stated`: the configuration without the number of streams that follows from a hint.
        """

        def compile_with(config: Config, *, is_direct: bool = False, limit: WeightLimit | None = None) -> CpuNetwork:
            return cls._compiled(plugin, config, model, is_direct, limit)

        if config[MEMORY_BUDGET] < NO_LIMIT:
            from engine_cpu.saving import within_budget  # few networks have a budget

            network = within_budget(config, stated, compile_with)
        else:
            network = compile_with(config)
        if network.weights.nbytes >= _LARGE:
            return_free_memory()  # constants were folded and packed, many of them a few MB
        return network

    @classmethod
    def _compiled(
        cls, plugin: Plugin, config: Config, model: Model, is_direct: bool, limit: WeightLimit | None
    ) -> CpuNetwork:
        """Prepare the graph, measure candidates as COMPILE_EFFORT says, and build the program.

        `is_direct`: convolutions do not use Winograd's algorithm. `limit`: of packed weights.
        """
        network = cls(plugin, config, model)
        accurate, repeatable = is_accurate(config), is_repeatable(config)
        machine = Machine.of(config)
        precision = precision_of(config, machine.isa, is_here=machine.is_here)
        rounds_weights = config[INFERENCE_PRECISION_HINT] != precision
        prepared = prepare_model(
            model,
            config[DYNAMIC_QUANTIZATION_GROUP_SIZE],
            is_accurate=accurate,
            rounds_weights=rounds_weights,
            keeps_codes=precision == "f32" and not rounds_weights and multiplies_bytes(machine.isa),
        )
        if repeatable:
            check_repeatable(network.name, prepared)
        mark_weights(prepared.graph)
        for constant in (*_all_constants(model), *_all_constants(prepared.graph)):
            constant.release()  # pages of the mapped file that the passes have read
        # With effort "none", a network does not depend on earlier measurements.
        effort, folder = EFFORTS[config[COMPILE_EFFORT]], config[CACHE_DIR]
        if limit is not None and limit.counts_on:
            effort = EFFORTS["none"]  # the weights may have no content
        cache = TuningCache(folder, is_shared=config[ALLOW_SHARED_CACHE]) if folder and effort.seconds else None
        threads = threads_of(config, machine.cores)
        weights = WeightStore(needed_isa(prepared.graph, precision, machine.isa), limit=limit, is_repeatable=repeatable)
        tuner = CpuTuner(
            threads,
            effort.inferences,
            budget=effort.seconds,
            cache=cache,
            is_accurate=accurate,
            saves_memory=is_direct,
            l2_bytes=machine.l2_bytes or DEFAULT_L2_BYTES,
        )
        network._load(prepared, weights, tuner, precision, machine, rounds_weights=rounds_weights)
        if cache is not None:
            cache.save()
        network._discard_packed()
        return network

    @classmethod
    def imported(cls, plugin: Plugin, config: Config, blob: BlobReader) -> CpuNetwork:
        """Load an exported network from its graph: nothing is transformed, packed or measured again.

        If its kernels are for another machine or version, they are chosen, and weights packed, for this one.
        """
        network = cls(plugin, config, blob.manifest)
        blob.verify_ahead()
        graph = read_graph(blob)
        features = plugin.host_features("")
        is_again = is_compiled_again(blob.manifest, features)
        made = Compilation.of(blob, is_for_here=not is_again)
        check_mode(network.name, made_accurate=made.is_accurate, is_accurate=is_accurate(config))
        check_made_repeatable(network.name, config, made)
        hint = config[INFERENCE_PRECISION_HINT]
        # A network in bf16 that is given with the hint runs wherever its kernels do, if slowly.
        check_precision(network.name, made.hint, hint if hint == made.hint else precision_of(config, default_isa()))
        prepared = PreparedGraph.of(graph, LOWERINGS)
        machine, precision = Machine(default_isa(), cores(), is_source=made.is_source), made.precision
        if made.is_source or is_again:
            if is_again:
                precision = precision_of(config, default_isa())
                network.remarks.append(
                    f"the blob was compiled for {_machine(blob)}, and is compiled again on each import; export it "
                    "again on this machine"
                )
                logger.warning("%s: %s", network.name, network.remarks[-1])
            weights = WeightStore(needed_isa(graph, precision, machine.isa), is_repeatable=made.is_repeatable)
            tuner = CpuTuner(threads_of(config), is_accurate=made.is_accurate, saves_memory=made.saves_memory)
        else:
            packed = [name.removeprefix(PACKED) for name in blob.section_names if name.startswith(PACKED)]
            weights = WeightStore(
                made.isa, lambda key: blob.section(PACKED + key), packed, is_repeatable=made.is_repeatable
            )
            # Kernels and weight formats depend on the number of threads that the network was compiled for.
            tuner = CpuTuner(
                made.threads, choices=made.choices, is_accurate=made.is_accurate, saves_memory=made.saves_memory
            )
        network._load(prepared, weights, tuner, precision, machine, rounds_weights=made.rounds_weights)
        return network

    def _load(
        self,
        prepared: CpuGraph,
        weights: WeightStore,
        tuner: CpuTuner,
        precision: str,
        machine: Machine,
        *,
        rounds_weights: bool,
    ) -> None:
        """The steps shared by compiling and importing."""
        self.graph = prepared.graph
        self.weights = weights
        self.keeps_packed = bool(self.config[EXPORT_PACKED_WEIGHTS]) and not machine.is_source
        self.is_source = machine.is_source
        is_here = machine.is_here
        if remark := remark_on(self.config, machine.isa, precision, rounds_weights=rounds_weights, is_here=is_here):
            self.remarks.append(remark)
        if is_here and (left_out := why_lower(machine.isa)):
            self.remarks.append(left_out)
        self.reference_steps = self._check_reference(prepared)
        streams = self.config[NUM_STREAMS] or 1
        self.tuner = tuner
        self.precision = precision
        self.rounds_weights = rounds_weights
        self.compiler = compiler = Compiler(
            weights,
            tuner,
            streams,
            self.config[PLAN_CACHE_SIZE],
            self.precision,
            most_threads_of(self.config),
            self.config[ALLOW_REFERENCE],
            CACHE_FORMATS[self.config[KV_CACHE_PRECISION]],
        )
        self.is_static = prepared.is_static
        self.packed_ahead = frozenset() if self.is_static else self._pack_ahead(prepared)
        self.program: Program | None = compiler.program(prepared, keeps_calls=True) if self.is_static else None
        self.programs: Programs | None = None if self.is_static else compiler.programs(prepared)
        budget = self.config[MEMORY_BUDGET]
        if self.programs is not None and budget < NO_LIMIT:
            from engine_cpu.saving import BudgetCheck

            self.programs.budget = BudgetCheck(
                f"`{self.name}`", self.signature, streams, budget, weights, prepared.graph
            )

    def _pack_ahead(self, prepared: CpuGraph) -> frozenset[Constant]:
        """Pack weights whose format does not depend on shapes; returns those that plans read in no other form."""
        found: list[Constant] = []
        packing: set[Node] = set()
        for node in prepared.graph.ordered_nodes():
            if not is_operation(node) or prepared.decisions.refusal(node) is not None:
                continue
            decision = prepared.decisions[node]
            if constants := decision.lowering.pack(decision.spec, self.weights, self.precision):
                packing.add(node)
                found += [value.node for value in constants if isinstance(value.node, Constant)]
        self.weights.finish()
        return frozenset(
            constant
            for constant in found
            if self.weights.is_only_packed(constant)
            and packing.issuperset(each.node for each in constant.output(0).target_inputs)
        )

    def _discard_packed(self) -> None:
        """Release the plain weights that no step reads, which an export omits too."""
        for constant in _all_constants(self.graph):
            # Small constants are part of the exported graph.
            if constant.byte_size > INLINE_BYTES and self.is_omitted(constant):
                constant.discard()
            elif self.is_static:
                constant.release()

    def _check_reference(self, prepared: CpuGraph) -> tuple[str, ...]:
        """Find the operations that run on the reference evaluator; log them once, or raise `UnsupportedError`."""
        refusals = prepared.refusals()
        found = {node.friendly_name: f"{node}: {why.reason}" for node, why in refusals.items()}
        if found and not self.config[ALLOW_REFERENCE]:
            raise UnsupportedError(
                f"{self.name}: {len(found)} operations have no native kernel and ALLOW_REFERENCE is off: "
                + "; ".join(list(found.values())[:5])
            )
        for node in all_nodes(prepared.graph):
            is_evaluated = node in refusals and not node.bodies
            if is_operation(node) and (is_evaluated or find_op(node.op_type, node.domain) is None):
                compile_node(node)  # raises if there is no evaluation; programs are made later, for the lengths
        # Nodes whose shapes only an inference knows are decided then, and most run natively.
        self._reference = frozenset(
            node
            for node, why in refusals.items()
            if not node.bodies and why.cause is not RefusalCause.DYNAMIC_SHAPE and not _only_makes_maps(node)
        )
        if self._reference:
            evaluated = [node for node in refusals if node in self._reference]
            operators = dict.fromkeys(node.op_type for node in evaluated)
            names = [f"`{node.friendly_name}`" for node in evaluated[:_NAMED]] + ["..."] * (len(evaluated) > _NAMED)
            count = sum(map(is_operation, prepared.graph.ordered_nodes()))
            self.remarks.append(
                f"{len(self._reference)} of {count} nodes run on the reference evaluator ({', '.join(operators)}), "
                f"since CPU has no kernel for {', '.join(names)}; `engine query MODEL -d CPU --why` lists them"
            )
        if found:
            logger.info("%s: running on the reference evaluator: %s", self.name, "; ".join(found.values()))
        return tuple(found)

    def can_share(self) -> bool:
        """Unless lengths are open: plans for new ones are made for the streams of one network."""
        return self.program is not None

    def begin_sharing(self) -> None:
        """Take memory for runs of this network's own."""
        if self.program is not None:
            self.program = self.program.with_own_memory()

    def create_infer_request_impl(self) -> SyncInferRequest:
        """One more request; it refers to the programs, not the network: a reference cycle would delay freeing both."""
        program, programs = self.program, self.programs
        if program is not None:
            return CpuInferRequest(self, lambda inputs, *, may_assume: program)
        assert programs is not None
        return CpuInferRequest(self, programs.get)

    def export_sections(self, writer: BlobWriter) -> None:
        """Write the sections that `imported` reads, and the program if a blob can have it, for `StoredNetwork`."""
        super().export_sections(writer)
        if self.keeps_packed:
            for key, array in self.weights.packed.items():
                writer.add_section(PACKED + key, array)
        tuner = self.tuner
        made = Compilation(
            _ANY_ISA if self.is_source else self.weights.isa,
            self.precision,
            1 if self.is_source else tuner.threads,
            tuner.choices,
            tuner.is_accurate,
            self.rounds_weights,
            tuner.saves_memory,
            self.is_source,
            self.weights.is_repeatable,
        )
        writer.add_section(SECTION, made.to_json())
        if not (why := self.why_not_stored()):
            assert self.program is not None
            write_program(writer, self.program, self.node_counts())
        else:
            writer.add_section(WHY_NOT, why.encode())

    def why_not_stored(self) -> str:
        """Why a blob of the network has no program, as a clause; "" if it has one."""
        if self.is_source:
            return f"it was compiled for {TARGET.name}={SOURCE}"
        if not self.config[EXPORT_PACKED_WEIGHTS]:
            return f"{EXPORT_PACKED_WEIGHTS.name} is off"
        if self.program is None:
            return f"the shapes of inputs are open: {', '.join(map(str, _open(self.inputs)))}"
        states = self.signature.states
        ports = (*self.inputs, *self.outputs, *(port for state in states for port in (state.before, state.after)))
        return why_not_stored(self.program, ports)

    def is_omitted(self, constant: Constant) -> bool:
        """True for data that steps read only in packed form, unless blobs or plans for other shapes need it."""
        if not self.keeps_packed:
            return False
        return self.weights.is_only_packed(constant) if self.is_static else constant in self.packed_ahead

    def is_reference(self, node: Node) -> bool:
        """Whether an operation has no kernel, and no bodies that have some."""
        return node in self._reference

    def requirements(self) -> Mapping[str, str | Sequence[str]]:
        """The instruction set of kernels and packed weights, and the version of the weight formats; of source, none."""
        return {} if self.is_source else requirements_of(self.weights.isa)

    def preferences(self) -> Mapping[str, str | Sequence[str]]:
        """The best kernels, and for a program the version of the engine; of source, none."""
        if self.is_source:
            return {}
        kernels = {KERNELS: kernels_of(self.graph, self.precision, self.weights.isa)}
        return kernels if self.why_not_stored() else {**kernels, PLANS: plans_here()}

    def metric(self, name: str) -> object:
        """The network's own metrics; the engine answers the common ones."""
        match name:
            case REFERENCE_STEPS.name:
                return self.reference_steps
            case PLANS_PER_SHAPE.name:
                return () if self.programs is None else self.programs.reasons
            case VARYING_LENGTHS.name:
                return () if self.programs is None else describe_lengths(self.programs)
            case LOWERED_PLANS.name:
                return self.compiler.lowered
            case ARENA_BYTES.name:
                return sum(plan.arena_bytes for plan in self.native_plans())
            case NAIVE_ARENA_BYTES.name:
                return sum(plan.naive_bytes for plan in self.native_plans())
            case EXECUTION_PRECISION.name:
                return self.precision
            case EXECUTION_THREADS.name:
                return threads_of(self.config)
            case INSTRUCTION_SET.name:
                return self.weights.isa
        return None

    def memory(self) -> dict[str, int]:
        """Packed weights, the constants that stay in the model's form, and intermediate results of all streams."""
        arena = sum(plan.arena_bytes for plan in self.native_plans()) * (self.config[NUM_STREAMS] or 1)
        return {"weights": self.weights.nbytes, "arena": arena, **super().memory()}

    def forecast_memory(self, shapes: Sequence[tuple[int, ...]]) -> MemoryForecast:
        """The program of these shapes has the sizes; if there is none yet, one is built and dropped again."""
        from engine_cpu.memory import forecast, kept_constants

        program = self.program if self.programs is None else self.programs.for_shapes(tuple(shapes))
        assert program is not None
        kept = kept_constants(self.weights, self.graph)
        return forecast(self.signature, self.config[NUM_STREAMS] or 1, program, shapes, kept)

    def own_weights(self) -> int:
        """The bytes of packed weights and of constants, without mapped ones: what takes memory for any lengths."""
        from engine.ir.sizes import joined_bytes
        from engine_cpu.memory import kept_constants

        return joined_bytes(kept_constants(self.weights, self.graph).own)

    def release_caches(self) -> None:
        """Drop the programs of dynamic shapes, and arrays that are kept for outputs."""
        if self.program is not None:
            self.program.release()
        if self.programs is not None:
            self.programs.release()

    def prepare(self, shapes: Sequence[tuple[int, ...]]) -> None:
        """Build the program for inputs of these shapes, for other lengths too if possible."""
        if self.programs is not None:
            self.programs.prepare(tuple(shapes))

    def native_plans(self) -> list[Plan]:
        """The native plans of the network or, with dynamic shapes, of the program used last."""
        program = self.program if self.programs is None else self.programs.last
        return [] if program is None else program.plans


def _machine(blob: BlobReader) -> str:
    """The kind of machine that a blob was compiled for."""
    required = map(blob.manifest.requirements.get, ("architecture", "isa", "packed weights"))
    architecture, isa, formats = (value if isinstance(value, str) else ", ".join(value or ()) for value in required)
    return f"{architecture} with {isa}, formats of weights {formats}"


def _open(ports: Sequence[Port]) -> list[Port]:
    """The ports whose shapes are not known."""
    return [port for port in ports if isinstance(port.type, TensorType) and not port.type.shape.is_static]


def _only_makes_maps(node: Node) -> bool:
    """Whether an operation (ZipMap) only converts results to Python's dictionaries, which no kernel can."""
    types = [each.element if isinstance(each, SequenceType) else each for each in node.output_types]
    return all(isinstance(each, MapType) for each in types)


def _all_constants(graph: Model) -> list[Constant]:
    """The constants of a graph and of the bodies in it."""
    return [node for node in all_nodes(graph) if isinstance(node, Constant)]
