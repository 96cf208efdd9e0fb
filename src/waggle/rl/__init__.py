"""Advantages, batches, losses and the optimiser step."""
