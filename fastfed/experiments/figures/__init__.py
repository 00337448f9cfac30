"""One TOML spec per figure: data, no logic."""
