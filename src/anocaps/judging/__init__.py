"""From scores to verdicts: calibration, p-values, metrics, heat on a fixed scale, sentences.

Other rooms use `calibration`, `combining`, `metrics`, `flagged`, `heat`, `sentences`, `spread` and
`judgement.Judge`, the interface of trained detectors and exported graphs. No torch.
"""
