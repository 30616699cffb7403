"""A pipeline that is kept between models, and used by several threads.

If this fails, the state left by one model changes another, or memory of a model is never freed.
"""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import numpy as np
import pytest

from engine import Model, ops
from engine.errors import PassError
from engine.ir import Constant, Parameter, Result
from engine.ir.element_type import f32
from engine.passes import Manager, ModelPass, PassPipeline
from engine.passes.common.common_optimizations import CommonOptimizations


def convolution() -> Model:
    """Relu(Conv(Pad(x))) with a bias added: several passes match, one of them with two matchers."""
    x = Parameter(f32, (1, 2, 5, 5), "x")
    padded = ops.create("Pad", [x, Constant(np.array([0, 0, 1, 1, 0, 0, 1, 1]))])
    product = ops.create("Conv", [padded, Constant(np.ones((3, 2, 3, 3), np.float32))])
    biased = ops.create("Add", [product, Constant(np.ones((1, 3, 1, 1), np.float32))])
    return Model([Result(ops.Relu(biased))], [x])


def common() -> PassPipeline:
    return PassPipeline(lambda manager: manager.register_pass(CommonOptimizations))


def test_the_passes_are_registered_once_and_give_the_same_again() -> None:
    managers: list[Manager] = []

    def register(manager: Manager) -> None:
        managers.append(manager)
        manager.register_pass(CommonOptimizations)

    pipeline, models = PassPipeline(register), [convolution() for _ in range(3)]
    for model in models:
        assert pipeline.run(model)
        assert [node.op_type for node in model.ordered_nodes()].count("Conv") == 1
        assert not any(node.op_type in ("Pad", "Add") for node in model.ordered_nodes())
        assert not pipeline.run(model)
    assert len(managers) == 1


def test_a_kept_pipeline_keeps_no_node_of_a_model() -> None:
    pipeline, model = common(), convolution()
    nodes = [weakref.ref(node) for node in model.ordered_nodes()]
    pipeline.run(model)
    nodes += [weakref.ref(node) for node in model.ordered_nodes()]
    del model
    gc.collect()
    assert [node() for node in nodes if node() is not None] == []


def test_threads_do_not_share_a_manager() -> None:
    together, used = Barrier(4, timeout=30), []

    class Meeting(ModelPass):
        def run_on_model(self, model: Model) -> bool:
            together.wait()
            used.append(self)
            return False

    pipeline = PassPipeline(lambda manager: manager.register_pass(Meeting))
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(pipeline.run, [convolution() for _ in range(8)]))
    assert len(used) == 8
    assert len(set(used)) == 4


def test_a_pipeline_that_failed_is_built_anew() -> None:
    class Failing(ModelPass):
        is_interrupted = False

        def run_on_model(self, model: Model) -> bool:
            assert not self.is_interrupted
            self.is_interrupted = model.name == "bad"
            if self.is_interrupted:
                raise ValueError("a bad model")
            return False

    pipeline, bad = PassPipeline(lambda manager: manager.register_pass(Failing)), convolution()
    bad.name = "bad"
    with pytest.raises(PassError, match="a bad model"):
        pipeline.run(bad)
    assert pipeline.run(convolution()) is False
