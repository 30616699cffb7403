"""A product or convolution for CPUs, before it is known in which blocks it is computed."""

from __future__ import annotations

import math
from dataclasses import dataclass

from engine_opencl.lowering.matmul.packing import Matrices, short_digest
from engine_opencl.lowering.matmul.product import Epilogue
from engine_opencl.plan import Buffer


@dataclass(frozen=True, slots=True)
class Seen:
    """The right operand of a convolution: the channels of its input through taps.

    Attributes:
        inputs, outputs, strides: along the axes of space.
        taps: for each tap its distance in the input from where a result's window begins.
        first, step: where results are stored along each axis; shape: the lengths of what they are stored in.
        size: elements of the whole input.
        batch_steps: elements from one index to the next along each axis of the batch.
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
        """What decides how fast it is read."""
        lengths = f"{self.inputs} to {self.outputs} by {self.strides} at {self.first} by {self.step} of {self.shape}"
        return f"input {lengths} taps {short_digest(repr(self.taps))}"


@dataclass(frozen=True, slots=True)
class BlockProduct:
    """C[batch] = A[batch] B[batch], each stored as `a.real`, with `a` as rows of [M, K] and C with rows of `n`.

    Attributes:
        bias_steps: how far the rows of the bias move from one index to the next along each axis of `a.batch`.
    """

    a: Matrices
    right: Matrices | Seen
    result: Buffer
    n: int
    epilogue: Epilogue
    bias: Buffer | None = None
    residual: Buffer | None = None
    bias_steps: tuple[int, ...] = ()

    @property
    def runs(self) -> tuple[int, int]:
        """How many runs of neighbouring columns there are, and how long they are."""
        if isinstance(self.right, Matrices):
            return 1, self.n
        return math.prod(self.right.outputs[:-1]), self.right.outputs[-1]

    def site(self) -> str:
        """What is computed, for `PlanBuilder.choose`."""
        a, right = self.a, self.right
        given = f"{a.real.name} {a.length}x{self.n}x{a.k} {a.step} {a.k_step} batch {a.batch} {a.batch_steps}"
        constant = "".join(name for name, x in (("A", a), ("B", right)) if x.buffer.weight is not None)
        ending = f"{self.epilogue.lanes_code()} {self.bias is not None} {self.residual is not None} {self.bias_steps}"
        return f"blocks {given} by {right.described()} constant [{constant}] ending {short_digest(ending)}"
