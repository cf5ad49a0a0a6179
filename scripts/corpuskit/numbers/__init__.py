"""The numbers of the diagnoser: what there are, each of them moved, what is fitted, each group judged without having been fitted on."""
