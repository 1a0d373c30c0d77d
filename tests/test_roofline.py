"""Step times: laws that hold for every model, and small cases by hand."""

from dataclasses import fields

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.calibrate.forms import Peaks, Work, gemm_work, kernel_seconds
from planner.calibration import KernelConstants
from planner.deployment import deploy
from planner.kernel_times import KernelTimes, Meter, Terms, kernel_terms
from planner.mixers import Attention, LatentAttention, State
from planner.rank_work import Matrix, RankWork, rank_work
from planner.replica import arithmetic_of
from planner.roofline import MOST_CHUNKS, Prompt, Step, StepPrices, banded_share, chunks, latent_work, visible
from planner.serving import Replica, step_of
from planner.simulate.steps import StepTimes
from tests.replicas import times, work
from tests.scenarios import scenario

MODELS = (
    "llama-3.1-8b",
    "gemma-3-4b",
    "deepseek-v3",
    "deepseek-v3.2",
    "deepseek-v4-flash",
    "qwen3-next-80b-a3b",
    "qwen3-30b-a3b",
    "gpt-oss-120b",
    "llama-4-scout-17b-16e",
)


def terms_of(ranks: RankWork, engine: KernelTimes, step: Step) -> Terms:
    return StepPrices(ranks, engine).terms(step)


def seconds(model: str, step: Step, **degrees: int) -> float:
    """To the femtosecond: where the host binds, terms of other sizes make up the same sum."""
    return round(terms_of(work(model, **degrees), times(), step).seconds, 15)


@pytest.mark.parametrize("model", MODELS)
def test_more_context_or_a_larger_batch_is_never_faster(model: str) -> None:
    by_context = [seconds(model, Step(16, kv)) for kv in (64, 512, 4096, 32768)]
    by_batch = [seconds(model, Step(batch, 2048)) for batch in (1, 4, 16, 64, 256)]
    by_prompt = [seconds(model, Step(0, 0, (Prompt(tokens),))) for tokens in (16, 256, 2048, 8192)]
    assert by_context == sorted(by_context)
    assert by_batch == sorted(by_batch)
    assert by_prompt == sorted(by_prompt)


@pytest.mark.parametrize("model", MODELS)
def test_a_prompt_beside_decodes_costs_less_than_apart_and_something(model: str) -> None:
    decodes, prompt = Step(8, 1024), (Prompt(512),)
    alone, beside = seconds(model, Step(0, 0, prompt)), seconds(model, Step(8, 1024, prompt))
    assert max(alone, seconds(model, decodes)) <= beside < alone + seconds(model, decodes)


def test_cached_prefix_is_not_computed_again() -> None:
    whole = seconds("llama-3.1-8b", Step(0, 0, (Prompt(8192),)))
    rest = seconds("llama-3.1-8b", Step(0, 0, (Prompt(2048, 6144),)))
    assert whole / 4 < rest < whole / 2


def test_tensor_parallelism_divides_matrices_experts_and_attention() -> None:
    def weights(tp: int) -> float:
        return sum(m.n * m.k * layer.count for layer in work("llama-3.1-70b", tp=tp).layers for m in layer.matrices)

    assert weights(1) == 8 * weights(8) == 80 * (2 * 8192**2 + 2 * 8192 * 1024 + 3 * 8192 * 28672)
    one, four = (terms_of(work("llama-3.1-70b", tp=tp), times(), Step(32, 8192)) for tp in (1, 4))
    assert four.weights == pytest.approx(one.weights / 4, rel=0.1)
    assert four.kv == pytest.approx(one.kv / 4, rel=0.1)
    assert one.communication == 0 < four.communication


def test_matrices_are_merged_as_engines_load_them() -> None:
    (layer,) = work("llama-3.1-8b").layers
    expected = {(4096 + 2 * 1024, 4096), (4096, 4096), (2 * 14336, 4096), (4096, 14336)}
    assert {(matrix.n, matrix.k) for matrix in layer.matrices} == expected
    assert (layer.count, layer.reduces, layer.experts) == (32, 2, None)
    latent = work("deepseek-v3").layers[0].matrices
    assert Matrix(1536 + 512 + 64, 7168, "fp8_block") in latent
    assert Matrix(128 * 192, 1536, "fp8_block") in latent


def test_kernels_of_their_own_quantise_what_norms_and_activations_write() -> None:
    """Llama's query, gate and down matrices, not the output projection; 3 launches and passes over 2 x 4096 + 14336."""
    apart, fused = (work("llama-3.1-8b", weights="fp8", quantises=quantises) for quantises in (True, False))
    assert {(m.n, m.k): m.quantises for m in apart.layers[0].matrices} == {
        (6144, 4096): True,
        (4096, 4096): False,
        (28672, 4096): True,
        (4096, 14336): True,
    }
    assert not any(m.quantises for m in (*work("llama-3.1-8b", quantises=True).layers[0].matrices, apart.head))
    assert apart.kernels == fused.kernels + 3 * 32
    engine = times(kind="tensorrt-llm")
    entry = engine.first.find("gemm", "fp8")
    assert entry is not None
    assert isinstance(entry.constants, KernelConstants)
    step = Step(64, 1024)
    added = terms_of(apart, engine, step).seconds - terms_of(fused, engine, step).seconds
    moved = entry.constants.activation_passes * 2 * 64 * (2 * 4096 + 14336) / (float(engine.gpu.hbm_gb_per_s) * 1e9)
    assert added == pytest.approx(32 * (3 * 2e-6 + moved))


