"""A product or convolution for CPUs, before its block shape is chosen."""

from __future__ import annotations

import math

from engine.startup import dataclass
from engine_opencl.lowering.matmul.packing import Matrices, short_digest
from engine_opencl.lowering.matmul.product import Epilogue
from engine_opencl.plan import Buffer


@dataclass(frozen=True, slots=True)
class WindowedInput:
    """The right operand of a convolution: the input channels read through taps.

    Attributes:
        inputs, outputs, strides: along the spatial axes.
        taps: for each tap, its offset in the input from the start of a result's window.
        first, step: where results are stored along each axis.
        shape: the lengths of the tensor that they are stored in.
        size: the number of elements of the whole input.
        batch_steps: strides in elements along each batch axis.
    """

    buffer: Buffer
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    strides: tuple[int, ...]
    taps: tuple[tuple[int, ...], ...]
    first: tuple[int, ...]
    step: tuple[int, ...]
    shape: tuple[int, ...]
    size: int
    batch_steps: tuple[int, ...]

    def described(self) -> str:
        """A text of everything that affects the speed of reading it."""
        lengths = f"{self.inputs} to {self.outputs} by {self.strides} at {self.first} by {self.step} of {self.shape}"
        return f"input {lengths} taps {short_digest(repr(self.taps))}"


@dataclass(frozen=True, slots=True)
class BlockProduct:
    """C[batch] = A[batch] B[batch], each stored as `a.real`, with `a` as rows of [M, K] and C with rows of `n`.

    Attributes:
        bias_steps: the strides of the bias along each axis of `a.batch`.
    """

    a: Matrices
    right: Matrices | WindowedInput
    result: Buffer
    n: int
    epilogue: Epilogue
    bias: Buffer | None = None
    residual: Buffer | None = None
    bias_steps: tuple[int, ...] = ()

    @property
    def runs(self) -> tuple[int, int]:
        """The number and length of the runs of neighbouring columns."""
        if isinstance(self.right, Matrices):
            return 1, self.n
        return math.prod(self.right.outputs[:-1]), self.right.outputs[-1]

    def site(self) -> str:
        """The key of the problem, for `LaunchPlanBuilder.choose`."""
        a, right = self.a, self.right
        given = f"{a.real.name} {a.length}x{self.n}x{a.k} {a.step} {a.k_step} batch {a.batch} {a.batch_steps}"
        constant = "".join(name for name, x in (("A", a), ("B", right)) if x.buffer.weight is not None)
        ending = f"{self.epilogue.lanes_code()} {self.bias is not None} {self.residual is not None} {self.bias_steps}"
        return f"blocks {given} by {right.described()} constant [{constant}] ending {short_digest(ending)}"
