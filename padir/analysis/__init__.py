"""What a trained model's inner workings say about its errors: attention where the output stutters (layer 8)."""
