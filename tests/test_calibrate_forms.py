"""Laws of the forms: more work is never faster, floors are positive, and work is what the shapes say."""

import dataclasses
import inspect
import re
import subprocess
import sys
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from planner.calibrate import forms, routing
from planner.calibrate.forms import Peaks, Work, collective_seconds, kernel_seconds, l2_factor
from planner.calibrate.points import DecodePoint, GemmPoint, Point, PrefillPoint
from planner.calibration import CollectiveConstants, KernelConstants
from tests.scenarios import ROOT

H100 = Peaks(3.35e12, 989e12, 50 * 2**20)
amounts = st.floats(1, 1e13)
shares = st.floats(0, 1)
constants = st.builds(
    KernelConstants,
    floor_us=st.floats(0.5, 100),
    memory_efficiency=st.floats(0.05, 1),
    compute_efficiency=st.floats(0.05, 1),
    serial_ns_per_step=st.floats(0, 100),
    norm=st.floats(1, 8),
    item_ns=st.floats(0, 1000),
    activation_passes=st.floats(0, 10),
    token_passes=st.floats(0, 10),
    l2_reach=shares,
    l2_speedup=st.floats(1, 8),
)
works = st.builds(
    Work,
    bytes=amounts,
    flops=amounts,
    steps=st.floats(0, 1e6),
    items=st.floats(0, 1e6),
    activation_bytes=amounts,
    token_bytes=amounts,
)


@given(works, constants, st.sampled_from(Work.__slots__), st.floats(1, 1e3))
def test_more_work_of_any_kind_is_never_faster(work: Work, k: KernelConstants, kind: str, factor: float) -> None:
    more = dataclasses.replace(work, **{kind: getattr(work, kind) * factor})
    assert kernel_seconds(more, k, H100) >= kernel_seconds(work, k, H100) * (1 - 1e-12)


@given(works, constants)
def test_no_kernel_beats_its_floor_its_bytes_or_its_flops(work: Work, k: KernelConstants) -> None:
    cold = Peaks(H100.bytes_per_s, H100.flops_per_s)
    least = max(
        k.floor_us * 1e-6,
        work.bytes / (k.memory_efficiency * cold.bytes_per_s),
        work.flops / (k.compute_efficiency * cold.flops_per_s),
    )
    assert kernel_seconds(work, k, cold) >= least * (1 - 1e-9) > 0


@given(works, constants, st.floats(1, 4))
def test_a_faster_device_is_never_slower_and_a_warm_cache_neither(work: Work, k: KernelConstants, up: float) -> None:
    cold = Peaks(H100.bytes_per_s, H100.flops_per_s)
    faster = Peaks(H100.bytes_per_s * up, H100.flops_per_s * up)
    assert kernel_seconds(work, k, faster) <= kernel_seconds(work, k, cold) * (1 + 1e-12)
    assert kernel_seconds(work, k, H100) <= kernel_seconds(work, k, cold) * (1 + 1e-12)


@given(amounts, amounts, st.floats(1, 8))
def test_the_l2_factor_lies_between_its_ends(read: float, reach: float, speedup: float) -> None:
    assert 1 / speedup * (1 - 1e-12) <= l2_factor(read, reach, speedup) <= 1
    assert l2_factor(read, 0, speedup) == 1


@given(amounts, st.floats(1, 1e3), st.floats(0.3, 1e3), st.floats(0.1, 1e3), st.floats(0.5, 8))
def test_more_bytes_make_no_collective_faster(size: float, up: float, latency: float, rate: float, p: float) -> None:
    k = CollectiveConstants(latency_us=latency, gb_per_s=rate, norm=p)
    seconds = collective_seconds(size, k)
    assert collective_seconds(size * up, k) >= seconds * (1 - 1e-12)
    assert seconds >= max(latency * 1e-6, size / rate / 1e9) * (1 - 1e-9)


def test_a_measured_collective_is_interpolated_and_beyond_its_sizes_extrapolated() -> None:
    k = CollectiveConstants(latency_us=9, gb_per_s=1, measured_bytes=(1000, 2000, 4000), measured_us=(5, 9, 10))
    sizes = (1, 1000, 1500, 2000, 3000, 4000, 5000)
    assert [collective_seconds(size, k) * 1e6 for size in sizes] == pytest.approx([5, 5, 7, 9, 9.5, 10, 11])


@pytest.mark.parametrize(
    ("sizes", "times"), [((1000,), (5, 9)), ((2000, 1000), (5, 9)), ((1000, 1000), (5, 9)), ((1000, 2000), (9, 5))]
)
def test_measured_sizes_of_a_collective_and_their_times_rise(sizes: tuple[int, ...], times: tuple[float, ...]) -> None:
    with pytest.raises(ValidationError, match="rising sizes, each with a time"):
        CollectiveConstants(latency_us=9, gb_per_s=1, measured_bytes=sizes, measured_us=times)


