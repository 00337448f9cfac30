"""Privacy accounting: epsilon and delta of mechanisms, exactly or by a proven upper bound."""
