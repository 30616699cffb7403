"""`ServedModel`: a version of a model as KServe's server sees it."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Collection, Mapping
from typing import Any

from kserve import InferRequest, InferResponse, Model
from kserve.model import InferenceVerb

from engine.errors import Cancelled, EngineError, InputError, TooLargeError, UnsupportedError
from engine.plugin_api import ExecutableNetwork
from engine_serve import metrics
from engine_serve.deadlines import seconds_left
from engine_serve.ended_sequences import EndedSequences
from engine_serve.model_config import ModelConfig, SequenceLimits
from engine_serve.model_statistics import Runs
from engine_serve.options import MAX_ANSWER_BYTES
from engine_serve.parameters import SEQUENCE, check_request
from engine_serve.refusals import Refused, unexpected
from engine_serve.request_queue import QueueState, RequestQueue, Times
from engine_serve.sequences import Sequences, step_of
from engine_serve.tensors import Array, bytes_of, described, input_arrays, output_tensors
from engine_serve.tracing import request_span

_log = logging.getLogger("engine.serving")


class ServedModel(Model):  # type: ignore[misc]
    """A network with its queue. Requests that it has accepted keep it, so that it can be replaced at any time."""

    def __init__(
        self,
        name: str,
        version: int,
        network: ExecutableNetwork,
        config: ModelConfig,
        clock: metrics.DeviceClock,
        tally: metrics.Tally,
        most_answer_bytes: int = MAX_ANSWER_BYTES,
    ) -> None:
        super().__init__(name)
        self.version, self.network, self.config = str(version), network, config
        self._inputs, self._outputs = described(network.inputs), described(network.outputs)
        most = int(network.get_metric("OPTIMAL_NUMBER_OF_INFER_REQUESTS"))  # it runs no more at once
        slots = min(config.requests, most) if config.requests else most
        most_bytes = None if config.queue_mib is None else int(config.queue_mib * (1 << 20))
        self._queue = RequestQueue(f"model `{name}`", network, slots, config.queue_size, most_bytes)
        self.queue: QueueState = self._queue
        self._most_answer_bytes = most_answer_bytes
        self.sequences: Sequences | None = None
        if network.variables and config.generation is None:
            self.sequences = Sequences(f"model `{name}`", network, self._queue, config.sequences or SequenceLimits())
        self.device = ",".join(network.get_metric("EXECUTION_DEVICES"))
        self.slots = slots
        self._peak = _peak_bytes(network)
        self._runs_before: Runs = {}
        self._makes_batches = "BATCH_SIZES" in network.get_metric("SUPPORTED_METRICS")
        self._clock, self._tally = clock, tally
        self._series = metrics.ModelSeries(name, self.version)
        self.ready = True

    @property
    def problem(self) -> str:
        """Why it cannot answer requests until it is loaded again; "" if it can."""
        return ""

    def get_input_types(self) -> list[dict[str, Any]]:
        """Names, datatypes and shapes of the inputs."""
        return self._inputs

    def get_output_types(self) -> list[dict[str, Any]]:
        """Names, datatypes and shapes of the outputs."""
        return self._outputs

    def retire(self, why: str) -> None:
        """The model was replaced or unloaded. Accepted requests continue, and keep the network until they end.

        Args:
            why: what clients are told of their sequences.
        """
        if self.sequences is not None:
            self.sequences.close(why)

    def remember(self, ended: EndedSequences) -> None:
        """Use a table of the sequences that have ended, which outlives the model; before its first request."""
        if self.sequences is not None:
            self.sequences.ended = ended

    def succeed(self, before: ServedModel | None, ended: EndedSequences, what: str) -> None:
        """Take over the requests of another model, which may have been unloaded since.

        Args:
            before: that model, if it is still loaded.
            ended: the sequences of that model that have ended.
            what: what clients are told of its running sequences.
        """
        if self.sequences is not None:
            self.sequences.succeed(before.sequences if before is not None else None, ended, what)

    def batch_sizes(self) -> dict[int, int] | None:
        """How many batches had how many requests; None if the network makes none."""
        if not self._makes_batches:
            return None
        return {int(size): count for size, count in self.network.get_metric("BATCH_SIZES").items()}

    def batch_runs(self) -> Runs | None:
        """How many batches with how many rows have run, and for how long; None if the network makes none."""
        if not self._makes_batches:
            return None
        found = {}
        for rows, (count, nanoseconds) in self.network.get_metric("BATCH_RUNS").items():
            count_before, nanoseconds_before = self._runs_before.get(int(rows), (0, 0))
            if count > count_before:
                found[int(rows)] = count - count_before, nanoseconds - nanoseconds_before
        return found

    def begin_statistics(self) -> None:
        """Count what runs from now on, without the runs that prepared the model."""
        self._runs_before = self.batch_runs() or {}

    @property
    def openai_names(self) -> tuple[str, ...]:
        """The names by which clients of OpenAI's routes ask for it; none if these routes do not serve it."""
        return ()

    @property
    def memory_bytes(self) -> int:
        """The bytes that the network holds now, or will while it infers, if those are known and more; and those of the
        variables of sequences.
        """
        kept = 0 if self.sequences is None else self.sequences.nbytes
        return max(sum(self.network.memory_statistics().values()), self._peak) + kept

    @property
    def is_in_use(self) -> bool:
        """Whether requests run or wait, or sequences have begun that its clients may continue."""
        has_sequences = self.sequences is not None and (self.sequences.count > 0 or self.sequences.waiting > 0)
        return has_sequences or self.queue.running + self.queue.waiting > 0

    def lowered_plans(self) -> int | None:
        """How many plans the device has made for shapes; None if it makes none."""
        if "LOWERED_PLANS" not in self.network.get_metric("SUPPORTED_METRICS"):
            return None
        return int(self.network.get_metric("LOWERED_PLANS"))

    def statistics(self) -> dict[str, Any]:
        """The statistics of its requests since it was loaded, as Triton's extension has them."""
        return self._series.statistics.described(self.name, self.version, self.batch_runs())

    async def __call__(
        self, body: Any, headers: Any = None, verb: InferenceVerb = InferenceVerb.PREDICT
    ) -> tuple[InferResponse, dict[str, str]]:
        """Run one request, as KServe's routes do, without the steps around it that KServe measures and no model has."""
        if verb != InferenceVerb.PREDICT:
            raise NotImplementedError(f"model `{self.name}` has no {verb.name.lower()}")
        return await self.predict(body, headers), {}

    async def predict(self, payload: Any, headers: Any = None, response_headers: Any = None) -> InferResponse:
        """Run one request. Raises `Refused` from every `EngineError`; other errors are reported as unexpected."""
        times = Times(arrived=time.perf_counter())
        end = "ok"
        try:
            with request_span(self.name, self.version, self.device, headers, times):
                try:
                    response = await self._answered(payload, headers, times)
                except EngineError as e:
                    end = type(e).__name__
                    refused = Refused(e)
                    refused.log(self.name)
                    raise refused from e
            self._tally.answered += 1
            return response
        except Refused:
            raise
        except Exception as e:
            end = type(e).__name__
            raise unexpected(e, f"an inference of model `{self.name}`") from e
        except BaseException:  # the client has disconnected, or the grace period is over
            end = Cancelled.__name__
            self._tally.end_early()
            raise
        finally:
            times.ended = time.perf_counter()
            self._series.measure(end, times)

    async def _answered(self, payload: Any, headers: Mapping[str, str] | None, times: Times) -> InferResponse:
        if not isinstance(payload, InferRequest):
            raise UnsupportedError("the server speaks version 2 of the protocol, the Open Inference Protocol: use /v2")
        known = SEQUENCE if self.sequences is not None else ()
        parameters = self._checked(payload, known)
        deadline = seconds_left(headers, parameters, self.config.timeout_ms)
        inputs = input_arrays(payload, self.network.inputs, {port.name for port in self.network.overridable})
        self._check_rows(inputs)
        self._clock.begin(self.device)
        try:
            if self.sequences is None:
                result = await self._queue.infer(inputs, deadline, times, bytes_of(inputs))
                return self._response(payload, result)
            return await self.sequences.infer(
                step_of(parameters),
                inputs,
                deadline,
                times,
                bytes_of(inputs),
                lambda found: self._response(payload, found),
            )
        finally:
            self._clock.end(self.device)

    def _checked(self, payload: InferRequest, known: Collection[str]) -> dict[str, Any]:
        """The parameters of a request. Raises `InputError` for parameters that are not supported, and outputs that do
        not exist.
        """
        sent = [] if known else sorted(SEQUENCE.intersection(payload.parameters or ()))
        if sent:
            names = ", ".join(f"`{name}`" for name in sent)
            raise InputError(
                f"model `{self.name}` has no variables, so that it keeps nothing of a sequence; leave {names} out"
            )
        parameters = check_request(payload, known)
        outputs = [port.name for port in self.network.outputs]
        for output in payload.request_outputs or ():
            if output.name not in outputs:
                raise InputError(f"there is no output {output.name!r:.80}; the model's are {', '.join(outputs)}")
        return parameters

    def _response(self, payload: InferRequest, result: Mapping[str, Any]) -> InferResponse:
        return InferResponse(
            response_id=payload.id or f"{random.getrandbits(128):032x}",
            model_name=self.name,
            model_version=self.version,
            infer_outputs=output_tensors(result, payload, self._most_answer_bytes),
            use_binary_outputs=payload.use_binary_outputs,
            requested_outputs=payload.request_outputs,
        )

    def _check_rows(self, inputs: Mapping[str, Array]) -> None:
        """Raise unless every input's first dimension is at most `max_rows`."""
        most = self.config.max_rows
        rows = {name: value.shape[0] for name, value in inputs.items() if value.ndim}
        if rows:
            self._series.rows.observe(next(iter(rows.values())))
        for name, count in rows.items():
            if most is not None and count > most:
                raise TooLargeError(
                    f"input `{name}` has {count} rows, and model `{self.name}` accepts at most {most} in a request; "
                    "divide the request, or raise `max_rows` in the model's configuration"
                )


def _peak_bytes(network: ExecutableNetwork) -> int:
    """The forecast of a network's memory; 0 if its inputs have unknown lengths, or the device makes none."""
    try:
        forecast = network.memory_forecast()
    except (InputError, UnsupportedError):
        return 0
    return forecast.peak + forecast.mapped