def test_work_of_known_shapes() -> None:
    decode = forms.decode_work(32, 8, 128, 4, 1000, 2.0)
    assert decode.bytes == 2 * 4 * 1000 * 8 * 128 * 2 + 4 * 4 * 32 * 128
    assert (decode.flops, decode.steps, decode.items) == (4 * 4 * 1000 * 32 * 128, 1000, 32)
    gemm = forms.gemm_work(4096, 1024, 16, 1.0, 2.0)
    assert (gemm.bytes, gemm.flops) == (4096 * 1024 + 16 * 1024 * 2 + 16 * 4096 * 2, 2 * 16 * 4096 * 1024)


@given(st.integers(1, 4096), st.integers(1, 512))
def test_prefill_in_two_chunks_computes_what_one_does(first: int, second: int) -> None:
    whole = forms.prefill_work(32, 8, 128, 1, first + second, 2.0, 0)
    chunks = [forms.prefill_work(32, 8, 128, 1, first, 2.0, 0), forms.prefill_work(32, 8, 128, 1, second, 2.0, first)]
    assert sum(chunk.flops for chunk in chunks) == pytest.approx(whole.flops)
    assert sum(chunk.bytes for chunk in chunks) > whole.bytes  # the second reads the first one's cache again


@given(st.integers(1, 16384), st.sampled_from([1, 2, 8]), st.sampled_from([8, 128, 256]), st.sampled_from([1, 2, 8]))
def test_routing_conserves_pairs_and_touches_no_more_experts_than_there_are(
    tokens: int, topk: int, experts: int, ep: int
) -> None:
    loads = routing.power_law_loads(tokens, topk, experts, 1.2)
    assert sum(loads) == pytest.approx(tokens * topk, rel=1e-3)
    assert max(loads) <= tokens
    for distribution in ("balanced", "power_law_1.2"):
        touched, pairs = routing.routed(tokens, topk, experts, ep, distribution)
        assert 1 <= touched <= max(1, experts / ep)
        assert tokens * topk / ep * (1 - 1e-3) <= pairs <= tokens * topk * (1 + 1e-3)


def test_float32_is_four_bytes_everywhere() -> None:
    decode = DecodePoint("float32", 8, 2, 64, 3, 100, 0.0)
    prefill = PrefillPoint("float32", "float32", 8, 2, 64, 2, 70, 0.0, 50)
    gemm = GemmPoint("float32", 96, 64, 40, 0.0)
    points: tuple[Point, ...] = (decode, prefill, gemm)
    halves: tuple[Point, ...] = (
        replace(decode, dtype="bfloat16"),
        replace(prefill, dtype="bfloat16", kv_dtype="bfloat16"),
        replace(gemm, dtype="bfloat16"),
    )
    for point, half in zip(points, halves, strict=True):
        assert forms.work_of(point).bytes == 2 * forms.work_of(half).bytes
        assert forms.work_of(point).activation_bytes == 2 * forms.work_of(half).activation_bytes
    assert forms.work_of(gemm).bytes == 4 * (96 * 64 + 40 * 64 + 40 * 96)


def test_mla_stands_in_with_the_density_of_prefill() -> None:
    decode = KernelConstants(floor_us=9, memory_efficiency=0.8, compute_efficiency=0.1)
    prefill = KernelConstants(floor_us=20, memory_efficiency=0.3, compute_efficiency=0.6)
    assert forms.mla_constants(decode, prefill) == KernelConstants(
        floor_us=9, memory_efficiency=0.8, compute_efficiency=0.6
    )


@pytest.mark.parametrize(
    "function",
    [
        forms.kernel_seconds,
        forms.l2_factor,
        forms.collective_seconds,
        forms.decode_work,
        forms.prefill_work,
        forms.gemm_work,
        forms.moe_work,
        routing.routed.__wrapped__,
    ],
)
def test_each_form_publishes_units_and_a_source(function: object) -> None:
    text = inspect.getdoc(function) or ""
    assert callable(function)
    for name in [*inspect.signature(function).parameters, "returns"]:
        described = re.search(rf"^(?:\w+, )*{name}(?:, \w+)*: (.*(?:\n    .*)*)", text, re.MULTILINE)
        assert described, name
        assert re.search(r"\[[^\]]+\]", described.group(1)), name
    assert re.search(r"^source: \S", text, re.MULTILINE)


def test_forms_and_scores_load_neither_scipy_nor_numpy_nor_torch() -> None:
    code = (
        "import sys; from planner.calibrate import forms, score;"
        "print([name for name in ('scipy', 'numpy', 'torch') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"
