"""Each paper's pseudocode in plain NumPy, written from the paper alone; imports nothing of ours."""
