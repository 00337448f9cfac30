"""Running algorithms in environments: the step driver, the compiled driver, and `simulate`."""
