"""Write a trained model as one ONNX file, and score with it without torch.

Other rooms use `writer.export` to write and `runtime.OnnxModel` to score.
"""
