"""The tables of figures on the pages: which figures of which runs each has. ``results.py`` writes them.

A cell is text with ``{quantity}``; ``<<text>>`` is left out where the row lacks a figure in it.
"""

from __future__ import annotations

from results import Columns, Grid


def ratio(quantity: str) -> str:
    """A speed, and in brackets what it is of the reference's."""
    return f"{{{quantity}:,}}<< ({{{quantity}_x}})>>"


def product(quantity: str) -> str:
    """Microseconds, bf16's, and how many times faster."""
    return f"{{{quantity}:,}} ({{{quantity}_bf16:,}}): {{{quantity}_x}}"


def matrix(tokens: int) -> str:
    return f"<<{{us_{tokens}}}, {{x_{tokens}}} ({{between_{tokens}}})>>"


_OURS = ("int8", "4.0 bits", "3.5 bits", "3.0 bits", "4.0 bits, no trellis", "lossless")
_SERVED = {"weights": "{name}", "GB a rank": "{gb}", "of the plan": "{of_plan}", "start, s": "{start}"}
_RATES = ("b4", "b35", "b3")
_EFFORTS = ("`--calibrate`", "the default", "`--no-calibrate`")


def _four(way: str, end: str = "") -> tuple[str, str]:
    """Seconds and KL of 4 bits."""
    row = f"smollm2-quality/wcodec 4 bits, {way}"
    return f"{{{row}/seconds{end}:.0f}}", f"{{{row}/kl{end}}}"


def _frontier(model: str) -> tuple[tuple[str, ...], ...]:
    means = ("weights alone, rans", "weights alone, huffman", "measured steps, rans", "error feedback, rans")
    if model.startswith("Mixtral"):
        means = means[:1] + means[2:]
    cells = [f"{{frontier/{model}, %s/{b}}} / {{frontier/{model}, %s/{b}_trellis}}" for b in _RATES]
    return tuple((model, f"{name}", *(cell % (name, name) for cell in cells)) for name in means)


