"""The jobs that are observed. They know nothing of rankscope."""
