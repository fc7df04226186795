"""Analyses of trained models: how attention differs between positions that stutter and positions that do not.

Reproduces the paper's Tables 4.4 and 4.5 for any trained PaDIR model.
"""
