"""The description of a matrix product: lengths, strides and epilogue."""

from __future__ import annotations

from engine.ir import ElementType
from engine.ir.element_type import f32
from engine.ops.internal import Activation
from engine.startup import dataclass
from engine_opencl.lowering.elementwise import activation_code, literal


@dataclass(frozen=True, slots=True)
class Product:
    """C[batch] = alpha * A[batch] B[batch] + bias, with A: [M, K], B: [K, N] by their strides, C dense.

    Attributes:
        batch: the lengths of the batch axes.
        a_batch, b_batch: strides along these axes, 0 if shared.
        a, b: strides of rows and columns.
        real: the storage type of all of them.
    """

    m: int
    n: int
    k: int
    batch: tuple[int, ...]
    a_batch: tuple[int, ...]
    b_batch: tuple[int, ...]
    a: tuple[int, int]
    b: tuple[int, int]
    real: ElementType = f32


@dataclass(frozen=True, slots=True)
class Epilogue:
    """The operations on a sum before it is stored: scale, then bias, residual and activation.

    Attributes:
        bias: strides along rows and columns of C; None without one.
    """

    alpha: float = 1.0
    bias: tuple[int, int] | None = None
    beta: float = 1.0
    has_residual: bool = False
    activation: Activation | None = None

    def code(self) -> str:
        """Statements on `v`, the sum at row `row` and column `col` of C, whose index is `at`."""
        lines = []
        if self.alpha != 1:
            lines.append(f"v *= {literal(self.alpha)};")
        if self.bias is not None:
            scaled = "" if self.beta == 1 else f"{literal(self.beta)} * "
            place = f"(ulong)(row) * {self.bias[0]} + (ulong)(col) * {self.bias[1]}"
            lines.append(f"v += {scaled}load_real(bias, {place});")
        if self.has_residual:
            lines.append("v += load_real(residual, at);")
        if self.activation is not None:
            lines.append(f"v = {activation_code(self.activation, 'v')};")
        return " ".join(lines)

    def lanes_code(self) -> str:
        """Statements on `v`, sums at the `count` columns from `col` on, for kernels with `lanes.cl`.

        `bias_row` is the row of the bias, `at` the index of the first sum in C, whose columns are C_STEP apart.
        """
        lines = []
        if self.alpha != 1:
            lines.append(f"v *= {literal(self.alpha)};")
        if self.bias is not None:
            scaled = "" if self.beta == 1 else f"{literal(self.beta)} * "
            place = f"bias_row * {self.bias[0]}"
            added = f"get_real(bias, {place} + col, 1, count)" if self.bias[1] else f"load_real(bias, {place})"
            lines.append(f"v += {scaled}{added};")
        if self.has_residual:
            lines.append("v += get_real(residual, at, C_STEP, count);")
        if self.activation is not None:
            lines.append(f"v = {activation_code(self.activation, 'v')};")
        return " ".join(lines)
