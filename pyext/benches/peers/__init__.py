"""wcodec and other ways to keep the weights of a model in fewer bytes, measured alike: `make peers`, `make peers-cpu`.

    python pyext/benches/peers --help

`command` reads arguments and drives; `catalogue` says who takes part, in which variants, and what each needs;
`environments` makes an environment for each; `runner` runs each in a process of its own and survives it; `worker` is
that process, `sections` what it measures, `adapters` how each library is called; `models` and `real` have the models;
`decoding` runs the benchmark of decoding alone, which is in Rust; `matrices` measures products of one matrix; `report`
keeps results and makes the table, `run_file` the file of docs/results, `chart` the picture.
"""
