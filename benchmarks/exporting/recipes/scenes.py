"""Detection, segmentation, depth, flow and restoration of images."""

from __future__ import annotations

from typing import Any

from exporting.recipe import Module, Recipes, normal
from exporting.recipes.images import pictures
from exporting.recipes.text import of_config

RECIPES = Recipes("scenes")


def _in_two_parts(detector: Any) -> Any:
    """A detector of torchvision as a module of one image: its boxes, labels, scores (and masks)."""
    import torch

    class Detector(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.detector = detector

        def forward(self, image: Any) -> Any:
            (found,) = self.detector([image])
            return tuple(found[key] for key in sorted(found))

    return Detector()


def _backbone(width: int) -> Any:
    import torch

    stem = torch.nn.Sequential(
        torch.nn.Conv2d(3, width, 3, 4, 1), torch.nn.ReLU(), torch.nn.Conv2d(width, width, 3, 4, 1), torch.nn.ReLU()
    )
    stem.out_channels = width
    return stem


def _detection(name: str, **settings: Any) -> Any:
    def make(scale: int) -> Module:
        import torchvision

        library = torchvision.models.detection
        sizes = (((16,),), ((1.0,),)) if name == "FCOS" else (((16, 32),), ((0.5, 1.0, 2.0),))
        key = "anchor_generator" if name in ("RetinaNet", "FCOS") else "rpn_anchor_generator"
        heads: dict[str, Any] = {key: library.anchor_utils.AnchorGenerator(*sizes), "min_size": 64, "max_size": 96}
        if name in ("FasterRCNN", "MaskRCNN", "KeypointRCNN"):
            pool = torchvision.ops.MultiScaleRoIAlign
            heads |= {"box_roi_pool": pool(["0"], 7, 2), "rpn_pre_nms_top_n_test": 60, "rpn_post_nms_top_n_test": 20,
                      "box_detections_per_img": 10, "box_score_thresh": 0.0}  # fmt: skip
            heads |= {"mask_roi_pool": pool(["0"], 14, 2)} if name == "MaskRCNN" else {}
            heads |= {"keypoint_roi_pool": pool(["0"], 14, 2)} if name == "KeypointRCNN" else {}
        else:
            heads |= {"score_thresh": 0.0, "detections_per_img": 10, "topk_candidates": 40}
        body = _backbone(32 if name == "FCOS" else 8 * scale)
        made = getattr(library, name)(body, num_classes=4, **heads, **settings)
        return Module(_in_two_parts(made), {"image": abs(normal(3, 72, 64)) % 1}, {"image": {1: "height", 2: "width"}})

    return make


RECIPES.add("faster_rcnn", _detection("FasterRCNN"))
RECIPES.add("mask_rcnn", _detection("MaskRCNN"))
RECIPES.add("retinanet", _detection("RetinaNet"))
RECIPES.add("fcos", _detection("FCOS"))


@RECIPES()
def ssdlite(scale: int) -> Module:
    import torchvision

    made = torchvision.models.detection.ssdlite320_mobilenet_v3_large(
        weights=None, weights_backbone=None, num_classes=4, topk_candidates=40, detections_per_img=10, score_thresh=0.0
    )
    return Module(_in_two_parts(made), {"image": abs(normal(3, 160, 160)) % 1})


@RECIPES()
def yolo(scale: int) -> Module:
    """A one-stage detector: CSP blocks, SPPF, a pyramid, boxes decoded on a grid, and NMS per class."""
    import torch
    import torchvision

    class Block(torch.nn.Sequential):
        def __init__(self, inputs: int, outputs: int, kernel: int = 1, stride: int = 1) -> None:
            super().__init__(
                torch.nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False),
                torch.nn.BatchNorm2d(outputs),
                torch.nn.SiLU(),
            )

    class Split(torch.nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.first, self.last = Block(width, width), Block(width * 3 // 2, width)
            self.inner = torch.nn.Sequential(Block(width // 2, width // 2, 3), Block(width // 2, width // 2, 3))

        def forward(self, x: Any) -> Any:
            a, b = self.first(x).chunk(2, 1)
            return self.last(torch.cat([a, b, b + self.inner(b)], 1))

    class Yolo(torch.nn.Module):
        def __init__(self, w: int, classes: int = 3) -> None:
            super().__init__()
            self.classes = classes
            self.p2 = torch.nn.Sequential(Block(3, w, 3, 2), Block(w, 2 * w, 3, 2), Split(2 * w))
            self.p3 = torch.nn.Sequential(Block(2 * w, 2 * w, 3, 2), Split(2 * w))
            self.pool = torch.nn.MaxPool2d(5, 1, 2)
            self.spp = Block(8 * w, 2 * w)
            self.up = torch.nn.Upsample(scale_factor=2, mode="nearest")
            self.merge = Block(4 * w, 2 * w)
            self.heads = torch.nn.ModuleList(torch.nn.Conv2d(2 * w, 4 + classes, 1) for _ in range(2))

        def forward(self, images: Any) -> Any:
            p2 = self.p2(images)
            x = self.p3(p2)
            pooled = [x, self.pool(x)]
            pooled += [self.pool(pooled[-1])]
            pooled += [self.pool(pooled[-1])]
            p3 = self.spp(torch.cat(pooled, 1))
            levels = [self.merge(torch.cat([self.up(p3), p2], 1)), p3]
            boxes, scores = [], []
            for head, level, stride in zip(self.heads, levels, (4, 8), strict=True):
                y = head(level)
                rows, columns = torch.meshgrid(torch.arange(y.shape[2]), torch.arange(y.shape[3]), indexing="ij")
                middle = (torch.stack([columns, rows], -1).view(-1, 2) + 0.5) * stride
                y = y.flatten(2).transpose(1, 2)
                centre, size = middle + y[..., :2].tanh() * stride, y[..., 2:4].exp().clamp(max=4) * stride
                boxes.append(torch.cat([centre - size / 2, centre + size / 2], -1))
                scores.append(y[..., 4:].sigmoid())
            box, score = torch.cat(boxes, 1)[0], torch.cat(scores, 1)[0]
            best, label = score.max(1)
            kept = torchvision.ops.batched_nms(box, best, label, 0.5)[:20]
            return box[kept], best[kept], label[kept]

    return pictures(Yolo(8 * scale), 32 if scale == 1 else 128, "images", 1, varying=False)


@RECIPES()
def detr(scale: int) -> Module:
    import transformers

    width = 16 * scale
    backbone = transformers.ResNetConfig(hidden_sizes=[width] * 4, depths=[1] * 4, embedding_size=width,
                                         layer_type="basic", out_features=["stage4"])  # fmt: skip
    made = of_config(
        "DetrConfig", "DetrForObjectDetection", use_timm_backbone=False, backbone_config=backbone, backbone=None,
        use_pretrained_backbone=False, d_model=width, encoder_layers=1, decoder_layers=1, encoder_ffn_dim=32,
        decoder_ffn_dim=32, encoder_attention_heads=2, decoder_attention_heads=2, num_queries=8, num_labels=3,
    )  # fmt: skip
    return pictures(made, 64 if scale == 1 else 128, "pixel_values", 1, varying=False)


def _segmentation(name: str, **settings: Any) -> Any:
    def make(scale: int) -> Module:
        import torchvision

        made = getattr(torchvision.models.segmentation, name)(
            weights=None, weights_backbone=None, num_classes=5, **settings
        )
        return pictures(made, 64 if scale == 1 else 128, batch=1)

    return make


RECIPES.add("lraspp", _segmentation("lraspp_mobilenet_v3_large"))
RECIPES.add("deeplab_v3", _segmentation("deeplabv3_mobilenet_v3_large"))


@RECIPES()
def unet(scale: int) -> Module:
    import torch

    def twice(inputs: int, outputs: int) -> Any:
        layers: list[Any] = []
        for width in (inputs, outputs):
            layers += [torch.nn.Conv2d(width, outputs, 3, 1, 1), torch.nn.BatchNorm2d(outputs), torch.nn.ReLU()]
        return torch.nn.Sequential(*layers)

    class UNet(torch.nn.Module):
        def __init__(self, w: int) -> None:
            super().__init__()
            self.down = torch.nn.ModuleList([twice(3, w), twice(w, 2 * w), twice(2 * w, 4 * w)])
            self.up = torch.nn.ModuleList([torch.nn.ConvTranspose2d(4 * w, 2 * w, 2, 2),
                                           torch.nn.ConvTranspose2d(2 * w, w, 2, 2)])  # fmt: skip
            self.join = torch.nn.ModuleList([twice(4 * w, 2 * w), twice(2 * w, w)])
            self.last = torch.nn.Conv2d(w, 2, 1)

        def forward(self, x: Any) -> Any:
            kept = []
            for block in self.down:
                x = block(x)
                kept.append(x)
                x = torch.nn.functional.max_pool2d(x, 2)
            x = kept.pop()
            for up, join in zip(self.up, self.join, strict=True):
                y = kept.pop()
                x = up(x)
                x = join(torch.cat([torch.nn.functional.pad(
                    x, [0, y.shape[3] - x.shape[3], 0, y.shape[2] - x.shape[2]]), y], 1))  # fmt: skip
            return self.last(x)

    made = pictures(UNet(4 * scale), 24 if scale == 1 else 128, batch=1)
    return Module(made.module, made.inputs, {"x": {0: "batch", 2: "height", 3: "width"}})


@RECIPES()
def segformer(scale: int) -> Module:
    made = of_config("SegformerConfig", "SegformerForSemanticSegmentation", hidden_sizes=[8, 16, 24, 32],
                     depths=[1, 1, 1, 1], num_attention_heads=[1, 2, 2, 2], decoder_hidden_size=16)  # fmt: skip
    return pictures(made, 64 if scale == 1 else 128, "pixel_values", 1)


@RECIPES()
def sam_encoder(scale: int) -> Module:
    """SAM's image encoder: windows, decomposed relative positions."""
    made = of_config("SamVisionConfig", "SamVisionModel", hidden_size=16 * scale, num_hidden_layers=2,
                     num_attention_heads=2, image_size=64, patch_size=8, window_size=3, mlp_dim=32, output_channels=8,
                     global_attn_indexes=[1])  # fmt: skip
    return pictures(made, 64, "pixel_values", 1, varying=False)


@RECIPES()
def dpt(scale: int) -> Module:
    made = of_config("DPTConfig", "DPTForDepthEstimation", image_size=64, patch_size=16, hidden_size=16 * scale,
                     num_hidden_layers=4, num_attention_heads=2, intermediate_size=32,
                     backbone_out_indices=[0, 1, 2, 3], neck_hidden_sizes=[8, 8, 16, 16],
                     fusion_hidden_size=8)  # fmt: skip
    return pictures(made, 64, "pixel_values", 1, varying=False)


@RECIPES()
def raft(scale: int) -> Module:
    """Optical flow: a volume of correlations, looked up by GridSample in each of two refinements."""
    import torch
    import torchvision

    class Flow(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.raft = torchvision.models.optical_flow.raft_small(weights=None)

        def forward(self, first: Any, second: Any) -> Any:
            return self.raft(first, second, num_flow_updates=2)[-1]

    return Module(Flow(), {"first": normal(1, 3, 128, 128), "second": normal(1, 3, 128, 128)[..., ::-1].copy()})


@RECIPES()
def super_resolution(scale: int) -> Module:
    import torch

    w = 8 * scale
    made = torch.nn.Sequential(
        torch.nn.Conv2d(3, w, 5, padding=2), torch.nn.PReLU(w), torch.nn.Conv2d(w, 27, 3, padding=1),
        torch.nn.PixelShuffle(3), torch.nn.PixelUnshuffle(3), torch.nn.PixelShuffle(3), torch.nn.Hardtanh(),
    )  # fmt: skip
    x = pictures(made, 16 * scale, "input", 1)
    return Module(made, x.inputs, {"input": {0: "batch", 2: "height", 3: "width"}})


@RECIPES()
def style_transfer(scale: int) -> Module:
    import torch

    w = 8 * scale
    made = torch.nn.Sequential(
        torch.nn.ReflectionPad2d(4), torch.nn.Conv2d(3, w, 9), torch.nn.InstanceNorm2d(w, affine=True), torch.nn.ReLU(),
        torch.nn.Conv2d(w, w, 3, 2, 1), torch.nn.InstanceNorm2d(w, affine=True), torch.nn.LeakyReLU(0.2),
        torch.nn.Upsample(scale_factor=2, mode="bilinear"), torch.nn.ReplicationPad2d(1), torch.nn.Conv2d(w, 3, 3),
    )  # fmt: skip
    return pictures(made, 24 if scale == 1 else 32 * scale, "input", 1)
