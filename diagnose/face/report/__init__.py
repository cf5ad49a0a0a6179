"""One verdict with its evidence as one HTML file, and the sentences in which verdicts are told."""
