"""Replicas for tests: what one rank of a model computes, priced by shipped constants."""

from functools import cache

from planner.calibrate.shipped import calibrations_for, small_kernels
from planner.deployment import deploy
from planner.kernel_times import KernelTimes
from planner.rank_work import RankWork, rank_work
from planner.replica import arithmetic_of
from planner.serving import Replica
from tests.scenarios import scenario


@cache
def times(gpu: str = "h100-sxm", kind: str = "vllm") -> KernelTimes:
    accelerator = scenario("llama-3.1-8b", gpu).accelerator
    return KernelTimes(accelerator, calibrations_for(accelerator, kind), small_kernels())


@cache
def work(
    model: str,
    tp: int = 1,
    pp: int = 1,
    dp: int = 1,
    ep: int = 1,
    gpu: str = "h100-sxm",
    kv: str = "auto",
    *,
    weights: str | None = None,
    quantises: bool = False,
) -> RankWork:
    overrides = {f"parallelism.{name}": degree for name, degree in (("tp", tp), ("pp", pp), ("dp", dp), ("ep", ep))}
    options = {"kv_cache.dtype": kv, **({"engine_options.quantization": weights} if weights else {})}
    found = deploy(scenario(model, gpu, {**overrides, **options}))
    arithmetic = arithmetic_of(found.scenario.accelerator)
    forms = found.quantisation, found.rules
    return rank_work(found.stack, found.ranks, *forms, arithmetic=arithmetic, quantises=quantises)


def replica(model: str = "llama-3.1-8b", *, mixes: bool = True, chunk: int | None = 8192, **degrees: int) -> Replica:
    return Replica(work(model, **degrees), times(), mixes, chunk)
