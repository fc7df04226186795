"""What a trained model's inner workings say about its errors: attention where the output stutters.

Reproduces the paper's Tables 4.4 and 4.5 for any trained PaDIR model.
"""
