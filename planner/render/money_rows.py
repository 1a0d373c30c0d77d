"""The rows that say what a month's work costs, and how an API compares."""

from planner.render.row import Row

_TIME = ("latency.step.seconds", "latency.tpot_s")
_MONTH = ("cost.monthly_usd", "scenario.requests_per_month", "cost.retried_requests")
_API = ("scenario.api_price", "scenario.requests_per_month", "cost.retried_requests")
_WITHOUT = (
    "binding_limit",
    "scenario.concurrency",
    "scenario.arrivals_per_s",
    "capacity.slots_per_replica",
    "scenario.usd_per_device_hour",
)
_TENANTS = ("isolation.tenants", "capacity.num_blocks", "scenario.requests_per_month", "scenario.concurrency")
_SCOPES = (("shared", "shared"), ("per tenant", "per_tenant"))
_TENANT_ROWS = (
    Row("tenants", "tenants", "isolation.tenants", "count", optional=True),
    Row("tenants", "cache scope", "isolation.cache_scope", "text", optional=True),
    *(
        Row("tenants", f"prefix found, {name}", f"isolation.{path}.hit_rate", "share", _TENANTS, optional=True)
        for name, path in _SCOPES
    ),
    Row(
        "tenants",
        "lost by isolation",
        "isolation.hit_rate_lost",
        "share",
        ("isolation.shared.hit_rate", "isolation.per_tenant.hit_rate"),
        optional=True,
    ),
    *(
        Row(
            "tenants",
            f"active replicas, {name}",
            f"isolation.{path}.active_replicas",
            "count",
            (f"isolation.{path}.hit_rate", f"isolation.{path}.binding_limit", *_TENANTS),
            optional=True,
        )
        for name, path in _SCOPES
    ),
    *(
        Row(
            "tenants",
            f"monthly cost, {name}",
            f"isolation.{path}.monthly_usd",
            "usd",
            (f"isolation.{path}.active_replicas", "scenario.usd_per_device_hour", "cost.other_monthly_usd"),
            optional=True,
        )
        for name, path in _SCOPES
    ),
    Row(
        "tenants",
        "isolation costs a month",
        "isolation.monthly_usd",
        "usd",
        ("isolation.shared.monthly_usd", "isolation.per_tenant.monthly_usd"),
        optional=True,
    ),
    *(
        Row("tenants", f"binds, {name}", f"isolation.{path}.binding_limit", "text", optional=True)
        for name, path in _SCOPES
    ),
    Row("tenants", "in money", "isolation.money", "text", optional=True, alone=True),
)

MONEY_ROWS = (
    Row("cost", "prompts' share of the time", "cost.prefill_share", "share", _TIME, optional=True),
    Row(
        "cost",
        "per 1M input tokens",
        "cost.per_1m_input_tokens_usd",
        "usd",
        (*_MONTH, "cost.prefill_share", "latency.input_tokens"),
        optional=True,
    ),
    Row(
        "cost",
        "per 1M output tokens",
        "cost.per_1m_output_tokens_usd",
        "usd",
        (*_MONTH, "cost.prefill_share", "latency.output_tokens"),
        optional=True,
    ),
    Row(
        "cost",
        "capacity used in the month",
        "cost.month_utilisation",
        "share",
        (
            "scenario.requests_per_month",
            "cost.retried_requests",
            "latency.output_tokens",
            "latency.saturated_tokens_per_s",
            "fleet.billed_devices",
        ),
        optional=True,
    ),
    Row(
        "cost",
        "usage: what that much costs",
        "cost.usage_usd",
        "usd",
        ("cost.monthly_usd", "cost.month_utilisation"),
        optional=True,
    ),
    Row("hosted API", "API price", "scenario.api_price", "text", optional=True, alone=True),
    Row("hosted API", "monthly cost there", "cost.api.monthly_usd", "usd", _API, optional=True),
    Row(
        "hosted API",
        "break-even, requests a month",
        "cost.api.break_even_requests",
        "count",
        ("cost.monthly_usd", "scenario.api_price"),
        optional=True,
    ),
    Row(
        "hosted API",
        "this fleet can do at most",
        "cost.api.most_requests",
        "count",
        ("fleet.active_replicas", "latency.saturated_tokens_per_s"),
        optional=True,
    ),
    Row(
        "prefix",
        "prefill positions saved",
        "prefix.saved_positions_per_month",
        "count",
        ("scenario.requests_per_month",),
        optional=True,
    ),
    Row("prefix", "replicas without it", "prefix.replicas_without", "count", _WITHOUT, optional=True),
    Row(
        "prefix",
        "saved a month",
        "prefix.saved_monthly_usd",
        "usd",
        ("prefix.replicas_without", "fleet.active_replicas", *_WITHOUT),
        optional=True,
    ),
    Row("prefix", "in money", "prefix.money", "text", optional=True, alone=True),
    *_TENANT_ROWS,
)
