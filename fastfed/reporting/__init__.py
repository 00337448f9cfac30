"""Reports of output folders: tables, pictures, claims, certificates, pages and comparisons."""