TABLES: dict[str, Columns | Grid] = {
    # README.md
    "smollm2-quality": Columns(
        "smollm2-quality",
        {
            "": "{name}",
            "bits/weight": "{bits}",
            "KL divergence": "{kl}",
            "same first choice, %": "{top}",
            "KL with `--optimize size`": "{kl_size}",
        },
        (
            "bfloat16",
            "wcodec `lossless`, bit for bit",
            "wcodec `int8`",
            *(f"wcodec 5 bits, {way}" for way in _EFFORTS[1:]),
            *(f"wcodec 4 bits, {way}" for way in _EFFORTS),
            "NF4, blocks of 64 (bitsandbytes' format)",
            "INT4, groups of 64",
            *(f"wcodec 3 bits, {way}" for way in _EFFORTS),
        ),
    ),
    "readme-speed": Grid(
        ("", "bfloat16", "`int8`", "4 bits"),
        (
            ("SmolLM2-135M-Instruct, MB of weights", *(f"{{smollm2-cpu/{w}/mb}}" for w in ("bf16", "int8", "4 bits"))),
            ("on two CPU cores, tokens/s (1)", *(f"{{smollm2-cpu/{w}/speed}}" for w in ("bf16", "int8", "4 bits"))),
            (
                "TinyLlama's shapes on one H200, a captured decode step (2)",
                "1",
                "{defaults-h200/int8/of_bf16}",
                "{defaults-h200/4 bits/of_bf16}",
            ),
            *(
                (f"{title} (3)", "1", f"{{vllm-h100/{n}/int8_x}}", f"{{vllm-h100/{n}/b4_x}}")
                for n, title in (
                    ("1", "[vLLM](docs/vllm.md#speed) 0.32 on one H100, one sequence"),
                    ("8", "vLLM, 8 sequences"),
                    ("32", "vLLM, 32 sequences"),
                    ("128", "vLLM, 128 sequences"),
                )
            ),
            (
                "vLLM, a Llama of 70 B on four H200, one sequence"
                " ([more](docs/several-gpus.md#70-billion-parameters-on-four-gpus))",
                "1",
                "{vllm-70b/`int8`, 6.17 bits/s1_x}",
                "{vllm-70b/4.00 bits/s1_x}",
            ),
        ),
    ),
    # docs/measurements.md
    "coders-one-core": Columns(
        "coders-one-core",
        {
            "coder, layout": "{name}",
            "% over the entropy: 8 MiB / 512 KiB": "{over_8m} / {over_512k}",
            "decode, GB/s": "<<{scalar}>><< / {avx2}>><< / {avx512}>><<{own}>>",
            "over libzstd's": "<<{x_scalar}>><< / {x_avx2}>><< / {x_avx512}>><<{x_own}>>",
            "encode, GB/s": "{encode}",
        },
    ),
    "doc-llama-sizes": Columns(
        "doc-llama-sizes",
        {
            "coder": "{name}",
            "per row": "{row_ratio}, {row_bits}",
            "per tensor": "{tensor_ratio}, {tensor_bits}",
            "per block of 128": "{block_ratio}, {block_bits}",
        },
    ),
    "files-tinyllama": Columns(
        "files-tinyllama",
        {
            "": "{name}",
            "one core, s": "{seconds}",
            "memory, one thread, MB": "{memory_1}",
            "two threads, MB": "{memory_2}",
        },
        ("encode", "decode"),
    ),
    "gpu-decoding": Columns(
        "gpu-decoding",
        {
            "": "{name}",
            "`rans` int8 / bf16": "{rans:,}<< / {rans_bf16:,}>>",
            "`huffman` int8 / bf16": "{huffman:,}<< / {huffman_bf16:,}>>",
            "nvCOMP ANS int8": "<<{nvcomp:,} ({nvcomp_chunk})>>",
        },
        (
            "bits/weight of 4,096 x 2,048, scales counted",
            "bits/weight of one matrix of 1 GB",
            "one matrix of 1 GB, G weights/s",
            "128 matrices of 4,096 x 2,048, G weights/s",
            "256 x 2,048, us",
            "2,048 x 2,048, us",
            "5,632 x 2,048, us",
            "TinyLlama's decoder block (7 matrices, one launch), us",
        ),
    ),
    "residencies-h200": Columns(
        "residencies-h200",
        {
            "residency": "{name}",
            "memory, MiB": "{mib:,}",
            "of bf16's, %": "{share}",
            "speed over bf16's": "{of_bf16}",
        },
    ),
    "steps-h100": Columns(
        "steps-h100", {"": "{name}", "tokens/s": "{speed}", "bf16, tokens/s": "{bf16}", "of bf16's": "{of_bf16}"}
    ),
    "layers-h100": Columns(
        "layers-h100",
        {
            "tokens": "{tokens}",
            "stored bits": "{bits}",
            "TinyLlama, 155 layers": product("tl"),
            "merged": product("tl_merged"),
            "a block of 8 B": product("l8"),
            "merged ": product("l8_merged"),
        },
    ),
    "matrices-h200": Columns(
        "matrices-h200",
        {
            "matrix, scheme": "{name}",
            "bits": "{bits}",
            "1 token": matrix(1),
            **{str(n): matrix(n) for n in (8, 16, 32, 64)},
        },
    ),
    "crossover-h200": Columns(
        "crossover-h200",
        {
            "matrix": "{name}",
            "`int8`, 64 tokens": "{int8_64}, {int8_64_decoded}",
            "65": "{int8_65}, {int8_65_decoded}",
            "4 bits, 64 tokens": "{b4_64}, {b4_64_decoded}",
            "65 ": "{b4_65}, {b4_65_decoded}",
            "128": "{b4_128}, {b4_128_decoded}",
        },
    ),
    "prefill-h100": Columns(
        "prefill-h100",
        {"": "{name}", "tokens in order (1 to 2,048)": "{in_order}", "tokens at random": "{at_random}"},
    ),
    "inspector": Columns("inspector", {"": "{name}", "ms": "{ms}"}),
    # docs/fixed-widths.md
    "peers-matrices-h200": Columns(
        "peers-matrices-h200",
        {
            "matrix, engine": "{name}",
            "bits": "{bits}",
            "1 token": matrix(1),
            **{str(n): matrix(n) for n in (8, 16, 32, 64, 128)},
        },
    ),
    "peers-widths": Columns("peers-widths", {"width": "{name}", "bits": "{bits}", "KL": "{kl}"}),
    # docs/peers.md
    "peers-exl3": Columns(
        "peers-exl3",
        {
            "method": "{name}",
            "bits": "{bits}",
            "without padding": "{unpadded}",
            "KL": "{kl}",
            "same first choice, %": "{top}",
        },
    ),
    "peers-cpu": Columns(
        "peers-cpu",
        {
            "": "{name}",
            "bits/weight": "{bits:.2f}",
            "weights alone": "<<{kl:.3g} ({same:.0f} %)>>",
            "sizes of inputs": "<<{kl_columns:.3g} ({same_columns:.0f} %)>>",
            "a text": "<<{kl_text:.3g} ({same_text:.0f} %)>>",
            "of another type": "<<{fell_back}>>",
        },
    ),
    "peers-gpu": Columns(
        "peers-gpu",
        {
            "": "{name}",
            "bits/weight": "{bits}",
            "load, s": "{load}",
            "peak, GB": "{memory}",
            "eager": ratio("eager_1"),
            "captured": ratio("captured_1"),
            "batch 8": ratio("captured_8"),
            "batch 32": ratio("captured_32"),
        },
    ),
    "peers-compiled": Columns(
        "peers-compiled-h100",
        {
            "": "{name}",
            "bits/weight": "{bits}",
            **{t: f"{{b_{n}:,}}<< ({{x_{n}}})>>" for n, t in ((1, "batch 1"), (8, "batch 8"), (32, "batch 32"))},
        },
    ),
    # docs/schemes-and-coders.md, docs/tuning.md, docs/calibration.md, docs/quality.md
    "optimize": Columns(
        "optimize",
        {
            "model": "{model}",
            "asked": "{asked}",
            "speed, bits": "{bits_speed}",
            "size, bits": "{bits_size}",
            "size for speed's KL": "{needed} ({less})",
        },
    ),
    "row-lengths": Columns(
        "row-lengths",
        {
            "columns": "{name}",
            "Gaussian: row / tensor / block": "{gauss_row} / {gauss_tensor} / {gauss_block}",
            "Student-t (6)": "{t_row} / {t_tensor} / {t_block}",
        },
    ),
    "lossless-bits": Columns("lossless-bits", {"": "{name}", "bits/weight": "{bits}"}),
    "lossless-decoding": Columns("lossless-decoding", {"": "{name}", "`rans`": "{rans:,}", "`huffman`": "{huffman:,}"}),
    "rate-decoding": Columns(
        "rate-decoding",
        {
            "": "{name}",
            "int8: 4 bits / 3 bits": "{int8_4:,} / {int8_3:,}",
            "bfloat16: 4 bits / 3 bits": "{bf16_4:,} / {bf16_3:,}",
        },
    ),
    "tiles": Columns("tiles", {"": "{name}", "bits/weight": "{bits}"}),
    "table-bits": Columns(
        "table-bits",
        {
            "P": "{name}",
            "Student-t (6), over the entropy": "{t_25}, {t_3}, {t_35}, {t_4} ({t_least} to {t_most})",
            "the model above, over P = 12": "{d_25}, {d_3}, {d_35}, {d_4} ({d_least} to {d_most})",
        },
    ),
    "quad-cost": Columns("quad-cost", {"P": "{name}", "bits/weight more": "{b_25}, {b_3}, {b_35}, {b_4}"}),
    "efforts": Grid(
        ("bits/weight", "`--no-calibrate`", "default (columns)", "`--calibrate`"),
        tuple(
            (
                f"{{smollm2-quality/wcodec {bits} bits, the default/bits}}",
                *(f"{{smollm2-quality/wcodec {bits} bits, {way}/kl}}" for way in reversed(_EFFORTS)),
            )
            for bits in ("4", "3.5", "3")
        ),
    ),
    "smollm2-commands": Grid(
        ("command", "seconds", "KL", "quality"),
        (
            ("`--bits 4 --no-calibrate`", *_four("`--no-calibrate`"), "the weights alone"),
            (
                "`--bits 4`",
                *_four("the default"),
                "calibrated by columns (the default for a folder, up to 5 bits); a name on the Hub is not calibrated",
            ),
            ("`--bits 4 --calibrate`", *_four("`--calibrate`"), "error feedback as in GPTQ, too"),
            (
                "`--bits 4 --calibrate --optimize size`",
                *_four("`--calibrate`", "_size"),
                "a trellis and coder `rans`, too; slower on a GPU",
            ),
            ("`--budget 600MB --text FILE`", "more", "", "bits go where the measured loss is smallest"),
            ("`--quality 'kl<=0.02' --text FILE`", "more", "", "the smallest file within a bound of the loss"),
        ),
    ),
    "calibration-texts": Columns(
        "calibration-texts",
        {
            "calibrated on": "{name}",
            "these pages": "{docs}",
            "a novel": "{prose}",
            "a report": "{report}",
            "Rust": "{code}",
            "its own text": "{own}",
        },
    ),
    "calibration-rates": Columns(
        "calibration-rates",
        {
            "calibrated on": "{name}",
            "4 bits": "{b4}",
            "3.5 bits": "{b35}",
            "3 bits": "{b3}",
            "2.5 bits": "{b25}",
        },
    ),
    "calibration-h200": Columns(
        "calibration-h200",
        {
            "seconds": "{name}",
            "columns: statistics": "{columns_statistics}",
            "encoding": "{columns_encoding}",
            "full: statistics": "{full_statistics}",
            "encoding ": "{full_encoding}",
        },
    ),
    "frontier": Grid(
        ("model", "", "4 bits", "3.5 bits", "3 bits"),
        tuple(
            row
            for model in ("Llama, 2.4 M", "GPT-2, 10.4 M", "Mixtral, 9.7 M", "Llama, 8.8 M")
            for row in ((model, "INT4", f"{{frontier/{model}, INT4/b4}}", "", ""), *_frontier(model))
        ),
    ),
    "doc-llama-quality": Columns(
        "doc-llama-quality",
        {
            "encoded with": "{name}",
            "ratio": "{ratio}",
            "bits/weight": "{bits}",
            "perplexity": "{perplexity}",
            "KL, nats/token": "{kl}",
            "same top token, %": "{top}",
        },
    ),
    # docs/vllm.md and docs/several-gpus.md
    "vllm-h100": Columns(
        "vllm-h100",
        {"sequences": "{name}", "bfloat16": "{bf16:,}", "`int8`": ratio("int8"), "4 bits": ratio("b4")},
    ),
    "vllm-tinyllama-h200": Columns(
        "vllm-tinyllama-h200",
        {"sequences": "{name}", "bfloat16": "{bf16:,}", "`int8`": ratio("int8"), "4 bits": ratio("b4")},
    ),
    "vllm-moe-h200": Columns(
        "vllm-moe-h200",
        {
            "sequences": "{name}",
            "bfloat16": "{bf16:,}",
            "4 bits": ratio("b4"),
            "tokens per second of bfloat16's": "{b4_t}",
        },
    ),
    "vllm-tp2-h200": Columns(
        "vllm-tp2-h200",
        {
            "sequences": "{name}",
            "bfloat16": "{bf16:,}",
            "4 bits": ratio("b4"),
            "tokens per second of bfloat16's": "{b4_t}",
        },
    ),
    "vllm-8b-h100": Columns(
        "vllm-8b-h100",
        {"sequences": "{name}", "bfloat16": "{bf16:,}", "`int8`": ratio("int8"), "4 bits": ratio("b4")},
    ),
    "vllm-8b-h200": Columns("vllm-8b-h200", {"sequences": "{name}", "bfloat16": "{bf16:,}", "4 bits": ratio("b4")}),
    "vllm-8b-int8-h200": Columns(
        "vllm-8b-int8-h200", {"sequences": "{name}", "bfloat16": "{bf16:,}", "`int8`": ratio("int8")}
    ),
    "vllm-70b": Columns(
        "vllm-70b",
        {
            **_SERVED,
            "1 sequence": ratio("s1"),
            **{str(n): ratio(f"s{n}") for n in (8, 32, 128)},
            "a prompt of 2,048": ratio("s_prompt"),
        },
    ),
    "transformers-70b": Columns(
        "transformers-70b",
        {**_SERVED, "1 sequence": ratio("s1"), "8": ratio("s8")},
        ("bfloat16", "`int8`, 6.17 bits", "4.00 bits"),
    ),
    "vllm-moe-235b": Columns(
        "vllm-moe-235b",
        {
            **_SERVED,
            "1 sequence": ratio("s1"),
            "8": ratio("s8"),
            "32": ratio("s32"),
            "a prompt of 2,048": ratio("s_prompt"),
        },
    ),
    # docs/fine-tuning.md
    "lora-h200": Columns(
        "lora-h200",
        {
            "base": "{name}",
            "peak memory, GB": "{peak}",
            "of bf16's": "{of_bf16}",
            "a step, s": "{step_s}",
            "of bf16's speed": "{speed_of_bf16}",
        },
    ),
    # docs/residencies-and-memory.md
    "disk": Columns(
        "disk",
        {
            "": "{name}",
            "over the plain reader's speed": "{of_plain} ({of_plain.low} to {of_plain.high})",
            "plain reader, GB/s": "{plain}",
        },
    ),
}