def test_terms_sum_to_the_kernels_time_and_to_the_step() -> None:
    constants = KernelConstants(
        floor_us=3,
        memory_efficiency=0.8,
        compute_efficiency=0.7,
        serial_ns_per_step=1,
        norm=2,
        item_ns=10,
        activation_passes=2,
        token_passes=1,
    )
    peaks = Peaks(3e12, 1e15)
    call = Work(bytes=5e8, flops=4e11, steps=4096.0, items=8.0, activation_bytes=1e6, token_bytes=2e6)
    found = kernel_terms(call, constants, peaks)
    assert found.seconds == pytest.approx(float(kernel_seconds(call, constants, peaks)))
    step = terms_of(work("gpt-oss-120b", tp=2), times(), Step(16, 2048, (Prompt(256),)))
    assert step.seconds == pytest.approx(sum(getattr(step, field.name) for field in fields(Terms)))
    assert all(getattr(step, field.name) >= 0 for field in fields(Terms))


def test_a_matrix_by_hand() -> None:
    constants = KernelConstants(floor_us=4, memory_efficiency=0.5, compute_efficiency=0.5)
    found = kernel_terms(gemm_work(1000, 1000, 1, 2.0, 2), constants, Peaks(1e12, 1e15))
    assert found.launch == pytest.approx(4e-6)
    assert found.weights == pytest.approx((2e6 + 2e3 + 2e3) / 5e11)
    assert found.compute == pytest.approx(2e6 / 5e14)
    assert found.binds == "weights"


def test_what_binds() -> None:
    model = work("llama-3.1-8b")
    assert terms_of(model, times(), Step(1, 128)).binds == "weights"
    assert terms_of(model, times(), Step(64, 16384)).binds == "kv"
    assert terms_of(model, times(), Step(0, 0, (Prompt(8192),))).binds == "compute"


def test_each_kind_of_attention_reads_what_it_sees() -> None:
    full = Attention(64, 4, 2, 16, 16)
    windowed, chunked = Attention(64, 4, 2, 16, 16, window=128), Attention(64, 4, 2, 16, 16, chunk=128)
    latent = LatentAttention(64, 4, None, 32, 16, 8, 16, sparse=True)
    assert [visible(mixer, 100_000.0) for mixer in (full, windowed, chunked, latent)] == [100_000, 128, 64, 2048]
    assert [visible(mixer, 50.0) for mixer in (full, windowed, chunked, latent)] == [50] * 4


def test_only_growing_caches_make_long_contexts_slower() -> None:
    def growth(model: str) -> float:
        kv = [terms_of(work(model), times(), Step(32, length)).kv for length in (8192, 32768)]
        return kv[1] / kv[0]

    assert growth("llama-3.1-8b") == pytest.approx(4, rel=0.1)
    assert 1 < growth("gemma-3-4b") < 4
    assert 1 < growth("qwen3-next-80b-a3b") < 4
    states = [m for layer in work("qwen3-next-80b-a3b").layers for m in layer.mixers if isinstance(m, State)]
    assert states


def test_latent_attention_reads_one_latent_for_all_heads() -> None:
    found = latent_work(heads=16, kv_rank=512, rope_dim=64, batch=2, kv_tokens=1000, element_bytes=2)
    assert found.bytes == 2 * 1000 * 576 * 2 + 2 * 2 * 16 * 1088
    assert found.flops == 2 * 2 * 1000 * 16 * 1088
    (one,), (eight,) = ([layer for layer in work("deepseek-v3", tp=tp).layers if layer.experts] for tp in (1, 8))
    assert one.mixers == eight.mixers


def test_banded_share_counts_pairs() -> None:
    pairs = [min(5 + i, 8) for i in range(1, 11)]
    assert banded_share(10, 5, 8.0) == pytest.approx(sum(pairs) / sum(5 + i for i in range(1, 11)))
    assert banded_share(10, 5, 15.0) == pytest.approx(1)


def test_an_fp8_cache_halves_its_reads_and_quantised_weights_theirs() -> None:
    plain, narrow = (terms_of(work("llama-3.1-8b", kv=kv), times(), Step(64, 8192)) for kv in ("auto", "fp8"))
    assert 0.45 < narrow.kv / plain.kv < 0.75
    heavy, light = (terms_of(work(m), times(), Step(1, 128)) for m in ("llama-3.1-70b", "llama-3.1-70b-fp8"))
    assert 0.45 < light.weights / heavy.weights < 0.6


