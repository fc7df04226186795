"""What the thesis reports of its own runs (section 2.2; Wen et al. 2023, arXiv 2312.01429). Nothing here is ours.

Tables show these numbers beside ours.
"""

from __future__ import annotations

# Section 2.2.3.2: mean attention variation of pairs of networks, by data and network; 40 initialisations, but 30 of the
# minimal first layer on prefixes. Rows that are uniform on the simplex have 2.85 by its count, and 3.33 in Table 2.6.
VARIATION = {
    "complete": {"standard, linear positions": 2.20, "standard, no positions": 2.27, "minimal first layer": 0.24},
    "prefixes": {"standard, linear positions": 11.92, "standard, no positions": 14.51, "minimal first layer": 0.34},
}
INITIALISATIONS = {"complete": 40, "prefixes": 30}
RANDOM_ROWS, RANDOM_ROWS_OF_LAYERS = 2.85, 3.33
# Table 2.6: mean attention variation of each layer, by (k, D, layers). It calls D "m".
LAYERS = {
    (2, 4, 2): (0.047, 7.721),
    (2, 4, 3): (0.070, 5.072, 24.063),
    (2, 8, 2): (0.087, 7.583),
    (2, 8, 3): (0.059, 5.560, 23.590),
    (3, 4, 2): (0.182, 9.313),
    (3, 4, 3): (0.225, 8.426, 25.749),
    (3, 8, 2): (0.178, 7.000),
    (3, 8, 3): (0.154, 6.280, 25.451),
}
# Lower limits that it states: accuracy of trained networks, with uniform attention, and of copying by layers.
ACCURACY = 0.97
UNIFORM_ACCURACY = 0.99
COPYING = {1: 0.90, 4: 0.96}
# The test prefix as printed has depth 5, more than the language's 4; with four round brackets it has 16 tokens.
PRINTED_PREFIX = "[[[[]]]]((((())))"
TEST_PREFIX = "[[[[]]]](((())))"
