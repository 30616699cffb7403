"""Devices with one wrong kernel each, to prove that a check of the kit finds it.

A fault is a function of the node, its inputs and the right kernel, which returns what the wrong kernel would.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from mutants.numeric_base import Run, altered, first, fitted, kernel

from engine.ir import Node

# -- products -----------------------------------------------------------------------------------------------


@kernel("Gemm")
def gemm_ignores_trans_a(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    a, *others = inputs
    return right([a.reshape(a.shape[::-1]).T if node.attributes.get("transA") else a, *others])


@kernel("Gemm")
def gemm_ignores_trans_b(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    a, b, *others = inputs
    return right([a, b.reshape(b.shape[::-1]).T if node.attributes.get("transB") else b, *others])


@kernel("Gemm")
def gemm_ignores_alpha(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    return altered(node, inputs, alpha=1.0)


@kernel("Gemm")
def gemm_ignores_beta(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    return altered(node, inputs, beta=1.0)


@kernel("Gemm", "Add")
def gemm_ignores_c(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    return right(inputs) if node.op_type == "Add" else altered(node, inputs, beta=0.0)


@kernel("Gemm")
def gemm_adds_every_c_as_a_row(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    a, b, *c = inputs
    if c and c[0].ndim == 2 and c[0].shape[1] == 1:
        c = [np.resize(c[0], first(right, inputs).shape[1])]
    return right([a, b, *c])


@kernel("MatMul")
def matmul_uses_one_matrix_of_a_stack(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    a, b = inputs
    return right([a, np.broadcast_to(b[:1], b.shape) if b.ndim > 2 else b])


@kernel("MatMul")
def matmul_loses_the_last_columns(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    """Those that do not fill a vector of eight, if there are more than one vector."""
    result = first(right, inputs).copy()
    if result.ndim == 2 and result.shape[1] > 8:
        result[:, result.shape[1] // 8 * 8 :] = 0
    return result


# -- windows ------------------------------------------------------------------------------------------------


@kernel("Conv")
def conv_ignores_group(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    x, *others = inputs
    groups = node.attributes.get("group", 1)
    channels = x.shape[1] // groups
    return right([np.concatenate([x[:, :channels]] * groups, axis=1), *others])


@kernel("Conv")
def conv_knows_one_map_a_channel(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    x, w, *others = inputs
    if node.attributes.get("group", 1) == x.shape[1] and len(w) == 2 * x.shape[1]:
        w = np.repeat(w[::2], 2, axis=0)
    return right([x, w, *others])


@kernel("Conv")
def conv_ignores_dilations(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    return fitted(altered(node, inputs, dilations=None), first(right, inputs).shape)


@kernel("Conv")
def conv_ignores_strides(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    return fitted(altered(node, inputs, strides=None), first(right, inputs).shape)


@kernel("Conv")
def conv_strides_by_the_first_axis(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    strides = node.attributes.get("strides") or [1] * (inputs[0].ndim - 2)
    return fitted(altered(node, inputs, strides=[strides[0]] * len(strides)), first(right, inputs).shape)


@kernel("Conv")
def conv_takes_pads_by_axis(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    """As begin and end of each axis in turn."""
    pads = list(node.attributes.get("pads") or [])
    order = [*pads[::2], *pads[1::2]]
    return fitted(altered(node, inputs, pads=order or None), first(right, inputs).shape)


@kernel("Conv")
def conv_pads_begin_at_the_end(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    pads = list(node.attributes.get("pads") or [])
    return altered(node, inputs, pads=[*pads[len(pads) // 2 :], *pads[: len(pads) // 2]] or None)


@kernel("Conv")
def conv_ignores_bias(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    return right([*inputs[:2], *(None if value is None else np.zeros_like(value) for value in inputs[2:])])


@kernel("Conv")
def conv_ignores_auto_pad(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    if not str(node.attributes.get("auto_pad", "")).startswith("SAME"):
        return right(inputs)
    return fitted(altered(node, inputs, auto_pad=None), first(right, inputs).shape)


@kernel("Conv")
def conv_pads_same_lower_as_same_upper(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    is_lower = node.attributes.get("auto_pad") == "SAME_LOWER"
    return altered(node, inputs, auto_pad="SAME_UPPER") if is_lower else right(inputs)


@kernel("Conv")
def conv_turns_the_kernel(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    """A convolution as in mathematics."""
    x, w, *others = inputs
    return right([x, np.flip(w, axis=tuple(range(2, w.ndim))), *others])


@kernel("Conv")
def conv_knows_two_axes(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    """Claimed in 1-D and 3-D too, it fails there when it runs."""
    if inputs[0].ndim != 4:
        raise ValueError("expected an image with two axes")
    return right(inputs)


@kernel("AveragePool")
def average_pool_counts_all_padding(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    return altered(node, inputs, count_include_pad=1)


@kernel("AveragePool")
def average_pool_counts_no_padding(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    return altered(node, inputs, count_include_pad=0)


@kernel("AveragePool")
def average_pool_divides_by_the_kernel(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    """Also the windows that ceil_mode lets reach beyond the image."""
    result = first(right, inputs)
    if node.attributes.get("ceil_mode") and not any(node.attributes.get("pads") or []):
        result = result.copy()
        rows, columns = node.attributes["kernel_shape"]
        strides = node.attributes["strides"]
        for axis, (kernel_, stride) in enumerate(zip((rows, columns), strides, strict=True)):
            length = inputs[0].shape[2 + axis]
            last = result.shape[2 + axis] - 1
            seen = min(kernel_, length - last * stride)
            at = (slice(None), slice(None), *[last if axis == a else slice(None) for a in range(2)])
            result[at] *= seen / kernel_
    return result


@kernel("MaxPool")
def max_pool_pads_with_zeros(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    pads = list(node.attributes.get("pads") or [])
    if not any(pads) or len(pads) != 4 or node.attributes.get("ceil_mode"):
        return right(inputs)
    x = np.pad(inputs[0], [(0, 0), (0, 0), (pads[0], pads[2]), (pads[1], pads[3])])
    return altered(node, [x], pads=None)


@kernel("MaxPool")
def max_pool_ignores_ceil_mode(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    return fitted(altered(node, inputs, ceil_mode=0), first(right, inputs).shape)


@kernel("MaxPool")
def max_pool_ignores_dilations(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    return fitted(altered(node, inputs, dilations=None), first(right, inputs).shape)


@kernel("MaxPool")
def max_pool_ignores_strides(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    return fitted(altered(node, inputs, strides=None), first(right, inputs).shape)


@kernel("GlobalAveragePool")
def global_average_pool_over_the_last_axis(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    result = first(right, inputs)
    return inputs[0].mean(axis=-1).reshape(*result.shape[:2], -1)[..., :1].reshape(result.shape)


# -- layout -------------------------------------------------------------------------------------------------


@kernel("Softmax")
def softmax_ignores_axis(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    return altered(node, inputs, axis=-1)


@kernel("Softmax")
def softmax_over_all_later_axes(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    """As before Softmax-13."""
    x = inputs[0]
    axis = node.attributes.get("axis", -1) % x.ndim
    powers = np.exp(x - x.max(axis=tuple(range(axis, x.ndim)), keepdims=True))
    return powers / powers.sum(axis=tuple(range(axis, x.ndim)), keepdims=True)


@kernel("Concat")
def concat_ignores_axis(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    return np.concatenate([value.ravel() for value in inputs]).reshape(first(right, inputs).shape)


@kernel("Concat")
def concat_knows_two_inputs(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    result = first(right, inputs).copy()
    if len(inputs) > 2:
        axis = node.attributes["axis"] % result.ndim
        result[tuple(slice(-inputs[2].shape[a], None) if a == axis else slice(None) for a in range(result.ndim))] = 0
    return result


@kernel("Transpose")
def transpose_inverts_perm(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    perm = node.attributes.get("perm")
    result = first(right, inputs)
    return result if perm is None else inputs[0].transpose(np.argsort(perm)).reshape(result.shape)


@kernel("Transpose")
def transpose_swaps_the_last_axes(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    """Whatever the permutation says."""
    return inputs[0].swapaxes(-1, -2).reshape(first(right, inputs).shape)


@kernel("Reshape")
def reshape_reads_by_columns(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    return inputs[0].reshape(first(right, inputs).shape, order="F")


@kernel("Reshape")
def reshape_takes_0_as_1(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    x, shape = inputs
    return x.reshape([-1 if n == -1 else n or 1 for n in shape] if -1 in shape else [-1, *shape[1:]])


@kernel("Unsqueeze")
def unsqueeze_counts_axes_of_the_input(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    x, axes = inputs
    for axis in sorted(axis + x.ndim if axis < 0 else axis for axis in axes.tolist()):
        x = np.expand_dims(x, axis)
    return x


@kernel("Add", "Sub", "Mul")
def broadcasts_from_the_left(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    a, b = inputs
    if a.ndim == b.ndim == 2 and a.shape[0] == a.shape[1] and b.shape[1] == 1:
        b = b.reshape(1, -1)
    return right([a, b])


@kernel("Max")
def max_knows_two_inputs(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    return np.broadcast_to(np.maximum(*inputs[:2]), first(right, inputs).shape) if len(inputs) > 2 else right(inputs)


@kernel("Add")
def add_saturates(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    a, b = inputs
    if a.dtype.kind not in "iu" or a.dtype.itemsize > 4:
        return right(inputs)
    info = np.iinfo(a.dtype)
    return np.clip(a.astype(np.int64) + b.astype(np.int64), info.min, info.max).astype(a.dtype)


@kernel("Mul")
def integers_are_multiplied_as_reals(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    a, b = inputs
    if a.dtype != np.int64:
        return right(inputs)
    with np.errstate(all="ignore"):
        return (a.astype(np.float64) * b).astype(np.int64)


@kernel("Max")
def small_integers_are_compared_as_reals(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    wide = [value.astype(np.float32) if value.dtype == np.int32 else value for value in inputs]
    return np.maximum(wide[0], wide[1]).astype(inputs[0].dtype) if len(wide) == 2 else right(inputs)


@kernel("Split")
def split_returns_its_parts_backwards(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    return list(right(inputs))[::-1]


@kernel("TopK")
def top_k_returns_small_indices_as_int32(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    values, indices = right(inputs)
    return [values, indices.astype(np.int32)]


@kernel("TopK")
def top_k_is_not_sorted(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    return [value[..., ::-1] for value in right(inputs)]


@kernel("Slice")
def slice_ignores_the_sign_of_steps(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    if len(inputs) < 5 or inputs[4] is None:
        return right(inputs)
    result = first(right, inputs)
    return np.flip(result, axis=tuple(range(result.ndim))) if (np.asarray(inputs[4]) < 0).any() else result


# -- values -------------------------------------------------------------------------------------------------


@kernel("Relu")
def relu_loses_nan(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    x = inputs[0]
    return np.where(x > 0, x, np.zeros_like(x))


@kernel("Max")
def max_loses_nan(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    return np.fmax(*inputs) if len(inputs) == 2 else right(inputs)


@kernel("Min")
def min_loses_the_second_nan(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    """As the vector instructions of some CPUs."""
    return np.where(inputs[0] < inputs[1], *inputs) if len(inputs) == 2 else right(inputs)


@kernel("Clip")
def clip_loses_nan(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    return np.nan_to_num(first(right, inputs), nan=0.0, posinf=None, neginf=None)


@kernel("ReduceSum")
def reduce_sum_loses_nan(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    return right([np.where(np.isnan(inputs[0]), 0, inputs[0]).astype(inputs[0].dtype), *inputs[1:]])


@kernel("Softmax")
def softmax_loses_nan(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    return np.nan_to_num(first(right, inputs), nan=0.0)


@kernel("Neg")
def neg_saturates_infinities(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    with np.errstate(all="ignore"):
        return np.nan_to_num(first(right, inputs), nan=np.nan, posinf=3.4e38, neginf=-3.4e38).astype(inputs[0].dtype)


@kernel("MatMul", "Gemm")
def products_of_halves(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    """Rounds to float16, multiplies exactly."""
    with np.errstate(over="ignore"):
        return right([value.astype(np.float16).astype(value.dtype) for value in inputs])


@kernel("Conv")
def convolutions_of_halves(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    return right([value.astype(np.float16).astype(value.dtype) for value in inputs])


@kernel("Relu", "Add", "Mul")
def elementwise_in_halves(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    if inputs[0].dtype != np.float32:
        return right(inputs)
    with np.errstate(all="ignore"):
        return first(right, [value.astype(np.float16).astype(np.float32) for value in inputs])


@kernel("Relu", "Softmax", "MatMul")
def computes_in_doubles(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    """And returns them."""
    return first(right, inputs).astype(np.float64)


@kernel("Add", "MatMul", "Concat", "Reshape", "Gather")
def errors_become_zeros(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    try:
        return right(inputs)
    except Exception:
        return np.zeros((1, 1), inputs[0].dtype)


@kernel("Neg", "Add")
def loses_the_tail_of_large_tensors(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    """The elements after the last full vector, where a vectorised loop runs."""
    result = first(right, inputs).copy()
    if result.size > 4096:
        result.reshape(-1)[result.size // 16 * 16 :] = 0
    return result


@kernel("Gather")
def gather_counts_no_index_from_the_end(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    x, index = inputs
    return right([x, np.maximum(index, 0)])


@kernel("Pad")
def pad_fills_with_zeros(node: Node, inputs: Sequence[Any], right: Run) -> Any:
    x, pads, value = (*inputs, None)[:3]
    return right([x, pads, None if value is None else np.zeros_like(value), *inputs[3:]])
