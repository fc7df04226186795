"""How fast a system is: latency, throughput, and how far both are from the limits of the machine.

Systems take turns in one process, compilation is excluded but counted, and results say where they were measured.
"""
