"""Twopath: which path TensorFlow takes on this machine, what it delivers, how runs compare."""

__version__ = "0.1.0"
