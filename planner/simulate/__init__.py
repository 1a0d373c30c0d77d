"""A paged, batched serving engine that replays arrivals: block pool, scheduler, fleet and what they measure."""
