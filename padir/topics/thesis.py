"""What the thesis reports in section 2.1. Nothing here is measured by padir; it stands beside our numbers."""

from __future__ import annotations

# Table 2.1: mean attention to the same word, another word of the same topic, and a word of a different topic, with
# W^V of about equal blocks. SGD 0.003 failed, and of SGD 0.01 all runs but one.
TABLE_2_1 = {
    "Adam, 0.003": (0.00759, 0.0108, 0.00689),
    "Adam, 0.01": (0.00811, 0.010, 0.00707),
    "Adam, 0.03": (0.00453, 0.0116, 0.00665),
    "SGD, 0.01": (0.0105, 0.0106, 0.00673),
    "SGD, 0.03": (0.0140, 0.0103, 0.00641),
}
# Table 2.2: the same with a W^V that is close to diagonal.
TABLE_2_2 = {
    "Adam, 0.003": (0.0916, 0.00185, 0.00256),
    "Adam, 0.01": (0.0918, 0.00182, 0.00256),
}

# Tables 2.3 and 2.4: same topic / different topic, of cosines, dot products and attention, by model and by the
# threshold of ambiguity 0.0005, 0.001 and 0.002.
THRESHOLDS = (0.0005, 0.001, 0.002)
TABLE_2_3 = {
    "Bert": {"cosine": (1.21, 1.13, 1.11), "dot": (1.19, 1.15, 1.13), "attention": (1.32, 1.28, 1.22)},
    "Albert": {"cosine": (5.64, 4.18, 3.24), "dot": (6.29, 3.74, 2.93), "attention": (1.33, 1.28, 1.22)},
    "Bart": {"cosine": (2.80, 1.95, 1.63), "dot": (2.67, 1.92, 1.62), "attention": (1.35, 1.31, 1.23)},
    "Electra": {"cosine": (5.98, 7.70, 7.46), "dot": (5.37, 7.35, 8.08), "attention": (2.14, 2.09, 1.95)},
    "Roberta": {"cosine": (6.44, 5.73, 5.24), "dot": (6.81, 6.31, 5.30), "attention": (1.40, 1.31, 1.22)},
    "Bert, random": {
        "cosine": (1.00080, 0.99974, 1.00016),
        "dot": (1.00063, 1.00036, 1.00027),
        "attention": (0.99943, 0.99996, 1.00007),
    },
}
TABLE_2_4 = {
    "Bert": {"cosine": (1.14, 0.97, 0.99), "dot": (1.04, 1.05, 0.93), "attention": (1.23, 1.17, 1.13)},
    "Albert": {"cosine": (4.15, 3.09, 1.54), "dot": (3.06, 3.04, 1.44), "attention": (1.23, 1.17, 1.11)},
    "Bart": {"cosine": (2.51, 1.63, 1.06), "dot": (1.76, 1.12, 0.85), "attention": (1.27, 1.20, 1.11)},
    "Electra": {"cosine": (5.28, 5.56, 6.39), "dot": (3.99, 5.57, 5.61), "attention": (1.70, 1.58, 1.48)},
    "Roberta": {"cosine": (4.39, 5.20, 4.71), "dot": (5.01, 4.25, 4.15), "attention": (1.19, 1.15, 1.12)},
    "Bert, random": {
        "cosine": (0.99814, 0.99820, 0.99964),
        "dot": (0.99957, 1.00167, 0.99928),
        "attention": (1.00009, 1.00013, 0.99978),
    },
}
# Table 2.5, BERT: number of pairs; attention and cosine of words of the same topic, and of the pairs that occur
# together most often.
TABLE_2_5 = {
    105: {"attention": (0.00659, 0.00751), "cosine": (0.468, 0.316)},
    435: {"attention": (0.00621, 0.00695), "cosine": (0.461, 0.311)},
    1711: {"attention": (0.00597, 0.00677), "cosine": (0.425, 0.323)},
}
