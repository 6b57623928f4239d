"""A trained model as one ONNX file, and the runtime that scores with it without torch.

Others use `writer.export` to write and `runtime.OnnxModel` to score.
"""
