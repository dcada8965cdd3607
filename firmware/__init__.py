"""What devices boot from: finding, checking and taking apart firmware files."""
