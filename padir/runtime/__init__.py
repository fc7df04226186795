"""Devices, processes and memory: device meshes, multi-host jobs, preemption, child processes.

Nothing here depends on text, models or training.
"""
