"""Laws that hold whatever the inputs: over strangers' numbers with hypothesis, and over everything shipped."""

from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner import catalog
from planner.blocks import Stack
from planner.cache_groups import Group, group_layers
from planner.cache_specs import mixers_of
from planner.cost import (
    api_request_usd,
    attempts_per_request,
    break_even_requests,
    device_month_usd,
    month_utilisation,
    per_million_usd,
    per_thousand_usd,
    prefill_share,
    successful_requests,
    usage_usd,
)
from planner.deployment import deploy
from planner.documents import load_mapping, validate
from planner.errors import InputError
from planner.fleet import active_replicas, active_within, bill, place, spare_plan
from planner.inputs import Commitment, Price, PriceList, Spares
from planner.kv_cache import (
    FP8_DTYPES,
    CacheSpec,
    Flight,
    Kind,
    head_bytes,
    held_blocks,
    kv_bytes_per_token,
    prefill_blocks,
    rank_kv_heads,
    reserved_blocks,
)
from planner.mixers import Attention
from planner.money_inputs import ApiPrice
from planner.origin import Origin
from planner.plan import estimate
from planner.pool import BlockPool, PlainPool, Pool, TokenPool, longest_context
from planner.report import Report
from planner.saved import to_yaml
from planner.sharding import Ranks, problems, rank_shape, stages, vocab_rows, weight_bytes
from planner.tensors import EXPERT_SPLITS, Split, Tensor
from planner.units import ceil_div, round_up, scale_up
from tests.scenarios import report, scenario

MODELS = catalog.names("model")
GPUS = ("h100-sxm", "a100-sxm-80gb", "l4", "b200-sxm", "mi300x")
FEW_MODELS = ("llama-3.1-8b", "qwen3-30b-a3b", "llama-3.1-70b-fp8", "falcon-40b", "gpt2")

counts = st.integers(1, 10**6)
small = st.integers(1, 64)
spares = st.one_of(
    st.builds(Spares, fraction=st.decimals(0, 1, places=3)), st.builds(Spares, replicas=st.integers(0, 100))
)
prices = st.builds(
    Price,
    instance=st.sampled_from([None, "node"]),
    devices=st.integers(1, 16),
    usd_per_hour=st.decimals("0.01", 1000, places=4),
)
blocks = st.sampled_from([1, 16, 64, 832])
specs = st.one_of(
    st.builds(CacheSpec, st.sampled_from([Kind.FULL, Kind.MLA]), blocks, counts),
    st.builds(CacheSpec, st.sampled_from([Kind.WINDOW, Kind.CHUNK]), blocks, counts, st.integers(1, 5000)),
    st.builds(CacheSpec, st.just(Kind.STATE), blocks, counts, st.just(0), counts, st.integers(1, 3)),
    st.builds(CacheSpec, st.just(Kind.CROSS), blocks, counts, st.integers(1, 5000)),
)
flights = st.integers(1, 20_000).flatmap(lambda n: st.builds(Flight, st.just(n), st.integers(n, 2 * n)))
own_groups = st.lists(st.builds(lambda spec, n: Group(spec, n, n * spec.page_bytes), specs, small), min_size=1).map(
    tuple
)
shared_groups = st.dictionaries(specs, small, min_size=1, max_size=4).map(group_layers)
sizes = st.integers(-(10**9), 10**12)
block_pools = st.builds(BlockPool, shared_groups, sizes, st.integers(0, 1), flights)
shares = st.decimals("0.01", "0.99", places=2)
pools = st.one_of(
    block_pools,
    st.builds(PlainPool, own_groups, sizes, flights),
    st.builds(TokenPool, own_groups, sizes, flights, shares, shares),
)


def attempt(model: str, gpu: str, overrides: dict[str, Any]) -> Report | InputError:
    try:
        return report(model, gpu, overrides)
    except InputError as refusal:
        return refusal


def stack_of(model: str) -> Stack:
    return deploy(scenario(model)).stack


# Sizes


@given(st.integers(0, 2**60), st.integers(1, 2**30))
def test_division_rounds_up_and_no_further(value: int, multiple: int) -> None:
    rounded = round_up(value, multiple)
    assert rounded % multiple == 0
    assert value <= rounded < value + multiple
    assert ceil_div(rounded, multiple) == ceil_div(value, multiple)


