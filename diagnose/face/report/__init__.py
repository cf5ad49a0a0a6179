"""One verdict with its evidence as one HTML file, and phrases of verdicts that are used elsewhere too."""
