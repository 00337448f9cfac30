"""From an output folder to what people read: tables, the figure, the certificates."""
