"""Quality of translations and the record of a training run (layer 7)."""
