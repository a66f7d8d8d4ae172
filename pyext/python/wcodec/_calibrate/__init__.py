"""Calibration for scheme ``rate``: what quantization knows of a model beyond its weights.

Two parts, of which the first is cheap:

- *Steps.* How much an error in a matrix matters is the trace of the Fisher information, as in K-FAC (J. Martens and R.
  Grosse, 2015, arXiv:1503.05671): squared gradients of the outputs times squared inputs, with targets drawn from the
  model's own predictions. Steps go with its power -1 / 2 (of experts -0.75 / 2) and the root mean square of each row.
- *Error feedback.* Columns of a matrix are rounded one after the other, and each makes up for the errors of those
  before it, as far as inputs are correlated: GPTQ (E. Frantar et al., ICLR 2023, arXiv:2210.17323) in the form of LDLQ
  (J. Chee et al., QuIP, 2023, arXiv:2307.13304). With trellis-coded quantization (M. W. Marcellin and T. R. Fischer,
  1990) each path that survives carries its own errors. Bits take part in each choice, and the scales of rows are fitted
  again in the metric of the inputs.

Nothing here knows how symbols are coded or stored.
"""
