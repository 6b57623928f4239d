"""From scores to verdicts: calibration, p-values, metrics, heat on a fixed scale, sentences.

Others use `calibration`, `metrics`, `flagged`, `heat`, `sentences`, and `judgement.Judge`, the
interface of trained detectors and exported graphs. No torch.
"""
