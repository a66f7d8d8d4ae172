"""Compressed models inside vLLM on a GPU, beside the same models in bf16: `make test-vllm-gpu`.

    python pyext/benches/serving --help

`command` reads arguments and runs the steps, each in a process of its own; `needs` says which packages are missing;
`models` makes folders with random weights, and `streamed` those of models that are too large in bf16. `engine` starts
one engine, measures it and stores tokens; `gpu_time` adds its steps' time on the GPU; `reference` gives these tokens
to transformers; `shared` measures ranks of transformers, which `launch` starts; `planned` says which bytes each rank
is to hold. `results` keeps the figures, `table` and `ranks_table` show them. `pack` makes the archives that bring
vLLM to a machine without a network, with `wheels` and `fatbin`.

The folder is not called vllm, because benchmarks have the folder above on their path, and would import it.
"""