@given(st.integers(0, 2**60), st.decimals(0, 1, places=6))
def test_scaling_up_is_exact(value: int, factor: Decimal) -> None:
    scaled, millionths = scale_up(value, factor), int(factor * 10**6)
    assert scaled * 10**6 >= value * millionths > (scaled - 1) * 10**6


@given(small, st.integers(1, 32).map(lambda n: 16 * n))
def test_an_fp8_cache_is_half_of_a_bf16_one(heads: int, width: int) -> None:
    whole = kv_bytes_per_token(heads, width, width, "bfloat16")
    assert {2 * kv_bytes_per_token(heads, width, width, dtype) for dtype in FP8_DTYPES} == {whole}
    assert kv_bytes_per_token(heads, width, width, "float32") == 2 * whole
    assert head_bytes(width, "nvfp4") < head_bytes(width, "fp8") < head_bytes(width, "fp8_per_token_head")


@given(st.integers(1, 128), st.sampled_from([1, 2, 4, 8, 16, 32]))
def test_ranks_hold_every_kv_head(heads: int, tp: int) -> None:
    assert rank_kv_heads(heads, tp) * tp >= heads - heads % tp
    assert rank_kv_heads(heads, 2 * tp) <= rank_kv_heads(heads, tp)


# The pool


@given(pools, counts, counts)
def test_more_context_takes_no_less_cache_and_leaves_no_more_requests(pool: Pool, one: int, other: int) -> None:
    short, long = sorted((one, other))
    assert 0 < pool.reserved_blocks(short) <= pool.reserved_blocks(long)
    assert 0 < pool.reserved_bytes(short) <= pool.reserved_bytes(long)
    assert pool.requests(short) >= pool.requests(long) >= 0


@given(specs, flights, counts, counts)
def test_a_kind_of_cache_reserves_and_holds_within_its_bounds(
    spec: CacheSpec, flight: Flight, one: int, other: int
) -> None:
    short, long = sorted((one, other))
    whole = ceil_div(long, spec.block_tokens)
    assert reserved_blocks(spec, short, flight) <= reserved_blocks(spec, long, flight)
    assert 1 <= held_blocks(spec, long, flight) <= reserved_blocks(spec, long, flight)
    if spec.kind in (Kind.FULL, Kind.MLA):
        assert whole == held_blocks(spec, long, flight) == reserved_blocks(spec, long, flight)
    if spec.kind is Kind.WINDOW:
        assert held_blocks(spec, short, flight) <= held_blocks(spec, long, flight) + 1  # by where the window starts
    if spec.kind in (Kind.WINDOW, Kind.CHUNK):
        span = spec.span_tokens + flight.tokens
        assert held_blocks(spec, long, flight) <= min(whole, ceil_div(spec.span_tokens, spec.block_tokens) + 1)
        assert reserved_blocks(spec, long, flight) <= min(whole, ceil_div(span, spec.block_tokens)) + 1
    if spec.kind is not Kind.CROSS:
        assert held_blocks(spec, long, flight) <= max(1, prefill_blocks(spec, long, flight))


@given(block_pools, counts)
def test_requests_fit_and_one_more_does_not(pool: BlockPool, tokens: int) -> None:
    requests, each = pool.requests(tokens), pool.reserved_blocks(tokens)
    assert requests * each <= pool.usable_blocks < (requests + 1) * each
    assert pool.usable_blocks * pool.bytes_per_block <= max(0, pool.kv_bytes)
    assert pool.reserved_bytes(tokens) == each * pool.bytes_per_block
    assert pool.held_bytes(tokens) <= pool.reserved_bytes(tokens)


@given(pools, counts)
def test_what_requests_take_is_within_the_memory(pool: Pool, tokens: int) -> None:
    if not isinstance(pool, TokenPool):  # whose own pools cut the memory in another ratio than one request does
        assert pool.requests(tokens) * pool.reserved_bytes(tokens) <= max(0, pool.kv_bytes)
    assert pool.num_blocks * pool.bytes_per_block <= max(0, pool.kv_bytes)


@given(pools, sizes, counts)
def test_more_memory_never_holds_fewer_requests(pool: Pool, size: int, tokens: int) -> None:
    other = replace(pool, kv_bytes=size)  # type: ignore[type-var]
    less, more = sorted((pool, other), key=lambda p: p.kv_bytes)
    assert less.requests(tokens) <= more.requests(tokens)
    assert less.num_blocks <= more.num_blocks


