"""Values of inputs and outputs in files: numpy's formats, ONNX's, images and raw bytes."""
