"""What the real libraries export, for the tests of the call table."""
