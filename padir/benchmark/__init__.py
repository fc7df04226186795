"""Latency and throughput of systems side by side, and how far from the machine's limits they are (layer 8)."""