@given(st.dictionaries(specs, small, min_size=1, max_size=4))
def test_groups_hold_every_layer_and_share_a_page(counts_of: dict[CacheSpec, int]) -> None:
    groups = group_layers(counts_of)
    assert sum(group.layers for group in groups) == sum(counts_of.values())
    assert sum(group.page_bytes for group in groups) >= sum(n * s.page_bytes for s, n in counts_of.items())
    if len(groups) > 1:
        assert {group.page_bytes // group.layers for group in groups} == {max(s.page_bytes for s in counts_of)}


@given(pools, st.integers(1, 1000), st.integers(0, 2**20))
def test_longest_context_fits_and_one_more_token_does_not(pool: Pool, requests: int, most: int) -> None:
    longest = longest_context(pool, requests, most)
    assert 0 <= longest <= most
    assert longest == 0 or pool.requests(longest) >= requests
    assert longest == most or pool.requests(longest + 1) < requests


# Fleet and money


@given(counts, counts, counts)
def test_more_concurrency_never_takes_fewer_replicas(one: int, other: int, slots: int) -> None:
    low, high = sorted((one, other))
    assert active_replicas(low, slots) <= active_replicas(high, slots)
    assert active_replicas(low, slots) * slots >= low


@given(st.integers(0, 10**4), spares)
def test_spares_of_a_fleet_are_found_again(active: int, rule: Spares) -> None:
    replicas = active + spare_plan(active, rule).replicas
    if active:
        assert active_within(replicas, rule) == active
        assert active_within(replicas - 1, rule) == active - 1
    assert spare_plan(active, rule).replicas <= spare_plan(active + 1, rule).replicas


@given(counts, st.integers(1, 64), prices)
def test_placement_never_bills_fewer_devices_than_are_used(replicas: int, each: int, price: Price) -> None:
    placement = place(replicas, each, price)
    assert placement.billed_devices >= replicas * each
    if placement.nodes is None:
        assert placement.billed_devices == replicas * each
    else:
        assert placement.billed_devices == placement.nodes * price.devices
        assert placement.split == (each > price.devices)


@given(counts, st.integers(1, 16), st.decimals("0.01", 1000, places=4))
def test_whole_instances_cost_their_price_each(nodes: int, devices: int, usd: Decimal) -> None:
    price = Price(instance="node", devices=devices, usd_per_hour=usd)
    assert device_month_usd(nodes * devices, price, Decimal(730)) == nodes * Fraction(usd) * 730


@given(counts, prices, st.decimals(1, 744, places=2))
def test_twice_the_price_or_the_hours_is_twice_the_cost(devices: int, price: Price, hours: Decimal) -> None:
    cost = device_month_usd(devices, price, hours)
    dearer = price.model_copy(update={"usd_per_hour": 2 * price.usd_per_hour})
    assert device_month_usd(devices, dearer, hours) == 2 * cost
    assert device_month_usd(devices, price, 2 * hours) == device_month_usd(2 * devices, price, hours) == 2 * cost
    assert per_thousand_usd(cost, cost) == 1000


by_device = st.builds(Price, usd_per_hour=st.decimals("0.01", 1000, places=4))
commitments = st.builds(Commitment, devices=st.integers(1, 3000), price=prices)


@given(st.integers(0, 2000), small, prices, commitments)
def test_every_replica_is_billed_once_and_a_commitment_whole(
    replicas: int, each: int, price: Price, commitment: Commitment
) -> None:
    found = bill(replicas, each, price, commitment)
    assert found.committed.billed_devices >= commitment.devices
    assert found.committed == bill(0, each, price, commitment).committed  # used or not
    assert 0 <= found.on_commitment <= replicas
    assert found.on_commitment * each <= found.committed.billed_devices
    assert found.beyond == place(replicas - found.on_commitment, each, price)
    spread = bill(replicas, each, price, commitment, 50)  # over 50 instances, those of the commitment among them
    assert spread.beyond.nodes is None or (spread.nodes or 0) >= 50
    alone = bill(replicas, each, price, None)
    assert (alone.committed.billed_devices, alone.on_commitment, alone.beyond) == (0, 0, place(replicas, each, price))


@given(st.integers(1, 2000), st.integers(1, 2000), by_device, by_device, st.decimals("0.01", 1, places=2))
def test_a_mix_of_terms_costs_no_less_than_the_cheaper_and_no_more_than_the_dearer(
    devices: int, committed: int, price: Price, other: Price, share: Decimal
) -> None:
    commitment = Commitment(devices=committed, price=other, peak_hours_share=share)
    found, hours = bill(devices, 1, price, commitment), Decimal(730)
    beyond = device_month_usd(found.beyond.billed_devices, price, hours)
    mixed = beyond + device_month_usd(found.committed.billed_devices, other, hours)
    parts = [device_month_usd(max(devices, committed), each, hours) for each in (price, other)]
    assert min(parts) <= mixed <= max(parts)
    if committed >= devices:
        assert mixed == parts[1]  # the whole commitment, whatever the fleet
    assert device_month_usd(found.beyond.billed_devices, price, Fraction(hours) * Fraction(share)) <= beyond


@given(st.fractions(1, 10**9), st.fractions(0, 1), counts, counts)
def test_tokens_of_both_kinds_bear_the_whole_cost(
    monthly: Fraction, share: Fraction, inputs: int, outputs: int
) -> None:
    costs = per_million_usd(monthly, share, inputs), per_million_usd(monthly, 1 - share, outputs)
    assert (costs[0] * inputs + costs[1] * outputs) / 10**6 == monthly
    assert per_million_usd(2 * monthly, share, inputs) == 2 * costs[0]
    assert per_million_usd(monthly, share, 2 * inputs) == costs[0] / 2


@given(st.fractions("1/1000", 1000), st.fractions(0, 1000))
def test_the_share_of_prompts_is_a_share(step: Fraction, prompts: Fraction) -> None:
    share = prefill_share(step, step + prompts)
    assert 0 <= share < 1
    assert prefill_share(step, step) == 0
    assert prefill_share(step, step + 2 * prompts) >= share


@given(counts, st.floats(1, 10**6), st.fractions(1, 10**6))
def test_more_work_uses_more_and_more_capacity_leaves_more_unused(tokens: int, rate: float, hours: Fraction) -> None:
    used = month_utilisation(tokens, rate, hours)
    assert used > 0
    assert month_utilisation(2 * tokens, rate, hours) == pytest.approx(2 * used)
    assert month_utilisation(tokens, rate, 2 * hours) == pytest.approx(used / 2)
    assert usage_usd(hours, Fraction(1)) == hours


api_prices = st.builds(
    ApiPrice,
    usd_per_1m_input_tokens=st.decimals("0.01", 100, places=2),
    usd_per_1m_output_tokens=st.decimals("0.01", 100, places=2),
)


@given(st.fractions(1, 10**7), counts, counts, api_prices, st.fractions(1, 5))
def test_an_api_is_cheaper_below_the_break_even_and_not_at_it(
    monthly: Fraction, inputs: int, outputs: int, price: ApiPrice, attempts: Fraction
) -> None:
    request = api_request_usd(inputs, outputs, price, attempts)
    even = break_even_requests(monthly, request)
    assert (even - 1) * request < monthly <= even * request
    assert break_even_requests(2 * monthly, request) >= even
    assert api_request_usd(inputs, outputs, price, 2 * attempts) == 2 * request


@given(counts, shares, shares, st.decimals(0, 10, places=2))
def test_worse_service_never_makes_a_success_cheaper(
    submitted: int, completes: Decimal, in_time: Decimal, retries: Decimal
) -> None:
    successful = successful_requests(submitted, completes, in_time)
    assert 0 < successful < submitted == successful_requests(submitted, Decimal(1), Decimal(1))
    assert successful < successful_requests(submitted, completes, Decimal(1)) < submitted
    attempts = attempts_per_request(completes, retries)
    assert 1 <= attempts <= 1 + Fraction(retries)
    assert attempts_per_request(completes, Decimal(0)) == attempts_per_request(Decimal(1), retries) == 1


# Everything shipped


@pytest.mark.parametrize("kind", list(catalog.FOLDERS))
def test_every_shipped_file_is_valid_and_named_as_its_file(kind: str) -> None:
    shipped = catalog.names(kind)
    assert shipped
    for name in shipped:
        path = catalog.bundled() / catalog.FOLDERS[kind] / f"{name}.yaml"
        if kind == "price":
            assert validate(PriceList, load_mapping(path), Origin(str(path))).accelerator == name
            assert name in catalog.names("accelerator")
        elif kind == "model":
            assert catalog.load_model(name).name == name
        else:
            assert getattr(validate(catalog.KINDS[kind], load_mapping(path), Origin(str(path))), "name", None) == name


@pytest.mark.parametrize("model", MODELS)
def test_every_shipped_model_fits_somewhere_or_says_why_not(model: str) -> None:
    fits = []
    for gpu, (tp, pp) in product(GPUS, ((1, 1), (8, 1), (8, 2))):
        found = attempt(model, gpu, {"parallelism.tp": tp, "parallelism.pp": pp})
        if isinstance(found, InputError):
            assert found.problems
            continue
        assert found.fits == (found.fleet is not None) == (found.cost is not None)
        assert found.binding_reason
        fits.append(found.fits)
    assert any(fits)


@pytest.mark.parametrize("model", MODELS)
def test_memory_lines_sum_to_the_device(model: str) -> None:
    sums = 0
    for gpu, tp, pp in product(GPUS, (1, 4), (1, 2)):
        found = attempt(model, gpu, {"parallelism.tp": tp, "parallelism.pp": pp})
        if isinstance(found, Report):
            memory, sums = found.memory, sums + 1
            parts = memory.weights_bytes + memory.workspace_bytes + memory.reserve_bytes + memory.kv_budget_bytes
            assert sum(line.bytes for line in memory.lines) == memory.device_bytes == parts
    assert sums


def on_all_ranks(tensor: Tensor, tp: int) -> int:
    """Numbers of a tensor over all tensor-parallel ranks: as many as it has, and what is copied or padded."""
    whole, others = tensor.rows * tensor.cols * tensor.copies, tensor.cols * tensor.copies
    copied = tensor.split in (Split.REPLICATED, Split.EXPERT_WHOLE)
    if copied or (tensor.split_only_by and tensor.split_only_by % tp):
        joined = tensor.rows + tensor.joined_rows // tp  # in one matrix, padded to 16 rows
        return tp * (whole + (round_up(joined, 16) - joined) * others if tensor.joined_rows else whole)
    if tensor.split is Split.VOCAB:
        return vocab_rows(tensor) * tensor.cols
    if tensor.split in (Split.KV_HEADS, Split.GROUPS) and tensor.units < tp:
        return whole * tp // tensor.units
    if tensor.split in EXPERT_SPLITS and tp > 1:
        width = tensor.rows if tensor.split is Split.EXPERT_OUTPUT else tensor.cols
        return whole // width * max(width, tensor.least_per_rank * tp)
    return max(whole, tp * tensor.least_rows * others)


@pytest.mark.parametrize("model", MODELS)
def test_tensor_parallel_ranks_conserve_elements(model: str) -> None:
    stack, tried = stack_of(model), 0
    for tp in (1, 2, 4, 8):
        if problems(stack, Ranks(tp)):
            continue
        tried += 1
        for _, tensor in stack.tensors():
            rows, cols, copies = rank_shape(tensor, Ranks(tp))
            assert tp * rows * cols * copies == on_all_ranks(tensor, tp), tensor
    assert tried


@pytest.mark.parametrize("model", [name for name in MODELS if "a3b" in name or name.startswith(("mix", "glm", "mini"))])
def test_expert_parallel_ranks_conserve_experts(model: str) -> None:
    for _, tensor in stack_of(model).tensors():
        if tensor.split in EXPERT_SPLITS:
            rows, cols, copies = rank_shape(tensor, Ranks(tp=8, ep=8))
            assert (rows, cols) == (tensor.rows, tensor.cols)
            assert 8 * copies == tensor.copies


@pytest.mark.parametrize("model", MODELS)
def test_pipeline_stages_partition_the_layers_and_the_bytes(model: str) -> None:
    deployment = deploy(scenario(model))
    stack, form, dtype = deployment.stack, deployment.quantisation, deployment.dtype
    (whole,) = stages(stack, 1)
    for pp in (1, 2, 3, 4):
        parts = stages(stack, pp)
        sizes = [len(stage.layers) for stage in parts]
        assert tuple(layer for stage in parts for layer in stage.layers) == stack.layers
        assert max(sizes) - min(sizes) <= 1
        copied = (vocab_rows(t) * t.cols for t in stack.embedding.tied_copy()) if pp > 1 else ()
        split = sum(weight_bytes(stack, stage, Ranks(pp=pp), dtype, form) for stage in parts)
        assert split == weight_bytes(stack, whole, Ranks(), dtype, form) + 2 * sum(copied)


def test_kv_cache_of_four_heads_is_not_divided_by_eight_ranks() -> None:
    compared = 0
    for model in MODELS:
        mixers = list(mixers_of(stack_of(model).layers))
        if not all(isinstance(mixer, Attention) and mixer.kv_heads == 4 for mixer in mixers):
            continue
        four, eight = (attempt(model, "h100-sxm", {"parallelism.tp": tp}) for tp in (4, 8))
        if isinstance(four, Report) and isinstance(eight, Report):
            compared += 1
            assert four.kv_cache.bytes_per_token == eight.kv_cache.bytes_per_token
    assert compared >= 5


@pytest.mark.parametrize("model", FEW_MODELS)
def test_the_cache_dtype_is_not_that_of_the_weights(model: str) -> None:
    bf16 = report(model, "b200-sxm", {"kv_cache.dtype": "bfloat16"})
    if bf16.model.quantisation is None:
        quantised = report(model, "b200-sxm", {"engine_options.quantization": "fp8"})
        assert quantised.memory.weights_bytes < bf16.memory.weights_bytes
        assert quantised.kv_cache == report(model, "b200-sxm").kv_cache
    fp8 = report(model, "b200-sxm", {"kv_cache.dtype": "fp8"})
    halves = 1 if model == "falcon-40b" else 2  # vLLM's Falcon never passes the cache dtype on
    assert halves * fp8.kv_cache.bytes_per_token == bf16.kv_cache.bytes_per_token
    assert fp8.memory.weights_bytes == bf16.memory.weights_bytes


@pytest.mark.parametrize("model", FEW_MODELS)
def test_load_and_context_move_a_plan_one_way(model: str) -> None:
    loads = [report(model, "b200-sxm", {"workload.concurrency": n}) for n in (1, 50, 2000, 300_000)]
    fleets = [found.fleet.devices for found in loads if found.fleet]
    assert fleets == sorted(fleets)
    assert len(fleets) == len(loads)
    contexts = [report(model, "b200-sxm", {"context_tokens": n}) for n in (1, 100, 512, 1024)]
    cache = [found.kv_cache.bytes_per_request for found in contexts]
    assert cache == sorted(cache)
    requests = [found.capacity.requests_per_replica for found in contexts]
    assert requests == sorted(requests, reverse=True)


@pytest.mark.parametrize("model", FEW_MODELS)
def test_twice_the_price_is_twice_the_device_cost(model: str) -> None:
    once, twice = (report(model, "b200-sxm", {"price.usd_per_hour": usd}).cost for usd in (3, 6))
    assert once is not None
    assert twice is not None
    assert twice.lines[0].monthly_usd == 2 * once.lines[0].monthly_usd


@pytest.mark.parametrize("model", FEW_MODELS)
def test_the_same_input_gives_the_same_bytes(model: str) -> None:
    assert to_yaml(report(model, "b200-sxm")) == to_yaml(report(model, "b200-sxm"))


@pytest.mark.parametrize("concurrency", [1, 7, 60, 999, 12_345])
@pytest.mark.parametrize("rule", [{"fraction": "0.2"}, {"fraction": 1}, {"replicas": 0}, {"replicas": 3}])
@pytest.mark.parametrize("ranks", [{"tp": 1}, {"tp": 2, "dp": 2}, {"pp": 2}])
def test_a_fleet_of_a_plan_carries_its_load_and_a_smaller_one_does_not(
    concurrency: int, rule: dict[str, Any], ranks: dict[str, int]
) -> None:
    asked = scenario(
        "llama-3.1-8b",
        "h100-sxm",
        {"workload.concurrency": concurrency, "context_tokens": 8192, "parallelism": ranks, "spares": rule},
    )
    fleet = estimate(asked).fleet
    assert fleet is not None
    enough = estimate(asked, fleet.devices).carry
    short = estimate(asked, fleet.devices - 1).carry
    assert enough is not None
    assert short is not None
    assert (enough.running_requests, enough.queued_requests) == (concurrency, 0)
    assert (enough.active_replicas, enough.spare_replicas) == (fleet.active_replicas, fleet.spare_replicas)
    assert enough.longest_context_tokens >= 8192
    assert not enough.spares_waived
    if short.spares_waived:  # it carries what it can by giving up its spares
        assert (short.active_replicas, short.spare_replicas) == ((fleet.devices - 1) // fleet.devices_per_replica, 0)
        assert fleet.spare_replicas
    else:
        assert short.queued_requests > 0
    assert short.running_requests + short.queued_requests == concurrency
