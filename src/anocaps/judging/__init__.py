"""From scores to verdicts: calibration, p-values, metrics, heat on a fixed scale, sentences.

Others use `calibration`, `metrics`, `heat`, `sentences`, and `judgement.Judge`, the one shape in
which a trained detector and an exported graph judge images. No torch.
"""
