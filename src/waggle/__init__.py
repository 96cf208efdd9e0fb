"""Waggle: small language models that learn together. They share experience, not weights."""

from importlib.metadata import version

__version__ = version("waggledance")
