"""One verdict with what it rests on, as one file for a browser; and the sentences in which a verdict is told anywhere."""
