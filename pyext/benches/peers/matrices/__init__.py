"""Products of one matrix with 1 to 128 vectors: wcodec beside kernels for weights of fixed width, in the form in which
these publish their speeds.

`catalogue` says which engines there are; `engines` calls them; `worker` is the process of one engine, which measures
bf16 beside it; `rounding` and `quality` tell what a width costs on a real model; `drive` runs processes; `table` shows
the figures.
"""
