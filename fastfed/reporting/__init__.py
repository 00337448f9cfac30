"""Reports of output folders: tables, plots, claims, certificates, HTML and comparisons."""
