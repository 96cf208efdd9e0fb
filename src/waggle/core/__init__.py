"""The nouns, canonical bytes, keys, clock, randomness, errors, events and configuration."""
