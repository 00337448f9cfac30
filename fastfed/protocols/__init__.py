"""Messages, protocols P = (randomizer, shuffler, analyzer), and the plans drivers execute."""
