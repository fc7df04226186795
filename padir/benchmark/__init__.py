"""How fast a system is: latency, throughput, and how close a request comes to the limits of the machine.

The systems that are compared take turns in one process. Compilation is measured separately. Results record the machine
that they were measured on.
"""
