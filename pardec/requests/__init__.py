"""What a call asks for, checked and laid out for a loop."""
