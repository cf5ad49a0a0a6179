"""The lab: real training jobs on namespaces as hosts, real faults with known answers, verdicts compared with the truth."""
