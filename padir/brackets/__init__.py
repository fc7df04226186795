"""`padir learn dyck`: which Transformers know bounded Dyck languages, and what their attention says about them.

Section 2.2 of the thesis (Wen et al. 2023, arXiv 2312.01429). Weights that are constructed are checked exactly, in
float64; weights that are trained are measured. (`padir.dyck` is chapter 3's experiment, on another distribution.)
"""
