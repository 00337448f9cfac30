"""Privacy accounting: what mechanisms cost, exactly or by a proven bound."""
