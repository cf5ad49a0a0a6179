"""What programs that look at pictures share."""
