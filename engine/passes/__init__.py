"""The transformation framework: passes, patterns, graph surgery, and tools to see what happened."""

from engine.passes import pattern
from engine.passes.base import MatcherPass, ModelPass, Pass
from engine.passes.compare import check_equivalence, compare_models
from engine.passes.config import PassConfig
from engine.passes.folding import constant_fold
from engine.passes.manager import Manager, PassRecord
from engine.passes.rewrite import BackwardGraphRewrite, GraphRewrite
from engine.passes.runtime_info import RuntimeAttribute, check_rt_info, copy_runtime_info, init_node_info
from engine.passes.surgery import insert_after, replace_node, replace_output_update_name

__all__ = [
    "BackwardGraphRewrite",
    "GraphRewrite",
    "Manager",
    "MatcherPass",
    "ModelPass",
    "Pass",
    "PassConfig",
    "PassRecord",
    "RuntimeAttribute",
    "check_equivalence",
    "check_rt_info",
    "compare_models",
    "constant_fold",
    "copy_runtime_info",
    "init_node_info",
    "insert_after",
    "pattern",
    "replace_node",
    "replace_output_update_name",
]
