"""Results of runs: the store on disk, and the summaries read from it."""
