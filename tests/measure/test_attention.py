"""Models write without cuDNN's attention, which plans anew for each number of keys, and leave it as it was."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import wcodec
from wcodec._calibrate.text import sampled
from wcodec._measure import generate
from wcodec._models import running

from tests.support import small_models

torch = pytest.importorskip("torch")

cuda = torch.backends.cuda
without = pytest.mark.skipif(
    not hasattr(cuda, "cudnn_sdp_enabled"), reason="this torch has no switch for cuDNN's attention"
)


@without
@pytest.mark.parametrize(
    "work",
    [
        lambda model: generate(model, [3, 1, 4], max_new_tokens=2),
        lambda model: wcodec.collect_statistics(model, windows=1, length=8),
        lambda model: wcodec.bench(model, batch=1, prompt_tokens=3, new_tokens=2, repeats=1, profile=True),
        lambda model: sampled(model, 1, 4, 0, torch.device("cpu"), lambda count: None),
    ],
    ids=["generate", "collect_statistics", "bench", "sampled"],
)
@pytest.mark.parametrize("enabled", [True, False])
def test_models_write_without_attention_of_cudnn(work: Callable[[Any], Any], enabled: bool) -> None:
    seen: list[bool] = []
    model = small_models.llama()
    model.register_forward_pre_hook(lambda *_: seen.append(cuda.cudnn_sdp_enabled()))
    before = cuda.cudnn_sdp_enabled()
    cuda.enable_cudnn_sdp(enabled)
    try:
        work(model)
        assert seen and not any(seen)
        assert cuda.cudnn_sdp_enabled() == enabled
    finally:
        cuda.enable_cudnn_sdp(before)


@without
def test_attention_comes_back_where_the_work_fails() -> None:
    before = cuda.cudnn_sdp_enabled()
    with pytest.raises(ZeroDivisionError), running.plain_attention():
        raise ZeroDivisionError
    assert cuda.cudnn_sdp_enabled() == before


@without
def test_the_last_thread_to_leave_brings_attention_back() -> None:
    before = cuda.cudnn_sdp_enabled()
    cuda.enable_cudnn_sdp(True)
    try:
        first, second = running.plain_attention(), running.plain_attention()
        first.__enter__()
        second.__enter__()
        first.__exit__(None, None, None)
        assert not cuda.cudnn_sdp_enabled()
        second.__exit__(None, None, None)
        assert cuda.cudnn_sdp_enabled()
    finally:
        cuda.enable_cudnn_sdp(before)


@without
def test_attention_of_cudnn_stays_where_it_is_the_only_one() -> None:
    from torch.nn.attention import SDPBackend, sdpa_kernel

    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION), running.plain_attention():
        assert cuda.cudnn_sdp_enabled()
