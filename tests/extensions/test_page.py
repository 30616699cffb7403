"""The code of other runtimes that `docs/extensions.md` shows beside ours does there what the page says.

If this fails, the comparison shows code that does not run.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import helper

from tests.extensions.conftest import model_of

PAGE = Path(__file__).parents[2] / "docs" / "extensions.md"


@pytest.mark.peers
def test_the_operator_of_openvino(tmp_path: Path) -> None:
    pytest.importorskip("openvino")
    (source,) = re.findall(
        r"^```py\n(import numpy.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    node = helper.make_node("Wave", ["x"], ["y"], domain="com.example", amplitude=2.0)
    path = tmp_path / "wave.onnx"
    path.write_bytes(model_of(node).SerializeToString())
    namespace: dict[str, Any] = {}
    exec(source, namespace)
    core = namespace["core"]
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    found = core.compile_model(core.read_model(str(path)), "CPU")(x)[0]
    np.testing.assert_allclose(found, 2 * np.sin(x), rtol=8 * np.finfo(np.float32).eps)
