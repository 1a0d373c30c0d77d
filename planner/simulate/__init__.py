"""Real and generated arrivals tried against a model of the engine's scheduler and block pool."""
