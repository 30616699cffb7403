"""Graph networks with scatter, point clouds, scans, recommendation and time series."""

from __future__ import annotations

from typing import Any

import numpy as np

from exporting.recipe import Module, Recipes, normal, rng, tokens
from exporting.recipes.text import of_config, of_tokens, width

RECIPES = Recipes("graphs and scans")


def _graph(scale: int) -> tuple[dict[str, Any], dict[str, dict[int, str]]]:
    """Nodes [N, F], and edges [2, E] from a node to another; every node has one to itself."""
    count = 8 * scale
    edges = np.concatenate([rng().integers(0, count, (2, 3 * count)), np.tile(np.arange(count), (2, 1))], 1)
    return {"nodes": normal(count, 8 * scale), "edges": edges}, {"edges": {1: "edges"}}


@RECIPES()
def gcn(scale: int) -> Module:
    """Kipf and Welling: sums over neighbours, normalised by both degrees."""
    import torch

    w = 8 * scale

    class Gcn(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList([torch.nn.Linear(w, 16), torch.nn.Linear(16, 4)])

        def forward(self, nodes: Any, edges: Any) -> Any:
            source, target = edges[0], edges[1]
            ones = torch.ones_like(source, dtype=nodes.dtype)
            degree = torch.zeros(nodes.shape[0]).scatter_add(0, target, ones)
            weight = degree.rsqrt()[source] * degree.rsqrt()[target]
            for layer in self.layers:
                message = layer(nodes)[source] * weight[:, None]
                index = target[:, None].expand(-1, message.shape[1])
                nodes = torch.relu(torch.zeros(nodes.shape[0], message.shape[1]).scatter_add(0, index, message))
            return nodes

    inputs, axes = _graph(scale)
    return Module(Gcn(), inputs, axes)


@RECIPES()
def gat(scale: int) -> Module:
    """Velickovic et al.: a softmax over the edges into each node."""
    import torch

    w = 8 * scale

    class Gat(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.project = torch.nn.Linear(w, 16, bias=False)
            self.left, self.right = torch.nn.Linear(16, 2), torch.nn.Linear(16, 2)

        def forward(self, nodes: Any, edges: Any) -> Any:
            source, target = edges[0], edges[1]
            x = self.project(nodes)
            score = torch.nn.functional.leaky_relu(self.left(x)[source] + self.right(x)[target], 0.2)
            index = target[:, None].expand(-1, 2)
            largest = torch.full((nodes.shape[0], 2), -1e9).scatter_reduce(0, index, score, "amax")
            score = (score - largest[target]).exp()
            total = torch.zeros(nodes.shape[0], 2).scatter_reduce(0, index, score, "sum")
            score = score / total[target]
            message = (x[source].view(-1, 2, 8) * score[..., None]).flatten(1)
            return torch.zeros_like(x).index_add(0, target, message)

    inputs, axes = _graph(scale)
    return Module(Gat(), inputs, axes)


@RECIPES()
def graph_sage(scale: int) -> Module:
    """Hamilton et al.: the mean, the maximum and the minimum of the neighbours."""
    import torch

    w = 8 * scale

    class Sage(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.own, self.other = torch.nn.Linear(w, 8), torch.nn.Linear(3 * w, 8)

        def forward(self, nodes: Any, edges: Any) -> Any:
            index = edges[1][:, None].expand(-1, nodes.shape[1])
            found = [torch.zeros_like(nodes).scatter_reduce(0, index, nodes[edges[0]], kind, include_self=False)
                     for kind in ("mean", "amax", "amin")]  # fmt: skip
            return torch.nn.functional.normalize(self.own(nodes) + self.other(torch.cat(found, 1)))

    inputs, axes = _graph(scale)
    return Module(Sage(), inputs, axes)


@RECIPES()
def edge_conv(scale: int) -> Module:
    """DGCNN: the nearest neighbours by distance, and the maximum over them."""
    import torch

    class EdgeConv(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Sequential(torch.nn.Conv2d(6, 16, 1), torch.nn.BatchNorm2d(16), torch.nn.LeakyReLU())
            self.last = torch.nn.Linear(32, 4)

        def forward(self, points: Any) -> Any:
            x = points.transpose(1, 2)
            near = torch.cdist(points, points).topk(4, largest=False).indices
            b, n, k = near.shape
            neighbours = torch.gather(points[:, None].expand(b, n, n, 3), 2, near[..., None].expand(b, n, k, 3))
            centre = x[..., None].expand(b, 3, n, k)
            y = self.inner(torch.cat([neighbours.permute(0, 3, 1, 2) - centre, centre], 1)).amax(-1)
            return self.last(torch.cat([y.amax(-1), y.mean(-1)], 1))

    return Module(EdgeConv(), {"points": normal(2, 16 * scale, 3)})


@RECIPES()
def graph_pool(scale: int) -> Module:
    """Scores, the nodes above a threshold (NonZero), sorted, and a histogram of their clusters."""
    import torch

    class Pool(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.score = torch.nn.Linear(8 * scale, 1)

        def forward(self, nodes: Any, edges: Any) -> Any:
            score = self.score(nodes).squeeze(1)
            kept = torch.nonzero(score > 0).squeeze(1)
            order = torch.argsort(score[kept], descending=True)
            chosen = nodes[kept][order] * torch.sigmoid(score[kept][order])[:, None]
            return chosen, torch.cumsum(score, 0), (edges[0] == edges[1]).sum()

    inputs, axes = _graph(scale)
    return Module(Pool(), inputs, axes)


RECIPES.add("mamba", of_tokens("MambaConfig", "MambaForCausalLM", state_size=4, varying=False, expand=2,
                               num_attention_heads=None, intermediate_size=None,
                               max_position_embeddings=None))  # fmt: skip
RECIPES.add("mamba2", of_tokens("Mamba2Config", "Mamba2ForCausalLM", state_size=8, head_dim=8, expand=2, n_groups=1,
                                chunk_size=4, varying=False, num_heads=lambda scale: 4 * scale,
                                num_attention_heads=None, intermediate_size=None,
                                max_position_embeddings=None))  # fmt: skip
RECIPES.add("rwkv", of_tokens("RwkvConfig", "RwkvForCausalLM", varying=False, num_attention_heads=None,
                              max_position_embeddings=None, attention_hidden_size=width))  # fmt: skip
RECIPES.add("recurrent_gemma", of_tokens("RecurrentGemmaConfig", "RecurrentGemmaForCausalLM", varying=False,
                                         lru_width=width, num_key_value_heads=1, num_hidden_layers=3,
                                         attention_window_size=4, max_position_embeddings=None))  # fmt: skip


@RECIPES("script")
def looped_scan(scale: int) -> Module:
    """A selective scan as a loop over time, which TorchScript keeps as Loop, with a condition in it."""
    import torch

    class Scan(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.step = torch.nn.Linear(8 * scale, 8 * scale)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            state = torch.zeros(x.shape[0], x.shape[2])
            found: list[torch.Tensor] = []
            for index in range(x.shape[1]):
                now = x[:, index]
                decay = torch.sigmoid(self.step(now))
                if bool(now.sum() > 0):  # noqa: SIM108 - TorchScript keeps it as an If
                    state = state * decay + now
                else:
                    state = state * decay - now
                found.append(state)
            return torch.stack(found, 1)

    Scan.forward.__annotations__.update({"x": torch.Tensor, "return": torch.Tensor})
    return Module(_scripted(Scan()), {"x": normal(2, 6 * scale, 8 * scale)}, {"x": {0: "batch", 1: "time"}})


def _scripted(module: Any) -> Any:
    import torch

    return torch.jit.script(module)


@RECIPES("dynamo")
def higher_order_scan(scale: int) -> Module:
    """The same as PyTorch's `scan`, which becomes ONNX's."""
    import torch
    from torch._higher_order_ops.scan import scan

    class Scan(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.step = torch.nn.Linear(8 * scale, 8 * scale)

        def forward(self, x: Any) -> Any:
            def step(state: Any, now: Any) -> Any:
                state = state * torch.sigmoid(self.step(now)) + now
                return state, state.clone()

            return scan(step, torch.zeros_like(x[0]), x, dim=0)[1]

    return Module(Scan(), {"x": normal(6 * scale, 2, 8 * scale)})


@RECIPES("dynamo")
def conditional(scale: int) -> Module:
    """PyTorch's `cond`, which becomes If."""
    import torch

    class Conditional(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(8 * scale, 8 * scale), torch.nn.Linear(8 * scale, 8 * scale)

        def forward(self, x: Any) -> Any:
            return torch.cond(x.sum() > 0, lambda v: torch.relu(self.first(v)), lambda v: self.second(v) - 1, (x,))

    return Module(Conditional(), {"x": normal(4, 8 * scale)})


@RECIPES()
def gru(scale: int) -> Module:
    import torch

    class Recurrent(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru = torch.nn.GRU(8 * scale, 16, 2, bidirectional=True)
            self.rnn = torch.nn.RNN(32, 8)

        def forward(self, x: Any) -> Any:
            y, _ = self.gru(x)
            return self.rnn(y)[1][0]

    return Module(Recurrent(), {"x": normal(7 * scale, 2, 8 * scale)}, {"x": {0: "time"}})


@RECIPES()
def dlrm(scale: int) -> Module:
    """Recommendation: sums over tables of embeddings, products of all pairs, an upper triangle."""
    import torch

    class Dlrm(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tables = torch.nn.ModuleList(torch.nn.Embedding(50, 8 * scale) for _ in range(3))
            self.bottom = torch.nn.Sequential(torch.nn.Linear(6, 8 * scale), torch.nn.ReLU())
            self.top = torch.nn.Linear(8 * scale + 6, 1)
            self.register_buffer("pairs", torch.triu_indices(4, 4, 1))

        def forward(self, dense: Any, sparse: Any) -> Any:
            x = self.bottom(dense)
            parts = [x, *(table(sparse[:, i]).sum(1) for i, table in enumerate(self.tables))]
            stacked = torch.stack(parts, 1)
            products = stacked @ stacked.transpose(1, 2)
            return torch.sigmoid(self.top(torch.cat([x, products[:, self.pairs[0], self.pairs[1]]], 1)))

    inputs = {"dense": normal(4, 6), "sparse": tokens(4, 3, 5, high=49)}
    return Module(Dlrm(), inputs, {"dense": {0: "batch"}, "sparse": {0: "batch"}})


@RECIPES()
def patch_tst(scale: int) -> Module:
    made = of_config("PatchTSTConfig", "PatchTSTForPrediction", num_input_channels=2, context_length=32, patch_length=8,
                     patch_stride=4, prediction_length=6, d_model=8 * scale, num_attention_heads=2, ffn_dim=16,
                     num_hidden_layers=1, do_mask_input=False)  # fmt: skip
    return Module(made, {"past_values": normal(2, 32, 2)})


@RECIPES()
def nerf(scale: int) -> Module:
    """Positions encoded by sines, a perceptron, and the transmittance along each ray as a cumulated product."""
    import torch

    class Nerf(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Sequential(
                torch.nn.Linear(39, 16 * scale), torch.nn.Softplus(), torch.nn.Linear(16 * scale, 4)
            )
            self.register_buffer("frequencies", 2.0 ** torch.arange(6))

        def forward(self, points: Any) -> Any:
            angles = (points[..., None, :] * self.frequencies[:, None]).flatten(-2)
            y = self.inner(torch.cat([points, angles.sin(), angles.cos()], -1))
            alpha = 1 - torch.exp(-torch.relu(y[..., 3]) * 0.1)
            kept = torch.exp(torch.cumsum(torch.log(1 - alpha + 1e-6), -1)) * alpha
            return (kept[..., None] * torch.sigmoid(y[..., :3])).sum(-2)

    return Module(Nerf(), {"points": normal(4 * scale, 8, 3) / 4}, {"points": {0: "rays"}})
