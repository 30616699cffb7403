"""The transformation framework: passes, patterns, graph surgery, and tools to see what happened.

More ready-made passes are in `engine.passes.common`; `engine passes list` shows all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.passes import pattern
from engine.passes.base import ModelPass, Pass
from engine.passes.common.constant_folding import ConstantFolding
from engine.passes.common.validate import Validate
from engine.passes.config import PassConfig
from engine.passes.folding import constant_fold
from engine.passes.manager import Manager, PassRecord
from engine.passes.pipeline import PassPipeline
from engine.passes.rewrite import BackwardGraphRewrite, GraphRewrite, MatcherPass
from engine.passes.runtime_info import RuntimeAttribute, check_rt_info, copy_runtime_info
from engine.passes.surgery import insert_after, replace_node, replace_output_update_name
from engine.startup import names_on_demand

if TYPE_CHECKING:
    from engine.passes.catalog import PassInfo, find_pass, list_passes
    from engine.passes.common.init_node_info import InitNodeInfo
    from engine.passes.common.last_position import LastPosition
    from engine.passes.common.make_adaptable import MakeAdaptable
    from engine.passes.common.make_stateful import MakeStateful
    from engine.passes.common.masked_caches import MaskedCaches
    from engine.passes.common.serialize import Serialize
    from engine.passes.common.visualize_tree import VisualizeTree
    from engine.passes.compare import compare_models
    from engine.passes.compression import compress_weights
    from engine.passes.compression_report import CompressedLayer, CompressedModel, SkippedLayer
    from engine.passes.division import DividedModel, LengthsOf, ModelPart, divide_model
    from engine.passes.equivalence import check_equivalence
    from engine.passes.explain import explain_pass
    from engine.passes.layers import LayerError, compare_layers
else:
    # What few compilations need.
    __getattr__ = names_on_demand(__name__, {
        "engine.passes.catalog": ["PassInfo", "find_pass", "list_passes"],
        "engine.passes.common.init_node_info": ["InitNodeInfo"],
        "engine.passes.common.last_position": ["LastPosition"],
        "engine.passes.common.make_adaptable": ["MakeAdaptable"],
        "engine.passes.common.make_stateful": ["MakeStateful"],
        "engine.passes.common.masked_caches": ["MaskedCaches"],
        "engine.passes.common.serialize": ["Serialize"],
        "engine.passes.common.visualize_tree": ["VisualizeTree"],
        "engine.passes.compare": ["compare_models"],
        "engine.passes.compression": ["compress_weights"],
        "engine.passes.compression_report": ["CompressedLayer", "CompressedModel", "SkippedLayer"],
        "engine.passes.division": ["DividedModel", "LengthsOf", "ModelPart", "divide_model"],
        "engine.passes.equivalence": ["check_equivalence"],
        "engine.passes.explain": ["explain_pass"],
        "engine.passes.layers": ["LayerError", "compare_layers"],
    })  # fmt: skip

__all__ = [
    "BackwardGraphRewrite",
    "CompressedLayer",
    "CompressedModel",
    "ConstantFolding",
    "DividedModel",
    "GraphRewrite",
    "InitNodeInfo",
    "LastPosition",
    "LayerError",
    "LengthsOf",
    "MakeAdaptable",
    "MakeStateful",
    "Manager",
    "MaskedCaches",
    "MatcherPass",
    "ModelPart",
    "ModelPass",
    "Pass",
    "PassConfig",
    "PassInfo",
    "PassPipeline",
    "PassRecord",
    "RuntimeAttribute",
    "Serialize",
    "SkippedLayer",
    "Validate",
    "VisualizeTree",
    "check_equivalence",
    "check_rt_info",
    "compare_layers",
    "compare_models",
    "compress_weights",
    "constant_fold",
    "copy_runtime_info",
    "divide_model",
    "explain_pass",
    "find_pass",
    "insert_after",
    "list_passes",
    "pattern",
    "replace_node",
    "replace_output_update_name",
]
