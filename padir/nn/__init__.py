"""The network and its parts: layers, attention, caches, length predictors, and what they cost.

Modules of Flax NNX with T5's conventions; every array has logical axes, which `runtime.sharding` maps to devices.
"""
