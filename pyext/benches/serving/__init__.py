"""Compressed models inside vLLM on a GPU, beside the same models in bf16: `make test-vllm-gpu`.

    python pyext/benches/serving --help

`command` reads arguments and runs the steps, each in a process of its own; `needs` says which packages are missing;
`models` makes folders with random weights; `engine` starts one engine, measures it and stores tokens; `reference` gives
these tokens to transformers; `results` keeps the figures, `table` shows them. `pack` makes the archives that bring
vLLM to a machine without a network, with `wheels` and `fatbin`.

The folder is not called vllm, because benchmarks have the folder above on their path, and would import it.
"""
