"""What the thesis reports of its own, larger experiment (section 3.2.1; Botta et al. 2025, arXiv 2502.12123).

Nothing here is measured by padir. Tables show these numbers beside ours, and claims are about their ratios.
"""

from __future__ import annotations

# The language model, and words that it has seen.
PARAMETERS, WORDS = 15_743_488, 300_000
# p of the prompts out of distribution.
OOD_P = 0.8
# Table 3.1: accuracy on error-inducing prefixes after one forced backtrack of B tokens, nucleus 0.9; 0 is none.
FORCED = {0: 0.331, 1: 0.366, 2: 0.438, 4: 0.591, 8: 0.790}
# Greedy from the same prefixes.
FORCED_GREEDY = 0.334
# Table 3.2: accuracy from the same prefixes with the trained verifier, by (Q, B).
GRID = {
    **{(1, 2): 0.421, (1, 4): 0.500, (1, 6): 0.604},
    **{(2, 2): 0.457, (2, 4): 0.634, (2, 6): 0.762},
    **{(4, 2): 0.518, (4, 4): 0.762, (4, 6): 0.921},
}
# Table 3.4, by (Q, B): backtracks; accuracy of nucleus 0.9 and greedy from where the verifier objected.
OBJECTED = {
    **{(1, 2): (163, 0.313, 0.344), (1, 4): (163, 0.337, 0.319), (1, 6): (163, 0.331, 0.288)},
    **{(2, 2): (311, 0.347, 0.328), (2, 4): (297, 0.357, 0.349), (2, 6): (286, 0.374, 0.373)},
    **{(4, 2): (600, 0.371, 0.353), (4, 4): (532, 0.419, 0.404), (4, 6): (489, 0.509, 0.523)},
}
# Tables 3.3 and 3.16: errors on 10,000 unseen prompts, mean and standard error of 5 runs.
UNSEEN = {
    "baseline, top_p 0.9": (240.0, 5.177),
    "backtracking, top_p 0.9": (179.4, 1.020),
    "backtracking without argmax, top_p 0.9": (245.8, 8.658),
    "baseline, top_p 1.0": (461.8, 8.304),
    "backtracking, top_p 1.0": (200.0, 3.225),
}
UNSEEN_PROMPTS = 10_000
# Table 3.5: distinct completions of 10 draws, mean of 100 prompts and what must be the standard deviation.
DISTINCT = {
    "backtracking, top_p 1.0": (5.52, 3.28),
    "baseline, top_p 0.9": (5.47, 3.06),
    "baseline, top_p 1.0": (5.84, 3.29),
}
# Accuracy of the linear verifier on 90 examples, mean of 10 trainings and, it seems, the standard deviation.
VERIFIER_ACCURACY = (0.93, 0.039)
# Of 225 mistakes that remained under backtracking: of the wrong closing type, premature EOS, with the quota spent.
REMAINING = {"mistakes": 225, "wrong type": 222, "premature EOS": 3, "quota spent": 225}
