"""The operator set: ONNX's own, at one canonical opset."""
