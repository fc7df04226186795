"""Devices, processes and memory: meshes, several hosts, preemption, child processes.

Knows nothing of text, models or training.
"""
