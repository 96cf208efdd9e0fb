"""Experiments on swarms: simulated crowds, attacks, arms by seeds, and what came of them."""
