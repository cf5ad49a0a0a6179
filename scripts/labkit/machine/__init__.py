"""What a lab job runs on: namespaces as hosts, control groups, disks."""
