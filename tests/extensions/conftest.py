"""Compiled libraries of extensions, and models of their operators."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from engine import include_dir

SOURCE = Path(__file__).parents[1] / "fixtures" / "extension" / "kernels.c"
STRICT = ("-std=c99", "-Wall", "-Wextra", "-pedantic", "-Werror")

Build = Callable[..., Path]


@pytest.fixture(scope="session")
def build(tmp_path_factory: pytest.TempPathFactory) -> Build:
    """Compiles the library of the tests with macros; the same library only once."""
    made: dict[tuple[str, ...], Path] = {}

    def compiled(*macros: str, compiler: str = "gcc") -> Path:
        key = (compiler, *macros)
        if key not in made:
            if shutil.which(compiler) is None:
                pytest.skip(f"{compiler} is not installed")
            target = tmp_path_factory.mktemp("library") / "libtests.so"
            command = [compiler, *STRICT, "-shared", "-fPIC", "-O1", f"-I{include_dir()}", *(f"-D{m}" for m in macros)]
            done = subprocess.run([*command, str(SOURCE), "-o", str(target)], capture_output=True, text=True)
            assert done.returncode == 0, done.stderr
            made[key] = target
        return made[key]

    return compiled


def model_of(
    *nodes: onnx.NodeProto, shape: Any = (2, 3), version: int = 1, domains: tuple[str, ...] = (), ir_version: int = 8
) -> onnx.ModelProto:
    """A model from x to y, both f32; it also imports `domains`."""
    used = {node.domain for node in nodes if node.domain} | set(domains)
    graph = helper.make_graph(
        list(nodes),
        "extended",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
    )
    opsets = [helper.make_opsetid("", 17), *(helper.make_opsetid(domain, version) for domain in sorted(used))]
    return helper.make_model(graph, opset_imports=opsets, ir_version=ir_version)
