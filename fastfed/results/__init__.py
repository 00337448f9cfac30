"""What runs leave behind: the store, and the summaries read from it."""
