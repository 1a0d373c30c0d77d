"""Money: exact decimals and fractions inside, cents at the end."""

from decimal import Decimal
from fractions import Fraction
from math import ceil

from planner.inputs import Price
from planner.money_inputs import ApiPrice


def device_month_usd(billed_devices: int, price: Price, hours: Decimal | Fraction) -> Fraction:
    """Dollars a month for the devices billed.

        d / u * p * h

    billed_devices: d [1]
    price: p per unit of u devices [USD/h]
    hours: h, hours of a month in which they are held [h]
    returns: dollars a month [USD]
    source: the price's own source
    """
    return Fraction(billed_devices, price.devices) * Fraction(price.usd_per_hour) * Fraction(hours)


def attempts_per_request(completes: Decimal, retries: Decimal) -> Fraction:
    """Attempts that one submitted request is served as, on average.

        1 + r * (1 - c)

    completes: c, share of the submitted requests that end well [1]
    retries: r, times that each of the others is tried again [1]
    returns: attempts [1]
    assumes: requests that end well do so at the first attempt; a late first token is not retried
    source: definition
    """
    return 1 + Fraction(retries) * (1 - Fraction(completes))


def successful_requests(submitted: int, completes: Decimal, in_time: Decimal) -> Fraction:
    """Requests that end well and begin in time.

        n * c * t

    submitted: n, requests a month [1]
    completes: c, share of them that end well [1]
    in_time: t, share of the first tokens within the limit asked for; 1 where none is [1]
    returns: requests a month [1]
    assumes: the two are independent
    source: goodput (Zhong et al. 2024, DistServe, arXiv:2401.09670)
    """
    return submitted * Fraction(completes) * Fraction(in_time)


def per_thousand_usd(monthly: Fraction, requests: Fraction) -> Fraction:
    """Dollars per 1,000 requests.

        m / r * 1000

    monthly: m, dollars a month [USD]
    requests: r, requests a month [1]
    returns: dollars per 1,000 requests [USD]
    source: definition
    """
    return monthly / requests * 1000


def prefill_share(step_s: Fraction, tpot_s: Fraction) -> Fraction:
    """Share of a busy replica's time that prompts take: what a token takes longer than a decode step alone.

        (t - d) / t

    step_s: d, a decode step [s]
    tpot_s: t, time per output token, prompts of other requests included [s]
    returns: share [1]
    assumes: steady state, in which prompts and answers keep pace
    source: continuous batching (Yu et al. 2022, Orca)
    """
    return (tpot_s - step_s) / tpot_s


def per_million_usd(monthly: Fraction, share: Fraction, tokens: int) -> Fraction:
    """Dollars per million tokens of one kind, which bear the cost in the ratio of the time that they take.

        m * s / n * 1e6

    monthly: m, dollars a month [USD]
    share: s, of the replicas' time, what this kind takes [1]
    tokens: n, of this kind a month [token]
    returns: dollars per million tokens [USD]
    source: definition; input and output tokens together bear the whole cost
    """
    return monthly * share / tokens * 1_000_000


def month_utilisation(output_tokens: int, tokens_per_s: float, replica_hours: Fraction) -> float:
    """Share of the capacity billed in a month that its requests use.

        n / T / (3600 h)

    output_tokens: n, of a month's requests, retries included [token]
    tokens_per_s: T, output tokens per second of one replica with every slot in use, its prompts included [token/s]
    replica_hours: h, hours of a month times replicas that the billed devices could run, spares included [h]
    returns: share; over 1 where the capacity does not suffice [1]
    source: definition
    """
    return output_tokens / tokens_per_s / (3600 * float(replica_hours))


def usage_usd(reservation: Fraction, utilisation: Fraction) -> Fraction:
    """Dollars a month for the capacity that is used.

        m * u

    reservation: m, dollars a month for the capacity that is held [USD]
    utilisation: u, share of it that is used [1]
    returns: dollars a month [USD]
    source: definition; the rest is paid as well, so only the reservation is comparable with other offers
    """
    return reservation * utilisation


def api_request_usd(input_tokens: int, output_tokens: int, price: ApiPrice, attempts: Fraction) -> Fraction:
    """Dollars that a hosted API bills for one submitted request.

        (i * p_i + o * p_o) / 1e6 * a

    input_tokens, output_tokens: i, o, means of one request [token]
    price: p_i, p_o, per million tokens [USD/token]
    attempts: a, of one submitted request [1]
    returns: dollars per request [USD]
    source: the price's own source
    """
    tokens = input_tokens * Fraction(price.usd_per_1m_input_tokens)
    return (tokens + output_tokens * Fraction(price.usd_per_1m_output_tokens)) / 1_000_000 * attempts


def break_even_requests(monthly: Fraction, request: Fraction) -> int:
    """Least requests a month that an API bills no less for than the fleet costs.

        ceil(m / q)

    monthly: m, dollars a month for the fleet, whatever it serves [USD]
    request: q, dollars that the API bills per request [USD]
    returns: requests a month [1]
    source: definition
    """
    return ceil(monthly / request)
