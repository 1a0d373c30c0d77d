"""An engine's common case in one loop: the same decisions as its own methods take, with fewer calls.

It holds while every request surely fits (Room.sure_tokens), prompts fit whole into the steps that they start in and
share them with decodes, nothing of them is found in a cache, and steps are scheduled one ahead. Where it does not, the
engine's own methods take over; tests hold both against a naive engine.
"""

from typing import TYPE_CHECKING

from planner.simulate.run import Run

if TYPE_CHECKING:
    from planner.simulate.engine import Engine


def sprint(engine: "Engine", until: float) -> None:
    """Runs steps that are scheduled before a time, as far as the common case holds."""
    growth, waiting, running, gaps = engine.growth, engine.waiting, engine.running, engine.observer.gaps
    mixed, join, counts, per_s = engine.times.mixed, growth.join, gaps.counts, gaps.per_s
    leaving, ends = engine.leaving, growth.ends
    while engine.began < until:
        batch = growth.batch
        seen_s = waiting[0].seen_s if waiting else until
        if seen_s > engine.began:
            if not batch or (waiting and len(running) >= engine.most_running):
                return
            engine.decode(seen_s if seen_s < until else until)
            continue
        started = starting(engine, batch)
        if not started:
            return
        seconds = mixed(batch, batch * growth.clock + growth.offset, [(run.prompt, 0) for run in started])
        engine.began = now = engine.now
        for run in started:
            waiting.popleft()
            running[run] = None
            run.started_s = now
        engine.now = now = now + seconds
        engine.busy_s += seconds
        if leaving:
            engine.let_go()
        if batch:
            counts[int(seconds * per_s)] += batch
            growth.clock += 1
            if ends[0] <= growth.clock:
                engine.finish()
        for run in started:
            run.first_s = now
            run.prefilled = run.prompt
            if steps := run.request.output_tokens - 1:
                join(run, steps)
            else:
                engine.end([run])


def starting(engine: "Engine", batch: int) -> list[Run]:
    """Requests that start in a step with so many decodes; none where the common case does not hold for all of them."""
    room, promised, margin = engine.rules.max_tokens - batch, engine.promised, engine.margin
    began, most = engine.began, engine.most_running - len(engine.running)
    started: list[Run] = []
    for run in engine.waiting:
        if run.seen_s > began or len(started) >= most:
            break
        promised += run.tokens + margin
        room -= run.prompt
        if room < 0 or promised > engine.sure_tokens or run.preemptions:
            return []
        started.append(run)
    engine.promised = promised
    if engine.has_fixed:
        for run in started:
            run.fixed = engine.fixed(run.tokens)
            engine.still += run.fixed
    return started
