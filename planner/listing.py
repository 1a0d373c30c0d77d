"""What is shipped, a line each, for `planner catalog`."""

from collections import Counter
from collections.abc import Callable
from decimal import Decimal

from planner import catalog
from planner.architectures import resolve
from planner.cache_groups import Group, group_layers
from planner.cache_specs import CacheRules, layer_specs
from planner.calibrate.shipped import calibration_names, shipped_calibration
from planner.documents import AnyModel, load_mapping, validate
from planner.engine_inputs import Engine
from planner.errors import InputError, nearest
from planner.inputs import Model, Price, PriceList
from planner.kv_cache import Flight, resolve_dtype
from planner.origin import Origin
from planner.pool import BlockPool
from planner.prices import by_term_and_rate, offers
from planner.weights import served_dtype
from planner.workload_inputs import Workload

Fields = dict[str, str | int | None]

LISTED_SM = 9
"""Models are listed as an H100 serves them (SM 9.0): the block sizes of some depend on it."""


def rows(kind: str) -> list[Fields]:
    """Each shipped input of a kind with the figures by which one chooses."""
    if kind == "price":
        return prices()
    describe = _DESCRIBE[kind]
    shipped = calibration_names() if kind == "calibration" else catalog.names(kind)
    return [describe(name) for name in shipped]


def _shipped(kind: str, cls: type[AnyModel], name: str) -> AnyModel:
    path = catalog.bundled() / catalog.FOLDERS[kind] / f"{name}.yaml"
    return validate(cls, load_mapping(path), Origin(str(path)))


def _model(name: str) -> Fields:
    model = catalog.load_model(name)
    stack = resolve(model.config, model.origin)
    pool = BlockPool(_groups(model), 0, 1, Flight(0, 0))
    layers = Counter[str]()
    for group in pool.groups:
        layers[group.spec.kind.value] += group.layers
    return {
        "name": name,
        "model_type": str(model.config["model_type"]),
        "parameters": stack.parameters,
        "active_parameters": stack.active_parameters,
        "layers": len(stack.layers),
        "caches_by_kind": ", ".join(f"{count} {kind}" for kind, count in layers.items()),
        "kv_bytes_per_token": pool.bytes_per_token,
        "state_bytes_per_request": sum(group.layers * group.spec.state_bytes for group in pool.groups),
        "max_positions": stack.max_positions,
    }


def _groups(model: Model) -> tuple[Group, ...]:
    """The model's cache groups on one rank of the newest vLLM with its defaults."""
    stack = resolve(model.config, model.origin)
    dtype = served_dtype(model.config, "auto")
    kv_dtype, _ = resolve_dtype("auto", dtype, model.config, model.hf_quant_config)
    rules = CacheRules(
        tp=1,
        model_dtype=dtype,
        kv_dtype=kv_dtype,
        kv_dtype_given=False,
        sm=LISTED_SM,
        default_block_tokens=16,
        block_tokens=None,
        prefix_caching=True,
        max_positions=stack.max_positions,
        windows=True,
        one_pool=True,
    )
    return group_layers(layer_specs(stack.layers, rules))


def _accelerator(name: str) -> Fields:
    gpu = catalog.load_accelerator(name)
    return {
        "name": name,
        "title": gpu.title,
        "memory_mib": gpu.memory_mib,
        "engine_visible_mib": gpu.engine_visible_mib,
        "hbm_gb_per_s": _plain(gpu.hbm_gb_per_s),
        "bf16_dense_tflops": _plain(gpu.bf16_dense_tflops),
        "fp8_dense_tflops": _plain(gpu.fp8_dense_tflops),
        "as_of": str(gpu.as_of),
    }


def _engine(name: str) -> Fields:
    engine = _shipped("engine", Engine, name)
    return {"name": name, "rules": engine.kind, "version": engine.version, "source": engine.source}


def _workload(name: str) -> Fields:
    workload = _shipped("workload", Workload, name)
    return {
        "name": name,
        "title": workload.title,
        "context_tokens": workload.context_tokens,
        "mean_tokens": workload.mean_tokens,
        "concurrency": workload.concurrency,
        "source": workload.source,
    }


def prices(gpu: str | None = None) -> list[Fields]:
    """Every dated price on every term: terms apart, the cheapest per device-hour first.

    gpu: of which accelerators, by name or its beginning; None: of all
    raises: InputError where no listed accelerator is called so
    """
    known = catalog.names("price")
    wanted = [name for name in known if name == gpu] or [name for name in known if name.startswith(gpu or "")]
    if not wanted:
        raise InputError(f"--gpu {gpu}: no price of it is listed{nearest(gpu or '', known)}")
    found = [(name, price) for name in wanted for price in offers(_shipped("price", PriceList, name).prices)]
    found.sort(key=lambda pair: (by_term_and_rate(pair[1]), pair[0], pair[1].named))
    return [_price(name, price) for name, price in found]


def _price(name: str, price: Price) -> Fields:
    return {
        "term": price.term,
        "usd_per_device_hour": f"{price.usd_per_hour / price.devices:.4f}",
        "accelerator": name,
        "provider": price.provider,
        "instance": price.instance,
        "devices": price.devices,
        "usd_per_instance_hour": _plain(price.usd_per_hour),
        "region": price.region,
        "as_of": str(price.as_of) if price.as_of else None,
        "confidence": price.confidence,
        "source": price.source,
    }


def _calibration(name: str) -> Fields:
    found = shipped_calibration(name)
    families = dict.fromkeys(kernel.family for kernel in found.kernels)
    return {
        "name": name,
        "engine_version": found.engine_version,
        "points": found.points_used,
        "families": ", ".join(families),
        "borrowed": ", ".join(borrowed.family for borrowed in found.borrowed) or None,
        "as_of": str(found.as_of),
    }


def _plain(number: Decimal | None) -> str | None:
    return None if number is None else f"{number:f}"


def _failures(name: str) -> Fields:
    failures = catalog.load_failures(name)
    return {
        "name": name,
        "device_hours_per_failure": str(failures.device_hours_per_failure),
        "mttr_hours": str(failures.mttr_hours),
        "as_of": str(failures.as_of or "undated"),
        "title": failures.title,
    }


_DESCRIBE: dict[str, Callable[[str], Fields]] = {
    "model": _model,
    "accelerator": _accelerator,
    "engine": _engine,
    "workload": _workload,
    "calibration": _calibration,
    "failure": _failures,
}
KINDS_LISTED = (*_DESCRIBE, "price")