def test_a_small_batch_touches_few_experts() -> None:
    few, many = (terms_of(work("qwen3-30b-a3b"), times(), Step(batch, 128)).weights for batch in (1, 256))
    assert few < many / 4


def test_an_engine_that_fuses_launches_experts_as_one() -> None:
    found = deploy(scenario("qwen3-30b-a3b", "h100-sxm"))
    parts = found.stack, found.ranks, found.quantisation, found.rules
    arithmetic = arithmetic_of(found.scenario.accelerator)
    apart, fused = (rank_work(*parts, arithmetic=arithmetic, fuses=fuses) for fuses in (False, True))
    norms_rope_and_cache, experts = 4 - 1, 5 - 1
    assert apart.kernels - fused.kernels == 48 * (norms_rope_and_cache + experts)


def test_data_parallel_attention_sends_tokens_to_experts_and_back() -> None:
    apart = terms_of(work("deepseek-v3", dp=8, ep=8), times(), Step(8, 1024))
    assert apart.communication > 0
    assert terms_of(work("deepseek-v3"), times(), Step(8, 1024)).communication == 0


def test_chunks_cover_a_prompt() -> None:
    assert list(chunks(10, 4)) == [(Prompt(4, 0), 1), (Prompt(4, 4), 1), (Prompt(2, 8), 1)]
    assert list(chunks(10, None, prior=3)) == [(Prompt(10, 3), 1)]


@given(tokens=st.integers(1, 10**7), most=st.integers(1, 9000), prior=st.integers(0, 10**6))
def test_alike_chunks_cover_a_prompt_and_stand_where_theirs_do_on_average(tokens: int, most: int, prior: int) -> None:
    found = list(chunks(tokens, most, prior))
    assert len(found) <= MOST_CHUNKS + 1
    assert sum(chunk.tokens * alike for chunk, alike in found) == tokens
    full = (tokens - 1) // most
    middle = sum((chunk.prior - prior) * alike for chunk, alike in found[:-1])
    assert middle == pytest.approx(full * (full - 1) / 2 * most, abs=full)


@pytest.mark.parametrize("gpu", ["l40s", "a100-sxm-80gb", "b200-sxm", "b300-sxm", "gb200", "gb300", "h100-nvl", "a10g"])
@pytest.mark.parametrize("model", ["llama-3.1-70b-fp8", "gpt-oss-120b", "qwen3-235b-a22b-nvfp4"])
def test_every_gpu_prices_every_form_of_weights(gpu: str, model: str) -> None:
    found = terms_of(work(model, tp=8, gpu=gpu), times(gpu), Step(8, 1024, (Prompt(64),)))
    assert 1e-3 < found.seconds < 1


def mixed_over_alone(model: str, gpu: str, kv: str = "auto") -> float:
    """Time of decodes beside a prompt, less the prompt alone, over the decodes' own attention."""
    prices = StepPrices(work(model, gpu=gpu, kv=kv), times(gpu))
    alone, beside, prompt = Meter(), Meter(), (Prompt(512),)
    prices.mixers(alone, Step(64, 2048))
    prices.mixers(beside, Step(64, 2048, beside_prompts=True))
    both, prompt_only = Meter(), Meter()
    prices.mixers(both, Step(64, 2048, prompt))
    prices.mixers(prompt_only, Step(0, 0, prompt))
    assert both.terms().seconds == pytest.approx(beside.terms().seconds + prompt_only.terms().seconds)
    return beside.terms().seconds / alone.terms().seconds


def test_flash_attention_2_computes_a_tile_for_each_query_head_of_a_decode_beside_prompts() -> None:
    assert 2 < mixed_over_alone("llama-3.1-8b", "rtx-pro-6000-server") < 3  # about 2.4 in the measured run
    assert mixed_over_alone("llama-3.1-8b", "h100-sxm") == 1  # FlashAttention-3 packs heads in every step
    assert mixed_over_alone("llama-3.1-8b", "rtx-pro-6000-server", "fp8") == 1  # another kernel, which packs them
    assert mixed_over_alone("llama-2-7b", "a100-sxm-80gb") < mixed_over_alone("llama-3.1-8b", "a100-sxm-80gb")


def test_a_simulated_mixed_step_is_the_step_of_the_estimate() -> None:
    found = Replica(work("llama-3.1-8b", gpu="rtx-pro-6000-server"), times("rtx-pro-6000-server"), True, 8192, 2)
    for batch, kv, tokens in ((16, 600, 384), (100, 1200, 1024), (128, 3000, 2048)):
        step = step_of(found, batch, kv, (Prompt(tokens),)).seconds
        assert StepTimes(found).mixed(batch, batch * kv, [(tokens, 0)]) == pytest.approx(step, rel=0.01)
